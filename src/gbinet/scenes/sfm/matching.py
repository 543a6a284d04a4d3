"""Which pairs of photos are compared, depending on what is known about them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbinet.scenes.photos import is_frame_name
from gbinet.scenes.sfm.cameras import InputPhoto

Pair = tuple[int, int]  # numbers of two photos, the smaller one first

ALL_PAIRS = 100  # up to so many photos every pair is compared
_ALL_PAIRS_WITH_GPS = 40  # the same where GPS is known: for fewer photos, neighbours in space save little
_NEIGHBOURS = 30  # photos nearest in space that each photo is compared with
_FOLLOWING = 10  # frames that follow a frame, and its 16th, 32nd, ... successor up to 2 to the power of this
_SIMILAR = 40  # photos that look alike, where nothing else is known
_SIMILAR_IN_SEQUENCE = 20  # the same, in addition to neighbours in a sequence: closes loops
_EARTH = 6_371_000.0  # m
_WORDS = 6144  # of the vocabulary; faiss wants some 40 features per word
_FEATURES = 262_144  # it is learned from


def plan(photos: Sequence[InputPhoto]) -> str:
    """How the photos are compared: 'all', 'space', 'sequence' or 'looks'."""
    with_gps = sum(photo.exif.gps is not None for photo in photos)
    if len(photos) <= _ALL_PAIRS_WITH_GPS:
        return "all"
    if with_gps >= 0.9 * len(photos) and _spread(photos) > 5:
        return "space"
    if all(is_frame_name(photo.name) for photo in photos):
        return "sequence"
    if len(photos) <= ALL_PAIRS:
        return "all"
    return "sequence" if is_sequence([photo.name for photo in photos]) else "looks"


def is_sequence(names: Sequence[str]) -> bool:
    """Whether names are those of numbered frames: one beginning, and numbers that run on with few gaps."""
    found = [re.fullmatch(r"(.*?)(\d+)(\D*)", name) for name in names]
    matches = [match for match in found if match is not None]
    if len(matches) < len(names) or len({match[1] for match in matches}) > 1:
        return False
    steps = np.diff(sorted(int(match[2]) for match in matches))
    return bool(len(steps) and np.mean(steps <= max(2, np.median(steps))) >= 0.8)


def all_pairs(count: int) -> list[Pair]:
    return [(a, b) for a in range(count) for b in range(a + 1, count)]


def pairs_in_space(photos: Sequence[InputPhoto]) -> list[Pair]:
    """Each photo with its nearest neighbours; photos without GPS with all others."""
    metres = positions(photos)  # [N, 2], nan where unknown
    pairs: set[Pair] = set()
    for index, position in enumerate(metres):
        distance = np.linalg.norm(metres - position, axis=1)
        nearest = np.argsort(np.where(np.isnan(distance), -1.0, distance), kind="stable")
        unknown = int(np.isnan(distance).sum())
        pairs |= _with(index, nearest[: unknown + _NEIGHBOURS + 1])
    return sorted(pairs)


def pairs_in_sequence(names: Sequence[str]) -> list[Pair]:
    """Each photo with those that follow it by number, closely and at growing distances."""
    order = sorted(range(len(names)), key=lambda i: [int(d) for d in re.findall(r"\d+", names[i])])
    steps = [*range(1, _FOLLOWING + 1), *(2**power for power in range(4, _FOLLOWING + 1))]
    return sorted(
        {_pair(a, order[i + step]) for i, a in enumerate(order) for step in steps if i + step < len(order)}
    )


def pairs_by_looks(pycolmap: Any, database: Path, folder: Path, similar: int) -> list[Pair]:
    """Each photo with those most alike: pycolmap's visual index, with words learned from these photos."""
    with pycolmap.Database.open(database) as opened:
        ids = sorted(image.image_id for image in opened.read_all_images())
        share = max(1, _FEATURES // len(ids))
        some: list[NDArray[np.float32]] = []
        for image_id in ids:
            features = opened.read_descriptors(image_id)
            values = np.asarray(features.data, dtype=np.float32)  # [F, 128]
            some.append(values[:: max(1, math.ceil(len(values) / share))])
        learned = np.concatenate(some)
        build = pycolmap.VisualIndex.BuildOptions()
        build.num_visual_words = max(16, min(_WORDS, len(learned) // 40))
        build.num_iterations, build.num_rounds, build.num_checks = 10, 1, 64
        index = pycolmap.VisualIndex.create(learned.shape[1], 64)
        index.build(build, pycolmap.FeatureDescriptorsFloat(features.type, learned))
        words = folder / "words.bin"
        index.write(words)
        options = pycolmap.VocabTreePairingOptions()
        options.vocab_tree_path, options.num_images = words, similar + 1  # a photo finds itself too
        found = pycolmap.VocabTreePairGenerator(options, opened).all_pairs()
        words.unlink()
    number = {image_id: index for index, image_id in enumerate(ids)}
    return sorted({_pair(number[a], number[b]) for a, b in found if a != b})


def find_pairs(
    pycolmap: Any, database: Path, folder: Path, photos: Sequence[InputPhoto], how: str
) -> list[Pair]:
    if how == "all":
        return all_pairs(len(photos))
    if how == "space":
        return pairs_in_space(photos)
    if how == "sequence":
        near = pairs_in_sequence([photo.name for photo in photos])
        return sorted({*near, *pairs_by_looks(pycolmap, database, folder, _SIMILAR_IN_SEQUENCE)})
    return pairs_by_looks(pycolmap, database, folder, _SIMILAR)


def positions(photos: Sequence[InputPhoto]) -> NDArray[np.float64]:
    """[N, 2] metres east and north of the first photo with GPS; nan for photos without.

    Heights are left out: GPS is far worse at them.
    """
    unknown = (math.nan,) * 3
    degrees = np.array([(p.exif.gps or unknown)[1::-1] for p in photos])  # [N, 2] longitude, latitude
    known = degrees[~np.isnan(degrees[:, 0])]
    if len(known) == 0:
        return degrees
    metres_per_degree = math.radians(1) * _EARTH
    scale = metres_per_degree * np.array([math.cos(math.radians(known[0, 1])), 1.0])
    offset = (degrees - known[0] + 180) % 360 - 180  # across the date line too
    metric: NDArray[np.float64] = offset * scale
    return metric


def _spread(photos: Sequence[InputPhoto]) -> float:
    """Median distance in metres of the known positions from their middle. Indoors, GPS gives only one."""
    known = positions(photos)
    known = known[~np.isnan(known[:, 0])]
    return float(np.median(np.linalg.norm(known - np.median(known, axis=0), axis=1)))


def _with(index: int, others: NDArray[np.int64]) -> set[Pair]:
    return {_pair(index, int(other)) for other in others if int(other) != index}


def _pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)
