"""`python -m gbinet.comparisons`: as `gbinet compare`, but it needs neither tyro nor rich."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from gbinet.comparisons.compare import PARTS, compare
from gbinet.comparisons.page import fill_docs
from gbinet.comparisons.variants import COMPARISONS, VARIANTS, Budget
from gbinet.errors import GBiNetError
from gbinet.training.__main__ import argument


def parser() -> argparse.ArgumentParser:
    """Flags derived from the fields of Budget."""
    result = argparse.ArgumentParser(prog="python -m gbinet.comparisons", description=__doc__)
    result.add_argument("comparison", choices=[*COMPARISONS, "docs"])
    result.add_argument("--out", type=Path, required=True, help="folder of the results")
    result.add_argument("--work", type=Path, help="folder of checkpoints and scenes; default OUT/work")
    result.add_argument("--variants", nargs="*", default=(), choices=VARIANTS, help="only some of them")
    result.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS, help="only some of the work")
    result.add_argument("--minutes", type=float, default=0.0, help="stop training in time; 0 = no limit")
    result.add_argument("--docs", type=Path, help="page to fill in, for 'docs'")
    hints = get_type_hints(Budget)
    for field in fields(Budget):
        kind: dict[str, Any] = argument(hints[field.name])
        if get_origin(hints[field.name]) is tuple:
            kind["nargs"] = 2
        result.add_argument("--" + field.name.replace("_", "-"), default=field.default, **kind)
    return result


def main(argv: list[str] | None = None) -> int:
    given = vars(parser().parse_args(argv))
    comparison, out, docs = given.pop("comparison"), given.pop("out"), given.pop("docs")
    how: dict[str, Any] = {name: given.pop(name) for name in ("work", "minutes")}
    how |= {name: tuple(given.pop(name)) for name in ("variants", "parts")}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    try:
        if comparison == "docs":
            pages = [fill_docs(out, docs or Path("docs/results.md"))]
        else:
            pages = compare(comparison, out, Budget(**values), **how, tell=_say)
    except GBiNetError as error:
        print(f"gbinet comparisons: {error}", file=sys.stderr)
        return 2
    for page in pages:
        print(page)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
