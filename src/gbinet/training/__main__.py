"""`python -m gbinet.training`: as `gbinet train`, with nothing but torch, numpy, pillow and safetensors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gbinet.errors import GBiNetError
from gbinet.training.checkpoint import resumed_config
from gbinet.training.config import PRESETS, TrainConfig, field_help, preset
from gbinet.training.progress import line
from gbinet.training.trainer import Report, train


def parser() -> argparse.ArgumentParser:
    """Flags derived from the fields of TrainConfig; what is not given keeps the preset's value."""
    result = argparse.ArgumentParser(prog="python -m gbinet.training", description=__doc__)
    result.add_argument("--preset", choices=sorted(PRESETS), default="rendered", help="where to start from")
    result.add_argument("--out", type=Path, required=True, help="folder of the run")
    result.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest checkpoint in --out, with the options it was started with",
    )
    hints, explained = get_type_hints(TrainConfig), field_help()
    for field in fields(TrainConfig):
        flag = "--" + field.name.replace("_", "-")
        text = explained[field.name].replace("%", "%%")
        result.add_argument(flag, default=None, help=text, **argument(hints[field.name]))
    return result


def argument(kind: Any) -> dict[str, Any]:
    """How argparse reads a value of a field's type."""
    if kind is bool:
        return {"type": _boolean, "metavar": "{True,False}"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is tuple:
        return {"type": get_args(kind)[0], "nargs": "*"}
    plain: Callable[[str], object] = Path if Path in get_args(kind) else kind
    return {"type": plain}


def _boolean(text: str) -> bool:
    if text not in ("True", "False"):
        raise argparse.ArgumentTypeError(f"'{text}' is neither True nor False")
    return text == "True"


def main(argv: list[str] | None = None) -> int:
    given = vars(parser().parse_args(argv))
    name, out, resume = given.pop("preset"), given.pop("out"), given.pop("resume")
    changes = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    try:
        config = resumed_config(out, changes) if resume else preset(name, **changes)
        result = train(config, out, resume=resume, report=_print)
    except GBiNetError as error:
        print(f"gbinet training: {error}", file=sys.stderr)
        return 2
    state = "finished" if result.finished else "stopped; --resume goes on"
    print(f"{state} after {result.progress.step} steps: weights in {out / 'last.safetensors'}")
    return 0


def _print(report: Report) -> None:
    print(line(report), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
