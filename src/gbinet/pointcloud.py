"""A cloud of points with what is known about each of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from gbinet.errors import InputError


@dataclass(frozen=True)
class PointCloud:
    """N points in world coordinates, with what is known about each of them.

    All fields but xyz are optional; those that are there have N rows.

    Attributes:
        xyz: Positions, [N, 3] float32 or float64, in the scene's unit.
        rgb: Colours, [N, 3] uint8.
        normals: Unit normals, [N, 3] float32.
        confidence: [N] float32 in [0, 1]. In a fused cloud, that of the pixel which became the point, in the
            depth map of its own view; other views that agree do not change it.
        num_views: Views that agree on the point, its own included, [N] uint8; 255 means that many or more.

    Raises:
        InputError: If xyz is not [N, 3], a field has another number of rows, or colours are not uint8.

    Example:
        >>> import torch
        >>> from gbinet import PointCloud
        >>> cloud = PointCloud(torch.rand(100, 3), num_views=torch.arange(100, dtype=torch.uint8))
        >>> reliable = cloud[cloud.num_views >= 60]
        >>> len(reliable)
        40
        >>> reliable.save("reliable.ply").name
        'reliable.ply'
    """

    xyz: Tensor  # [N, 3] float32 or float64
    rgb: Tensor | None = None  # [N, 3] uint8
    normals: Tensor | None = None  # [N, 3] float32
    confidence: Tensor | None = None  # [N] float32
    num_views: Tensor | None = None  # [N] uint8

    def __post_init__(self) -> None:
        if self.xyz.dim() != 2 or self.xyz.shape[1] != 3:
            raise InputError(f"xyz must be [N, 3], got {list(self.xyz.shape)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and len(value) != len(self.xyz):
                raise InputError(f"{field.name} has {len(value)} rows, xyz has {len(self.xyz)}")
        for name, value in (("rgb", self.rgb), ("num_views", self.num_views)):
            if value is not None and value.dtype != torch.uint8:  # colours from 0 to 1 would all become black
                raise InputError(f"{name} must be uint8 (0 to 255), got {value.dtype}")

    def __len__(self) -> int:
        return len(self.xyz)

    def __getitem__(self, index: slice | Tensor) -> PointCloud:
        """Select points by a slice, a mask [N] or indices; returns a PointCloud."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen = {name: None if v is None else v[index] for name, v in values.items()}
        return PointCloud(**chosen)  # type: ignore[arg-type]  # xyz is never None

    @staticmethod
    def cat(clouds: list[PointCloud]) -> PointCloud:
        """Join several clouds; a field that one of them lacks is dropped."""
        if not clouds:
            return PointCloud(torch.zeros(0, 3))
        columns: dict[str, Tensor | None] = {}
        for field in fields(PointCloud):
            parts = [getattr(c, field.name) for c in clouds]
            columns[field.name] = None if any(p is None for p in parts) else torch.cat(parts)
        return PointCloud(**columns)  # type: ignore[arg-type]  # xyz is never None

    # These two import from a higher level (formats), because `cloud.save("cloud.ply")` is what people type.

    def save(self, path: str | Path) -> Path:
        """Write the cloud; the ending of the name says the format.

        Args:
            path: A `.ply`, `.las`, `.laz` or `.xyz` file; folders above it are created.

        Returns:
            The path that was written. The file appears whole or not at all.
        """
        from gbinet.formats.cloud_files import write_cloud

        return write_cloud(Path(path), self)

    @staticmethod
    def load(path: str | Path) -> PointCloud:
        """Read a cloud, of gbinet or of another program.

        Raises:
            FormatError: If the file is broken or not a cloud.
        """
        from gbinet.formats.cloud_files import read_cloud

        return read_cloud(Path(path))
