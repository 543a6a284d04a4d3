"""`gbinet evaluate depth|cloud|dtu|tanks|eth3d`: scores from files, as JSON, Markdown, plots and clouds."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from gbinet.cli.evaluate_common import finish, results
from gbinet.cli.evaluate_depth import depth
from gbinet.cli.evaluate_tanks import tanks, tanks_upload
from gbinet.cli.options import Device, otherwise
from gbinet.cli.progress import progress_bar
from gbinet.cli.say import say
from gbinet.errors import FormatError, check_not_negative, check_positive
from gbinet.formats.fingerprint import digest
from gbinet.formats.reading import read_json
from gbinet.inference.device import pick_device

if TYPE_CHECKING:
    from gbinet.evaluation.cloud import CloudDistances
    from gbinet.evaluation.dtu import DTUProtocol, DTUScore


def cloud(
    prediction: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PREDICTION")],
    truth: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRUTH")],
    out: Annotated[Path | None, results("evaluation beside PREDICTION")] = None,
    thresholds: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0),
    max_distance: Annotated[float, tyro.conf.arg(help_behavior_hint="(default: all count)")] = math.inf,
    thinning: Annotated[float | None, otherwise("no thinning", "FLOAT")] = None,
    unit: str = "mm",
    seed: int = 0,
    device: Device = "auto",
) -> None:
    """Compare a cloud with the ground truth: accuracy, completeness, precision, recall and F-score.

    Args:
        prediction: PLY file.
        truth: PLY file, in the same frame and unit.
        out: Folder for the results.
        thresholds: Distances for precision, recall and F-score. Plots end at the largest.
        max_distance: Larger distances do not count in the means (DTU: 20).
        thinning: First thin the prediction to this spacing, so that its density has no effect (DTU: 0.2).
        unit: Name of the unit, for labels.
        seed: Random seed of the order of thinning.
    """
    from gbinet.evaluation.cloud import compare_clouds, load_points, score_cloud
    from gbinet.evaluation.scores import ScoreSheet, Table, provenance

    check_positive("--thresholds", *thresholds)
    check_not_negative("--seed", seed)
    if math.isfinite(max_distance) or math.isnan(max_distance):
        check_positive("--max-distance", max_distance)
    with progress_bar(prediction.stem) as progress:
        distances = compare_clouds(
            load_points(prediction),
            load_points(truth),
            thinning=thinning,
            max_distance=max(max_distance, *thresholds),
            seed=seed,
            device=pick_device(device, mps=False),
            progress=progress,
        )
    score = score_cloud(distances, thresholds, max_distance)
    out = out or prediction.parent / "evaluation"
    columns = [f"accuracy [{unit}]", f"completeness [{unit}]", f"overall [{unit}]"]
    figures = [score.accuracy, score.completeness, score.overall]
    report = ScoreSheet(
        f"{prediction.name} against {truth.name}",
        Table(
            ["cloud", *columns, *(f"F at {t:g} {unit} [%]" for t in thresholds)],
            [[prediction.stem, *figures, *(100 * v for v in score.fscore.values())]],
        ),
        settings={"thinning": thinning, "max_distance": max_distance, "seed": seed, "truth": str(truth)},
        prediction=provenance(prediction),
        details={"score": score},
        pictures=_cloud_pictures(out, prediction.stem, distances, max(thresholds), unit),
    )
    finish(out, report)


def _cloud_pictures(out: Path, name: str, distances: CloudDistances, largest: float, unit: str) -> list[Path]:
    """Plots; and clouds coloured by their errors."""
    from gbinet.evaluation.scores import plot_fscore, plot_histogram, save_error_cloud

    save_error_cloud(out / "accuracy.ply", distances.points, distances.to_truth, largest)
    save_error_cloud(out / "completeness.ply", distances.truth, distances.to_points, largest)
    both = {"cloud to truth": distances.to_truth, "truth to cloud": distances.to_points}
    return [
        plot_histogram(out / "histogram.png", both, largest, unit, f"{name}: distances"),
        plot_fscore(out / "fscore.png", distances, largest / 5, unit, f"{name}: F-score"),
    ]


# ---- DTU --------------------------------------------------------------------------------------------------


def dtu(
    clouds: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CLOUDS")],
    truth: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRUTH")],
    out: Annotated[Path | None, results("evaluation in CLOUDS")] = None,
    scans: Annotated[
        tuple[int, ...], tyro.conf.arg(help_behavior_hint="(default: the 22 scans of the test set)")
    ] = (),
    pattern: Annotated[str | None, otherwise("any of the names above", "NAME")] = None,
    seed: int = 0,
    device: Device = "auto",
    clouds_with_errors: bool = True,
) -> None:
    """Score clouds of DTU scans with the published protocol: accuracy, completeness, overall, in millimetres.

    Finished scans are kept; run the command again to continue.

    Args:
        clouds: Folder with a cloud per scan: scan1/cloud.ply, scan1.ply, mvsnet001_l3.ply, ...
        truth: DTU's folder 'SampleSet/MVS Data', with ObsMask/ and Points/stl/.
        out: Folder for the results.
        scans: Numbers of the scans to score.
        pattern: File names of your clouds, e.g. my{scan:03}.ply.
        seed: Random seed of the order of thinning.
        clouds_with_errors: Write clouds coloured by their error.
    """
    from gbinet.evaluation.dtu import DTUProtocol, find_cloud, mean_score
    from gbinet.evaluation.scores import ScoreSheet, Table, provenance
    from gbinet.scenes.dtu import TEST

    out = out or clouds / "evaluation"
    protocol = DTUProtocol(seed=seed)
    paths = {scan: find_cloud(clouds, scan, pattern) for scan in scans or TEST}
    scores = {
        scan: _dtu_scan(scan, path, truth, out, protocol, device, clouds_with_errors)
        for scan, path in paths.items()
    }
    rows = [[f"scan{scan}", *asdict(score).values()] for scan, score in scores.items()]
    rows.append(["mean", *asdict(mean_score(list(scores.values()))).values()])
    names = [f.name.replace("_", " ") for f in fields(next(iter(scores.values())))]
    notes = ["Millimetres. The last row is the mean of the scans; its counts are sums."]
    if set(scores) != set(TEST):
        notes.append(f"These are {len(scores)} scans, not the {len(TEST)} of the published test set.")
    report = ScoreSheet(
        "DTU point clouds",
        Table(["scan", *names], rows),
        settings={**asdict(protocol), "truth": str(truth)},
        prediction=provenance(clouds),
        notes=notes,
        details={"clouds": {scan: provenance(path) for scan, path in paths.items()}},
        pictures=[out / "scans" / f"scan{scan}.png" for scan in scores],
    )
    finish(out, report)


_CLOUDS = ("accuracy", "completeness")  # that are written with their errors


def _dtu_scan(
    scan: int, path: Path, truth: Path, out: Path, protocol: DTUProtocol, device: str, clouds: bool
) -> DTUScore:
    from gbinet.evaluation.cloud import load_points
    from gbinet.evaluation.dtu import DTUScore, evaluate_scan, load_reference, reference_files
    from gbinet.evaluation.scores import plot_histogram, save_error_cloud
    from gbinet.formats.atomic import json_ready, write_json

    folder = out / "scans"
    stored, coloured = folder / f"scan{scan}.json", [folder / f"scan{scan}-{name}.ply" for name in _CLOUDS]
    files = [digest(file) for file in (path, *reference_files(truth, scan))]
    key = json_ready({"files": files, "protocol": protocol})
    try:
        known = read_json(stored)
        there = known["clouds"] and all(file.is_file() for file in coloured)  # else they are of another key
        if known["key"] == key and (there or not clouds):
            values: dict[str, Any] = {k: math.nan if v is None else v for k, v in known["score"].items()}
            return DTUScore(**values)
    except (FormatError, KeyError, TypeError, AttributeError):
        pass  # not there, or not what it should be: computed anew
    with progress_bar(f"scan {scan}:") as progress:
        reference = load_reference(truth, scan)
        score, distances = evaluate_scan(
            load_points(path), reference, protocol, device=pick_device(device, mps=False), progress=progress
        )
    both = dict(zip(_CLOUDS, (distances.to_truth, distances.to_points), strict=True))
    plot_histogram(folder / f"scan{scan}.png", both, 2.0, "mm", f"scan {scan}: distances")
    if clouds:
        places = (distances.points, distances.truth)
        for file, points, errors in zip(coloured, places, both.values(), strict=True):
            save_error_cloud(file, points, errors, 2.0)
    write_json(stored, {"key": key, "score": score, "clouds": clouds})
    say(
        f"scan {scan}: accuracy {score.accuracy:.4f}, completeness {score.completeness:.4f}, "
        f"overall {score.overall:.4f} mm"
    )
    return score


def eth3d(
    prediction: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PREDICTION")],
    scans: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SCANS")],
    out: Annotated[Path | None, results("evaluation beside PREDICTION")] = None,
    tolerances: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    device: Device = "auto",
) -> None:
    """Compute ETH3D's accuracy, completeness and F1, averaged over voxels.

    Args:
        prediction: PLY file, in the frame of the scans, in metres.
        scans: MeshLab project of the laser scans: dslr_scan_eval/scan_alignment.mlp.
        out: Folder for the results.
        tolerances: Tolerances in metres.
    """
    from gbinet.evaluation.cloud import load_points
    from gbinet.evaluation.eth3d import ETH3DProtocol, evaluate_scene, load_scans
    from gbinet.evaluation.plots import Curve, plot
    from gbinet.evaluation.scores import ScoreSheet, Table, provenance, save_error_cloud

    points = load_points(prediction)
    tolerances = tuple(sorted(tolerances))
    with progress_bar(prediction.stem) as progress:
        score, distances = evaluate_scene(
            points, load_scans(scans), tolerances, device=pick_device(device, mps=False), progress=progress
        )
    out = out or prediction.parent / "evaluation"
    # Where no beam tells, the error is not known: grey.
    known = np.isfinite(distances.to_beam_end) | distances.in_free_space
    errors = np.where(known, distances.to_beam_end, np.nan)
    save_error_cloud(out / "accuracy.ply", points, errors, max(tolerances))
    save_error_cloud(out / "completeness.ply", distances.scan_points, distances.to_points, max(tolerances))
    at = np.array(tolerances)
    measures = {"accuracy": score.accuracy, "completeness": score.completeness, "F1": score.f1}
    curves = [Curve(name, at, np.array([*values.values()])) for name, values in measures.items()]
    picture = plot(
        out / "fscore.png",
        curves,
        title=f"{prediction.stem}: ETH3D's measures",
        x_label="tolerance [m]",
        y_label="share",
        top=1.0,
    )
    rows = [[t, 100 * score.accuracy[t], 100 * score.completeness[t], 100 * score.f1[t]] for t in tolerances]
    report = ScoreSheet(
        f"{prediction.name}, ETH3D's measures",
        Table(["tolerance [m]", "accuracy [%]", "completeness [%]", "F1 [%]"], rows),
        settings={**asdict(ETH3DProtocol()), "scans": str(scans)},
        prediction=provenance(prediction),
        details={"score": score},
        pictures=[picture],
    )
    finish(out, report)


run = {
    "depth": depth,
    "cloud": cloud,
    "dtu": dtu,
    "tanks": tanks,
    "tanks-upload": tanks_upload,
    "eth3d": eth3d,
}
