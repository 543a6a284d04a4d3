"""Triangle meshes with texture coordinates and normals; transforming and joining them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gbinet.render.rasterise import transform


@dataclass(frozen=True)
class Mesh:
    """Triangles; both sides are visible."""

    positions: Tensor  # [N, 3] float32
    normals: Tensor  # [N, 3] float32, unit length
    uv: Tensor  # [N, 2] float32; texture row = (1 - v) * height
    faces: Tensor  # [F, 3] int64

    def to(self, device: torch.device) -> Mesh:
        columns = (self.positions, self.normals, self.uv, self.faces)
        return Mesh(*(column.to(device, non_blocking=True) for column in columns))

    def moved(self, world_from_mesh: Tensor) -> Mesh:
        """The mesh after a similarity transform (rotation, uniform scale, translation), [3, 4] or [4, 4]."""
        matrix = world_from_mesh.to(self.positions)
        linear = torch.cat([matrix[:3, :3], torch.zeros_like(matrix[:3, :1])], dim=1)
        normals = transform(linear, self.normals)
        return Mesh(transform(matrix, self.positions), _unit(normals), self.uv, self.faces)

    def stretched(self, factors: tuple[float, float, float]) -> Mesh:
        """The mesh scaled by one factor per axis."""
        by = self.positions.new_tensor(factors)
        return Mesh(self.positions * by, _unit(self.normals / by), self.uv, self.faces)

    def textured(self, factor: float) -> Mesh:
        """The mesh with its texture repeated factor times as often."""
        return Mesh(self.positions, self.normals, self.uv * factor, self.faces)


def join(meshes: list[Mesh]) -> Mesh:
    starts = [0]
    for mesh in meshes:
        starts.append(starts[-1] + len(mesh.positions))
    faces = [mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]
    return Mesh(
        torch.cat([m.positions for m in meshes]),
        torch.cat([m.normals for m in meshes]),
        torch.cat([m.uv for m in meshes]),
        torch.cat(faces),
    )


def vertex_normals(positions: Tensor, faces: Tensor, welded: Tensor | None = None) -> Tensor:
    """Normals [N, 3] averaged over the faces at each vertex, weighted by area.

    welded [N]: equal for vertices at the same position, which exist twice at texture seams.
    """
    a, b, c = positions[faces].unbind(1)
    face_normals = torch.linalg.cross(b - a, c - a)
    total = torch.zeros_like(positions)
    groups = faces if welded is None else welded[faces]
    for corner in range(3):
        total.index_add_(0, groups[:, corner], face_normals)
    return _unit(total if welded is None else total[welded])


def _unit(vectors: Tensor) -> Tensor:
    unit: Tensor = vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-20)
    return unit
