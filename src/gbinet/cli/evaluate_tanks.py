"""`gbinet evaluate tanks` and `tanks-upload`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from gbinet.cli.evaluate_common import finish, images_of, results
from gbinet.cli.options import Device, Images, otherwise
from gbinet.cli.progress import progress_bar
from gbinet.cli.say import say
from gbinet.errors import SceneError
from gbinet.inference.device import pick_device

if TYPE_CHECKING:
    from gbinet.evaluation.tanks import TanksReference, TanksScore

Poses = np.ndarray[tuple[int, ...], np.dtype[np.float64]]  # world_from_cam [V, 4, 4]


def tanks(
    clouds: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CLOUDS")],
    trajectories: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRAJECTORIES")],
    truth: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRUTH")],
    out: Annotated[Path | None, results("evaluation beside the clouds")] = None,
    tau: Annotated[float | None, otherwise("the scene's own", "FLOAT")] = None,
    images: Images = None,
    device: Device = "auto",
) -> None:
    """Compute precision, recall and F-score of training scenes of Tanks and Temples, as published.

    Args:
        clouds: A PLY file, or a folder with <Scene>.ply or <Scene>/cloud.ply.
        trajectories: Poses of all images: a .log file or a scene folder, or a folder of these.
        truth: The benchmark's folder of the scene (Truck/Truck.ply, .json, ...), or a folder of several.
        out: Folder for the results.
        tau: Threshold in metres, for a scene that is not in the benchmark.
        images: Folder of the photos, if they are not beside the cameras of a scene folder, or a folder of
            them, one per scene. Files outside the scene and this folder are not read.
    """
    from gbinet.evaluation.scores import ScoreSheet, Table, provenance
    from gbinet.evaluation.tanks import TAU, load_reference

    jobs = [(clouds, trajectories, truth)]
    if not clouds.is_file():
        names = [name for name in TAU if (truth / name).is_dir()]
        plys = [_of_scene(clouds, name, ".ply", "cloud.ply") for name in names]
        jobs = [
            (p, _of_scene(trajectories, n, ".log", ""), truth / n) for p, n in zip(plys, names, strict=True)
        ]
    if not jobs:
        raise SceneError(f"{truth}: found none of {', '.join(TAU)}")
    out = out or (clouds if clouds.is_dir() else clouds.parent) / "evaluation"
    scores: list[TanksScore] = []
    for path, trajectory, folder in jobs:
        reference = load_reference(folder, tau)
        poses = _poses(trajectory, images_of(images, reference.name))
        scores.append(_tanks_scene(path, poses, reference, out, device))
    rows = [_row(score.scene, [score]) for score in scores]
    if len(scores) > 1:
        rows.append(_row("mean", scores))
    report = ScoreSheet(
        "Tanks and Temples, training scenes",
        Table(["scene", "precision [%]", "recall [%]", "F-score [%]", "points", "true points"], rows),
        settings={"truth": str(truth), "tau": {score.scene: score.tau for score in scores}},
        prediction=provenance(clouds),
        details={"scores": scores, "clouds": [provenance(path) for path, _, _ in jobs]},
        pictures=[out / f"{score.scene}-fscore.png" for score in scores],
    )
    finish(out, report)


def _tanks_scene(path: Path, poses: Poses, reference: TanksReference, out: Path, device: str) -> TanksScore:
    from gbinet.evaluation.cloud import load_points
    from gbinet.evaluation.scores import plot_fscore, save_error_cloud
    from gbinet.evaluation.tanks import evaluate_scene

    name = reference.name
    with progress_bar(name) as progress:
        score, distances = evaluate_scene(
            load_points(path), poses, reference, device=pick_device(device, mps=False), progress=progress
        )
    save_error_cloud(out / f"{name}-precision.ply", distances.points, distances.to_truth, 3 * score.tau)
    save_error_cloud(out / f"{name}-recall.ply", distances.truth, distances.to_points, 3 * score.tau)
    title = f"{name}: F-score {100 * score.fscore:.2f} % at {score.tau:g} m"
    plot_fscore(out / f"{name}-fscore.png", distances, score.tau, "m", title)
    return score


def _row(name: str, scores: list[TanksScore]) -> list[object]:
    """Means of the shares in percent, sums of the counts."""
    shares = [(s.precision, s.recall, s.fscore) for s in scores]
    means = [100 * sum(column) / len(scores) for column in zip(*shares, strict=True)]
    return [name, *means, sum(s.points for s in scores), sum(s.truth_points for s in scores)]


def tanks_upload(
    clouds: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CLOUDS")],
    trajectories: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRAJECTORIES")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    group: Literal["intermediate", "advanced", "both"] = "both",
    images: Images = None,
) -> None:
    """Collect clouds and trajectories under the names that the server of Tanks and Temples expects.

    Args:
        clouds: Folder with <Scene>.ply or <Scene>/cloud.ply.
        trajectories: Folder with <Scene>.log, or scene folders <Scene>.
        out: Folder for the upload.
        group: Which scenes to collect.
        images: Folder with the photos of each scene in <Scene>/, if they are not in the scene folders.
    """
    import tempfile

    from gbinet.evaluation.tanks import pack_upload
    from gbinet.formats.tanks import write_log
    from gbinet.scenes.tanks import scenes

    with tempfile.TemporaryDirectory() as scratch:
        plys, logs = {}, {}
        for name in scenes(group):
            plys[name] = _of_scene(clouds, name, ".ply", "cloud.ply")
            logs[name] = _of_scene(trajectories, name, ".log", "")
            if logs[name].is_dir():
                logs[name] = write_log(
                    Path(scratch) / f"{name}.log", _poses(logs[name], images_of(images, name))
                )
        written = pack_upload(plys, logs, out, group)
    say(f"{len(written)} files for the upload in {out}")


def _of_scene(folder: Path, name: str, suffix: str, inside: str) -> Path:
    for path in (folder / f"{name}{suffix}", folder / name / f"{name}{suffix}", folder / name / inside):
        if path.is_file() or (not inside and path.is_dir()):
            return path
    raise SceneError(f"{folder}: found neither {name}{suffix} nor {Path(name, inside)}")


def _poses(path: Path, images: Path | None) -> Poses:
    """Of a .log file or of all views of a scene."""
    from gbinet.formats.tanks import read_log

    if not path.is_dir():
        return read_log(path)
    from gbinet.scenes.load import load_scene

    views = sorted(load_scene(path, images=images).views, key=lambda view: view.name)
    return np.stack([view.camera.world_from_cam.numpy() for view in views])
