"""Compares a georeferenced reconstruction with a reference cloud: alignment, coverage, distances."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbinet.evaluation.align import fit_similarity, icp, transformed
from gbinet.evaluation.nearest import nearest_distances
from gbinet.formats.cloud_files import read_cloud
from gbinet.formats.exif import read_exif
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene

Array = NDArray[np.float64]
CELL = 0.25  # m
SAMPLE = 40_000  # points of the cloud that take part in the alignment


def reference_of(folder: Path) -> Path | None:
    """`NAME-reference/*.laz` (or .las, .ply) beside the scene NAME."""
    beside = folder.parent / f"{folder.name}-reference"
    return next((p for p in sorted(beside.glob("*")) if p.suffix in (".laz", ".las", ".ply")), None)


def read_reference(path: Path) -> tuple[Array, NDArray[np.uint8] | None]:
    """Points [N, 3] and colours."""
    cloud = read_cloud(path)
    return cloud.xyz.double().numpy(), None if cloud.rgb is None else cloud.rgb.numpy()


def compared(scene: Scene, cloud: PointCloud, photos: Path, path: Path) -> tuple[dict[str, Any], Array]:
    """Figures, and the cloud in the reference's coordinates."""
    places = {p.stem: read_exif(p).gps for p in sorted(photos.iterdir()) if p.is_file()}
    known = [(v, place) for v in scene.views if (place := places.get(v.name)) is not None]
    if len(known) < 4:
        return {"reference": "fewer than 4 photos have GPS: no alignment"}, cloud.xyz.double().numpy()
    gps = np.array([[*utm(lat, lon), height] for _, (lat, lon, height) in known])  # [V, 3]
    centres = np.stack([v.camera.centre.double().numpy() for v, _ in known])
    to_gps = fit_similarity(centres, gps)
    off = transformed(centres, to_gps) - gps
    reference, _ = read_reference(path)
    origin = reference.mean(0)
    reference, xyz = reference - origin, transformed(cloud.xyz.double().numpy(), to_gps) - origin
    xyz[:, 2] += np.median(reference[:, 2]) - np.median(xyz[:, 2])  # heights of GPS and of maps differ
    some = xyz[np.random.default_rng(0).permutation(len(xyz))[:SAMPLE]]
    for reach in (4.0, 2.0, 1.0, 0.5):
        step = icp(some, reference, max_distance=reach, iterations=30)
        some, xyz = transformed(some, step), transformed(xyz, step)
    far = 2.0
    distance = nearest_distances(xyz, reference, max_distance=far)
    figures = {
        "camera heights off GPS, m rms": round(float(np.sqrt(np.square(off[:, 2]).mean())), 3),
        "cameras off GPS in plan, m rms": round(float(np.sqrt(np.square(off[:, :2]).sum(1).mean())), 3),
        f"{CELL} m cells of the reference covered (plan)": round(covered(reference[:, :2], xyz[:, :2]), 4),
        f"{CELL} m cells of the reference covered (space)": round(covered(reference, xyz), 4),
        f"points within {CELL} m": round(float((distance <= CELL).mean()), 4),
        "median distance, m": round(float(np.median(np.minimum(distance, far))), 4),
    }
    return figures, xyz + origin


def covered(reference: Array, xyz: Array) -> float:
    """Share of the reference's cells that hold a point of the cloud."""
    low = reference.min(0)
    cells = np.unique(np.floor((reference - low) / CELL).astype(np.int64), axis=0)
    ours = np.unique(np.floor((xyz - low) / CELL).astype(np.int64), axis=0)
    return float((np.isin(_keys(cells), _keys(ours))).mean())


def _keys(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = (cells * (1 << 20) ** np.arange(cells.shape[1])).sum(1)
    return keys


def utm(latitude: float, longitude: float) -> tuple[float, float]:
    """Easting and northing (m) in the zone of the place: Kruger's series to the third order, WGS 84."""
    n = 1 / 298.257223563 / (2 - 1 / 298.257223563)
    radius = 6_378_137.0 / (1 + n) * (1 + n**2 / 4 + n**4 / 64)
    alpha = (n / 2 - 2 / 3 * n**2 + 5 / 16 * n**3, 13 / 48 * n**2 - 3 / 5 * n**3, 61 / 240 * n**3)
    middle = math.floor(longitude / 6) * 6 + 3  # of the zone
    phi, lam = math.radians(latitude), math.radians(longitude - middle)
    e = 2 * math.sqrt(n) / (1 + n)
    t = math.sinh(math.atanh(math.sin(phi)) - e * math.atanh(e * math.sin(phi)))
    xi, eta = math.atan2(t, math.cos(lam)), math.atanh(math.sin(lam) / math.hypot(1, t))
    east = eta + sum(a * math.cos(2 * j * xi) * math.sinh(2 * j * eta) for j, a in enumerate(alpha, 1))
    north = xi + sum(a * math.sin(2 * j * xi) * math.cosh(2 * j * eta) for j, a in enumerate(alpha, 1))
    return 500_000 + 0.9996 * radius * east, 0.9996 * radius * north + (0 if latitude >= 0 else 10_000_000)
