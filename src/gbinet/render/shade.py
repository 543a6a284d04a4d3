"""From visible triangles to exact depth, normals and colour."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet import ops
from gbinet.camera import Camera
from gbinet.ops.threads_cpu import in_threads
from gbinet.render import scenery
from gbinet.render.rasterise import face_index, ray_terms, transform, visible_keys
from gbinet.render.scenery import RenderScene
from gbinet.render.texture import sample

SUPERSAMPLING = 2  # colour samples per pixel and axis
MAX_SAMPLES = 1 << 23  # bounds the memory of one round of shading on a GPU
CACHED_SAMPLES = 1 << 14  # on a CPU rounds are faster when they stay in its cache


@dataclass(frozen=True)
class Rendering:
    """Pictures of a scene with the truth about them."""

    images: Tensor  # [V, 3, H, W] float32, linear light, not clamped
    depth: Tensor  # [V, H, W] float32, z at the pixel's centre; 0 where nothing is seen
    normals: Tensor  # [V, H, W, 3] float32, world, towards the camera; 0 where nothing is seen

    @property
    def valid(self) -> Tensor:  # [V, H, W] bool
        return self.depth > 0


def render(scene: RenderScene, cameras: Camera) -> Rendering:
    """Images, depth and normals of all views [V]."""
    depth, normals = render_depth(scene, cameras)
    return Rendering(render_colour(scene, cameras), depth, normals)


def world_rays(cameras: Camera, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Camera centres [V, 3] and rays [V, H, W, 3] of unit depth (z = 1 in the camera), world frame."""
    terms = ray_terms(cameras, dtype)[:, None, None, :]  # [V, 1, 1, 5]
    pixels = cameras[0].to(dtype=dtype).pixel_grid()  # [H, W, 2]
    v = (pixels[..., 1] - terms[..., 3]) * terms[..., 1]
    u = (pixels[..., 0] - terms[..., 2] - terms[..., 4] * v) * terms[..., 0]
    pose = cameras.cam_from_world.to(dtype)
    axes = pose[:, None, None, :3, :3]  # rows: the camera's axes in the world
    rays = u[..., None] * axes[..., 0, :] + v[..., None] * axes[..., 1, :] + axes[..., 2, :]
    centres = -(pose[:, :3, :3] * pose[:, :3, 3:]).sum(1)
    return centres, rays


def render_depth(scene: RenderScene, cameras: Camera) -> tuple[Tensor, Tensor]:
    """Depth [V, H, W] and normals [V, H, W, 3] at pixel centres: the ray meets the plane of the triangle that
    it sees. In float64, so that the depth is as exact as the vertices."""
    cameras = cameras.to(scene.device)
    keys = visible_keys(scene.vertices, scene.faces, cameras)  # [V, H, W]
    faces = face_index(keys).view(len(keys), -1)  # [V, H * W]
    centres, rays = world_rays(cameras, torch.float64)
    axes = cameras.cam_from_world[:, 2, :3].double()
    hits = [_meet(scene, faces[v], centres[v], rays[v].view(-1, 3), axes[v]) for v in range(len(keys))]
    depth, normals = (torch.stack(x) for x in zip(*hits, strict=True))
    return depth.view(keys.shape), normals.view(*keys.shape, 3)


def _meet(
    scene: RenderScene, faces: Tensor, centre: Tensor, ray: Tensor, axis: Tensor
) -> tuple[Tensor, Tensor]:
    """Depth [P] and normals [P, 3] where rays [P, 3] from one camera meet the planes of triangles [P]."""
    corners = scene.vertices[scene.faces[faces.clamp_min(0)].long()].double() - centre  # [P, 3, 3]
    a, b, c = corners.unbind(1)
    normal = torch.linalg.cross(b - a, c - a)
    facing = (normal * ray).sum(-1)
    depth = (a * normal).sum(-1) / facing
    reach = (corners * axis).sum(-1)  # depth of the corners, [P, 3]
    depth = torch.where(depth.isfinite(), depth, reach[:, 0])  # a triangle seen edge-on
    depth = torch.maximum(torch.minimum(depth, reach.amax(-1)), reach.amin(-1))
    normal = F.normalize(normal, dim=-1) * -facing.sign()[:, None]
    seen = faces >= 0
    return torch.where(seen, depth, 0).float(), torch.where(seen[:, None], normal, 0).float()


