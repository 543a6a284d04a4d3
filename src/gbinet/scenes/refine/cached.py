"""A scene with refined cameras; the result is stored in the output folder and read by later runs."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import write_json
from gbinet.formats.fingerprint import Fingerprints
from gbinet.formats.reading import read_json
from gbinet.progress import Progress
from gbinet.scene import DepthRange, Scene, SourceView, View
from gbinet.scenes.complete import completed_by_points
from gbinet.scenes.refine.outcome import Refinement
from gbinet.scenes.refine.refine import Refined, refine
from gbinet.scenes.views import checked_camera

FOLDER = "refined"  # in the output folder
_FILE = "cameras.json"
_VERSION = 1  # raise it when the refinement changes: results of other versions are not used


def refine_cameras(scene: Scene, out: Path, progress: Progress | None = None) -> tuple[Scene, Refinement]:
    """The scene with cameras that fit its photos, in its frame and scale, and how that went.

    Depth ranges that were a guess from the cameras follow the points that were found. The result lies in
    `out/refined` and is found again there, as long as photos, masks and given cameras are the same.
    """
    folder = out / FOLDER
    hashes = Fingerprints(folder / "fingerprints.json")
    key = _key(scene, hashes)
    stored = _read_stored(scene, folder, key)
    if stored is None:
        result = refine(scene, progress)
        stored = with_cameras(scene, result), result.outcome
        write_json(folder / _FILE, _content(scene, *stored, key))
    hashes.save()
    return stored


def with_cameras(scene: Scene, result: Refined) -> Scene:
    """The scene with the cameras of a refinement, and what they change: see completed_by_points."""
    if result.points is None:
        return scene
    poses = torch.from_numpy(result.cameras.cam_from_world)
    cameras = [replace(v.camera, cam_from_world=p.clone()) for v, p in zip(scene.views, poses, strict=True)]
    return completed_by_points(scene, cameras, result.points)


def _key(scene: Scene, hashes: Fingerprints) -> str:
    """Hash of everything that decides what comes out."""
    digest = hashlib.blake2b(repr((_VERSION, scene.points is None)).encode(), digest_size=16)
    files = [path for view in scene.views for path in (view.image_path, view.mask_path) if path is not None]
    content = hashes.of_all(files)
    for view in scene.views:
        camera, limits = view.camera, view.depth_range
        pose = (view.name, camera.width, camera.height, camera.K.tolist(), camera.cam_from_world.tolist())
        near_far = None if limits is None else (limits.near, limits.far)
        sources = [(source.index, source.score) for source in view.sources]
        pictures = [content.get(path) for path in (view.image_path, view.mask_path) if path is not None]
        digest.update(repr((pose, near_far, sources, pictures)).encode())
    return digest.hexdigest()


def _content(given: Scene, scene: Scene, outcome: Refinement, key: str) -> dict[str, Any]:
    """What is stored: how the refined scene differs from the given one."""
    views = [
        {
            "name": view.name,
            "cam_from_world": view.camera.cam_from_world.tolist(),
            "depth_range": None
            if view.depth_range is None
            else [view.depth_range.near, view.depth_range.far],
            "sources": [[source.index, source.score] for source in view.sources],
        }
        for view in scene.views
    ]
    return {
        "inputs": key,
        "outcome": outcome.to_dict(),
        "warnings": {  # only what changed: the scene of a later run may have other warnings besides
            "gone": [text for text in given.warnings if text not in scene.warnings],
            "new": [text for text in scene.warnings if text not in given.warnings],
        },
        "views": views,
    }


def _read_stored(scene: Scene, folder: Path, key: str) -> tuple[Scene, Refinement] | None:
    """The scene and outcome that an earlier run stored for the same input; None if there is none."""
    try:
        stored = read_json(folder / _FILE, 1 << 28)
        if stored["inputs"] != key:
            return None
        outcome = Refinement.from_dict(stored["outcome"])
        if outcome.kept_because is not None:
            return scene, outcome
        count, path = len(scene.views), folder / _FILE
        views = tuple(
            _view(path, view, entry, count) for view, entry in zip(scene.views, stored["views"], strict=True)
        )
        gone, new = (list(map(str, stored["warnings"][which])) for which in ("gone", "new"))
        warnings = [*(text for text in scene.warnings if text not in gone), *new]
        return replace(scene, views=views, warnings=tuple(dict.fromkeys(warnings))), outcome
    except (OSError, FormatError, InputError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _view(path: Path, view: View, stored: dict[str, Any], count: int) -> View:
    pose, limits = np.array(stored["cam_from_world"], dtype=np.float64).reshape(4, 4), stored["depth_range"]
    sources = tuple(SourceView(int(index), float(score)) for index, score in stored["sources"])
    if not all(0 <= source.index < count for source in sources):
        raise FormatError(path, f"a source of view {view.name} is not a view of the scene")
    size = (view.camera.width, view.camera.height)
    camera = checked_camera(path, view.camera.K.double().numpy(), pose, size)
    return replace(
        view,
        camera=replace(view.camera, cam_from_world=camera.cam_from_world),
        depth_range=None if limits is None else DepthRange(*limits),
        sources=sources,
    )
