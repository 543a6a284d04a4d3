"""A scene for rendering: triangles, materials, textures, lights; and how it is assembled from parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.render.mesh import Mesh, join
from gbinet.render.rasterise import key_depth, visible_keys
from gbinet.render.texture import Texture, TexturePack

# Columns of RenderScene.table: what shading needs of a triangle, one row of 128 bytes.
CORNER, NORMAL, DUAL_1, DUAL_2 = slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 12)
UV, UV_1, UV_2 = slice(12, 14), slice(14, 16), slice(16, 18)
SMOOTH, SMOOTH_1, SMOOTH_2 = slice(18, 21), slice(21, 24), slice(24, 27)
DENSITY, MATERIAL = 27, 28
TABLE_COLUMNS = 32

SHADOW_SIZE = 1024  # texels a side of a shadow map


@dataclass(frozen=True)
class Material:
    """How a surface looks."""

    texture: Texture
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)  # multiplies the texture
    specular: float = 0.0  # strength of the highlight
    shininess: float = 30.0  # its sharpness
    mirror: float = 0.0  # share of the surroundings that is reflected


Role = Literal["thing", "wall", "ceiling", "ground", "pane", "hung"]


@dataclass(frozen=True)
class Part:
    """A mesh, already in the world, with its material."""

    mesh: Mesh
    material: Material
    role: Role = "thing"  # in its scene: a difficulty may change walls only


@dataclass(frozen=True)
class Light:
    """A lamp at a position (the sun is one far away)."""

    position: tuple[float, float, float]
    target: tuple[float, float, float]
    colour: tuple[float, float, float]  # light that arrives at the target
    reach: float  # radius around the target in which things cast shadows, in world units
    falloff: float = 0.0  # 1: inverse square law, 0: as bright everywhere


@dataclass(frozen=True)
class RenderScene:
    """Everything that a picture depends on except the cameras. World units are metres, z is up."""

    kind: str
    seed: int
    vertices: Tensor  # [N, 3] float32
    faces: Tensor  # [F, 3] int32
    table: Tensor  # [F, TABLE_COLUMNS] float32
    materials: Tensor  # [M, 8] float32: tint, specular, shininess, mirror, number of the texture, -
    textures: TexturePack  # the last one is the surroundings
    lights: Tensor  # [L, 8] float32: position, falloff, colour, distance of the target
    light_cameras: Camera  # [L]
    shadows: Tensor  # [L, S, S] float32 depth seen from the lights
    ambient: Tensor  # [2, 3] float32 light from above and below
    layout: Layout
    difficulties: tuple[str, ...] | None  # None: an ordinary scene, whose samples are ordinary too

    @property
    def device(self) -> torch.device:
        return self.vertices.device


@dataclass(frozen=True)
class Layout:
    """Where cameras may stand and what they look at; plain numbers on the host."""

    focus: np.ndarray  # [3] middle of the content
    radius: float  # of the content
    obstacles: np.ndarray  # [n, 4] spheres x, y, z, r that cameras stay out of
    low: np.ndarray  # [3] corner of the space for cameras
    high: np.ndarray  # [3]
    clearance: float  # distance that cameras keep from obstacles


@dataclass(frozen=True)
class Draft:
    """A scene before assembly, as a composer makes it."""

    parts: list[Part]
    lights: list[Light]
    ambient: tuple[tuple[float, float, float], tuple[float, float, float]]  # light from above, from below
    surroundings: Texture
    layout: Layout


def assemble(
    kind: str,
    seed: int,
    draft: Draft,
    device: torch.device,
    difficulties: tuple[str, ...] | None = None,
) -> RenderScene:
    """Put the parts of a scene together on the device and cast the shadows."""
    parts, lights = draft.parts, draft.lights
    meshes = [part.mesh.to(device) for part in parts]
    whole = join(meshes)
    counts = torch.tensor([len(m.faces) for m in meshes])
    face_material = torch.repeat_interleave(torch.arange(len(parts)), counts).to(device, non_blocking=True)
    textures = {id(part.material.texture): part.material.texture for part in parts}  # shared ones once
    numbers = {key: number for number, key in enumerate(textures)}
    pack = TexturePack.of([*textures.values(), draft.surroundings])
    materials = torch.tensor([_material_row(p.material, numbers) for p in parts], dtype=torch.float32).to(
        device
    )
    cameras = Camera.stack([light_camera(light) for light in lights]).to(device)
    faces = whole.faces.to(torch.int32)
    return RenderScene(
        kind=kind,
        seed=seed,
        vertices=whole.positions,
        faces=faces,
        table=_face_table(whole, face_material, materials, pack),
        materials=materials,
        textures=pack,
        lights=torch.tensor([_light_row(x) for x in lights], dtype=torch.float32).to(
            device, non_blocking=True
        ),
        light_cameras=cameras,
        shadows=key_depth(visible_keys(whole.positions, faces, cameras)),
        ambient=torch.tensor(draft.ambient, dtype=torch.float32).to(device, non_blocking=True),
        layout=draft.layout,
        difficulties=difficulties,
    )


def _material_row(material: Material, texture_numbers: dict[int, int]) -> list[float]:
    gloss = [material.specular, material.shininess, material.mirror]
    return [*material.tint, *gloss, float(texture_numbers[id(material.texture)]), 0.0]


def _light_row(light: Light) -> list[float]:
    distance = float(np.linalg.norm(np.subtract(light.position, light.target)))
    return [*light.position, light.falloff, *light.colour, distance]


def triple(vector: np.ndarray) -> tuple[float, float, float]:
    """A vector [3] as plain numbers."""
    return (float(vector[0]), float(vector[1]), float(vector[2]))


def look_at(position: np.ndarray, target: np.ndarray, roll: float = 0.0) -> np.ndarray:
    """cam_from_world [4, 4] of a camera at position that sees target in its middle, z up in the image."""
    forward = target - position
    forward = forward / np.linalg.norm(forward)
    up = np.array([0.0, 0.0, 1.0]) if abs(forward[2]) < 0.999 else np.array([0.0, 1.0, 0.0])
    right = np.cross(forward, up)
    right = right / np.linalg.norm(right)
    down = np.cross(forward, right)
    c, s = np.cos(roll), np.sin(roll)
    rotation = np.stack([c * right + s * down, c * down - s * right, forward])
    matrix = np.eye(4)
    matrix[:3, :3] = rotation
    matrix[:3, 3] = -rotation @ position
    return matrix


def light_camera(light: Light) -> Camera:
    """The pinhole camera through which a light sees what it shines on."""
    position, target = np.array(light.position), np.array(light.target)
    distance = float(np.linalg.norm(target - position))
    focal = SHADOW_SIZE / 2 * max(distance, 1e-6) / light.reach
    K = torch.tensor(
        [[focal, 0, SHADOW_SIZE / 2], [0, focal, SHADOW_SIZE / 2], [0, 0, 1]], dtype=torch.float32
    )
    pose = torch.from_numpy(look_at(position, target)).float()
    return Camera(K, pose, SHADOW_SIZE, SHADOW_SIZE)


def _face_table(mesh: Mesh, face_material: Tensor, materials: Tensor, pack: TexturePack) -> Tensor:
    a, b, c = mesh.positions[mesh.faces].unbind(1)  # [F, 3] each
    e1, e2 = b - a, c - a
    normal = torch.linalg.cross(e1, e2)
    squared = normal.square().sum(-1, keepdim=True).clamp_min(1e-30)
    uv = mesh.uv[mesh.faces]  # [F, 3, 2]
    uv_1, uv_2 = uv[:, 1] - uv[:, 0], uv[:, 2] - uv[:, 0]
    smooth = mesh.normals[mesh.faces]  # [F, 3, 3]
    uv_area = (uv_1[:, 0] * uv_2[:, 1] - uv_1[:, 1] * uv_2[:, 0]).abs()
    texels = torch.exp2(pack.log_size[materials[face_material, 6].long()].float())
    density = texels * (uv_area / squared[:, 0].sqrt()).sqrt()  # texels per world unit
    table = torch.zeros(len(mesh.faces), TABLE_COLUMNS, device=mesh.positions.device)
    table[:, CORNER] = a
    table[:, NORMAL] = normal / squared.sqrt()
    # (P - corner) . DUAL_i is the weight of corner i at a point P of the triangle's plane
    table[:, DUAL_1] = torch.linalg.cross(e2, normal) / squared
    table[:, DUAL_2] = torch.linalg.cross(normal, e1) / squared
    table[:, UV], table[:, UV_1], table[:, UV_2] = uv[:, 0], uv_1, uv_2
    table[:, SMOOTH] = smooth[:, 0]
    table[:, SMOOTH_1], table[:, SMOOTH_2] = smooth[:, 1] - smooth[:, 0], smooth[:, 2] - smooth[:, 0]
    table[:, DENSITY] = density
    table[:, MATERIAL] = face_material.float()
    return table
