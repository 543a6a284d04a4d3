"""Small folders of posed photos in every shape, written without the code under test; and laws of scenes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from gbinet.formats.image import image_size, read_mask
from gbinet.scene import Scene

WIDTH, HEIGHT = 64, 48
K = np.array([[60.0, 0, 31], [0, 61, 25], [0, 0, 1]])


def cam_from_world(index: int) -> np.ndarray:
    """Cameras along x, turned a little towards the point (0, 0, 4)."""
    x = 0.3 * index - 0.6
    angle = np.arctan2(-x, 4)
    turn = np.array([[np.cos(angle), 0, -np.sin(angle)], [0, 1, 0], [np.sin(angle), 0, np.cos(angle)]])
    pose = np.eye(4)
    pose[:3, :3] = turn
    pose[:3, 3] = -turn @ [x, 0, 0]
    return pose


def points() -> np.ndarray:
    generator = np.random.default_rng(1)
    return generator.uniform([-1, -0.6, 3.5], [1, 0.6, 4.5], (200, 3))


def pixels(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def write_images(folder: Path, count: int, name: str = "{:08d}.png") -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    names = [name.format(i) for i in range(count)]
    for index, file in enumerate(names):
        Image.fromarray(pixels(index)).save(folder / file)
    return names


def matrix(values: np.ndarray) -> str:
    return "\n".join(" ".join(repr(float(v)) for v in row) for row in values)


def cam_text(index: int, tail: str = "2.0 0.02", scale: float = 1.0) -> str:
    intrinsic = K * [[scale], [scale], [1]]
    return f"extrinsic\n{matrix(cam_from_world(index))}\n\nintrinsic\n{matrix(intrinsic)}\n\n{tail}\n"


def pair_text(count: int) -> str:
    lines = [str(count)]
    for view in range(count):
        others = sorted(set(range(count)) - {view}, key=lambda o: abs(o - view))
        lines += [str(view), " ".join([str(len(others)), *(f"{o} {9.5 / abs(o - view)}" for o in others)])]
    return "\n".join(lines) + "\n"


def mvsnet(
    folder: Path, count: int = 4, tail: str = "2.0 0.02", cams: str = "cams", pairs: bool = True
) -> Path:
    write_images(folder / "images", count)
    (folder / cams).mkdir()
    for index in range(count):
        (folder / cams / f"{index:08d}_cam.txt").write_text(cam_text(index, tail))
    if pairs:
        (folder / "pair.txt").write_text(pair_text(count))
    return folder


def blendedmvs(folder: Path, count: int = 3) -> Path:
    write_images(folder / "blended_images", count, "{:08d}.jpg")
    write_images(folder / "blended_images", count, "{:08d}_masked.jpg")
    (folder / "cams").mkdir()
    for index in range(count):
        (folder / "cams" / f"{index:08d}_cam.txt").write_text(cam_text(index, "2.0 0.01 128 8.0"))
    (folder / "cams" / "pair.txt").write_text(pair_text(count))
    (folder / "rendered_depth_maps").mkdir()
    for index in range(count):
        write_pfm(folder / "rendered_depth_maps" / f"{index:08d}.pfm", np.full((HEIGHT, WIDTH), 4.0))
    return folder


def write_pfm(path: Path, values: np.ndarray) -> None:
    header = f"Pf\n{values.shape[1]} {values.shape[0]}\n-1.0\n".encode()
    path.write_bytes(header + values[::-1].astype("<f4").tobytes())


def quaternion(rotation: np.ndarray) -> list[float]:
    """Of a rotation about y."""
    half = 0.5 * np.arctan2(rotation[0, 2], rotation[0, 0])
    return [float(np.cos(half)), 0.0, float(np.sin(half)), 0.0]


def colmap(
    folder: Path,
    count: int = 4,
    *,
    place: str = "sparse/0",
    camera: tuple[int, list[float]] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    image_names: list[str] | None = None,
) -> Path:
    """A binary model; every camera sees every point. `camera` is (model id, parameters)."""
    names = image_names or write_images(folder / "images", count, "photo_{:02d}.png")
    model = folder / place
    model.mkdir(parents=True, exist_ok=True)
    model_id, params = camera or (1, [60.0, 61.0, 31.0, 25.0])
    (model / "cameras.bin").write_bytes(
        struct.pack("<QIiQQ", 1, 5, model_id, *size) + struct.pack(f"<{len(params)}d", *params)
    )
    xyz = points()
    images = [struct.pack("<Q", count)]
    for index in range(count):
        pose = cam_from_world(index)
        numbers = [*quaternion(pose[:3, :3]), *pose[:3, 3]]
        images.append(struct.pack("<I7dI", index + 1, *numbers, 5) + names[index].encode() + b"\0")
        images.append(struct.pack("<Q", 0))
    (model / "images.bin").write_bytes(b"".join(images))
    track = b"".join(struct.pack("<II", index + 1, 0) for index in range(count))
    rows = [struct.pack("<Q3d3BdQ", i, *p, 1, 2, 3, 0.1, count) + track for i, p in enumerate(xyz.tolist())]
    (model / "points3D.bin").write_bytes(struct.pack("<Q", len(rows)) + b"".join(rows))
    return folder


def nerfstudio(folder: Path, count: int = 4, **top: object) -> Path:
    names = write_images(folder / "images", count, "frame_{:05d}.png")
    frames = []
    for index, name in enumerate(names):
        opengl = np.linalg.inv(cam_from_world(index)) * [1.0, -1, -1, 1]
        frames.append({"file_path": f"images/{name}", "transform_matrix": opengl.tolist()})
    shared = {"fl_x": 60.0, "fl_y": 61.0, "cx": 31.0, "cy": 25.0, "w": WIDTH, "h": HEIGHT}
    (folder / "transforms.json").write_text(json.dumps({**shared, "frames": frames, **top}))
    return folder


def rgbd(folder: Path, count: int = 4) -> Path:
    write_images(folder / "images", count, "{:05d}.jpg")
    (folder / "depth").mkdir()
    for index in range(count):
        Image.fromarray(np.full((HEIGHT, WIDTH), 4000, np.uint16)).save(folder / "depth" / f"{index:05d}.png")
    (folder / "K.txt").write_text(matrix(K))
    rows = [np.linalg.inv(cam_from_world(i)).reshape(-1) for i in range(count)]
    (folder / "poses.txt").write_text(matrix(np.stack(rows)))
    return folder


def dtu_training(root: Path, scans: list[int], views: int = 3, *, small: bool = False) -> Path:
    scale = 0.25 if small else 1.0
    cams = root / "Cameras" / ("train" if small else "")
    cams.mkdir(parents=True)
    (root / "Cameras" / "pair.txt").write_text(pair_text(views))
    for view in range(views):
        (cams / f"{view:08d}_cam.txt").write_text(cam_text(view, "425.0 2.5", scale))
    for scan in scans:
        name = f"scan{scan}_train" if small else f"scan{scan}"
        images = root / ("Rectified" if small else "Rectified_raw") / name
        images.mkdir(parents=True)
        depths = root / ("Depths" if small else "Depths_raw") / name
        depths.mkdir(parents=True)
        for view in range(views):
            for light in range(7):
                Image.fromarray(pixels(view + light)).save(images / f"rect_{view + 1:03d}_{light}_r5000.png")
            write_pfm(depths / f"depth_map_{view:04d}.pfm", np.full((HEIGHT, WIDTH), 600.0))
            Image.fromarray(np.full((HEIGHT, WIDTH), 255, np.uint8)).save(
                depths / f"depth_visual_{view:04d}.png"
            )
    return root


def check(scene: Scene) -> None:
    """Assert what holds for every loaded scene."""
    assert len({view.name for view in scene.views}) == len(scene.views)
    for index, view in enumerate(scene.views):
        assert view.camera.K.dtype == view.camera.cam_from_world.dtype == torch.float64
        assert image_size(view.image_path) == (view.camera.width, view.camera.height)
        assert view.depth_range is not None and view.sources
        assert index not in {s.index for s in view.sources}
        assert [s.score for s in view.sources] == sorted((s.score for s in view.sources), reverse=True)
        if view.mask_path is not None:
            read_mask(view.mask_path, (view.camera.width, view.camera.height))