def render_colour(scene: RenderScene, cameras: Camera) -> Tensor:
    """Linear colour [V, 3, H, W], averaged over SUPERSAMPLING^2 samples a pixel."""
    return colour_and_keys(scene, cameras)[0]


def colour_and_keys(scene: RenderScene, cameras: Camera) -> tuple[Tensor, Tensor]:
    """Linear colour [V, 3, H, W] and the keys [V, H * s, W * s] of its samples, which hold their depth."""
    fine = cameras.resized(cameras.width * SUPERSAMPLING, cameras.height * SUPERSAMPLING)
    fine = fine.to(scene.device, torch.float32)
    keys = visible_keys(scene.vertices, scene.faces, fine)
    if ops.usable(keys):
        from gbinet.render import shade_triton as fast

        return fast.averaged_colour(scene, fine, keys, SUPERSAMPLING), keys
    colour = shade(scene, fine, face_index(keys))  # [V, 2H, 2W, 3]
    return F.avg_pool2d(colour.permute(0, 3, 1, 2), SUPERSAMPLING), keys


def shade(scene: RenderScene, cameras: Camera, faces: Tensor) -> Tensor:
    """Linear colour [V, H, W, 3] of the triangles [V, H, W] (-1: the surroundings)."""
    views, height, width = faces.shape
    centres, rays = world_rays(cameras, torch.float32)
    ray, flat = rays.reshape(-1, 3), faces.reshape(-1)
    pixel = cameras.K[:, 0, 0].reciprocal()  # [V] angle of one sample
    colour = torch.empty_like(ray)
    step = MAX_SAMPLES if ray.is_cuda else CACHED_SAMPLES

    def fill(start: int) -> None:
        part = slice(start, start + step)
        hit = flat[part] >= 0
        seen, missed = hit.nonzero()[:, 0], (~hit).nonzero()[:, 0]
        view = (seen + start) // (height * width)
        colour[part][missed] = surroundings(scene, F.normalize(ray[part][missed], dim=-1), 1.0)
        colour[part][seen] = _shade_hits(scene, flat[part][seen], centres[view], ray[part][seen], pixel[view])

    in_threads(fill, range(0, len(flat), step), ray.device)
    return colour.view(views, height, width, 3)


def _shade_hits(scene: RenderScene, faces: Tensor, origin: Tensor, ray: Tensor, pixel: Tensor) -> Tensor:
    """Colour [P, 3] where rays meet triangles; pixel is the angle of one sample."""
    row = scene.table[faces]  # [P, 32]
    flat_normal = row[:, scenery.NORMAL]
    facing = (flat_normal * ray).sum(-1, keepdim=True)
    facing = torch.where(facing.abs() < 1e-6, 1e-6, facing)
    depth = ((row[:, scenery.CORNER] - origin) * flat_normal).sum(-1, keepdim=True) / facing
    point = origin + depth * ray
    inside = point - row[:, scenery.CORNER]
    w1 = (inside * row[:, scenery.DUAL_1]).sum(-1, keepdim=True).clamp(0, 1)
    w2 = (inside * row[:, scenery.DUAL_2]).sum(-1, keepdim=True).clamp(0, 1)
    uv = row[:, scenery.UV] + w1 * row[:, scenery.UV_1] + w2 * row[:, scenery.UV_2]
    smooth = row[:, scenery.SMOOTH] + w1 * row[:, scenery.SMOOTH_1] + w2 * row[:, scenery.SMOOTH_2]
    smooth = F.normalize(smooth, dim=-1)
    towards = -F.normalize(ray, dim=-1)
    cosine = (smooth * towards).sum(-1, keepdim=True)
    normal = torch.where(cosine < 0, -smooth, smooth)
    # a slanted footprint is long in one direction only: half way between its two axes
    slant = (facing.abs() / ray.norm(dim=-1, keepdim=True)).clamp_min(0.05).rsqrt()
    density = row[:, scenery.DENSITY] * (depth * slant)[:, 0] * pixel
    material = row[:, scenery.MATERIAL].long()
    properties = scene.materials[material]  # [P, 8]
    albedo = (sample(scene.textures, properties[:, 6].long(), uv, density) * properties[:, :3]).clamp(
        0, 1
    ) ** 2.2
    diffuse, highlight = _lighting(scene, point, normal, towards, properties[:, 4:5])
    mirror = properties[:, 5:6]
    colour = (albedo * diffuse) * (1 - mirror) + properties[:, 3:4] * highlight
    some = (mirror[:, 0] > 0).nonzero()[:, 0]
    mirrored = 2 * (normal[some] * towards[some]).sum(-1, keepdim=True) * normal[some] - towards[some]
    colour[some] += mirror[some] * surroundings(scene, mirrored, 4.0)
    return colour


