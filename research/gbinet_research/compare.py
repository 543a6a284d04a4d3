"""A whole comparison, or the parts of it that a command asks for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal, get_args

from gbinet.errors import InputError
from gbinet_research.run import Tell, run_variant
from gbinet_research.variants import COMPARISONS, Budget

Part = Literal["train", "cost", "cloud", "pages"]
PARTS: tuple[Part, ...] = get_args(Part)


def compare(
    comparison: str,
    out: Path,
    budget: Budget,
    *,
    work: Path | None = None,
    variants: tuple[str, ...] = (),
    parts: tuple[Part, ...] = PARTS,
    minutes: float = 0.0,
    tell: Tell,
) -> list[Path]:
    """Train and score the variants, measure what they cost, reconstruct clouds; write tables. Returns these.

    Finished parts are kept, so that a command that was stopped is started again, and several commands may
    share the work: `variants` names some of the comparison's. `work` (default: OUT/work) holds checkpoints
    and scenes; it can be deleted when all is finished. With `minutes`, training stops in time.
    """
    if comparison not in COMPARISONS:
        raise InputError(f"there is no comparison '{comparison}'; choose from {', '.join(COMPARISONS)}")
    names = COMPARISONS[comparison]
    if unknown := sorted(set(variants) - set(names)):
        raise InputError(f"'{comparison}' has no variants {', '.join(unknown)}; it has {', '.join(names)}")
    names = variants or names
    work = work or out / "work"
    began = time.monotonic()
    if "cost" in parts:
        from gbinet_research.cost import measure_costs

        measure_costs(names, budget, out, tell)
    if "train" in parts:
        for name in names:
            left = minutes - (time.monotonic() - began) / 60
            if minutes and left <= 0:
                tell(f"no time left for {name}; start the command again")
                continue
            run_variant(name, budget, out, work, minutes=left if minutes else 0.0, tell=tell)
    if "cloud" in parts and budget.cloud_scenes:
        from gbinet_research.clouds import score_clouds

        score_clouds(names, budget, out, work, tell)
    if "pages" not in parts:
        return []
    from gbinet_research.page import write_pages

    return write_pages(out)
