"""The paper's own tables and figures, from results: JSON in, Markdown and pictures out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gbinet.evaluation.plots import Curve, plot
from gbinet.evaluation.scores import markdown_table
from gbinet_research import paper
from gbinet_research.paper import THRESHOLDS, Published
from gbinet_research.results import Results
from gbinet_research.variants import COMPARISONS, MOST_STAGES, VARIANTS, label_of

NOT_KNOWN = "-"


# ---- tables: ours, and the paper's in italics beside it ----------------------------------------------------


def strategies_table(results: Results) -> str:
    """The paper's table 4."""
    columns = ["search", *_share_columns(), *_cloud_columns(), *_pair("memory [MiB]"), "time [ms]"]
    columns += ["memory, fp16 [MiB]", "time, fp16 [ms]"]
    rows = []
    for name in COMPARISONS["strategies"]:
        published = paper.STRATEGIES.get(name, Published())
        # How it was trained does not change what a depth map costs.
        rows.append(
            [
                label_of(name),
                *_shares(results, name, published),
                *_cloud(results.cloud(name), published),
                *_beside(results.cost(name, "network", "peak_mib"), published.memory, 0),
                number(results.cost(name, "network", "milliseconds"), 0),
                number(results.cost(name, "engine", "peak_mib"), 0),
                number(results.cost(name, "engine", "milliseconds"), 1),
            ]
        )
    return markdown_table(columns, rows)


def bins_table(results: Results) -> str:
    """The paper's table 5."""
    columns = ["tolerance bins", *_share_columns(), *_pair("overall [mm]"), *_pair("memory [MiB]")]
    rows = []
    for count, name in enumerate(COMPARISONS["bins"]):
        published = paper.BINS[name]
        rows.append(
            [
                f"{count} ({label_of(name).split(',')[0]})",
                *_shares(results, name, published),
                *_beside(results.cloud(name).get("overall"), published.overall, 3),
                *_beside(results.cost(name, "network", "peak_mib"), published.memory, 0),
            ]
        )
    return markdown_table(columns, rows)


def updates_table(results: Results) -> str:
    """The paper's table 6; our third mode has no counterpart there."""
    columns = ["update", *_share_columns(), *_cloud_columns(), *_pair("training memory [MiB]"), "ms per step"]
    rows = []
    for name in COMPARISONS["updates"]:
        published = paper.UPDATES.get(name, Published())
        rows.append(
            [
                str(VARIANTS[name].changes["update"]),
                *_shares(results, name, published),
                *_cloud(results.cloud(name), published),
                *_beside(results.cost(name, "training", "peak_mib"), published.memory, 0),
                number(results.cost(name, "training", "milliseconds"), 0),
            ]
        )
    return markdown_table(columns, rows)


def stages_table(results: Results) -> str:
    """The figures behind the paper's figures 5 a and b."""
    columns = ["stages", *_share_columns(), *_cloud_columns()]
    rows = []
    for stage, published in paper.STAGES.items():
        shares = _shares(results, "gbinet", published, stage)
        rows.append([str(stage), *shares, *_cloud(results.cloud("gbinet", stage), published)])
    return markdown_table(columns, rows)


def bins_stages_table(results: Results) -> str:
    """The figures behind the paper's figures 5 c and d, for which it gives curves only."""
    columns = ["stage"]
    columns += [f"% {what}, {count} bins" for what in ("valid", "< 1 mm") for count in range(3)]
    rows = []
    for stage in range(1, MOST_STAGES + 1):
        valid = [results.valid(name).get(stage) for name in COMPARISONS["bins"]]
        near = [results.percent(name, 1.0, stage) for name in COMPARISONS["bins"]]
        rows.append([str(stage), *(number(v, 1) for v in (*valid, *near))])
    return markdown_table(columns, rows)


