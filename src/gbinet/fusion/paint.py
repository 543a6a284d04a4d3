"""Texture of a flattened mesh: every texel gets its colour from the views that see it best.

A view paints a texel if the mesh itself does not hide it (a z-buffer tells) and the view's depth map has the
same depth there, away from depth edges: what stands in front of a surface is not painted onto it. The weight
is the number of the photo's pixels per area of the surface, so that near and frontal views win. A high power
of it lets the best view decide, with smooth transitions between views.

One view is in memory at a time and touches only the triangles that it shows, in pieces. A photo that is finer
than the texture is shrunk first. So memory grows with the texture, not with the photos or their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gbinet.camera import Camera, pixel_centres
from gbinet.errors import GBiNetError
from gbinet.formats.image import read_image
from gbinet.fusion.fuse import FusionConfig
from gbinet.fusion.sources import DepthSource
from gbinet.fusion.unwrap import FlatMesh
from gbinet.progress import Progress
from gbinet.render.rasterise import face_index, key_depth, visible_keys
from gbinet.scene import Scene

_HIDDEN_BEHIND = 0.01  # share of its depth by which a visible point may lie behind the z-buffer
_MAX_DEPTH_ERROR = 0.02  # share of its depth by which the depth map may differ
_EDGE_BEND = 0.02  # bend of the inverse depth between neighbours that makes an edge
_EDGE_PIXELS = 2  # pixels next to an edge that paint as a last resort only
_UNCONFIRMED_WEIGHT = 0.02  # weight of a view whose depth map has no depth there
_EDGE_WEIGHT = 1e-4  # weight next to a depth edge: counts only if no view sees the point better
_POWER = 8  # of the weights: the best view decides
_MIN_SHARE = 0.3  # of the best weight: a smaller one counts for nothing, since 0.3 ** 8 is 0.00007
_BORDER_FADE = 0.02  # share of the image along its border where a view fades out
_SAMPLES = 20_000  # points that exposures are compared at
_PIECE = 1 << 17  # texels that are worked on at once


@dataclass(frozen=True)
class PaintView:
    """What painting needs of one view; positions are relative to the mesh's origin."""

    camera: Camera  # float32, of the depth map's size
    photo: Tensor  # [3, H, W] float32, linear in the file's values, 0 to 1
    depth: Tensor  # [h, w] of the depth map, 0 where nothing is known
    edge: Tensor  # [h, w] bool: near a depth edge
    surface: Tensor  # [h, w] depth of the mesh itself; infinite where there is none
    faces: Tensor  # [M] triangles that the view may show


