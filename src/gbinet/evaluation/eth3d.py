"""ETH3D's measures: completeness and accuracy averaged over voxels, so that dense parts do not outweigh.

Completeness: share of scan points with a point of the cloud within the tolerance. Accuracy: a point of the
cloud is accurate if it lies in a laser beam and within the tolerance of where that beam ended; inaccurate if
it lies in a beam before its end (there is nothing, for light passed through); otherwise nobody knows, and it
does not count. Both are averaged per voxel, then over the voxels of two grids, shifted by half a voxel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.errors import GBiNetError, InputError
from gbinet.evaluation.align import transformed
from gbinet.evaluation.cloud import cells_of, checked, harmonic_mean, load_points
from gbinet.evaluation.nearest import Points, nearest_distances
from gbinet.formats.meshlab import read_meshlab
from gbinet.progress import Progress

TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # metres
GRID_SHIFTS = (0.0, 0.5)  # voxels

_CHUNK = 1 << 18  # points classified at a time
_FIRST_RAYS, _MORE_RAYS, _MOST_RAYS = 4, 8, 2048  # nearest rays looked at first; times more each time; last


@dataclass(frozen=True)
class ETH3DProtocol:
    """The published values."""

    voxel: float = 0.01  # metres
    beam_radius: float = 0.5 * 0.00225  # metres, at the scanner
    beam_halfangle: float = 0.011  # degrees by which the beam widens


@dataclass(frozen=True)
class Scan:
    """One laser scan; the scanner stands at the origin of its frame."""

    points: Points  # [N, 3] in the frame of the scanner
    world_from_scan: NDArray[np.float64]  # [4, 4] rigid


@dataclass(frozen=True)
class ETH3DScore:
    """By tolerance, in metres."""

    completeness: dict[float, float]
    accuracy: dict[float, float]
    f1: dict[float, float]
    points: int
    scan_points: int


@dataclass(frozen=True)
class ETH3DDistances:
    """What the score is made of."""

    scan_points: NDArray[np.float64] = field(repr=False)  # [M, 3] all scans, in the world
    to_points: NDArray[np.float64] = field(repr=False)  # [M] distance to the cloud; inf = more than asked
    # [N] to the nearest end of a beam around; inf = none
    to_beam_end: NDArray[np.float64] = field(repr=False)
    in_free_space: NDArray[np.bool_] = field(repr=False)  # [N] lies before the end of a beam


def load_scans(path: str | Path) -> list[Scan]:
    """The scans of a MeshLab project: ETH3D's `dslr_scan_eval/scan_alignment.mlp`."""
    return [Scan(load_points(mesh.path), mesh.world_from_mesh) for mesh in read_meshlab(path)]


