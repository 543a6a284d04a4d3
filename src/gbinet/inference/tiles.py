"""Encoding and searching images that are too large for the memory tile by tile.

Tiles start at multiples of some pixels (64 with four scales), where every strided convolution of the network
has the same phase as in the whole image, and overlap. Away from the borders of a tile the result is nearly
that of the whole image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.inference.graphs import GraphedNetwork
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet, SearchResult
from gbinet.model.regulariser import MULTIPLE
from gbinet.ops.transfer import to_device

COARSE = 4  # image size / feature size: stages from here on see far but need little memory
OVERLAP = 128  # px on each side of a tile that are computed and discarded
SMALLEST = 128  # px: least size of tiles

Features = tuple[Tensor, ...]  # of one view, coarse to fine: [C_s, h_s, w_s]


@dataclass(frozen=True)
class Span:
    """A tile along one axis: [start, stop) is computed, [keep_start, keep_stop) of it is kept."""

    start: int
    stop: int
    keep_start: int
    keep_stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def kept(self) -> slice:
        """The kept part, in the whole image."""
        return slice(self.keep_start, self.keep_stop)

    @property
    def inner(self) -> slice:
        """The kept part, in the tile."""
        return slice(self.keep_start - self.start, self.keep_stop - self.start)


def alignment(config: GBiNetConfig) -> int:
    """Px that tiles start at multiples of: the coarsest scale times the strides of the regulariser."""
    return config.scales[0] * MULTIPLE


def spans(length: int, tile: int, overlap: int = OVERLAP, alignment: int = 64) -> list[Span]:
    """Cover [0, length) with tiles whose kept parts are at most `tile` long and partition it."""
    if tile < alignment or tile % alignment or overlap % alignment:
        raise InputError(f"tile and overlap must be multiples of {alignment}, got {tile} and {overlap}")
    tiles = []
    for start in range(0, length, tile):
        stop = min(start + tile, length)
        tiles.append(Span(max(0, start - overlap), min(length, stop + overlap), start, stop))
    return tiles


def tiles_of(height: int, width: int, tile: int, config: GBiNetConfig) -> list[tuple[Span, Span]]:
    """Rows and columns of all tiles of an image."""
    step = alignment(config)
    cuts = [spans(length, tile, -(-OVERLAP // step) * step, step) for length in (height, width)]
    return [(rows, columns) for rows in cuts[0] for columns in cuts[1]]


def encode(model: GBiNet | GraphedNetwork, image: Tensor, tile: int | None) -> Features:
    """Features of one image [3, H, W], computed in tiles if `tile` is given."""
    if tile is None:
        return tuple(f[0, 0] for f in model.encode(image[None, None]))
    (height, width), scales = image.shape[-2:], model.config.scales
    whole: list[Tensor] | None = None
    for rows, columns in tiles_of(height, width, tile, model.config):
        part = image[:, rows.start : rows.stop, columns.start : columns.stop]
        maps = [f[0, 0] for f in model.encode(part[None, None])]
        if whole is None:
            sizes = [(_padded(height, scales) // s, _padded(width, scales) // s) for s in scales]
            whole = [m.new_empty(len(m), *size) for m, size in zip(maps, sizes, strict=True)]
        for target, tile_map, scale in zip(whole, maps, scales, strict=True):
            _paste(target, tile_map, scale, rows, columns)
    assert whole is not None
    return tuple(whole)


def search(
    model: GBiNet | GraphedNetwork,
    features: Sequence[Features],  # per view, reference first
    cameras: Sequence[Camera],  # per view, single; their sizes may differ
    depth_range: Tensor,  # [2], preferably on the CPU: reading it does not wait for a GPU then
    tile: int | None,
    stages: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Depth and confidence of the reference, [H, W] each, in tiles if `tile` is given.

    The stages at 1/4 of the size and below see far but need little memory: they always run on the whole
    image, and only the stages at 1/2 and full size run in tiles.
    """
    maps = [tuple(m[None] for m in of_scale) for of_scale in zip(*features, strict=True)]  # [1, C, h, w]
    device = maps[0][0].device
    ranges = to_device(depth_range[None], device)
    stages = model.config.stages if stages is None else stages
    coarse_stages = sum(model.config.scale_of(n) >= COARSE for n in range(1, stages + 1))
    on_cpu = camera_batch(cameras, depth_range.device)
    batch = _cameras_to(on_cpu, device)
    if tile is None or coarse_stages in (0, stages):  # nothing to cut
        if isinstance(model, GraphedNetwork):  # computing first_bins on the device would wait for it
            bins = model.first_bins(on_cpu, depth_range[None])
            result = model.search(maps, batch, ranges, stages=stages, first_bins=bins)
        else:
            result = model.search(maps, batch, ranges, stages=stages)
        return result.depth[0].float(), result.confidence[0].float()
    coarse = model.search(maps, batch, ranges, stages=coarse_stages)
    depth, confidence = torch.empty_like(coarse.depth[0]), torch.empty_like(coarse.confidence[0])
    scales = model.config.scales
    for rows, columns in tiles_of(batch.height, batch.width, tile, model.config):
        parts = [(_crop(m[0], s, batch, rows, columns), *m[1:]) for m, s in zip(maps, scales, strict=True)]
        camera = cameras[0].cropped(columns.start, rows.start, columns.length, rows.length)
        result = model.search(
            parts,
            camera_batch([camera, *cameras[1:]], device),
            ranges,
            stages=stages,
            resume=_crop_result(coarse, batch, scales, rows, columns),
        )
        depth[rows.kept, columns.kept] = result.depth[0, rows.inner, columns.inner]
        confidence[rows.kept, columns.kept] = result.confidence[0, rows.inner, columns.inner]
    return depth, confidence


