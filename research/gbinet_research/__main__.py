"""`python -m gbinet_research`: the comparison of depth searches, each part of it as one command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gbinet.errors import GBiNetError
from gbinet_research.page import fill_docs
from gbinet_research.run import train_together
from gbinet_research.variants import Budget, chosen

Names = Annotated[tuple[str, ...], tyro.conf.Positional]
Folder = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
Settings = Annotated[Budget, tyro.conf.arg(name="")]
DEFAULT = Budget()


def train(
    names: Names, out: Folder, minutes: float = 0.0, work: Path | None = None, budget: Settings = DEFAULT
) -> None:
    """Train variants side by side on the same samples, and score them on the same scenes.

    Args:
        names: Variants or comparisons (ladder, searches, chance, strategies, bins, stages, updates).
        out: Folder of the results: a JSON file and weights per variant. What is finished is kept.
        minutes: Training stops after so many; run it again to go on. 0 = no limit.
        work: Folder of checkpoints; default OUT/work.
    """
    train_together(chosen(names), budget, out, work or out / "work", minutes=minutes, tell=_say)


def cost(names: Names, out: Folder, budget: Settings = DEFAULT) -> None:
    """Measure time and memory of a depth map and of a training step: OUT/costs.json.

    Args:
        names: Variants or comparisons.
        out: Folder of the results. What is measured is kept.
    """
    from gbinet_research.cost import measure_costs

    measure_costs(chosen(names), budget, out, _say)


def cloud(names: Names, out: Folder, budget: Settings = DEFAULT) -> None:
    """Reconstruct and score a few scenes with the trained weights: OUT/clouds.json.

    Args:
        names: Variants or comparisons.
        out: Folder of the results, with the weights. What is scored is kept.
    """
    from gbinet_research.clouds import score_clouds

    score_clouds(chosen(names), budget, out, _say)


def docs(out: Folder = Path("research/results"), page: Path = Path("docs/benchmarks/paper.md")) -> None:
    """Fill the marked parts of a page with the results of a folder.

    Args:
        out: Folder of the results.
        page: Markdown with <!-- results: NAME --> ... <!-- end -->; plots go to pictures/ beside it.
    """
    for line in fill_docs(out, page):
        _say(line)


def _say(text: str) -> None:
    print(text, flush=True)


VERBS: dict[str, Callable[..., None]] = {"train": train, "cost": cost, "cloud": cloud, "docs": docs}


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        tyro.extras.subcommand_cli_from_dict(VERBS, args=arguments, prog="python -m gbinet_research")
    except GBiNetError as error:
        print(f"gbinet_research: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