def evaluate_scene(
    points: Points,
    scans: Sequence[Scan],
    tolerances: Sequence[float] = TOLERANCES,
    protocol: ETH3DProtocol | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> tuple[ETH3DScore, ETH3DDistances]:
    protocol = protocol or ETH3DProtocol()
    checked(points, "the cloud")
    if not scans:
        raise InputError("there are no scans to compare with")
    if not tolerances or not all(t > 0 for t in tolerances):
        raise InputError(f"tolerances must be positive lengths, got {list(tolerances)}")
    scan_points = np.concatenate([transformed(scan.points, scan.world_from_scan) for scan in scans])
    to_points = nearest_distances(
        scan_points,
        points,
        max_distance=max(tolerances),
        device=device,
        progress=progress,
        what="completeness",
    )
    to_beam_end, in_free_space = beam_ends(points, scans, protocol, progress)
    completeness, accuracy = {}, {}
    for tolerance in tolerances:
        everything = np.ones(len(scan_points), dtype=bool)
        completeness[tolerance] = voxel_share(scan_points, to_points <= tolerance, everything, protocol.voxel)
        accurate = to_beam_end <= tolerance
        accuracy[tolerance] = voxel_share(points, accurate, accurate | in_free_space, protocol.voxel)
    score = ETH3DScore(
        completeness,
        accuracy,
        {t: harmonic_mean(accuracy[t], completeness[t]) for t in tolerances},
        len(points),
        len(scan_points),
    )
    return score, ETH3DDistances(scan_points, to_points, to_beam_end, in_free_space)


def voxel_share(points: Points, good: NDArray[np.bool_], counted: NDArray[np.bool_], voxel: float) -> float:
    """Share of good points among those counted: per voxel, then the mean over the voxels of both grids."""
    points, good = points[counted], good[counted]
    if len(points) == 0:
        return 0.0
    total, voxels = 0.0, 0
    for shift in GRID_SHIFTS:
        order, starts, counts = cells_of(points, np.full(3, -shift * voxel), voxel)
        total += float((np.add.reduceat(good[order].astype(np.int64), starts) / counts).sum())
        voxels += len(starts)
    return total / voxels


def beam_ends(
    points: Points, scans: Sequence[Scan], protocol: ETH3DProtocol, progress: Progress | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """For every point: distance to the nearest end of a beam that holds it, and whether a beam passes on."""
    distance = np.full(len(points), np.inf)
    free = np.zeros(len(points), dtype=bool)
    for number, scan in enumerate(scans):
        beams = _Beams(scan.points, protocol)
        scan_from_world = np.linalg.inv(scan.world_from_scan).astype(np.float64)
        for start in range(0, len(points), _CHUNK):
            piece = slice(start, start + _CHUNK)
            d, passes = beams.classify(transformed(points[piece], scan_from_world))
            distance[piece] = np.minimum(distance[piece], d)
            free[piece] |= passes
            if progress:
                progress(min(start + _CHUNK, len(points)), len(points), f"accuracy, scan {number + 1}")
    return distance, free


class _Beams:
    """The rays of one scan, found by their direction."""

    def __init__(self, ends: Points, protocol: ETH3DProtocol) -> None:
        try:
            from scipy.spatial import cKDTree
        except ImportError as error:
            raise GBiNetError("ETH3D's accuracy needs scipy: pip install 'gbinet[eval]'") from error
        length = np.linalg.norm(ends.astype(np.float64), axis=1)
        real = length > 0  # a return from the scanner itself has no direction
        if not real.any():
            raise InputError("a scan has no point away from its scanner")
        self._ends, self._length = ends[real].astype(np.float64), length[real]
        self._directions = self._ends / self._length[:, None]
        self._tree = cKDTree(self._directions, balanced_tree=False, compact_nodes=False)
        self._protocol = protocol

    def classify(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Points in the scanner's frame -> distance to the nearest end of a beam around; does one pass?"""
        distance = np.full(len(points), np.inf)
        passes = np.zeros(len(points), dtype=bool)
        radius = np.linalg.norm(points, axis=1)
        beam = self._protocol.beam_radius + radius * np.tan(np.radians(self._protocol.beam_halfangle))
        # A ray passes within `beam` if its angle to the point has a sine below beam / radius. As a chord of
        # the unit sphere, this is what the tree is asked for.
        chord = 2 * np.sin(np.arcsin(np.minimum(beam / np.maximum(radius, 1e-12), 1)) / 2) + 1e-12
        directions = points / np.maximum(radius, 1e-12)[:, None]
        rows, count = np.arange(len(points)), min(_FIRST_RAYS, len(self._length))
        while len(rows) and count <= _MOST_RAYS:
            unfinished = []
            for some in np.array_split(rows, 1 + len(rows) * count // (_CHUNK * _FIRST_RAYS)):
                gap, ray = self._tree.query(directions[some], k=[*range(1, count + 1)], workers=-1)  # [n, k]
                for column in ray.T:
                    d, p = self._hits(points[some], column, beam[some])
                    distance[some] = np.minimum(distance[some], d)
                    passes[some] |= p
                unfinished.append(some[gap[:, -1] <= chord[some]])
            if count == len(self._length):
                return distance, passes
            rows, count = np.concatenate(unfinished), min(count * _MORE_RAYS, len(self._length))
        for row in rows:  # so near to the scanner that thousands of beams hold the point
            ray = np.array(self._tree.query_ball_point(directions[row], chord[row]), dtype=np.int64)
            d, p = self._hits(points[row], ray, beam[row])
            distance[row], passes[row] = d.min(initial=np.inf), p.any()
        return distance, passes

    def _hits(
        self,
        points: NDArray[np.float64],  # [n, 3] or [3]
        ray: NDArray[np.int64],  # [n]
        beam: NDArray[np.float64],  # [n] or []: radius of the beam at the point
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Distance of each point from the end of its ray, inf outside the beam; does the beam pass on?"""
        along = (points * self._directions[ray]).sum(axis=1)
        beside = np.linalg.norm(points - along[:, None] * self._directions[ray], axis=1)
        inside = (along >= 0) & (beside <= beam)
        to_end = np.linalg.norm(self._ends[ray] - points, axis=1)
        return np.where(inside, to_end, np.inf), inside & (along < self._length[ray])
