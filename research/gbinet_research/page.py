"""Results as pages: a Markdown file per comparison, and docs/benchmarks/paper.md with its parts filled in."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from gbinet.errors import FormatError, InputError
from gbinet.evaluation.scores import in_words, makers
from gbinet.formats.atomic import atomic_path
from gbinet_research import tables
from gbinet_research.tables import Results
from gbinet_research.variants import COMPARISONS, VARIANTS

TABLES: dict[str, tuple[Callable[[Results], str], ...]] = {
    "strategies": (tables.strategies_table,),
    "bins": (tables.bins_table, tables.bins_stages_table, tables.readouts_table),
    "stages": (tables.stages_table,),
    "updates": (tables.updates_table,),
}
PICTURES = {
    "strategies": (),
    "bins": ("bins-valid", "bins-within"),
    "stages": ("stages-depth", "stages-cloud"),
    "updates": (),
}
TITLES = {
    "strategies": "Search strategies (the paper's table 4)",
    "bins": "Tolerance bins (the paper's table 5, figures 5 c and d)",
    "stages": "Stages (the paper's figures 5 a and b)",
    "updates": "Gradient updating (the paper's table 6)",
}
_BLOCK = re.compile(r"(<!-- results: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write_pages(out: Path) -> list[Path]:
    """`<comparison>.md` with its plots, for every comparison that has a result; in the folder of results."""
    results = Results.read(out)
    pictures = tables.plots(results, out)
    written = []
    for name in TABLES:
        if not any(variant in results.variants for variant in COMPARISONS[name]):
            continue
        made = _made(results, COMPARISONS[name])
        text = f"# {TITLES[name]}\n\n{made}\n\n{_part(name, results, pictures, out)}\n"
        written.append(_write(out / f"{name}.md", text))
    return written


def fill_docs(out: Path, docs: Path) -> Path:
    """Replace what stands between `<!-- results: NAME -->` and `<!-- end -->`; plots go to pictures/.

    NAME is a comparison, `budget` or `order`. All other text stays.
    """
    results = Results.read(out)
    if not results.variants:
        raise InputError(f"{out} holds no result of a comparison; where are they? docs/ stays as it is")
    pictures = tables.plots(results, docs.parent / "pictures", "results-")
    text = docs.read_text(encoding="utf-8")
    found = [match[2] for match in _BLOCK.finditer(text)]
    known = {*TABLES, "budget", "order"}
    if not found or (unknown := sorted(set(found) - known)):
        reason = f"unknown marks {unknown}" if found else "no marks <!-- results: NAME -->"
        raise FormatError(docs, f"cannot be filled: {reason}; NAME is one of {', '.join(sorted(known))}")

    def part(match: re.Match[str]) -> str:
        name = match[2]
        if name == "budget":
            inner = _made(results, tuple(VARIANTS))
        elif name == "order":
            inner = order(results)
        else:
            inner = _part(name, results, pictures, docs.parent)
        return f"{match[1]}{inner}\n{match[3]}"

    return _write(docs, _BLOCK.sub(part, text))


def _part(name: str, results: Results, pictures: dict[str, Path], root: Path) -> str:
    parts = [make(results) for make in TABLES[name]]
    shown = [f"![{p}]({pictures[p].relative_to(root).as_posix()})" for p in PICTURES[name] if p in pictures]
    return "\n\n".join([*parts, *([" ".join(shown)] if shown else [])])


def _made(results: Results, names: tuple[str, ...]) -> str:
    """Budget, device, weights and commits behind the figures."""
    found = {name: results.variants[name] for name in names if name in results.variants}
    if not found:
        return "Nothing has been measured yet."
    lines = []
    budgets: list[Any] = []
    for content in found.values():
        if content["budget"] not in budgets:
            budgets.append(content["budget"])
    for budget in budgets:
        kind = f"{budget['source']} scenes" + (" with assets" if budget["assets"] else "")
        lines.append(
            f"Every variant: {budget['samples']:,} samples of {kind}, {budget['width']}x{budget['height']}, "
            f"{budget['views']} views, batch {budget['batch_size']}, {budget['precision']}, learning rate "
            f"{budget['learning_rate']:g}; scored on {budget['validation_scenes']} held-back samples of "
            f"{budget['validation_size'][0]}x{budget['validation_size'][1]} px."
        )
    for name, content in found.items():
        trained = content["trained"]
        note = "" if content["finished"] else f", **stopped early after {trained['samples']:,} samples**"
        (made_by,) = makers(content)
        lines.append(
            f"- `{name}`: {trained['steps']:,} steps in {trained['seconds']:.0f} s on {content['device']}"
            f"{note}; {in_words(made_by)}"
        )
    return "\n".join([lines[0], "", *lines[1:]]) if len(budgets) == 1 else "\n".join(lines)


# Who is ahead of whom in the paper. All of its networks are updated per stage; ours only where it says so.
AHEAD = (
    ("gbinet", "binet"),
    ("gbinet", "dense-linear"),
    ("gbinet", "coarse-to-fine"),
    ("gbinet-per-stage", "dense-linear"),
    ("gbinet-per-stage", "coarse-to-fine"),
)


def order(results: Results) -> str:
    """Whether the order of the paper's results shows in ours, figure by figure."""
    lines = []

    def compare(claim: str, larger: float | None, smaller: float | None, unit: str) -> None:
        if larger is None or smaller is None:
            lines.append(f"- {claim}: not measured yet")
        else:
            answer = "shows" if larger > smaller else "does **not** show"
            lines.append(f"- {claim}: {answer} ({larger:,.1f} against {smaller:,.1f} {unit})")

    def share(name: str, threshold: float) -> float | None:
        within = results.within(name).get(str(threshold))
        return None if within is None else 100 * within

    for threshold in (0.5, 1.0):
        for ahead, behind in AHEAD:
            words = "GBi-Net" if ahead == "gbinet" else "GBi-Net, updated per stage as in the paper,"
            compare(
                f"{words} ahead of {VARIANTS[behind].label} within {threshold:g} mm",
                share(ahead, threshold),
                share(behind, threshold),
                "% of pixels",
            )
    names = ("dense-linear", "coarse-to-fine", "gbinet")
    for part, words in (("network", ""), ("engine", ", as `gbinet depth` runs it")):
        for more, less in pairwise(names):
            labels = [VARIANTS[n].label for n in (more, less)]
            compare(
                f"a depth map takes more memory by {labels[0]} than by {labels[1]}{words}",
                results.memory(more, part),
                results.memory(less, part),
                "MiB",
            )
    compare(
        "accumulate takes more training memory than per-stage",
        results.memory("gbinet-accumulate", "training"),
        results.memory("gbinet-per-stage", "training"),
        "MiB",
    )
    return "\n".join(lines)


def _write(path: Path, text: str) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
