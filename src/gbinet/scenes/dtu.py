"""DTU as prepared for MVSNet: published splits, and where the files of the training and test sets lie.

Training set (root):  Cameras/pair.txt, Cameras/%08d_cam.txt, Rectified_raw/scanN/rect_%03d_L_r5000.png,
                      Depths_raw/scanN/depth_map_%04d.pfm and depth_visual_%04d.png (mask); 1600x1200
  or, smaller:        Rectified/scanN_train/..., Cameras/train/..., Depths/scanN_train/...; 640x512
Test set (root):      scanN/images, scanN/cams, scanN/pair.txt
Image numbers begin with 1, all other numbers with 0.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gbinet.camera import Camera
from gbinet.errors import InputError, SceneError
from gbinet.formats.image import image_size
from gbinet.formats.mvsnet import read_cam, read_pairs
from gbinet.scene import DepthRange, Scene, SourceView, View
from gbinet.scenes import mvsnet
from gbinet.scenes.kind import Kind, ReadOptions, split_named
from gbinet.scenes.views import checked_camera

# fmt: off
TRAIN = (
    2, 6, 7, 8, 14, 16, 18, 19, 20, 22, 30, 31, 36, 39, 41, 42, 44, 45, 46, 47, 50, 51, 52, 53, 55, 57,
    58, 60, 61, 63, 64, 65, 68, 69, 70, 71, 72, 74, 76, 83, 84, 85, 87, 88, 89, 90, 91, 92, 93, 94, 95,
    96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 107, 108, 109, 111, 112, 113, 115, 116, 119, 120, 121,
    122, 123, 124, 125, 126, 127, 128,
)
VALIDATION = (3, 5, 17, 21, 28, 35, 37, 38, 40, 43, 56, 59, 66, 67, 82, 86, 106, 117)
TEST = (1, 4, 9, 10, 11, 12, 13, 15, 23, 24, 29, 32, 33, 34, 48, 49, 62, 75, 77, 110, 114, 118)
# fmt: on
SPLITS = {"train": TRAIN, "val": VALIDATION, "test": TEST}
VIEWS = 49
LIGHTS = 7

_SCAN_NAME = re.compile(r"scan(\d+)(_train)?")


@dataclass(frozen=True)
class ScanSample:
    """One training sample: a reference view under one lighting."""

    scan: int
    light: int
    view: int


def samples(split: str = "train", lights: Iterable[int] = range(LIGHTS)) -> list[ScanSample]:
    """All samples of a split as published: 79 scans x 49 views x 7 lightings = 27,097 for training."""
    every = itertools.product(scans(split), range(VIEWS), tuple(lights))
    return [ScanSample(scan, light, view) for scan, view, light in every]


def scans(split: str) -> tuple[int, ...]:
    return split_named("DTU", SPLITS, split)


def load_set(root: str | Path, split: str = "train", lights: Iterable[int] = range(LIGHTS)) -> list[Scene]:
    """One scene per scan and lighting. Cameras are read once: they are the same for every scan."""
    root = Path(root)
    if not is_training_set(root):
        first = f"scan{scans(split)[0]}"
        if not (root / first).is_dir():
            raise SceneError(f"{root} does not hold DTU: neither Cameras/pair.txt nor {first} is there")
        return [load_scan(root, scan) for scan in scans(split)]
    rig = _read_rig(root)
    return [_scene(root, rig, scan, light) for scan in scans(split) for light in lights]


def load_scan(root: str | Path, scan: int, light: int = 3) -> Scene:
    """One scan of the training or the test set."""
    root = Path(root)
    if is_training_set(root):
        return _scene(root, _read_rig(root), scan, light)
    return mvsnet.read(root / f"scan{scan}", ReadOptions(), kind="dtu", same_size=True)


def is_training_set(root: Path) -> bool:
    return any((root / "Cameras" / name).is_file() for name in ("pair.txt", "train/pair.txt"))


def parse_scan_folder(folder: Path) -> tuple[Path, int] | None:
    """(root, scan) of a folder of photos inside the training set, e.g. Rectified_raw/scan2."""
    match = _SCAN_NAME.fullmatch(folder.name)
    if match is None or not folder.parent.name.startswith("Rectified"):
        return None
    root = folder.parent.parent
    return (root, int(match[1])) if is_training_set(root) else None


def recognise(folder: Path) -> bool:
    return parse_scan_folder(folder) is not None or is_training_set(folder)


def read(folder: Path, options: ReadOptions) -> Scene:
    if options.images is not None:
        raise SceneError("a scan of DTU's training set is its folder of photos: omit --images")
    found = parse_scan_folder(folder)
    if found is None:
        raise SceneError(
            f"{folder}: to load one scan of DTU's training set, give its folder of photos, e.g. "
            f"{folder / 'Rectified_raw' / 'scan2'}"
        )
    return load_scan(*found)


KIND = Kind(
    "dtu",
    "scan of DTU's training set",
    "Rectified*/scan*, with Cameras/pair.txt above",
    recognise,
    read,
)


# ---- the training set --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cameras:
    """Cameras, ranges and source views, which all scans share."""

    small: bool  # 640x512 instead of 1600x1200
    cameras: dict[int, Camera]
    ranges: dict[int, DepthRange]
    sources: dict[int, tuple[SourceView, ...]]


def _read_rig(root: Path) -> _Cameras:
    small = not (root / "Rectified_raw").is_dir()
    cams = root / "Cameras" / "train" if small else root / "Cameras"
    pair_path = next(p for p in (root / "Cameras" / "pair.txt", cams / "pair.txt") if p.is_file())
    pairs = read_pairs(pair_path)
    index = {view: position for position, view in enumerate(pairs)}
    size = _image_size(root, small)
    cameras, ranges = {}, {}
    for view in pairs:
        path = cams / f"{view:08d}_cam.txt"
        cam = read_cam(path)
        # The small set's cameras are made for its depth maps, a quarter of the images.
        made_for = (size[0] // 4, size[1] // 4) if small else size
        cameras[view] = checked_camera(path, cam.K, cam.cam_from_world, made_for).resized(*size)
        ranges[view] = mvsnet.cam_range(cam)
    sources = {
        view: tuple(SourceView(index[n], score) for n, score in found if n in index and n != view)
        for view, found in pairs.items()
    }
    return _Cameras(small, cameras, ranges, sources)


def _image_size(root: Path, small: bool) -> tuple[int, int]:
    """Of all images of the set, from one of them."""
    folder = root / ("Rectified" if small else "Rectified_raw")
    first = next(folder.glob("scan*/rect_*.png"), None) if folder.is_dir() else None
    if first is None:
        raise SceneError(f"{root}: has DTU's Cameras, but no images in {folder.name}/scan*/rect_*.png")
    return image_size(first)


def _scene(root: Path, rig: _Cameras, scan: int, light: int) -> Scene:
    if not 0 <= light < LIGHTS:
        raise InputError(f"DTU has lightings 0 to {LIGHTS - 1}, not {light}")
    name = f"scan{scan}_train" if rig.small else f"scan{scan}"
    images = root / ("Rectified" if rig.small else "Rectified_raw") / name
    if not images.is_dir():
        raise SceneError(f"{images}: there is no such scan; is the data set complete?")
    depths = root / ("Depths" if rig.small else "Depths_raw") / name
    has_depth = depths.is_dir()
    views = [
        View(
            f"{view:08d}",
            camera,
            images / f"rect_{view + 1:03d}_{light}_r5000.png",
            rig.ranges[view],
            rig.sources[view],
            mask_path=depths / f"depth_visual_{view:04d}.png" if has_depth else None,
            depth_path=depths / f"depth_map_{view:04d}.pfm" if has_depth else None,
        )
        for view, camera in rig.cameras.items()
    ]
    return Scene(f"scan{scan}_light{light}", "dtu", images, tuple(views))
