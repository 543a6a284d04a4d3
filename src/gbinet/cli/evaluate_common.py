"""What the verbs of `gbinet evaluate` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from gbinet.cli.say import say, tell

if TYPE_CHECKING:
    from gbinet.evaluation.scores import ScoreSheet


def results(otherwise: str) -> Any:
    """-o, and where results go without it."""
    return tyro.conf.arg(aliases=["-o"], metavar="PATH", help_behavior_hint=f"(default: {otherwise})")


def images_of(images: Path | None, scene: str) -> Path | None:
    """The photos of one of several scenes: a folder named like it inside `images`, or that folder itself."""
    return images / scene if images is not None and (images / scene).is_dir() else images


def finish(out: Path, report: ScoreSheet) -> None:
    from gbinet.evaluation.scores import write_scores
    from gbinet.formats.reading import read_json

    content, markdown = write_scores(out, report)
    for line in [*report.table.markdown().splitlines(), ""]:
        say(line)
    say(f"JSON, table and plots in {markdown.parent}")
    tell(read_json(content))