class FlatSurface:
    """What painting needs of a flat mesh; its texels are sorted by triangle."""

    def __init__(self, mesh: FlatMesh) -> None:
        self.mesh = mesh
        self.origin = mesh.vertices.mean(axis=0)
        self.vertices = torch.from_numpy((mesh.vertices - self.origin).astype(np.float32))  # [N, 3]
        self.faces = torch.from_numpy(mesh.faces)  # [F, 3]

    @cached_property
    def normals(self) -> Tensor:
        """[F, 3] normals of the faces, of any sign."""
        a, b, c = self.vertices[self.faces].unbind(1)
        return F.normalize(torch.linalg.cross(b - a, c - a), dim=-1)

    @cached_property
    def texels(self) -> tuple[Tensor, Tensor]:
        """Indices of the texels that triangles cover [P], counted row by row, and these triangles [P]."""
        size = self.mesh.size
        flat = torch.from_numpy(self.mesh.uv * size)
        # The texture as a plane at depth 1 in front of a camera with K = 1.
        plane = torch.cat([flat, torch.ones(len(flat), 1)], dim=1)
        camera = Camera(torch.eye(3)[None], torch.eye(4)[None], size, size)
        found = face_index(visible_keys(plane, self.faces, camera))[0].reshape(-1)
        covered = (found >= 0).nonzero()[:, 0]
        faces, order = found[covered].sort(stable=True)
        return covered[order], faces

    @cached_property
    def points(self) -> Tensor:
        """Positions of the texels on the surface, [P, 3]."""
        pieces = zip(*(torch.split(t, _PIECE) for t in self.texels), strict=True)
        return torch.cat([self._points(texels, faces) for texels, faces in pieces])

    def _points(self, texels: Tensor, faces: Tensor) -> Tensor:
        size = self.mesh.size
        row, column = texels // size, texels % size
        centre = torch.stack([column, row], dim=-1) + pixel_centres(1, 1)[0, 0]  # [P, 2]
        a, b, c = (torch.from_numpy(self.mesh.uv) * size)[self.faces[faces]].unbind(1)  # [P, 2] each
        ab, ac, at = b - a, c - a, centre - a
        area = ab[:, 0] * ac[:, 1] - ab[:, 1] * ac[:, 0]
        area = torch.where(area.abs() < 1e-12, torch.full_like(area, 1e-12), area)
        wb = (at[:, 0] * ac[:, 1] - at[:, 1] * ac[:, 0]) / area
        wc = (ab[:, 0] * at[:, 1] - ab[:, 1] * at[:, 0]) / area
        weights = torch.stack([1 - wb - wc, wb, wc], dim=-1)  # [P, 3]
        return (weights[..., None] * self.vertices[self.faces[faces]]).sum(1)

    @cached_property
    def texels_per_unit(self) -> float:
        """Texels per unit of length on the surface."""
        a, b, c = self.vertices[self.faces].unbind(1)
        area = float(torch.linalg.cross(b - a, c - a).norm(dim=-1).sum()) / 2
        return math.sqrt(len(self.texels[0]) / max(area, 1e-30))

    @cached_property
    def _starts(self) -> Tensor:
        """[F + 1] the first texel of every triangle."""
        return torch.searchsorted(self.texels[1], torch.arange(len(self.faces) + 1))

    def texels_of(self, faces: Tensor) -> Iterator[Tensor]:
        """Which of the P texels lie in these triangles, in pieces."""
        first, counts = self._starts[faces], self._starts[faces + 1] - self._starts[faces]
        before = counts.cumsum(0) - counts
        indices = torch.arange(int(counts.sum())) + torch.repeat_interleave(first - before, counts)
        yield from torch.split(indices, _PIECE)


def paint_view_of(
    scene: Scene, depths: DepthSource, index: int, surface: FlatSurface, config: FusionConfig
) -> PaintView | None:
    """The view with its photo and depths; None where it has no depth map, or its photo cannot be read."""
    found = depths.load(index)
    if found is None:
        return None
    try:
        pixels = read_image(scene.views[index].image_path)
    except GBiNetError:
        return None
    known = found.valid
    if found.confidence is not None:
        known = known & (found.confidence >= config.confidence_for(found.made_by))
    depth = torch.where(known, found.depth, 0).float()
    camera = _relative(found.camera, surface.origin)
    keys = visible_keys(surface.vertices, surface.faces, camera[None])[0]
    mesh_depth = key_depth(keys)
    photo = _not_finer_than(surface, pixels, camera, mesh_depth)
    view = PaintView(camera, photo, depth, _edges(mesh_depth), mesh_depth, torch.arange(len(surface.faces)))
    # Visible by its middle, or in the z-buffer: small triangles fall between the pixels of that.
    weights, _ = weights_of(view, surface.vertices[surface.faces].mean(1), surface.normals)
    visible = weights > 0  # [F]
    in_buffer = face_index(keys)
    visible[in_buffer[in_buffer >= 0]] = True
    return replace(view, faces=visible.nonzero()[:, 0])