def _crop_result(
    whole: SearchResult, camera: Camera, scales: tuple[int, ...], rows: Span, columns: Span
) -> SearchResult:
    """The part of an unfinished search that belongs to a tile of the reference."""
    assert whole.state is not None
    cell = whole.state.cell  # [1, h, w]
    scale = round(_padded(camera.height, scales) / cell.shape[-2])
    return replace(
        whole,
        confidence=whole.confidence[:, rows.start : rows.stop, columns.start : columns.stop],
        state=replace(whole.state, cell=_crop(cell, scale, camera, rows, columns), fractional_cell=None),
    )


def camera_batch(cameras: Sequence[Camera], device: torch.device) -> Camera:
    """Cameras [1, V] in the reference's frame, with its image size (the network needs no other)."""
    relative = [c.to("cpu", torch.float64).relative_to(cameras[0].to("cpu", torch.float64)) for c in cameras]
    K, pose = torch.stack([c.K for c in relative]), torch.stack([c.cam_from_world for c in relative])
    batch = Camera(K[None], pose[None], cameras[0].width, cameras[0].height)
    return _cameras_to(batch.to(dtype=torch.float32), device)


def _cameras_to(cameras: Camera, device: torch.device) -> Camera:
    K, pose = to_device(cameras.K, device), to_device(cameras.cam_from_world, device)
    return replace(cameras, K=K, cam_from_world=pose)


def _padded(length: int, scales: tuple[int, ...]) -> int:
    """A side of an image padded as by the network's encoder."""
    return -(-length // scales[0]) * scales[0]


def _paste(target: Tensor, tile_map: Tensor, scale: int, rows: Span, columns: Span) -> None:
    """Copy the kept part of a tile's features into the whole map; the last tile has the padding too."""
    top, left = rows.keep_start // scale, columns.keep_start // scale
    from_top, from_left = top - rows.start // scale, left - columns.start // scale
    bottom = target.shape[-2] if rows.keep_stop == rows.stop else rows.keep_stop // scale
    right = target.shape[-1] if columns.keep_stop == columns.stop else columns.keep_stop // scale
    kept = tile_map[:, from_top : from_top + bottom - top, from_left : from_left + right - left]
    target[:, top:bottom, left:right] = kept


def _crop(maps: Tensor, scale: int, camera: Camera, rows: Span, columns: Span) -> Tensor:
    """Maps [..., h, w] of a tile of the image; a tile at the right or lower border keeps the padding."""
    bottom = maps.shape[-2] if rows.stop == camera.height else rows.stop // scale
    right = maps.shape[-1] if columns.stop == camera.width else columns.stop // scale
    part = maps[..., rows.start // scale : bottom, columns.start // scale : right]
    return (
        part.contiguous(memory_format=torch.channels_last) if part.dim() == 4 else part
    )  # as kernels read it


def working_size(camera: Camera, max_size: int) -> tuple[int, int]:
    """Width and height to which a photo is resized for the search."""
    factor = min(1.0, max_size / max(camera.width, camera.height))
    return max(8, round(camera.width * factor)), max(8, round(camera.height * factor))
