"""Scores as files: JSON for programs, Markdown for people, plots, coloured clouds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch

from gbinet.errors import FormatError
from gbinet.evaluation.cloud import CloudDistances, harmonic_mean, share_below
from gbinet.evaluation.nearest import Points
from gbinet.evaluation.plots import Curve, Floats, error_colours, plot
from gbinet.formats.atomic import write_json, write_text
from gbinet.formats.image import write_image
from gbinet.formats.ply import write_ply
from gbinet.formats.reading import is_file, read_json
from gbinet.names import printable
from gbinet.pointcloud import PointCloud
from gbinet.provenance import software

# Records beside results: weights, settings, versions, commit.
RECORDS = ("run.json", "settings.json")
# Keys in them that tell how the run went, not how the result was made.
_NOT_SETTINGS = frozenset(
    [
        "scene",
        "points",
        "warnings",
        "seconds",
        "network_seconds",
        "peak_memory_mib",
        "peak_gpu_memory_mib",
        "maps",
        "computed",
        "kept",
        "failed",
        "encoded",
        "encoded_again",
        "tile",
    ]
)
_BINS = 100


@dataclass(frozen=True)
class Table:
    columns: Sequence[str]  # percentages have a % in their name
    rows: Sequence[Sequence[object]]

    def markdown(self) -> str:
        return markdown_table(self.columns, self.rows)

    def records(self) -> list[dict[str, object]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class ScoreSheet:
    """The contents of a report: a main table, further ones, and what was measured how."""

    title: str
    table: Table  # a row per scan or scene; the last may be their mean
    more: Mapping[str, Table] = field(default_factory=dict)  # by their titles
    settings: Mapping[str, object] = field(default_factory=dict)  # of the measurement
    prediction: Mapping[str, object] = field(default_factory=dict)  # what is measured: see `provenance`
    notes: Sequence[str] = ()
    details: Mapping[str, object] = field(default_factory=dict)  # only in the JSON
    pictures: Sequence[Path] = ()  # shown in the Markdown


def write_scores(folder: str | Path, sheet: ScoreSheet, name: str = "scores") -> tuple[Path, Path]:
    """Write `<name>.json` and `<name>.md`."""
    folder = Path(folder)
    content = {
        "title": sheet.title,
        "scored_by": software(),
        "made_by": makers([sheet.prediction, sheet.details]),
        "prediction": sheet.prediction,
        "settings": sheet.settings,
        "rows": sheet.table.records(),
        **{title: table.records() for title, table in sheet.more.items()},
        "notes": sheet.notes,
        **sheet.details,
    }
    return write_json(folder / f"{name}.json", content), _write_markdown(folder / f"{name}.md", sheet)


def _write_markdown(path: Path, sheet: ScoreSheet) -> Path:
    lines = [f"# {printable(sheet.title)}", ""]
    made_by = makers([sheet.prediction, sheet.details])
    lines += [f"Made by {describe_maker(maker)}." for maker in made_by]
    lines += [f"Scored by {software()}.", ""]
    for heading, values in (("Measured", sheet.prediction), ("Measured with", sheet.settings)):
        if values:
            listed = "; ".join(f"{printable(key)} `{printable(value)}`" for key, value in _flat(values))
            lines += [f"{heading}: {listed}.", ""]
    lines += [sheet.table.markdown(), ""]
    lines += [line for note in sheet.notes for line in (note, "")]
    for title, table in sheet.more.items():
        lines += [f"## {title}", "", table.markdown(), ""]
    for picture in sheet.pictures:
        lines += [f"![{printable(picture.stem)}]({quote(bytes(picture.relative_to(path.parent)))})", ""]
    return write_text(path, "\n".join(lines))


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Nested settings as (name, value) pairs; times, counts and long values are left to the JSON."""
    found: list[tuple[str, object]] = []
    for key, value in values.items():
        if (
            key in _NOT_SETTINGS
            or key == "made_by"  # has a line of its own
            or value is None
            or (not isinstance(value, Mapping) and len(str(value)) > 120)
        ):
            continue
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + key, value)]
    return found


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    digits = [2 if "%" in column else 4 for column in columns]
    cells = [[*columns], *([_cell(v, d) for v, d in zip(row, digits, strict=True)] for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    numeric = [all(isinstance(row[k], int | float) for row in rows) for k in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        parts = [
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        ]
        return "| " + " | ".join(parts) + " |"

    rule = ["-" * (w - 1) + (":" if right else "-") for w, right in zip(widths, numeric, strict=True)]
    return "\n".join([line(cells[0]), "| " + " | ".join(rule) + " |", *map(line, cells[1:])])


def _cell(value: object, digits: int) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else printable(value).replace("|", "\\|")


def provenance(path: str | Path) -> dict[str, object]:
    """The file that is scored, with the records beside it: weights, settings, commit."""
    path = Path(path)
    found: dict[str, object] = {"path": str(path)}
    folder = path if path.is_dir() else path.parent
    for name in RECORDS:
        for where in (folder, folder / "depth", folder.parent):
            record = where / name
            if is_file(record):
                try:
                    found[record.stem] = read_json(record)
                except FormatError:
                    found[record.stem] = f"{name} is not readable"
                break
    return found


def makers(records: object) -> list[dict[str, object]]:
    """Every distinct value of `made_by` in nested records."""
    found: list[dict[str, object]] = []
    if isinstance(records, Mapping):
        made_by = records.get("made_by", [])
        found += [m for m in (made_by if isinstance(made_by, list) else [made_by]) if isinstance(m, dict)]
        records = [value for key, value in records.items() if key != "made_by"]
    if isinstance(records, list | tuple):
        found += [maker for value in records for maker in makers(value)]
    return [maker for i, maker in enumerate(found) if maker not in found[:i]]


def describe_maker(made_by: Mapping[str, object]) -> str:
    """In words: 'weights gbinet.safetensors (content 0123...), gbinet 0.1.0, commit 89ab...'."""
    file = made_by.get("weights_file") or "without a file"
    words = (
        f"weights {file} (content {made_by.get('weights', 'unknown')}), gbinet {made_by.get('gbinet', '?')}"
    )
    return words + (f", commit {made_by['commit']}" if made_by.get("commit") else "")


# ---- pictures of distances --------------------------------------------------------------------------------


def save_error_cloud(path: Path, points: Points, errors: Floats, largest: float) -> Path:
    """The points, coloured from blue (exact) to red (`largest` and more)."""
    rgb = torch.from_numpy(error_colours(errors, largest))
    return write_ply(path, PointCloud(torch.from_numpy(np.ascontiguousarray(points)), rgb=rgb))


def save_error_map(path: Path, errors: Floats, largest: float) -> Path:
    """Errors [H, W] as a picture; grey: no answer (inf), black: the truth is unknown (NaN)."""
    colours = error_colours(np.where(np.isinf(errors), np.nan, errors), largest)
    colours[np.isnan(errors)] = 0
    return write_image(path, colours)


def plot_histogram(path: Path, errors: Mapping[str, Floats], largest: float, unit: str, title: str) -> Path:
    """Share of points by distance, in bins up to `largest`."""
    edges = np.linspace(0, largest, _BINS + 1)
    curves = []
    for label, values in errors.items():
        counts = np.histogram(values[np.isfinite(values)], edges)[0]
        curves.append(Curve(label, edges, 100 * counts / max(len(values), 1)))
    return plot(path, curves, title=title, x_label=f"distance [{unit}]", y_label="% of points per bin")


def plot_fscore(path: Path, distances: CloudDistances, threshold: float, unit: str, title: str) -> Path:
    """Precision, recall and F-score against the threshold, up to five times the one that counts."""
    thresholds = np.linspace(0, 5 * threshold, _BINS + 1)
    precision = np.array([share_below(distances.to_truth, t) for t in thresholds])
    recall = np.array([share_below(distances.to_points, t) for t in thresholds])
    both = np.array([harmonic_mean(p, r) for p, r in zip(precision, recall, strict=True)])
    curves = [
        Curve("precision", thresholds, precision),
        Curve("recall", thresholds, recall),
        Curve("F-score", thresholds, both),
    ]
    return plot(
        path,
        curves,
        title=title,
        x_label=f"threshold [{unit}]",
        y_label="share",
        mark=threshold,
        top=1.0,
    )
