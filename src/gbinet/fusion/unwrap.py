"""A mesh cut into charts and laid out flat in a square picture: xatlas, extra `mesh`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gbinet.formats.optional import optional

_PADDING = 2  # texels between charts, so that neighbours do not bleed into each other
_MAX_PART = 1000  # triangles that xatlas gets at once: its time grows faster than their number
_MAX_PACKING_SIZE = 1024  # texels a side while charts are arranged: more take longer


@dataclass(frozen=True)
class FlatMesh:
    """Triangles with texture coordinates; vertices are doubled at the borders of charts."""

    vertices: NDArray[np.float64]  # [N, 3]
    faces: NDArray[np.int64]  # [F, 3]
    uv: NDArray[np.float32]  # [N, 2] from 0 to 1, from the top left corner of the picture
    size: int  # of the picture, texels a side


def unwrap(vertices: NDArray[np.float64], faces: NDArray[np.int64], size: int) -> FlatMesh:
    """Lay out all triangles in a picture of size x size texels."""
    xatlas = optional("xatlas", "a textured mesh", "mesh")
    origin = vertices.mean(axis=0)
    atlas = xatlas.Atlas()
    parts = [np.unique(faces[part], return_inverse=True) for part in _parts(vertices[faces].mean(1) - origin)]
    for vertex_ids, corners in parts:
        atlas.add_mesh(
            (vertices[vertex_ids] - origin).astype(np.float32), corners.reshape(-1, 3).astype(np.uint32)
        )
    charts = xatlas.ChartOptions()
    charts.max_iterations = 1
    pack = xatlas.PackOptions()
    reduction = math.ceil(size / _MAX_PACKING_SIZE)
    pack.resolution, pack.padding, pack.bilinear = size // reduction, math.ceil(_PADDING / reduction), True
    atlas.generate(charts, pack)
    side = max(int(atlas.width), int(atlas.height))
    stretch = np.array([atlas.width, atlas.height], np.float32) / side
    all_vertex_ids, all_corners, all_uv, count = [], [], [], 0
    for number, (vertex_ids, _) in enumerate(parts):
        used, corners, uv = atlas.get_mesh(number)
        all_vertex_ids.append(vertex_ids[used.astype(np.int64)])
        all_corners.append(corners.astype(np.int64) + count)
        all_uv.append((uv * stretch).astype(np.float32))
        count += len(used)
    flat_vertices = vertices[np.concatenate(all_vertex_ids)]
    return FlatMesh(flat_vertices, np.concatenate(all_corners), np.concatenate(all_uv), size)


def _parts(middles: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Triangles, given by their middles [F, 3], in compact groups, made by halving the longest side."""
    waiting, done = [np.arange(len(middles))], list[NDArray[np.int64]]()
    while waiting:
        part = waiting.pop()
        if len(part) <= _MAX_PART:
            done.append(part)
            continue
        axis = int(np.ptp(middles[part], axis=0).argmax())
        order = part[np.argsort(middles[part, axis], kind="stable")]
        waiting += [order[: len(order) // 2], order[len(order) // 2 :]]
    return done
