"""`gbinet evaluate depth`: depth maps compared with the ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from gbinet.cli.evaluate_common import finish, images_of, results
from gbinet.cli.options import Images, StatedFactor
from gbinet.cli.progress import progress_bar
from gbinet.errors import SceneError
from gbinet.names import file_stem

if TYPE_CHECKING:
    from gbinet.evaluation.depth import DepthErrors
    from gbinet.evaluation.depth_scene import DepthPair, SceneDepth
    from gbinet.evaluation.scores import Table


def depth(
    predictions: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PREDICTIONS")],
    truth: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRUTH")],
    out: Annotated[Path | None, results("evaluation in PREDICTIONS")] = None,
    thresholds: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    unit: str = "mm",
    depth_scale: StatedFactor = None,
    truth_scale: StatedFactor = None,
    maps: bool = True,
    images: Images = None,
) -> None:
    """Compare depth maps with the ground truth: shares within thresholds, mean and median errors.

    Args:
        predictions: The output of `gbinet depth` or `gbinet reconstruct`, a folder of depth files, or a
            folder of such folders, one per scene.
        truth: A scene with ground-truth depth, or a folder of depth files with the same names, or a folder of
            them, one per scene.
        out: Folder for the results.
        thresholds: Thresholds for the error, in the scene's unit.
        unit: Name of that unit, for labels.
        depth_scale: Factor from the stored prediction to the scene's unit.
        truth_scale: The same for the ground truth.
        maps: Write an image of the errors of every view.
        images: Folder of the photos of the ground-truth scene, if they are not beside its cameras. Files
            outside the scene and this folder are not read.
    """
    from gbinet.evaluation.depth_scene import find_pairs
    from gbinet.evaluation.scores import ScoreSheet, provenance

    out = out or predictions / "evaluation"
    names = _scenes(predictions, out)
    scores: dict[str, SceneDepth] = {}
    pictures: list[Path] = []
    for name in names:
        label = name or predictions.resolve().name
        pairs = find_pairs(
            predictions / name, truth / name, depth_scale, truth_scale, images_of(images, name)
        )
        scores[label], picture = _depth_scene(label, pairs, out, thresholds, unit, maps)
        pictures.append(picture)
    table, by_confidence = _tables(scores, thresholds, unit)
    made = {name: provenance(predictions / name) for name in names}
    report = ScoreSheet(
        f"Depth maps of {predictions.resolve().name}",
        table,
        {"By confidence": by_confidence} if by_confidence.rows else {},
        settings={"thresholds": list(thresholds), "unit": unit, "truth": str(truth)},
        prediction=made[""] if names == [""] else made,
        notes=[
            "Shares are of all pixels with known true depth; one without an answer counts as wrong. "
            "Mean and median are of the answered ones."
        ],
        details={"scenes": {label: asdict(score) for label, score in scores.items()}},
        pictures=pictures,
    )
    finish(out, report)


def _tables(scores: dict[str, SceneDepth], thresholds: Sequence[float], unit: str) -> tuple[Table, Table]:
    """A row per scene, with edges and without, and their means; and the same by confidence."""
    from gbinet.evaluation.depth_scene import mean_errors
    from gbinet.evaluation.scores import Table

    rows = [_depth_row(label, score.errors) for label, score in scores.items()]
    rows += [_depth_row(f"{label}, no edges", score.smooth) for label, score in scores.items()]
    if len(scores) > 1:
        rows += [_depth_row("mean", mean_errors([s.errors for s in scores.values()]))]
        rows += [_depth_row("mean, no edges", mean_errors([s.smooth for s in scores.values()]))]
    within = [f"% <= {t:g} {unit}" for t in thresholds]
    confident = [
        [label, sure.above, 100 * sure.share, *(100 * share for share in sure.within.values())]
        for label, score in scores.items()
        for sure in score.confident
    ]
    columns = ["scene", "pixels", "% answered", *within, f"mean [{unit}]", f"median [{unit}]"]
    return Table(columns, rows), Table(["scene", "confidence above", "% of pixels", *within], confident)


def _scenes(predictions: Path, out: Path) -> list[str]:
    """Names of the folders that hold depth maps; "" for the folder itself. Our own results are none."""
    from gbinet.formats.depth_files import SUFFIXES
    from gbinet.scenes.depth_folder import maps_folder

    def holds_maps(folder: Path) -> bool:
        return maps_folder(folder) != folder or any(p.suffix.lower() in SUFFIXES for p in folder.glob("*.*"))

    if not predictions.is_dir():
        raise SceneError(f"{predictions}: there is no such folder of depth maps")
    if holds_maps(predictions):
        return [""]
    names = sorted(p.name for p in predictions.iterdir() if p.is_dir() and p != out and holds_maps(p))
    if not names:
        known = ", ".join(SUFFIXES)
        raise SceneError(f"{predictions}: found no depth maps ({known}), here or one folder below")
    return names


def _depth_row(label: str, errors: DepthErrors) -> list[object]:
    shares = [100 * share for share in errors.within.values()]
    return [label, errors.pixels, 100 * errors.answered, *shares, errors.mean, errors.median]


def _depth_scene(
    label: str,
    pairs: Sequence[DepthPair],
    out: Path,
    thresholds: Sequence[float],
    unit: str,
    maps: bool,
) -> tuple[SceneDepth, Path]:
    from gbinet.evaluation.depth_scene import DepthEvaluation, read_pair
    from gbinet.evaluation.plots import Curve, plot
    from gbinet.evaluation.scores import save_error_map

    evaluation = DepthEvaluation(thresholds)
    with progress_bar(label) as progress:
        for done, pair in enumerate(pairs):
            errors = evaluation.add(pair.name, *read_pair(pair))
            if maps:
                path = out / "errors" / file_stem(label) / f"{pair.name}.png"
                save_error_map(path, errors.numpy(), max(thresholds))
            progress(done + 1, len(pairs), "views")
    edges = np.linspace(0, max(thresholds), 101)
    shares = 100 * evaluation.all.share_by_error(edges)
    picture = plot(
        out / f"{file_stem(label)}-histogram.png",
        [Curve(label, edges, shares)],
        title=f"{label}: depth errors",
        x_label=f"error [{unit}]",
        y_label="% of pixels per bin",
    )
    return evaluation.result(), picture
