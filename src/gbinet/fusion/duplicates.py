"""Two ways to have a surface point that many views see only once in the cloud."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from gbinet.errors import InputError


class UsedPixels:
    """Pixels of views still to come that already went into a point of an earlier view.

    A mask lives from the first mark until its view is visited. Beyond `keep_unpacked` masks the oldest are
    packed to one bit per pixel, 1/64 of a depth map with confidence. All stay on the device of the maps.
    """

    def __init__(self, keep_unpacked: int) -> None:
        self.keep_unpacked = keep_unpacked
        self._masks: OrderedDict[int, Tensor] = OrderedDict()  # view -> [H * W] bool
        self._packed: dict[int, Tensor] = {}  # view -> [H * W / 8] uint8
        self._visited: set[int] = set()

    def mark(self, view: int, like: Tensor, pixels: Tensor) -> None:
        """Pixels (flat indices) of a view are used; `like` is its depth map (size and device)."""
        mask = self.of(view, like)
        if mask is not None:
            mask[pixels] = True
            self.pack()

    def of(self, view: int, like: Tensor) -> Tensor | None:
        """The mask of a view, [H * W] bool, to be marked; None if it was visited. Call `pack` afterwards."""
        if view in self._visited:
            return None
        if view not in self._masks:
            bits = self._packed.pop(view, None)
            new = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
            self._masks[view] = new if bits is None else _unpacked(bits, like.numel())
        self._masks.move_to_end(view)
        return self._masks[view]

    def pack(self) -> None:
        while len(self._masks) > self.keep_unpacked:
            oldest, bits = self._masks.popitem(last=False)
            self._packed[oldest] = _packed(bits)

    def take(self, view: int, like: Tensor) -> Tensor:
        """The used pixels of a view, [H, W] bool, when it is visited; drops the mask."""
        mask = self.of(view, like)
        self.drop(view)
        return torch.zeros_like(like, dtype=torch.bool) if mask is None else mask.reshape(like.shape)

    def drop(self, view: int) -> None:
        self._visited.add(view)
        self._masks.pop(view, None)
        self._packed.pop(view, None)


def _weights(device: torch.device) -> Tensor:
    return torch.ones(8, dtype=torch.uint8, device=device) << torch.arange(8, device=device).to(torch.uint8)


def _packed(mask: Tensor) -> Tensor:
    """[N] bool -> [ceil(N / 8)] uint8."""
    bits = torch.nn.functional.pad(mask.to(torch.uint8), (0, -len(mask) % 8)).reshape(-1, 8)
    return (bits * _weights(mask.device)).sum(1, dtype=torch.uint8)


def _unpacked(bits: Tensor, count: int) -> Tensor:
    """[ceil(N / 8)] uint8 -> [N] bool."""
    return ((bits[:, None] & _weights(bits.device)) != 0).flatten()[:count].clone()


class VoxelFilter:
    """Keeps the first point in every cell of a grid. Memory grows with the surface, not with the views."""

    def __init__(self, size: float) -> None:
        self.size = size
        self._cells = torch.zeros(0, dtype=torch.int64)  # keys of taken cells, sorted

    def first_in_cell(self, xyz: Tensor) -> Tensor:
        """[N, 3] -> indices of the points that are first in their cell, ascending; their cells are taken."""
        cells = torch.floor(xyz.double() / self.size)
        if not bool((cells.abs() < 2.0**62).all()):  # as integers, all would be the same
            raise InputError(f"--voxel-size {self.size:g} is too small for where the points lie")
        keys = _cell_keys(cells.long())
        unique, inverse = torch.unique(keys, return_inverse=True)  # sorted
        first = torch.full_like(unique, len(keys)).scatter_reduce(
            0, inverse, torch.arange(len(keys)), reduce="amin"
        )
        position = torch.searchsorted(self._cells, unique).clamp(max=max(0, len(self._cells) - 1))
        new = (
            self._cells[position] != unique if len(self._cells) else torch.ones_like(unique, dtype=torch.bool)
        )
        self._cells = torch.cat([self._cells, unique[new]]).sort().values
        return first[new].sort().values


def _cell_keys(cells: Tensor) -> Tensor:
    """[N, 3] integer cells -> one 64-bit key each: 21 bits per axis, wrapping after two million cells."""
    x, y, z = (cells & 0x1FFFFF).unbind(-1)
    return (x << 42) | (y << 21) | z
