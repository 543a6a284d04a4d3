"""A mesh cut into charts and laid out flat in a square picture: xatlas, extra `mesh`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gbinet.formats.optional import optional

_PADDING = 2  # texels between charts: neighbours do not bleed into each other


@dataclass(frozen=True)
class FlatMesh:
    """Triangles with a place in the picture; vertices are doubled where charts part."""

    vertices: NDArray[np.float64]  # [N, 3]
    faces: NDArray[np.int64]  # [F, 3]
    uv: NDArray[np.float32]  # [N, 2] from 0 to 1, from the top left corner of the picture
    size: int  # of the picture, texels a side


def unwrap(vertices: NDArray[np.float64], faces: NDArray[np.int64], size: int) -> FlatMesh:
    """Lay out all triangles in a picture of about size x size texels."""
    xatlas = optional("xatlas", "a textured mesh", "mesh")
    origin = vertices.mean(axis=0)
    atlas = xatlas.Atlas()
    atlas.add_mesh((vertices - origin).astype(np.float32), faces.astype(np.uint32))
    charts = xatlas.ChartOptions()
    charts.max_iterations = 1
    pack = xatlas.PackOptions()
    pack.resolution, pack.padding, pack.bilinear = size, _PADDING, True
    atlas.generate(charts, pack)
    own, corners, uv = atlas.get_mesh(0)
    side = max(int(atlas.width), int(atlas.height))
    square = uv * np.array([atlas.width, atlas.height], np.float32) / side
    return FlatMesh(vertices[own.astype(np.int64)], corners.astype(np.int64), square.astype(np.float32), side)
