"""Photos onto a flattened mesh: every texel from the views that see its place best.

A view paints a texel where the mesh itself does not hide it (its own z-buffer) and where the view's depth
map says the same depth, away from depth edges: what stands in front of a surface is not painted onto it. The
weight is the number of the photo's pixels that the place fills, so that near and frontal views win; a high
power of it lets the best view decide and others fade in where they take over.

One view is held at a time and touches only the triangles that it shows, in pieces. A photo that is finer than
the picture is made smaller first. So memory grows with the picture, not with the photos or their number.
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

_HIDDEN = 0.01  # share of its depth that a place may lie behind the mesh's own z-buffer
_AGREES = 0.02  # share of its depth that the depth map may say otherwise
_EDGE = 0.02  # bend of the inverse depth between neighbours that makes an edge
_EDGE_PIXELS = 2  # pixels next to an edge that paint as a last resort only
_UNCONFIRMED = 0.02  # weight of a view whose depth map says nothing there
_AT_EDGE = 1e-4  # weight next to a depth edge: only where no view sees the place better
_POWER = 8  # of the weights: the best view decides
_NOTHING = 0.3  # share of the best weight that counts for nothing: 0.3 to the power of 8 is 0.00007
_BORDER = 0.02  # share of the image along its border where a view fades out
_SAMPLES = 20_000  # places that exposures are compared at
_PIECE = 1 << 17  # texels that are worked on at once


@dataclass(frozen=True)
class Look:
    """One view, ready to paint with; positions are relative to the mesh's origin."""

    camera: Camera  # float32, of the depth map's size
    photo: Tensor  # [3, H, W] float32, linear in the file's values, 0 to 1
    depth: Tensor  # [h, w] of the depth map, 0 where nothing is known
    edge: Tensor  # [h, w] bool: near a depth edge
    surface: Tensor  # [h, w] depth of the mesh itself; infinite where there is none
    faces: Tensor  # [M] triangles that it may show


class Surface:
    """A flat mesh with what painting needs of it; texels are sorted by triangle."""

    def __init__(self, mesh: FlatMesh) -> None:
        self.mesh = mesh
        self.origin = mesh.vertices.mean(axis=0)
        self.vertices = torch.from_numpy((mesh.vertices - self.origin).astype(np.float32))  # [N, 3]
        self.faces = torch.from_numpy(mesh.faces)  # [F, 3]

    @cached_property
    def normals(self) -> Tensor:
        """[F, 3] of the faces; their sign means nothing."""
        a, b, c = self.vertices[self.faces].unbind(1)
        return F.normalize(torch.linalg.cross(b - a, c - a), dim=-1)

    @cached_property
    def texels(self) -> tuple[Tensor, Tensor]:
        """Numbers of the texels that a triangle covers [P], counted row by row, and these triangles [P]."""
        size = self.mesh.size
        flat = torch.from_numpy(self.mesh.uv * size)
        plane = torch.cat(
            [flat, torch.ones(len(flat), 1)], dim=1
        )  # the picture as a camera at height 1 sees it
        camera = Camera(torch.eye(3)[None], torch.eye(4)[None], size, size)
        found = face_index(visible_keys(plane, self.faces, camera))[0].reshape(-1)
        covered = (found >= 0).nonzero()[:, 0]
        faces, order = found[covered].sort(stable=True)
        return covered[order], faces

    @cached_property
    def places(self) -> Tensor:
        """Where the texels lie on the surface, [P, 3]."""
        pieces = zip(*(torch.split(t, _PIECE) for t in self.texels), strict=True)
        return torch.cat([self._places(texels, faces) for texels, faces in pieces])

    def _places(self, texels: Tensor, faces: Tensor) -> Tensor:
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
    def fineness(self) -> float:
        """Texels along a unit of length."""
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
        every = torch.arange(int(counts.sum())) + torch.repeat_interleave(first - before, counts)
        yield from torch.split(every, _PIECE)


def look_of(
    scene: Scene, depths: DepthSource, index: int, surface: Surface, config: FusionConfig
) -> Look | None:
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
    own = key_depth(keys)
    photo = _as_fine_as(surface, pixels, camera, own)
    look = Look(camera, photo, depth, _edges(own), own, torch.arange(len(surface.faces)))
    in_sight, _ = weights_of(look, surface.vertices[surface.faces].mean(1), surface.normals)
    shown = in_sight > 0  # small triangles fall between the pixels of the z-buffer
    found_there = face_index(keys)
    shown[found_there[found_there >= 0]] = True
    return replace(look, faces=shown.nonzero()[:, 0])