def _not_finer_than(surface: FlatSurface, pixels: NDArray[np.uint8], camera: Camera, depth: Tensor) -> Tensor:
    """The photo, [3, H, W] in 0 to 1, shrunk to the size of the texels: finer detail would show as noise."""
    height, width = pixels.shape[:2]
    known = depth[torch.isfinite(depth)]
    if known.numel():
        focal = float(camera.K[0, 0]) * width / camera.width
        excess = focal / float(known.median()) / surface.texels_per_unit
        if excess > 1:
            size = (math.ceil(width / excess), math.ceil(height / excess))
            pixels = np.array(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def _relative(camera: Camera, origin: NDArray[np.float64]) -> Camera:
    """The camera in a world whose origin is at `origin`, float32."""
    pose = camera.cam_from_world.double().cpu().clone()
    pose[:3, 3] += pose[:3, :3] @ torch.from_numpy(origin)
    return Camera(camera.K.float().cpu(), pose.float(), camera.width, camera.height)


def _edges(surface: Tensor) -> Tensor:
    """[h, w] bool: pixels near a jump in the depth of the mesh as this view sees it, or near its border.

    Inverse depth is linear across a plane, however slanted: what bends it sharply is an edge.
    """
    inverse = torch.where(torch.isfinite(surface), 1 / surface.clamp_min(1e-12), 0)[None, None]
    padded = F.pad(inverse, (1, 1, 1, 1), mode="replicate")[0, 0]
    middle = padded[1:-1, 1:-1]
    across = (padded[1:-1, 2:] - 2 * middle + padded[1:-1, :-2]).abs()
    along = (padded[2:, 1:-1] - 2 * middle + padded[:-2, 1:-1]).abs()
    bend = torch.maximum(across, along) > _EDGE_BEND * middle.clamp_min(1e-12)
    reach = 2 * _EDGE_PIXELS + 1
    return F.max_pool2d(bend.float()[None, None], reach, 1, _EDGE_PIXELS)[0, 0] > 0


def weights_of(view: PaintView, points: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
    """How well a view sees points [P, 3] with these normals: weights [P], and positions in the photo [P, 2].

    These run from -1 to 1, as grid_sample takes them.
    """
    pixels, depth = view.camera.project(points)
    size = torch.tensor([view.camera.width, view.camera.height], dtype=torch.float32)
    share = pixels / size  # [P, 2] from 0 to 1
    inside = (depth > 0) & (share > 0).all(-1) & (share < 1).all(-1)
    column, row = (torch.where(inside[:, None], pixels, 0).long().clamp_min(0)).unbind(-1)
    column, row = column.clamp(max=view.camera.width - 1), row.clamp(max=view.camera.height - 1)
    visible = inside & (depth <= view.surface[row, column] * (1 + _HIDDEN_BEHIND))
    measured = view.depth[row, column]
    agrees = (measured - depth).abs() <= _MAX_DEPTH_ERROR * depth
    sight = F.normalize(points - view.camera.centre, dim=-1)
    slant = (sight * normals).sum(-1).abs()
    focal = float(view.camera.K[0, 0]) * view.photo.shape[-1] / view.camera.width
    density = slant * (focal / depth.clamp_min(1e-9)) ** 2  # pixels of the photo per unit of surface
    border = (torch.minimum(share, 1 - share).amin(-1) / _BORDER_FADE).clamp(0, 1)
    edge = view.edge[row, column]
    trust = torch.where(agrees, 1.0, torch.where((measured == 0) & ~edge, _UNCONFIRMED_WEIGHT, 0.0))
    trust = torch.where(edge, _EDGE_WEIGHT * trust, trust)
    return torch.where(visible, density * border * trust, 0.0), 2 * share - 1


def colours_of(view: PaintView, at: Tensor) -> Tensor:
    """[P, 3] colours of the photo at positions [P, 2] from -1 to 1."""
    photo = view.photo[None]
    colours = F.grid_sample(photo, at[None, None], align_corners=False, padding_mode="border")  # [1, 3, 1, P]
    return colours[0, :, 0].T


def paint(
    scene: Scene,
    depths: DepthSource,
    mesh: FlatMesh,
    config: FusionConfig,
    progress: Progress | None = None,
) -> NDArray[np.uint8]:
    """The texture of a flat mesh, [S, S, 3]."""
    surface = FlatSurface(mesh)
    texels, faces = surface.texels
    count, views = len(texels), range(len(scene.views))
    sampled = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_SAMPLES]
    samples = []
    for number in views:
        view = paint_view_of(scene, depths, number, surface, config)
        if view is not None:
            weights, at = weights_of(view, surface.points[sampled], surface.normals[faces[sampled]])
            seen = (weights > 0).nonzero()[:, 0]
            samples.append((number, seen, colours_of(view, at[seen])))
        if progress:
            progress(number + 1, 2 * len(views), "comparing exposures")
    gains = even_exposure(samples)
    blend = Blend(torch.zeros(count, 3), torch.zeros(count), torch.zeros(count))
    for number in views:
        view = paint_view_of(scene, depths, number, surface, config) if number in gains else None
        if view is not None:
            blend.add(surface, view, gains[number])
        if progress:
            progress(len(views) + number + 1, 2 * len(views), "painting photos")
    if not bool((blend.weight > 0).any()):
        raise GBiNetError("no photo sees the mesh, so it has no texture")
    colours = blend.total.div_(blend.weight.clamp_min(1e-12)[:, None])
    return _picture(mesh.size, texels, colours, blend.weight > 0)


@dataclass(frozen=True)
class Blend:
    """What the views so far have painted; the weights of a texel are relative to the best one."""

    total: Tensor  # [P, 3] sum of weighted colours
    weight: Tensor  # [P] sum of weights
    best: Tensor  # [P] the best view's weight, before its power

    def add(self, surface: FlatSurface, view: PaintView, gain: Tensor) -> None:
        """Add a view, its colours times `gain` [3]."""
        faces = surface.texels[1]
        for piece in surface.texels_of(view.faces):
            weights, at = weights_of(view, surface.points[piece], surface.normals[faces[piece]])
            rows = (weights > _MIN_SHARE * self.best[piece]).nonzero()[:, 0]
            texels, weights = piece[rows], weights[rows]
            best = torch.maximum(self.best[texels], weights)
            # Weights of the views so far shrink as the best one grows.
            shrink, share = (self.best[texels] / best) ** _POWER, (weights / best) ** _POWER
            colours = share[:, None] * colours_of(view, at[rows]) * gain
            self.total[texels] = self.total[texels] * shrink[:, None] + colours
            self.weight[texels] = self.weight[texels] * shrink + share
            self.best[texels] = best


def even_exposure(samples: list[tuple[int, Tensor, Tensor]], rounds: int = 20) -> dict[int, Tensor]:
    """A factor [3] per view that brings the same points to the same colour in all views that see them.

    `samples` holds for every view its number, points that it sees [M] and their colours [M, 3]. Alternates
    between the colour of every point (mean over views) and the factor of every view (median over points); the
    factors' mean stays 1.
    """
    if not samples:
        return {}
    count = max((int(points.max()) + 1 for _, points, _ in samples if len(points)), default=0)
    views = []  # points [M] and the logarithm of their colours [M, 3]
    for _, points, colours in samples:
        good = ((colours > 0.03) & (colours < 0.97)).all(-1)  # neither black nor burnt out
        views.append((points[good], colours[good].log()))
    seen = torch.zeros(count)
    for points, _ in views:
        seen[points] += 1
    views = [(points[seen[points] >= 2], shades[seen[points] >= 2]) for points, shades in views]
    gains = torch.zeros(len(views), 3)
    for _ in range(rounds):
        total = torch.zeros(count, 3)
        for gain, (points, shades) in zip(gains, views, strict=True):
            total[points] += shades + gain
        mean = total / seen.clamp_min(1)[:, None]
        for index, (points, shades) in enumerate(views):
            if len(points) >= 50:
                gains[index] = (mean[points] - shades).median(0).values
        gains -= gains.mean(0)
    return {number: gain.exp() for gain, (number, _, _) in zip(gains, samples, strict=True)}


def _picture(size: int, texels: Tensor, colours: Tensor, known: Tensor) -> NDArray[np.uint8]:
    """Texels as an image; the rest is filled from its surroundings, so that no seam shows between charts."""
    image, is_known = torch.zeros(3, size * size), torch.zeros(size * size)
    image[:, texels[known]], is_known[texels[known]] = colours[known].clamp(0, 1).T, 1.0
    filled = _fill(image.view(1, 3, size, size), is_known.view(1, 1, size, size))[0]  # [3, S, S]
    result: NDArray[np.uint8] = (filled * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return result


def _fill(image: Tensor, known: Tensor) -> Tensor:
    """Unknown texels from the mean of the known ones in ever larger squares around them.

    image [1, 3, S, S]; known [1, 1, S, S], 1 or 0.
    """
    if image.shape[-1] <= 1 or bool((known > 0).all()):
        return image
    small, share = F.avg_pool2d(image * known, 2, ceil_mode=True), F.avg_pool2d(known, 2, ceil_mode=True)
    coarse = _fill(torch.where(share > 0, small / share.clamp_min(1e-12), 0), (share > 0).float())
    large = F.interpolate(coarse, scale_factor=2)[..., : image.shape[-2], : image.shape[-1]]
    return torch.where(known > 0, image, large)
