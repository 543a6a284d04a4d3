"""docs/benchmarks/paper.md with its parts filled in from results."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gbinet.errors import FormatError, InputError
from gbinet.evaluation.scores import describe_maker, makers
from gbinet.formats.atomic import write_text
from gbinet_research import claims, story, tables
from gbinet_research.results import Results
from gbinet_research.variants import COMPARISONS


@dataclass(frozen=True)
class Part:
    """What stands between <!-- results: NAME --> and <!-- end -->."""

    texts: tuple[Callable[[Results], str], ...]
    pictures: tuple[tuple[str, tables.Drawing], ...] = ()
    needs: tuple[str, ...] = ()  # rows without which the part stays as it is


_BLOCK = re.compile(r"(<!-- results: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def budget(results: Results) -> str:
    """What every row had, and the machine, weights and commit behind it."""
    given = results.budget
    kind = f"{given['source']} scenes" + (" with assets" if given["assets"] else "")
    if share := given.get("life"):
        kind += f" ({100 * share:g} % with the difficulties of real photos)"
    lines = [
        f"Every row: {given['samples']:,} samples of {kind}, {given['width']}x{given['height']}, "
        f"{given['views']} views, batch {given['batch_size']}, {given['precision']}, learning rate "
        f"{given['learning_rate']:g}; scored on {given['validation_scenes']} held-out samples of "
        f"{given['validation_size'][0]}x{given['validation_size'][1]} px.",
        "",
    ]
    for name, content in results.variants.items():
        trained = content["trained"]
        others = [other for other in trained.get("side_by_side", ()) if other != name]
        beside = f", side by side with {_counted(others)}" if others else ""
        (made_by,) = makers(content)
        lines.append(
            f"- `{name}`: {trained['steps']:,} steps in {trained['seconds']:.0f} s on "
            f"{content['device']}{beside}; {describe_maker(made_by)}"
        )
    return "\n".join(lines)


def _counted(names: list[str]) -> str:
    return f"`{names[0]}`" if len(names) == 1 else f"{len(names)} others"


PARTS: dict[str, Part] = {
    "budget": Part((budget,)),
    "searches": Part((story.searches_table,), (("searches", story.searches_plot),)),
    "ladder": Part((story.ladder_table, story.ladder_valid_table), (("ladder-valid", story.ladder_plot),)),
    "chance": Part((story.chance_table,)),
    "claims": Part((claims.claims,)),
    "beyond": Part((claims.beyond,)),
    # The paper's own tables, which are of use only when they are whole.
    "strategies": Part((tables.strategies_table,), needs=COMPARISONS["strategies"]),
    "bins": Part(
        (tables.bins_table, tables.bins_stages_table, tables.readouts_table),
        (("bins-valid", tables.bins_valid_plot), ("bins-within", tables.bins_within_plot)),
        COMPARISONS["bins"],
    ),
    "stages": Part(
        (tables.stages_table,),
        (("stages-depth", tables.stages_depth_plot), ("stages-cloud", tables.stages_cloud_plot)),
        COMPARISONS["stages"],
    ),
    # Accumulate has shared-encoder's gradient: what is measured of it is what a step costs.
    "updates": Part((tables.updates_table,), needs=("gbinet-per-stage", "gbinet")),
}


def fill_docs(out: Path, page: Path) -> list[str]:
    """Replace what stands between `<!-- results: NAME -->` and `<!-- end -->`; plots go to pictures/.

    All other text stays, and so does a part whose rows are not all there. Returns what was done, in words.
    """
    results = Results.read(out)
    if not results.variants:
        raise InputError(f"{out} holds no result of a comparison; where are they? {page} stays as it is")
    text = page.read_text(encoding="utf-8")
    found = [match[2] for match in _BLOCK.finditer(text)]
    if not found or (unknown := sorted(set(found) - set(PARTS))):
        reason = f"unknown marks {unknown}" if found else "no marks <!-- results: NAME -->"
        raise FormatError(page, f"cannot be filled: {reason}; NAME is one of {', '.join(PARTS)}")
    told = []

    def filled(match: re.Match[str]) -> str:
        name, part = match[2], PARTS[match[2]]
        if missing := [n for n in part.needs if n not in results]:
            told.append(f"{name}: stays as it is, because these are not trained yet: {', '.join(missing)}")
            return match[0]
        told.append(f"{name}: filled in")
        return f"{match[1]}{_part(part, results, page.parent)}\n{match[3]}"

    write_text(page, _BLOCK.sub(filled, text))
    return [*told, f"page: {page}"]


def _part(part: Part, results: Results, root: Path) -> str:
    texts = [make(results) for make in part.texts]
    drawn = [(name, draw(results, root / "pictures" / f"results-{name}.png")) for name, draw in part.pictures]
    shown = [f"![{name}]({path.relative_to(root).as_posix()})" for name, path in drawn if path is not None]
    return "\n\n".join([*texts, *([" ".join(shown)] if shown else [])])
