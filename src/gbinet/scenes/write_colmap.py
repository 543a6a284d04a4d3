"""A scene as a COLMAP model: `cameras`, `images`, `points3D`, as text or binary.

The layout is the one that every version of COLMAP reads; rigs and frames are added by COLMAP itself.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gbinet.formats.atomic import atomic_path
from gbinet.scene import Scene, SparsePoints, View
from gbinet.scenes.writing import (
    copy_image,
    copy_mask,
    pinhole_parameters,
    safe_name,
)

_PINHOLE = 1  # COLMAP's number of the camera model


@dataclass(frozen=True)
class _Model:
    """A model in COLMAP's terms; ids are 1 + index."""

    views: tuple[View, ...]
    image_names: list[str]
    camera_ids: list[int]  # per view; views with the same intrinsics share a camera
    observations: list[list[tuple[float, float, int]]]  # per view: x, y, point id
    points: list[tuple[list[float], list[int], list[tuple[int, int]]]]  # xyz, rgb, [(image id, observation)]

    @property
    def cameras(self) -> dict[int, View]:
        """Camera id -> a view that has it."""
        return dict(reversed(list(zip(self.camera_ids, self.views, strict=True))))


def write_colmap(scene: Scene, folder: str | Path, text: bool = False) -> Path:
    """`images/`, `sparse/0/` and, where there are any, `masks/<image name>.png`."""
    folder = Path(folder)
    names = copy_images(scene, folder)
    for view, name in zip(scene.views, names, strict=True):
        copy_mask(view, folder / "masks" / f"{name}.png")
    write_model(folder / "sparse" / "0", scene.views, names, scene.points, text)
    return folder


def copy_images(scene: Scene, folder: Path) -> list[str]:
    """Copy all photos into `folder/images`; their names below it."""
    images = folder / "images"
    return [copy_image(v, images, safe_name(v)).relative_to(images).as_posix() for v in scene.views]


def write_model(
    folder: Path,
    views: tuple[View, ...],
    image_names: list[str],
    points: SparsePoints | None,
    text: bool = False,
) -> None:
    model = _build(views, image_names, points)
    writers = _TEXT if text else _BINARY
    for name, to_bytes in writers.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_bytes(to_bytes(model))


def quaternion(rotation: Tensor) -> tuple[float, float, float, float]:
    """Unit quaternion (w, x, y, z) of a rotation matrix [3, 3]."""
    m = rotation.double().tolist()
    # The four candidates are the same quaternion times its w, x, y, z: the longest is the most exact.
    candidates = torch.tensor(
        [
            [1 + m[0][0] + m[1][1] + m[2][2], m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1]],
            [m[2][1] - m[1][2], 1 + m[0][0] - m[1][1] - m[2][2], m[1][0] + m[0][1], m[0][2] + m[2][0]],
            [m[0][2] - m[2][0], m[1][0] + m[0][1], 1 - m[0][0] + m[1][1] - m[2][2], m[2][1] + m[1][2]],
            [m[1][0] - m[0][1], m[0][2] + m[2][0], m[2][1] + m[1][2], 1 - m[0][0] - m[1][1] + m[2][2]],
        ],
        dtype=torch.float64,
    )
    best = candidates[candidates.norm(dim=1).argmax()]
    best = best / best.norm() * (1.0 if best[0] >= 0 else -1.0)
    w, x, y, z = best.tolist()
    return w, x, y, z


def _build(views: tuple[View, ...], image_names: list[str], points: SparsePoints | None) -> _Model:
    ids: dict[tuple[float, ...], int] = {}  # views with the same intrinsics share a camera
    camera_ids = []
    for view in views:
        key = (view.camera.width, view.camera.height, *pinhole_parameters(view))
        camera_ids.append(ids.setdefault(key, len(ids) + 1))
    observations: list[list[tuple[float, float, int]]] = [[] for _ in views]
    rows: list[tuple[list[float], list[int], list[tuple[int, int]]]] = []
    if points is not None:
        rgb = points.rgb.tolist() if points.rgb is not None else [[128, 128, 128]] * len(points.xyz)
        tracks = tracks_of(points)
        pixels = _project(views, points, tracks)
        for index, (xyz, colour, track) in enumerate(zip(points.xyz.tolist(), rgb, tracks, strict=True)):
            elements = []
            for view_index in track:
                x, y = pixels[view_index][index]
                elements.append((view_index + 1, len(observations[view_index])))
                observations[view_index].append((x, y, index + 1))
            rows.append((xyz, colour, elements))
    return _Model(views, image_names, camera_ids, observations, rows)


