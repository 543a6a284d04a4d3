"""Tables and plots from the results of variants: JSON in, Markdown and pictures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gbinet.evaluation.plots import Curve, plot
from gbinet.evaluation.scores import markdown_table
from gbinet_research import clouds, cost, paper
from gbinet_research.paper import THRESHOLDS, Published
from gbinet_research.run import read_result, result_path
from gbinet_research.variants import COMPARISONS, MOST_STAGES, VARIANTS

NOT_YET = "-"
Within = Mapping[str, float]


@dataclass(frozen=True)
class Results:
    """Everything that is in a folder of results."""

    variants: dict[str, dict[str, Any]]
    costs: dict[str, Any]
    clouds: dict[str, Any]

    @staticmethod
    def read(out: Path) -> Results:
        found = {name: read_result(result_path(out, name)) for name in VARIANTS}
        return Results(
            {name: content for name, content in found.items() if content is not None},
            read_result(out / cost.FILE) or {},
            read_result(out / clouds.FILE) or {},
        )

    def within(self, name: str, stage: int | None = None, readout: str = "centres") -> Within:
        """Share of pixels by threshold after a stage (None: the one that it was trained for)."""
        content = self.variants.get(name)
        if content is None:
            return {}
        errors = content["validation"][readout].get(str(stage or content["stages"]))
        return errors["within"] if errors else {}

    def valid(self, name: str, stage: int) -> float | None:
        """Share in per cent of pixels whose true depth is still in a bin."""
        share = self.variants.get(name, {}).get("validation", {}).get("valid_share", {}).get(str(stage))
        return None if share is None else 100 * share

    def memory(self, name: str, part: str) -> float | None:
        return self._cost(name, part, "peak_mib")

    def milliseconds(self, name: str, part: str) -> float | None:
        return self._cost(name, part, "milliseconds")

    def _cost(self, name: str, part: str, figure: str) -> float | None:
        value = self.costs.get(name, {}).get(part, {}).get(figure)
        return float(value) if value is not None else None

    def cloud(self, name: str, stage: int | None = None) -> Mapping[str, float | None]:
        stages = self.clouds.get(name, {}).get("stages", {})
        content = self.variants.get(name, {})
        found = stages.get(str(stage or content.get("stages")), {})
        return found if isinstance(found, dict) else {}


# ---- tables: ours, and the paper's in italics beside it ----------------------------------------------------


def strategies_table(results: Results) -> str:
    """The paper's table 4."""
    columns = ["search", *_share_columns(), *_cloud_columns(), *_pair("memory [MiB]"), "time [ms]"]
    columns += ["memory, fp16 [MiB]", "time, fp16 [ms]"]
    rows = []
    for name in COMPARISONS["strategies"]:
        published = paper.STRATEGIES[name]
        rows.append(
            [
                VARIANTS[name].label,
                *_shares(results.within(name), published),
                *_cloud(results.cloud(name), published),
                *_beside(results.memory(name, "network"), published.memory, 0),
                _number(results.milliseconds(name, "network"), 0),
                _number(results.memory(name, "engine"), 0),
                _number(results.milliseconds(name, "engine"), 1),
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
                f"{count} ({VARIANTS[name].label.split(',')[0]})",
                *_shares(results.within(name), published),
                *_beside(results.cloud(name).get("overall"), published.overall, 3),
                *_beside(results.memory(name, "network"), published.memory, 0),
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
                str(VARIANTS[name].changes.get("update", "shared-encoder")),
                *_shares(results.within(name), published),
                *_cloud(results.cloud(name), published),
                *_beside(results.memory(name, "training"), published.memory, 0),
                _number(results.milliseconds(name, "training"), 0),
            ]
        )
    return markdown_table(columns, rows)


def stages_table(results: Results) -> str:
    """The figures behind the paper's figures 5 a and b."""
    columns = ["stages", *_share_columns(), *_cloud_columns()]
    rows = []
    for stage, published in paper.STAGES.items():
        shares = _shares(results.within("gbinet", stage), published)
        rows.append([str(stage), *shares, *_cloud(results.cloud("gbinet", stage), published)])
    return markdown_table(columns, rows)


def bins_stages_table(results: Results) -> str:
    """The figures behind the paper's figures 5 c and d, for which it gives curves only."""
    columns = ["stage"]
    columns += [f"% {what}, {count} bins" for what in ("valid", "< 1 mm") for count in range(3)]
    rows = []
    for stage in range(1, MOST_STAGES + 1):
        valid = [results.valid(name, stage) for name in COMPARISONS["bins"]]
        near = [_percent(results.within(name, stage), 1.0) for name in COMPARISONS["bins"]]
        rows.append([str(stage), *(_number(v, 1) for v in (*valid, *near))])
    return markdown_table(columns, rows)


