"""A scene with refined cameras; what was found is kept in the output folder and taken up from there."""

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
_VERSION = 1  # of what these modules do: results of another one are not taken over


def refine_cameras(scene: Scene, out: Path, progress: Progress | None = None) -> tuple[Scene, Refinement]:
    """The scene with cameras that fit its photos, in its frame and scale, and how that went.

    Depth ranges that were a guess from the cameras follow the points that were found. The result lies in
    `out/refined` and is found again there, as long as photos, masks and given cameras are the same.
    """
    folder = out / FOLDER
    hashes = Fingerprints(folder / "fingerprints.json")
    key = _key(scene, hashes)
    known = _known(scene, folder, key)
    if known is None:
        found = refine(scene, progress)
        new = with_cameras(scene, found)
        write_json(folder / _FILE, _content(scene, new, found.outcome, key))
        known = new, found.outcome
    hashes.save()
    return known


def with_cameras(scene: Scene, found: Refined) -> Scene:
    if found.points is None:
        return scene
    poses = torch.from_numpy(found.cameras.cam_from_world)
    cameras = [replace(v.camera, cam_from_world=p.clone()) for v, p in zip(scene.views, poses, strict=True)]
    return completed_by_points(scene, cameras, found.points)


def _key(scene: Scene, hashes: Fingerprints) -> str:
    """Changes with everything that decides what comes out."""
    digest = hashlib.blake2b(repr((_VERSION, scene.points is None)).encode(), digest_size=16)
    files = [path for view in scene.views for path in (view.image_path, view.mask_path) if path is not None]
    content = hashes.of_all(files)
    for view in scene.views:
        camera, limits = view.camera, view.depth_range
        said = (view.name, camera.width, camera.height, camera.K.tolist(), camera.cam_from_world.tolist())
        near_far = None if limits is None else (limits.near, limits.far)
        around = [(source.index, source.score) for source in view.sources]
        pictures = [content.get(path) for path in (view.image_path, view.mask_path) if path is not None]
        digest.update(repr((said, near_far, around, pictures)).encode())
    return digest.hexdigest()


def _content(given: Scene, scene: Scene, outcome: Refinement, key: str) -> dict[str, Any]:
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
        "warnings": {  # only what changed: a later run may have others for reasons of its own
            "gone": [text for text in given.warnings if text not in scene.warnings],
            "new": [text for text in scene.warnings if text not in given.warnings],
        },
        "views": views,
    }


def _known(scene: Scene, folder: Path, key: str) -> tuple[Scene, Refinement] | None:
    """What an earlier run found for the same input."""
    try:
        stored = read_json(folder / _FILE, 1 << 28)
        if stored["inputs"] != key:
            return None
        outcome = Refinement.from_dict(stored["outcome"])
        if outcome.kept_because is not None:
            return scene, outcome
        count, path = len(scene.views), folder / _FILE
        views = tuple(
            _view(path, view, one, count) for view, one in zip(scene.views, stored["views"], strict=True)
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
