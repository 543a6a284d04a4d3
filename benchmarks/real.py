"""Reconstructs real scenes with `gbinet reconstruct`, and compares them with all that is known about them.

    python benchmarks/real.py ../shared/scenes/brighton-beach ../shared/scenes/fountain-P11 --keep runs

Reported for each scene (photos, with or without cameras):

    agreement   depth maps of a view and its two best source views: share of pixels that return within 1 px
    pixels      share of pixels that pass the confidence filter, and that other views confirm
    ranges      mean far/near; share of the measured and of the fused depths inside the ranges
    measured    if the scene has measured depth: relative errors
    reference   if NAME-reference/*.laz (or .ply) lies beside NAME and the photos have GPS: cells covered, and
                distances after alignment (.laz needs `pip install 'laspy[lazrs]'`)
    seconds     of each phase

Cameras are refined first if --refine-cameras is given, or by default for RGB-D folders
(--no-refine-cameras: never); `refined cameras` shows the outcome. With --keep, results stay in a folder per
scene, and a second call reuses them. --finished only measures the results in that folder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import report
from _reference import compared, read_reference, reference_of

from gbinet.formats.depth_files import read_depth
from gbinet.formats.image import write_image
from gbinet.fusion.consistency import reproject
from gbinet.fusion.fuse import FusionConfig, fuse_views
from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.reconstruct import preset, run
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.kinds import recognise
from gbinet.scenes.load import load_scene
from gbinet.scenes.refine import refine_cameras

CONFIDENT = 0.8
WITHIN = (0.01, 0.02, 0.05, 0.1)


def agreement(scene: Scene, depths: DepthFolder) -> dict[str, float]:
    """Re-projection errors of every view against the better of its two best sources."""
    distances, confidences = [], []
    for index, view in enumerate(scene.views):
        reference = depths.load(index)
        sources = [depths.load(s) for s in view.best_sources(2)]
        found = [reproject(reference, s).distance for s in sources if reference and s]
        if reference is None or reference.confidence is None or not found:
            continue
        distances.append(torch.stack(found).amin(0).flatten())
        confidences.append(reference.confidence.flatten())
    error, confidence = torch.cat(distances), torch.cat(confidences)
    half, sure = error[confidence >= confidence.median()], error[confidence > CONFIDENT]
    return {
        "all within 1 px": _share(error < 1),
        "confident half within 1 px": _share(half < 1),
        f"share with confidence > {CONFIDENT}": _share(confidence > CONFIDENT),
        "of these within 1 px": _share(sure < 1),
        "of these within 0.25 px": _share(sure < 0.25),
    }


def pixels_and_ranges(scene: Scene, depths: DepthFolder, fusion: FusionConfig) -> dict[str, Any]:
    """What fusion keeps, and whether it lies inside the other views' ranges as well."""
    confident, kept, inside, ratio = [], [], [], []
    for fused in fuse_views(scene, depths, fusion):
        count = fused.consistent.numel()
        confident.append(fused.confident / count)
        kept.append(int(fused.consistent.sum()) / count)
        points = fused.cloud.xyz.double()[::7]
        # Surfaces that this view's points lie on, in the ranges of the views around it.
        for other in (fused.index, *scene.views[fused.index].best_sources(4)):
            view = scene.views[other]
            if view.depth_range is None or len(points) == 0:
                continue
            pixel, depth = view.camera.project(points)
            size = torch.tensor([view.camera.width, view.camera.height])
            seen = (depth > 0) & (pixel >= 0).all(-1) & (pixel <= size).all(-1)
            own = depth[seen]
            inside.append(((own >= view.depth_range.near) & (own <= view.depth_range.far)).double())
    ratio = [v.depth_range.far / v.depth_range.near for v in scene.views if v.depth_range is not None]
    return {
        "pixels": {
            "confident": round(float(np.mean(confident)), 4),
            "confirmed": round(float(np.mean(kept)), 4),
        },
        "ranges": {
            "mean far/near": round(float(np.mean(ratio)), 3),
            "fused depths inside": _share(torch.cat(inside)) if inside else None,
        },
    }


def measured(scene: Scene, depths: DepthFolder) -> dict[str, float] | None:
    """Relative errors against measured depth, and its share inside the ranges."""
    errors, inside, confidences, ratios = [], [], [], []
    for index, view in enumerate(scene.views):
        found = depths.load(index)
        if view.depth_path is None or view.depth_range is None or found is None or found.confidence is None:
            continue
        truth = torch.from_numpy(read_depth(view.depth_path, view.depth_scale).copy())[None, None]
        truth = torch.nn.functional.interpolate(truth, found.depth.shape, mode="nearest")[0, 0]
        known = truth > 0
        errors.append(((found.depth - truth).abs() / truth)[known])
        confidences.append(found.confidence[known])
        ratios.append((found.depth / truth)[known & (found.confidence > 0.5)])
        inside.append((truth[known] >= view.depth_range.near) & (truth[known] <= view.depth_range.far))
    if not errors:
        return None
    error, confidence = torch.cat(errors), torch.cat(confidences)
    half = error[confidence >= confidence.median()]
    return {
        "median relative error": round(float(error.median()), 5),
        **{f"within {t:.0%}": _share(error < t) for t in WITHIN},
        **{f"confident half within {t:.0%}": _share(half < t) for t in WITHIN},
        "median ratio to it, confidence > 0.5": round(float(torch.cat(ratios).median()), 5),
        "measured depths inside the range": _share(torch.cat(inside)),
    }