def readouts_table(results: Results) -> str:
    """What the continuous read-out adds to the paper's centre of the bin."""
    columns = ["network, stage 8", *(f"% < {t:g} mm" for t in THRESHOLDS)]
    rows = []
    for name in COMPARISONS["bins"]:
        for readout, words in (("centres", "centre of the bin"), ("expectations", "continuous")):
            within = results.within(name, 8, readout)
            shares = [_number(_percent(within, t), 1) for t in THRESHOLDS]
            rows.append([f"{VARIANTS[name].label}, {words}", *shares])
    return markdown_table(columns, rows)


def _share_columns() -> list[str]:
    return [column for t in THRESHOLDS for column in _pair(f"% < {t:g} mm")]


def _cloud_columns() -> list[str]:
    return [c for name in ("acc.", "comp.", "overall") for c in _pair(f"{name} [mm]")]


def _pair(name: str) -> tuple[str, str]:
    return name, "*paper*"


def _shares(within: Within, published: Published) -> list[str]:
    cells = []
    for index, threshold in enumerate(THRESHOLDS):
        theirs = published.within[index] if published.within else None
        cells += _beside(_percent(within, threshold), theirs, 1)
    return cells


def _cloud(score: Mapping[str, float | None], published: Published) -> list[str]:
    names = ("accuracy", "completeness", "overall")
    return [cell for name in names for cell in _beside(score.get(name), getattr(published, name), 3)]


def _percent(within: Within, threshold: float) -> float | None:
    share = within.get(str(threshold))
    return None if share is None else 100 * share


def _beside(ours: float | None, theirs: float | None, digits: int) -> list[str]:
    return [_number(ours, digits), NOT_YET if theirs is None else f"*{theirs:.{digits}f}*"]


def _number(value: float | None, digits: int) -> str:
    return NOT_YET if value is None else f"{value:.{digits}f}"


# ---- plots: the paper's figures 5 a to d -------------------------------------------------------------------


def plots(results: Results, folder: Path, prefix: str = "") -> dict[str, Path]:
    """Name -> picture, of those whose figures are there."""
    drawn: dict[str, Path] = {}

    def draw(name: str, curves: Sequence[Curve], title: str, y_label: str, **options: Any) -> None:
        if curves:
            path = folder / f"{prefix}{name}.png"
            drawn[name] = plot(path, curves, title=title, x_label="stage", y_label=y_label, **options)

    if "gbinet" in results.variants:
        shares = [
            _by_stage(f"< {t:g} mm", results.variants["gbinet"], t) for t in sorted(THRESHOLDS, reverse=True)
        ]
        draw("stages-depth", shares, "GBi-Net: depth maps by stage", "% of pixels", start=1)
    found = {int(s): v for s, v in results.clouds.get("gbinet", {}).get("stages", {}).items()}
    found = {s: v for s, v in sorted(found.items()) if v.get("overall") is not None}
    if len(found) > 1:
        x = np.array(list(found), dtype=float)
        measures = {"accuracy": "accuracy", "completeness": "completeness", "overall": "overall"}
        lines = [Curve(label, x, np.array([found[s][key] for s in found])) for key, label in measures.items()]
        draw("stages-cloud", lines, "GBi-Net: clouds by stage", "mm, lower is better", start=min(found))
    bins = {f"{count} tolerance bins": name for count, name in enumerate(COMPARISONS["bins"])}
    known = {label: results.variants[name] for label, name in bins.items() if name in results.variants}
    valid = [_valid_by_stage(label, content) for label, content in known.items()]
    draw("bins-valid", valid, "Valid pixels by stage", "% of pixels", top=100, start=1)
    near = [_by_stage(label, content, 1.0) for label, content in known.items()]
    draw("bins-within", near, "Pixels within 1 mm by stage", "% of pixels", start=1)
    return drawn


def _by_stage(label: str, content: Mapping[str, Any], threshold: float) -> Curve:
    centres = {int(k): v["within"] for k, v in content["validation"]["centres"].items()}
    x = np.array(sorted(centres), dtype=float)
    return Curve(label, x, np.array([100 * centres[int(k)][str(threshold)] for k in x]))


def _valid_by_stage(label: str, content: Mapping[str, Any]) -> Curve:
    shares = {int(k): v for k, v in content["validation"]["valid_share"].items()}
    x = np.array(sorted(shares), dtype=float)
    return Curve(label, x, np.array([100 * shares[int(k)] for k in x]))
