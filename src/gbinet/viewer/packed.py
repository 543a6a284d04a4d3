"""A cloud packed small for the report: 16-bit positions in a cube, levels of detail, deflate, base64.

Points are dealt at random into levels, each four times as large as all before it. Whoever draws the first n
points thus sees the whole cloud, only coarser. Within a level points follow a space-filling curve, neighbours
after neighbours: their differences are small numbers, which deflate well. report.js unpacks it.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gbinet.pointcloud import PointCloud

Bytes = NDArray[np.uint8]
FIRST_LEVEL = 20_000  # points
GROWTH = 4
SIZE_STEPS = 16  # steps of a point's size per octave
CROWD = 24  # points in a typical box in which their spacing is measured


@dataclass(frozen=True)
class PackedCloud:
    """What report.js unpacks."""

    data: str  # base64 of deflated levels, one after the other
    lengths: tuple[int, ...]  # characters of each level
    counts: tuple[int, ...]  # points of each level
    spacing: float  # spacing of size 0, in units of the cube, when all points are drawn


def pack(cloud: PointCloud, local: Tensor, max_bytes: int) -> PackedCloud:
    """Pack points whose positions `local` [N, 3] lie in [-1, 1]; as many as fit into `max_bytes`."""
    grid = ((local.numpy() + 1) / 2 * 65535).round().astype(np.uint16)  # [N, 3]
    along = np.argsort(_curve(grid), kind="stable")
    grid = grid[along]
    spacing, sizes = _sizes(grid)
    columns = _columns(cloud, along, _rounded(grid, spacing), sizes)
    rank = np.random.default_rng(0).permutation(len(cloud))  # the first n ranks are a random share
    texts: list[str] = []
    counts: list[int] = []
    start, count, left = 0, len(cloud), max_bytes
    while start < count:
        end = min(count, max(FIRST_LEVEL, GROWTH * start))
        text = _level(columns[(rank >= start) & (rank < end)])
        if len(text) > left:  # the last level: what fits of it
            end = count = start + int((end - start) * 0.97 * left / len(text))
            text = _level(columns[(rank >= start) & (rank < end)])
            if end == start or len(text) > left:
                break
        texts.append(text)
        counts.append(end - start)
        start, left = end, left - len(text)
    spacing *= (len(cloud) / max(sum(counts), 1)) ** 0.5  # points that were left out make the others larger
    return PackedCloud("".join(texts), tuple(map(len, texts)), tuple(counts), spacing)


def _rounded(grid: NDArray[np.uint16], spacing: float) -> NDArray[np.uint16]:
    """Positions to an eighth of the typical spacing: finer ones only take room."""
    bits = np.uint16(np.log2(max(spacing * 65535 / 2, 1)))  # `spacing` is a quarter of the typical one
    return grid >> bits << bits


def _columns(
    cloud: PointCloud, along: NDArray[np.int64], grid: NDArray[np.uint16], sizes: Bytes
) -> NDArray[np.uint16]:
    """[N, 9]: x, y, z, red, green, blue, views, confidence, size; colours and confidence in coarse steps."""
    columns = np.zeros((len(cloud), 9), np.uint16)
    columns[:, :3] = grid
    columns[:, 3:6] = 200 if cloud.rgb is None else cloud.rgb.numpy()[along] & 252
    columns[:, 6] = 255 if cloud.num_views is None else cloud.num_views.numpy()[along]
    columns[:, 7] = 255
    if cloud.confidence is not None:
        columns[:, 7] = (cloud.confidence.clamp(0, 1) * 15).round().numpy()[along] * 17
    columns[:, 8] = sizes
    return columns


def _level(columns: NDArray[np.uint16]) -> str:
    """Points [N, 9] along the curve, as differences, a plane of bytes after the other, deflated."""
    steps = np.diff(columns, axis=0, prepend=np.zeros((1, 9), np.uint16))  # modulo 65536
    positions = steps[:, :3].astype(np.int16)
    folded = ((positions << 1) ^ (positions >> 15)).view(np.uint16)  # 0, -1, 1, -2, ... -> 0, 1, 2, 3, ...
    planes = [folded & 255, folded >> 8, steps[:, 3:] & 255]
    raw = np.concatenate([plane.astype(np.uint8).T for plane in planes])  # [12, N]
    return base64.b64encode(zlib.compress(raw.tobytes(), 6)).decode("ascii")


def _curve(grid: NDArray[np.uint16]) -> NDArray[np.uint64]:
    """Where a box lies on Morton's curve: the bits of x, y and z in turn."""
    spread = grid.astype(np.uint64)
    for shift, mask in ((32, 0x1F00000000FFFF), (16, 0x1F0000FF0000FF), (8, 0x100F00F00F00F00F)):
        spread = (spread | (spread << np.uint64(shift))) & np.uint64(mask)
    for shift, mask in ((4, 0x10C30C30C30C30C3), (2, 0x1249249249249249)):
        spread = (spread | (spread << np.uint64(shift))) & np.uint64(mask)
    result: NDArray[np.uint64] = (
        spread[:, 0] | (spread[:, 1] << np.uint64(1)) | (spread[:, 2] << np.uint64(2))
    )
    return result


def _sizes(grid: NDArray[np.uint16]) -> tuple[float, Bytes]:
    """A quarter of the typical spacing, and the spacing of each point in steps above that.

    A surface crosses a box of edge e in an area of about e^2, so n points in it are e / sqrt(n) apart.
    Points that stand alone are not drawn larger than three times the typical spacing. `grid` follow the
    curve, so those of a larger box follow each other.
    """
    if len(grid) == 0:
        return 1e-3, np.zeros(0, np.uint8)
    curve = _curve(grid)
    shift, crowd = 0, np.ones(len(grid), np.int64)
    while shift < 12 and np.median(crowd) < CROWD:
        shift += 1
        larger = curve >> np.uint64(3 * shift)
        starts = np.flatnonzero(np.diff(larger, prepend=larger[0] + np.uint64(1)))
        counts = np.diff(starts, append=len(larger))
        crowd = np.repeat(counts, counts)
    spacing = 2 * 2.0**shift / 65535 / np.sqrt(crowd)  # in units of the cube
    typical = float(np.median(spacing))
    smallest = typical / 4
    steps = np.log2(np.clip(spacing, smallest, 3 * typical) / smallest) * SIZE_STEPS
    return smallest, steps.round().astype(np.uint8)
