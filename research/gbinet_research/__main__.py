"""`python -m gbinet_research`: the paper's comparisons, each as one command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gbinet.errors import GBiNetError
from gbinet_research.compare import PARTS, Part, compare
from gbinet_research.page import fill_docs
from gbinet_research.variants import COMPARISONS, Budget

Settings = Annotated[Budget, tyro.conf.arg(name="")]
DEFAULT = Budget()


def _verb(comparison: str) -> Callable[..., None]:
    def run(
        out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
        variants: tuple[str, ...] = (),
        parts: tuple[Part, ...] = PARTS,
        minutes: float = 0.0,
        work: Path | None = None,
        budget: Settings = DEFAULT,
    ) -> None:
        pages = compare(
            comparison, out, budget, work=work, variants=variants, parts=parts, minutes=minutes, tell=_say
        )
        for page in pages:
            print(f"table and plots: {page}")

    names = ", ".join(COMPARISONS[comparison])
    run.__doc__ = f"""Train {names} with one budget, score and measure them.

    Args:
        out: Folder of the results: a JSON file and weights per variant, tables, plots. Finished work is kept.
        variants: Only some of them, to share the work among several commands.
        parts: Only some of the work.
        minutes: Training stops in time for this; run it again to continue. 0 = no limit.
        work: Folder of checkpoints and scenes; default OUT/work.
    """
    return run


def docs(
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])], page: Path = Path("docs/benchmarks/paper.md")
) -> None:
    """Fill the marked parts of a page with the results of a folder.

    Args:
        out: Folder of the results.
        page: Markdown with <!-- results: NAME --> ... <!-- end -->; plots go to pictures/ beside it.
    """
    print(f"filled in: {fill_docs(out, page)}")


def _say(text: str) -> None:
    print(text, flush=True)


run = {**{comparison: _verb(comparison) for comparison in COMPARISONS}, "docs": docs}


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        tyro.extras.subcommand_cli_from_dict(run, args=arguments, prog="python -m gbinet_research")
    except GBiNetError as error:
        print(f"gbinet_research: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