def readouts_table(results: Results) -> str:
    """What the continuous read-out adds to the paper's centre of the bin."""
    columns = ["network, stage 8", *(f"% < {t:g} mm" for t in THRESHOLDS)]
    rows = []
    for name in COMPARISONS["bins"]:
        for readout, words in (("centre", "centre of the bin"), ("expectation", "continuous")):
            shares = [number(results.percent(name, t, 8, readout), 1) for t in THRESHOLDS]
            rows.append([f"{label_of(name)}, {words}", *shares])
    return markdown_table(columns, rows)


def number(value: float | None, digits: int) -> str:
    return NOT_KNOWN if value is None else f"{value:.{digits}f}"


def _share_columns() -> list[str]:
    return [column for t in THRESHOLDS for column in _pair(f"% < {t:g} mm")]


def _cloud_columns() -> list[str]:
    return [c for name in ("acc.", "comp.", "overall") for c in _pair(f"{name} [mm]")]


def _pair(name: str) -> tuple[str, str]:
    return name, "*paper*"


def _shares(results: Results, name: str, published: Published, stage: int | None = None) -> list[str]:
    cells = []
    for index, threshold in enumerate(THRESHOLDS):
        theirs = published.within[index] if published.within else None
        cells += _beside(results.percent(name, threshold, stage), theirs, 1)
    return cells


def _cloud(score: Mapping[str, float | None], published: Published) -> list[str]:
    names = ("accuracy", "completeness", "overall")
    return [cell for name in names for cell in _beside(score.get(name), getattr(published, name), 3)]


def _beside(ours: float | None, theirs: float | None, digits: int) -> list[str]:
    return [number(ours, digits), NOT_KNOWN if theirs is None else f"*{theirs:.{digits}f}*"]


# ---- plots: the paper's figures 5 a to d -------------------------------------------------------------------

Drawing = Callable[[Results, Path], Path | None]  # None: the figures for it are not there


def stages_depth_plot(results: Results, path: Path) -> Path | None:
    curves = [
        curve(f"< {t:g} mm", {s: results.percent("gbinet", t, s) for s in range(1, MOST_STAGES + 1)})
        for t in sorted(THRESHOLDS, reverse=True)
    ]
    return by_stage(path, curves, "GBi-Net: depth maps by stage", "% of pixels")


def stages_cloud_plot(results: Results, path: Path) -> Path | None:
    stages = paper.STAGES
    measures = ("accuracy", "completeness", "overall")
    curves = [curve(m, {s: results.cloud("gbinet", s).get(m) for s in stages}) for m in measures]
    return by_stage(path, curves, "GBi-Net: clouds by stage", "mm, lower is better", start=min(stages))


def bins_valid_plot(results: Results, path: Path) -> Path | None:
    curves = [curve(label, results.valid(name)) for label, name in _BINS.items()]
    return by_stage(path, curves, "Valid pixels by stage", "% of pixels", top=100)


def bins_within_plot(results: Results, path: Path) -> Path | None:
    curves = [
        curve(label, {s: results.percent(name, 1.0, s) for s in range(1, MOST_STAGES + 1)})
        for label, name in _BINS.items()
    ]
    return by_stage(path, curves, "Pixels within 1 mm by stage", "% of pixels")


_BINS = {f"{count} tolerance bins": name for count, name in enumerate(COMPARISONS["bins"])}


def curve(label: str, values: Mapping[int, float | None]) -> Curve:
    """What is known of it, by stage."""
    known = {x: y for x, y in sorted(values.items()) if y is not None}
    return Curve(label, np.array(list(known), dtype=float), np.array(list(known.values()), dtype=float))


def by_stage(
    path: Path,
    curves: Sequence[Curve],
    title: str,
    y_label: str,
    *,
    top: float | None = None,
    start: float = 1,
) -> Path | None:
    shown = [c for c in curves if len(c.x)]
    if not shown:
        return None
    return plot(path, shown, title=title, x_label="stage", y_label=y_label, top=top, start=start)