def _as_fine_as(surface: Surface, pixels: NDArray[np.uint8], camera: Camera, depth: Tensor) -> Tensor:
    """The photo, [3, H, W] in 0 to 1, not finer than the texels: finer detail would show as noise."""
    height, width = pixels.shape[:2]
    known = depth[torch.isfinite(depth)]
    if known.numel():
        focal = float(camera.K[0, 0]) * width / camera.width
        excess = focal / float(known.median()) / surface.fineness
        if excess > 1:
            size = (math.ceil(width / excess), math.ceil(height / excess))
            pixels = np.array(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def _relative(camera: Camera, origin: NDArray[np.float64]) -> Camera:
    """The camera in a world that starts at `origin`, float32."""
    pose = camera.cam_from_world.double().cpu().clone()
    pose[:3, 3] += pose[:3, :3] @ torch.from_numpy(origin)
    return Camera(camera.K.float().cpu(), pose.float(), camera.width, camera.height)


def _edges(surface: Tensor) -> Tensor:
    """[h, w] bool: pixels within some pixels of a jump in the mesh as this view sees it, or of its end.

    Inverse depth is linear across a plane, however slanted: what bends it sharply is an edge.
    """
    inverse = torch.where(torch.isfinite(surface), 1 / surface.clamp_min(1e-12), 0)[None, None]
    padded = F.pad(inverse, (1, 1, 1, 1), mode="replicate")[0, 0]
    middle = padded[1:-1, 1:-1]
    across = (padded[1:-1, 2:] - 2 * middle + padded[1:-1, :-2]).abs()
    along = (padded[2:, 1:-1] - 2 * middle + padded[:-2, 1:-1]).abs()
    bend = torch.maximum(across, along) > _EDGE * middle.clamp_min(1e-12)
    reach = 2 * _EDGE_PIXELS + 1
    return F.max_pool2d(bend.float()[None, None], reach, 1, _EDGE_PIXELS)[0, 0] > 0


def weights_of(look: Look, places: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
    """How well a view sees places [P, 3] with these normals: weights [P], and where in the photo [P, 2].

    Places in the photo run from -1 to 1, as grid_sample counts them.
    """
    pixels, depth = look.camera.project(places)
    size = torch.tensor([look.camera.width, look.camera.height], dtype=torch.float32)
    share = pixels / size  # [P, 2] from 0 to 1
    inside = (depth > 0) & (share > 0).all(-1) & (share < 1).all(-1)
    column, row = (torch.where(inside[:, None], pixels, 0).long().clamp_min(0)).unbind(-1)
    column, row = column.clamp(max=look.camera.width - 1), row.clamp(max=look.camera.height - 1)
    shown = inside & (depth <= look.surface[row, column] * (1 + _HIDDEN))
    measured = look.depth[row, column]
    agrees = (measured - depth).abs() <= _AGREES * depth
    sight = F.normalize(places - look.camera.centre, dim=-1)
    slant = (sight * normals).sum(-1).abs()
    focal = float(look.camera.K[0, 0]) * look.photo.shape[-1] / look.camera.width
    density = slant * (focal / depth.clamp_min(1e-9)) ** 2  # pixels of the photo per unit of surface
    border = (torch.minimum(share, 1 - share).amin(-1) / _BORDER).clamp(0, 1)
    edge = look.edge[row, column]
    trust = torch.where(agrees, 1.0, torch.where((measured == 0) & ~edge, _UNCONFIRMED, 0.0))
    trust = torch.where(edge, _AT_EDGE * trust, trust)
    return torch.where(shown, density * border * trust, 0.0), 2 * share - 1


def colours_of(look: Look, at: Tensor) -> Tensor:
    """[P, 3] colours of the photo at places -1 to 1."""
    return F.grid_sample(look.photo[None], at[None, None], align_corners=False, padding_mode="border")[
        0, :, 0
    ].T


def paint(
    scene: Scene,
    depths: DepthSource,
    mesh: FlatMesh,
    config: FusionConfig,
    progress: Progress | None = None,
) -> NDArray[np.uint8]:
    """The picture of a flat mesh, [S, S, 3]."""
    surface = Surface(mesh)
    texels, faces = surface.texels
    count, views = len(texels), range(len(scene.views))
    sampled = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_SAMPLES]
    samples = []
    for number in views:
        look = look_of(scene, depths, number, surface, config)
        if look is not None:
            found, at = weights_of(look, surface.places[sampled], surface.normals[faces[sampled]])
            seen = (found > 0).nonzero()[:, 0]
            samples.append((number, seen, colours_of(look, at[seen])))
        if progress:
            progress(number + 1, 2 * len(views), "comparing exposures")
    gains = even_exposure(samples)
    coat = Coat(torch.zeros(count, 3), torch.zeros(count), torch.zeros(count))
    for number in views:
        look = look_of(scene, depths, number, surface, config) if number in gains else None
        if look is not None:
            coat.add(surface, look, gains[number])
        if progress:
            progress(len(views) + number + 1, 2 * len(views), "painting photos")
    if not bool((coat.weight > 0).any()):
        raise GBiNetError("no photo sees the mesh, so it has no texture")
    colours = coat.total.div_(coat.weight.clamp_min(1e-12)[:, None])
    return _picture(mesh.size, texels, colours, coat.weight > 0)


@dataclass(frozen=True)
class Coat:
    """What has been painted so far: weights relative to the best one, of every texel."""

    total: Tensor  # [P, 3] sum of weighted colours
    weight: Tensor  # [P] sum of weights
    best: Tensor  # [P] the best view's weight, before its power

    def add(self, surface: Surface, look: Look, gain: Tensor) -> None:
        """One more view, its colours times `gain` [3]."""
        faces = surface.texels[1]
        for piece in surface.texels_of(look.faces):
            found, at = weights_of(look, surface.places[piece], surface.normals[faces[piece]])
            counts = (found > _NOTHING * self.best[piece]).nonzero()[:, 0]
            chosen, found = piece[counts], found[counts]
            best = torch.maximum(self.best[chosen], found)
            before, share = (self.best[chosen] / best) ** _POWER, (found / best) ** _POWER
            colours = share[:, None] * colours_of(look, at[counts]) * gain
            self.total[chosen] = self.total[chosen] * before[:, None] + colours
            self.weight[chosen] = self.weight[chosen] * before + share
            self.best[chosen] = best


def even_exposure(samples: list[tuple[int, Tensor, Tensor]], rounds: int = 20) -> dict[int, Tensor]:
    """A factor [3] per view that brings the same places to the same colour in all views that see them.

    `samples` holds for every view its number, places that it sees [M] and their colours [M, 3]. Alternates
    between the colour of every place (mean over views) and the factor of every view (median over places); the
    factors' mean stays 1.
    """
    if not samples:
        return {}
    count = max((int(places.max()) + 1 for _, places, _ in samples if len(places)), default=0)
    views = []  # places [M] and the logarithm of their colours [M, 3]
    for _, places, colours in samples:
        good = ((colours > 0.03) & (colours < 0.97)).all(-1)  # neither black nor burnt out
        views.append((places[good], colours[good].log()))
    seen = torch.zeros(count)
    for places, _ in views:
        seen[places] += 1
    views = [(places[seen[places] >= 2], shades[seen[places] >= 2]) for places, shades in views]
    gains = torch.zeros(len(views), 3)
    for _ in range(rounds):
        total = torch.zeros(count, 3)
        for gain, (places, shades) in zip(gains, views, strict=True):
            total[places] += shades + gain
        mean = total / seen.clamp_min(1)[:, None]
        for view, (places, shades) in enumerate(views):
            if len(places) >= 50:
                gains[view] = (mean[places] - shades).median(0).values
        gains -= gains.mean(0)
    return {number: gains[view].exp() for view, (number, _, _) in enumerate(samples)}


def _picture(size: int, texels: Tensor, colours: Tensor, known: Tensor) -> NDArray[np.uint8]:
    """Texels as a picture; the rest is filled from its surroundings, so that no seam shows between charts."""
    image, there = torch.zeros(3, size * size), torch.zeros(size * size)
    image[:, texels[known]], there[texels[known]] = colours[known].clamp(0, 1).T, 1.0
    filled = _fill(image.view(1, 3, size, size), there.view(1, 1, size, size))
    result: NDArray[np.uint8] = (
        (filled[0] * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    )
    return result


def _fill(image: Tensor, there: Tensor) -> Tensor:
    """Unknown texels from the mean of what is known in ever larger squares around them."""
    if image.shape[-1] <= 1 or bool((there > 0).all()):
        return image
    small, share = F.avg_pool2d(image * there, 2, ceil_mode=True), F.avg_pool2d(there, 2, ceil_mode=True)
    coarse = _fill(torch.where(share > 0, small / share.clamp_min(1e-12), 0), (share > 0).float())
    large = F.interpolate(coarse, scale_factor=2)[..., : image.shape[-2], : image.shape[-1]]
    return torch.where(there > 0, image, large)