def _lighting(
    scene: RenderScene, point: Tensor, normal: Tensor, towards: Tensor, shininess: Tensor
) -> tuple[Tensor, Tensor]:
    """Light that reaches a matt surface, and highlights, [P, 3] each."""
    upward = 0.5 + 0.5 * normal[:, 2:]
    diffuse = scene.ambient[1] + (scene.ambient[0] - scene.ambient[1]) * upward
    highlight = torch.zeros_like(diffuse)
    for index in range(scene.lights.shape[0]):
        light = scene.lights[index]
        to_light = light[:3] - point
        distance = to_light.norm(dim=-1, keepdim=True)
        to_light = to_light / distance
        cosine = (normal * to_light).sum(-1, keepdim=True).clamp_min(0)
        strength = 1 + light[3] * ((light[7] / distance).square().clamp_max(6) - 1)
        lit = strength * _shadow(scene, index, point, normal, distance)
        halfway = F.normalize(to_light + towards, dim=-1)
        gleam = (normal * halfway).sum(-1, keepdim=True).clamp_min(1e-4) ** shininess
        diffuse = diffuse + light[4:7] * (lit * cosine)
        highlight = highlight + light[4:7] * (lit * gleam * (cosine > 0))
    return diffuse, highlight


def _shadow(scene: RenderScene, index: int, point: Tensor, normal: Tensor, distance: Tensor) -> Tensor:
    """Share of the light that arrives, [P, 1], from four neighbours in the shadow map."""
    camera = scene.light_cameras[index]
    texel = distance / camera.K[0, 0]  # size of a shadow texel at the point
    local = transform(camera.cam_from_world, point + normal * (2.0 * texel))
    z = local[:, 2].clamp_min(1e-6)
    size = camera.width
    x = local[:, 0] / z * camera.K[0, 0] + camera.K[0, 2] - 0.5  # depths sit at texel centres
    y = local[:, 1] / z * camera.K[1, 1] + camera.K[1, 2] - 0.5
    inside = (x > 0) & (y > 0) & (x < size - 1) & (y < size - 1) & (local[:, 2] > 0)
    x, y = x.clamp(0, size - 1.001), y.clamp(0, size - 1.001)
    x0, y0 = x.floor(), y.floor()
    fx, fy = x - x0, y - y0
    corner = (y0 * size + x0).long()
    limit = local[:, 2] - 1.5 * texel[:, 0]
    depths = scene.shadows[index].view(-1)
    lit = [(depths[corner + step] > limit).float() for step in (0, 1, size, size + 1)]
    top, bottom = lit[0] + (lit[1] - lit[0]) * fx, lit[2] + (lit[3] - lit[2]) * fx
    return torch.where(inside, top + (bottom - top) * fy, 1.0)[:, None]


def surroundings(scene: RenderScene, direction: Tensor, density: float) -> Tensor:
    """Linear colour [P, 3] of the far surroundings in unit directions [P, 3]: the scene's last texture."""
    u = torch.atan2(direction[:, 1], direction[:, 0]) * (1 / (2 * math.pi))
    v = direction[:, 2].clamp(-1, 1) * 0.5 + 0.5
    v = v * 0.96 + 0.02  # stay off the border, where the texture wraps around
    last = torch.full_like(u, len(scene.textures.base) - 1, dtype=torch.long)
    return sample(scene.textures, last, torch.stack([u, v], -1), torch.full_like(u, density)) ** 2.2