def _share(values: torch.Tensor) -> float:
    return round(float(values.double().mean()), 4) if values.numel() else 0.0


def opened(folder: Path, out: Path) -> Scene:
    """The scene as a finished run left it."""
    if (kind := recognise(folder)) is not None and kind.posed:
        scene = load_scene(folder, cache=out / "undistorted")
        refined = json.loads((out / "run.json").read_text()).get("refined_cameras") is not None
        return refine_cameras(scene, out)[0] if refined else scene
    return load_scene(out)  # also where it was placed on the map


def measure(folder: Path, out: Path, scene: Scene, fusion: FusionConfig) -> dict[str, Any]:
    record = json.loads((out / "run.json").read_text())
    depths = DepthFolder(scene, out / "depth")
    figures: dict[str, Any] = {"points": record["points"], "views": len(scene.views)}
    poses = record.get("poses")
    if poses is not None:
        figures["poses"] = {
            "posed": f"{len(poses['placed'])} of {len(poses['placed']) + len(poses['missing'])}",
            "cameras": len(poses["cameras"]),
            "points": poses["points"],
            "error, px": round(poses["error"], 3),
        }
    if record.get("refined_cameras") is not None:
        told = record["refined_cameras"]
        figures["refined cameras"] = {
            "views": f"{len(told['refined'])} of {told['views']}",
            **{key: told[key] for key in ("before", "after", "moved", "turned", "kept_because", "seconds")},
        }
    figures["agreement"] = agreement(scene, depths)
    figures.update(pixels_and_ranges(scene, depths, fusion))
    if (found := measured(scene, depths)) is not None:
        figures["measured"] = found
    reference = reference_of(folder)
    if reference is not None:
        cloud = PointCloud.load(out / "cloud.ply")
        figures["reference"], xyz = compared(scene, cloud, folder, reference)
        _picture(out / "beside-reference.png", xyz, cloud, reference)
    figures["seconds"] = record["seconds"]
    return figures


def _picture(path: Path, xyz: Any, cloud: PointCloud, reference: Path) -> None:
    """Both clouds from above, ours on the left, 4 pixels per metre."""
    other, colours = read_reference(reference)
    if colours is None or cloud.rgb is None:
        return
    low, high = other.min(0)[:2], other.max(0)[:2]
    width, height = (np.ceil((high - low) * 8).astype(int) + 1).tolist()
    pictures = []
    for points, rgb in ((xyz, cloud.rgb.numpy()), (other, colours)):
        order = np.argsort(points[:, 2])  # the highest last
        cell = np.floor((points[order, :2] - low) * 8).astype(int)
        inside = (cell >= 0).all(1) & (cell < [width, height]).all(1)
        picture = np.zeros((height, width, 3), np.uint8)
        picture[height - 1 - cell[inside, 1], cell[inside, 0]] = rgb[order][inside]
        pictures.append(picture)
    write_image(path, np.concatenate(pictures, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scenes", type=Path, nargs="+")
    parser.add_argument("--max-size", type=int, default=640)
    parser.add_argument("--views", type=int, default=None, help="photos per depth map")
    parser.add_argument("--weights", default=None, help="file or name; without it, the bundled weights")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--refine-cameras",
        action=argparse.BooleanOptionalAction,
        help="correct given cameras first; without it, those of RGB-D folders",
    )
    parser.add_argument("--keep", type=Path, default=None, help="folder where results stay")
    parser.add_argument("--finished", action="store_true", help="only measure what --keep holds")
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    if given.finished and given.keep is None:
        parser.error("--finished needs --keep FOLDER")
    base = preset("balanced")
    depth = replace(
        base.depth, max_size=given.max_size, device=given.device, views=given.views or base.depth.views
    )
    config = replace(base, depth=depth, refine_cameras=given.refine_cameras)
    figures: dict[str, Any] = {"size": given.max_size, "photos per depth map": depth.views}
    with tempfile.TemporaryDirectory() as temporary:
        for folder in given.scenes:
            out = (given.keep or Path(temporary)) / folder.resolve().name
            if given.finished:
                scene = opened(folder, out)
            else:
                scene = run(folder, GBiNet.from_pretrained(given.weights), out, config).scene
            figures[folder.resolve().name] = measure(folder.resolve(), out, scene, config.fusion)
    report("real", figures, given.out)


if __name__ == "__main__":
    main()
