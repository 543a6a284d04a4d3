"""The three steps of structure from motion with pycolmap: features, matches, mapping.

The same photos give the same poses, bit for bit on one machine: photos are numbered in the order of their
names, every RANSAC has its own seed, and the mapper runs on one thread (sums of several threads depend on
their order). Features and matches still use all cores.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gbinet.cores import usable_cores
from gbinet.formats.optional import load_pycolmap
from gbinet.progress import Progress
from gbinet.scenes.sfm.cameras import InputPhoto
from gbinet.scenes.sfm.matching import Pair, find_pairs
from gbinet.scenes.sfm.outcome import photos_with_impossible_camera

_MAX_SIZE = 2000  # px, longer side for finding features: more costs time and adds little
_SEED = 0
_BLOCK = 500  # pairs that are compared between two reports of progress
_PARALLEL = math.radians(15)  # if all photos look the same way within this, they do not fix focal lengths
_MAX_DRIFT = 0.03  # share by which a focal length may then differ from EXIF
_SMALLEST_MODEL = 3  # photos; smaller models are not reported


@contextmanager
def quiet() -> Iterator[Any]:
    """pycolmap without its log on the terminal, and with the same random numbers every time."""
    pycolmap = load_pycolmap()
    level = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = 3
    pycolmap.set_random_seed(_SEED)
    try:
        yield pycolmap
    finally:
        pycolmap.logging.minloglevel = level


def numbered(index: int, photo: InputPhoto) -> str:
    """The name that pycolmap gets instead of the file's, which could break its lists or its order."""
    suffix = Path(photo.name).suffix.lower()
    suffix = ".jpg" if suffix == ".jpeg" else suffix
    return f"{index:06d}{suffix}"


def find_features(
    pycolmap: Any, database: Path, images: Path, cameras: Sequence[Sequence[str]], progress: Progress | None
) -> None:
    """Features of all photos; `cameras` holds the names of the photos of each camera."""
    pycolmap.Database.open(database).close()  # makes the file
    for names in cameras:
        pycolmap.import_images(database, images, pycolmap.CameraMode.SINGLE, list(names))
    options = pycolmap.FeatureExtractionOptions()
    options.max_image_size = _MAX_SIZE
    every = sorted(name for names in cameras for name in names)
    at_once = usable_cores()
    for start in range(0, len(every), at_once):
        if progress:
            progress(start, len(every), "finding features")
        pycolmap.extract_features(
            database,
            images,
            every[start : start + at_once],
            extraction_options=options,
            device=pycolmap.Device.cpu,
        )
    if progress:
        progress(len(every), len(every), "finding features")


def match(
    pycolmap: Any, database: Path, photos: Sequence[InputPhoto], how: str, progress: Progress | None
) -> list[Pair]:
    """Compare photos in pairs. What is in the database already is not compared again."""
    if progress:
        progress(0, 1, f"comparing {len(photos)} photos")
    pairs = find_pairs(pycolmap, database, database.parent, photos, how)
    names = [numbered(index, photo) for index, photo in enumerate(photos)]
    verification = pycolmap.TwoViewGeometryOptions()
    verification.ransac.random_seed = _SEED
    pairing = pycolmap.ImportedPairingOptions()
    listed = database.parent / "pairs.txt"
    pairing.match_list_path = listed
    for start in range(0, len(pairs), _BLOCK):
        block = pairs[start : start + _BLOCK]
        listed.write_text("".join(f"{names[a]} {names[b]}\n" for a, b in block))
        pycolmap.match_image_pairs(
            database, pairing_options=pairing, verification_options=verification, device=pycolmap.Device.cpu
        )
        if progress:
            progress(start + len(block), len(pairs), f"comparing {len(photos)} photos")
    listed.unlink(missing_ok=True)
    return pairs


def find_models(
    pycolmap: Any, database: Path, images: Path, count: int, progress: Progress | None
) -> tuple[list[Any], bool]:
    """Models of the photos, that with the most sound photos first; and whether focal lengths were kept fixed.

    If half of the photos or more get no sound pose, or all of them look the same way and a focal length has
    drifted away from EXIF, mapping is tried again with the focal lengths of EXIF.
    """
    models = _map(pycolmap, database, images, count, False, progress)
    drifted = bool(models) and _drifted(pycolmap, database, models[0])
    if models and _num_sound_photos(models[0]) > count / 2 and not drifted:
        return models, False
    fixed_models = _map(pycolmap, database, images, count, True, progress)
    free, fixed = (_num_sound_photos(found[0]) if found else 0 for found in (models, fixed_models))
    better = fixed > free or (drifted and fixed >= 0.9 * free)
    return (fixed_models, True) if fixed and better else (models, False)


def _drifted(pycolmap: Any, database: Path, model: Any) -> bool:
    """Whether all photos look the same way and a focal length has drifted away from EXIF.

    Nothing fixes it then: a drone that looks straight down sees the same picture from twice the height with
    twice the focal length.
    """
    with pycolmap.Database.open(database) as opened:
        known = {c.camera_id: c for c in opened.read_all_cameras() if c.has_prior_focal_length}
    images = [image for image in model.images.values() if image.has_pose]
    axes = np.stack([image.cam_from_world().rotation.matrix()[2] for image in images])  # [V, 3]
    middle = axes.mean(axis=0)
    if (axes @ middle / np.linalg.norm(middle)).min() < math.cos(_PARALLEL):
        return False
    ratios = [
        model.cameras[i].mean_focal_length() / known[i].mean_focal_length()
        for i in model.cameras
        if i in known
    ]
    return any(abs(math.log(ratio)) > _MAX_DRIFT for ratio in ratios)


def _num_sound_photos(model: Any) -> int:
    return int(model.num_reg_images()) - len(photos_with_impossible_camera(model))


def _map(
    pycolmap: Any, database: Path, images: Path, count: int, fixed_focal: bool, progress: Progress | None
) -> list[Any]:
    placed = 0

    def on_image() -> None:
        nonlocal placed
        placed = min(placed + 1, count)
        if progress:
            progress(placed, count, "placing photos")

    options = pycolmap.IncrementalPipelineOptions()
    options.random_seed = _SEED
    options.num_threads = 1
    options.min_model_size = _SMALLEST_MODEL
    if fixed_focal:
        options.ba_refine_focal_length = False
        options.mapper.abs_pose_refine_focal_length = False
    attempts = database.parent / "mapping"
    shutil.rmtree(attempts, ignore_errors=True)
    attempts.mkdir(parents=True)
    models = pycolmap.incremental_mapping(
        database,
        images,
        attempts,
        options,
        initial_image_pair_callback=on_image,
        next_image_callback=on_image,
    )
    shutil.rmtree(attempts, ignore_errors=True)
    found = [model for _, model in sorted(models.items()) if model.num_reg_images() >= 2]
    return sorted(found, key=_num_sound_photos, reverse=True)