def tracks_of(points: SparsePoints) -> list[list[int]]:
    """Per point the views that see it."""
    if points.view_index is None or points.track_start is None:
        return [[] for _ in points.xyz]
    starts, flat = points.track_start.tolist(), points.view_index.tolist()
    return [flat[a:b] for a, b in itertools.pairwise(starts)]


def _project(
    views: tuple[View, ...], points: SparsePoints, tracks: list[list[int]]
) -> list[dict[int, tuple[float, float]]]:
    """Per view: point index -> pixel where it is seen."""
    seen: list[list[int]] = [[] for _ in views]
    for index, track in enumerate(tracks):
        for view_index in track:
            seen[view_index].append(index)
    result = []
    for view, indices in zip(views, seen, strict=True):
        pixels, _ = view.camera.to(dtype=torch.float64).project(points.xyz[indices].double())
        result.append({index: (x, y) for index, (x, y) in zip(indices, pixels.tolist(), strict=True)})
    return result


# ---- text --------------------------------------------------------------------------------------------------


def _cameras_text(model: _Model) -> bytes:
    lines = [
        "# Camera list with one line of data per camera:",
        "#   CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]",
    ]
    for camera_id, view in sorted(model.cameras.items()):
        numbers = " ".join(repr(p) for p in pinhole_parameters(view))
        lines.append(f"{camera_id} PINHOLE {view.camera.width} {view.camera.height} {numbers}")
    return ("\n".join(lines) + "\n").encode()


def _images_text(model: _Model) -> bytes:
    lines = [
        "# Image list with two lines of data per image:",
        "#   IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME",
        "#   POINTS2D[] as (X, Y, POINT3D_ID)",
    ]
    for index, view in enumerate(model.views):
        numbers = " ".join(repr(value) for value in _pose(view))
        lines.append(f"{index + 1} {numbers} {model.camera_ids[index]} {model.image_names[index]}")
        lines.append(" ".join(f"{x!r} {y!r} {point}" for x, y, point in model.observations[index]))
    return ("\n".join(lines) + "\n").encode()


def _points_text(model: _Model) -> bytes:
    lines = [
        "# 3D point list with one line of data per point:",
        "#   POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[] as (IMAGE_ID, POINT2D_IDX)",
    ]
    for index, (xyz, rgb, track) in enumerate(model.points):
        numbers = " ".join([*(repr(v) for v in xyz), *(str(c) for c in rgb), "0"])
        elements = " ".join(f"{image} {observation}" for image, observation in track)
        lines.append(f"{index + 1} {numbers} {elements}".rstrip())
    return ("\n".join(lines) + "\n").encode()


# ---- binary ------------------------------------------------------------------------------------------------


def _cameras_binary(model: _Model) -> bytes:
    parts = [struct.pack("<Q", len(model.cameras))]
    for camera_id, view in sorted(model.cameras.items()):
        size = (view.camera.width, view.camera.height)
        parts.append(struct.pack("<iiQQ4d", camera_id, _PINHOLE, *size, *pinhole_parameters(view)))
    return b"".join(parts)


def _images_binary(model: _Model) -> bytes:
    parts = [struct.pack("<Q", len(model.views))]
    for index, view in enumerate(model.views):
        parts.append(struct.pack("<i7di", index + 1, *_pose(view), model.camera_ids[index]))
        parts.append(model.image_names[index].encode() + b"\0")
        parts.append(struct.pack("<Q", len(model.observations[index])))
        parts += [struct.pack("<ddq", x, y, point) for x, y, point in model.observations[index]]
    return b"".join(parts)


def _points_binary(model: _Model) -> bytes:
    parts = [struct.pack("<Q", len(model.points))]
    for index, (xyz, rgb, track) in enumerate(model.points):
        parts.append(struct.pack("<Q3d3BdQ", index + 1, *xyz, *rgb, 0.0, len(track)))
        parts += [struct.pack("<ii", image, observation) for image, observation in track]
    return b"".join(parts)


def _pose(view: View) -> tuple[float, ...]:
    """QW QX QY QZ TX TY TZ."""
    pose = view.camera.cam_from_world.double()
    return (*quaternion(pose[:3, :3]), *pose[:3, 3].tolist())


_TEXT = {"cameras.txt": _cameras_text, "images.txt": _images_text, "points3D.txt": _points_text}
_BINARY = {"cameras.bin": _cameras_binary, "images.bin": _images_binary, "points3D.bin": _points_binary}
