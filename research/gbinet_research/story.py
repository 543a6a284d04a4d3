"""The comparison as a story: all searches at one budget, the ladder from the published design, chance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gbinet.evaluation.depth import THRESHOLDS
from gbinet.evaluation.plots import Curve, plot, ramp
from gbinet.evaluation.scores import markdown_table
from gbinet_research.results import Results
from gbinet_research.tables import NOT_KNOWN, number
from gbinet_research.variants import COMPARISONS, LADDER, MOST_STAGES, VARIANTS, label_of

_SHARES = [f"% < {t:g} mm" for t in THRESHOLDS]
_COSTS = ("training [s]", "its memory [MiB]", "depth map, fp16 [ms]", "its memory [MiB]")


def searches_table(results: Results) -> str:
    rows = [
        [label_of(name), *shares(results, name), *_costs(results, name)]
        for name in _known(results, "searches")
    ]
    return _with_missing(results, "searches", _table(["search", *_SHARES, *_COSTS], rows))


def ladder_table(results: Results) -> str:
    """One lever per row, with all levers above it; what rows that are not there add stands in the next."""
    columns = ["row", "change", *_SHARES, "near edges: % < 1 mm", *_COSTS]
    rows: list[list[str]] = []
    levers: list[str] = []
    for name in LADDER:
        levers.append(VARIANTS[name].label)
        if name in results:
            edge = number(results.edge_band(name, 1.0), 1)
            rows.append([f"`{name}`", " ".join(levers), *shares(results, name), edge, *_costs(results, name)])
            levers = []
    return _with_missing(results, "ladder", _table(columns, rows))


def ladder_valid_table(results: Results) -> str:
    """Per cent of pixels whose true depth is in a bin, now and at all stages before."""
    rows = []
    for name in _searched(results):
        valid = results.valid(name)
        rows.append([f"`{name}`", *(number(valid.get(s), 1) for s in range(1, MOST_STAGES + 1))])
    return markdown_table(["row", *(f"stage {s}" for s in range(1, MOST_STAGES + 1))], rows)


def chance_table(results: Results) -> str:
    """Two seeds of the same design, and how far they are apart; a pair that is not whole is not shown."""
    names = COMPARISONS["chance"]
    rows = []
    for first, second in zip(names[::2], names[1::2], strict=True):
        if first not in results or second not in results:
            continue
        rows += [[label_of(name), *shares(results, name)] for name in (first, second)]
        rows.append(["difference", *(number(chance(results, t, (first, second)), 1) for t in THRESHOLDS)])
    if not rows:
        return "No design has been trained with a second seed at this budget yet."
    return _with_missing(results, "chance", markdown_table(["design", *_SHARES], rows))


def chance(results: Results, threshold: float, names: Sequence[str] = COMPARISONS["chance"]) -> float | None:
    """Largest difference between two seeds of a design, in points; None = no second seed yet."""
    found = []
    for first, second in zip(names[::2], names[1::2], strict=True):
        one, other = (results.percent(name, threshold) for name in (first, second))
        if one is not None and other is not None:
            found.append(abs(one - other))
    return max(found, default=None)


def shares(results: Results, name: str) -> list[str]:
    return [number(results.percent(name, t), 1) for t in THRESHOLDS]


def _costs(results: Results, name: str) -> list[str]:
    """Seconds of training without rendering, as if nobody were beside it; its memory; the same of a map."""
    step = results.cost(name, "training", "milliseconds")
    steps = results.budget["samples"] / results.budget["batch_size"]
    return [
        number(None if step is None else step * steps / 1000, 0),
        number(results.cost(name, "training", "peak_mib"), 0),
        number(results.cost(name, "engine", "milliseconds"), 1),
        number(results.cost(name, "engine", "peak_mib"), 0),
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Without the columns of which nothing is known yet."""
    keep = [k for k in range(len(columns)) if any(row[k] != NOT_KNOWN for row in rows)]
    return markdown_table([columns[k] for k in keep], [[row[k] for k in keep] for row in rows])


def _known(results: Results, comparison: str) -> list[str]:
    return [name for name in COMPARISONS[comparison] if name in results]


def _searched(results: Results) -> list[str]:
    """Rows of the ladder whose search is their own: how it is read out changes no valid pixel."""
    return [name for name in _known(results, "ladder") if not VARIANTS[name].weights_of]


def _with_missing(results: Results, comparison: str, table: str) -> str:
    missing = [f"`{name}`" for name in COMPARISONS[comparison] if name not in results]
    if not missing:
        return table
    return f"{table}\n\nNot yet trained at this budget: {', '.join(missing)}."


# ---- plots -------------------------------------------------------------------------------------------------


def searches_plot(results: Results, path: Path) -> Path | None:
    """Share over threshold. Thresholds double from one to the next, so that they stand side by side."""
    curves = []
    for name in _known(results, "searches"):
        values = [results.percent(name, t) for t in THRESHOLDS]
        curves.append(
            Curve(label_of(name), np.arange(len(values), dtype=float), np.array(values, dtype=float))
        )
    if not curves:
        return None
    return plot(
        path,
        curves,
        title="Pixels within a threshold",
        x_label="mm",
        y_label="% of pixels",
        top=100,
        x_names=[f"{t:g}" for t in THRESHOLDS],
    )


def ladder_plot(results: Results, path: Path) -> Path | None:
    curves = []
    for name in _searched(results):
        valid = {s: v for s, v in results.valid(name).items() if s <= VARIANTS[name].config.stages}
        curves.append(Curve(name, np.array(list(valid), dtype=float), np.array(list(valid.values()))))
    if not curves:
        return None
    lowest = min(float(c.y.min()) for c in curves)
    colours = [ramp(LADDER.index(c.label) / (len(LADDER) - 1)) for c in curves]
    return plot(
        path,
        curves,
        title="Valid pixels by stage",
        x_label="stage",
        y_label="% of pixels",
        bottom=10 * (lowest // 10),
        top=100,
        start=1,
        colours=colours,
    )
