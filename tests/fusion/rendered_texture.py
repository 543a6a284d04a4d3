"""A textured mesh as a camera sees it, with our own rasteriser: for tests and for looking at it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.camera import Camera
from gbinet.formats.textured_mesh import TexturedMesh
from gbinet.render.rasterise import face_index, visible_keys


def show(mesh: TexturedMesh, camera: Camera) -> tuple[Tensor, Tensor]:
    """Picture [H, W, 3] in 0..1, and where the mesh is seen [H, W]."""
    origin = mesh.vertices.mean(axis=0)
    vertices = torch.from_numpy((mesh.vertices - origin).astype(np.float32))
    faces = torch.from_numpy(mesh.faces)
    pose = camera.cam_from_world.double().clone()
    pose[:3, 3] += pose[:3, :3] @ torch.from_numpy(origin)
    near = Camera(camera.K.float(), pose.float(), camera.width, camera.height)
    face = face_index(visible_keys(vertices, faces, near[None]))[0]  # [H, W]
    seen = face >= 0
    corners = vertices[faces[face[seen]]].double()  # [P, 3, 3]
    centre = near.centre.double()
    pixels = near.pixel_grid()[seen].double()
    rays = (
        near.to(dtype=torch.float64).unproject(pixels, torch.ones(len(pixels), dtype=torch.float64)) - centre
    )
    a, ab, ac = corners[:, 0], corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    normal = torch.linalg.cross(ab, ac)
    hit = centre + rays * (((a - centre) * normal).sum(-1) / (rays * normal).sum(-1))[:, None]
    inner = hit - a
    d00, d01, d11 = (ab * ab).sum(-1), (ab * ac).sum(-1), (ac * ac).sum(-1)
    d20, d21 = (inner * ab).sum(-1), (inner * ac).sum(-1)
    wide = (d00 * d11 - d01 * d01).clamp_min(1e-30)
    wb, wc = (d11 * d20 - d01 * d21) / wide, (d00 * d21 - d01 * d20) / wide
    weights = torch.stack([1 - wb - wc, wb, wc], dim=-1).clamp(0, 1).float()
    uv = (weights[..., None] * torch.from_numpy(mesh.uv)[faces[face[seen]]]).sum(1)  # [P, 2]
    picture = torch.from_numpy(mesh.picture).permute(2, 0, 1)[None].float() / 255
    colours = F.grid_sample(picture, 2 * uv[None, None] - 1, align_corners=False)[0, :, 0].T
    image = torch.zeros(camera.height, camera.width, 3)
    image[seen] = colours
    return image, seen


def psnr(mesh: TexturedMesh, camera: Camera, photo: Tensor) -> float:
    """Against a photo [H, W, 3] in 0..1, over the pixels that show the mesh."""
    image, seen = show(mesh, camera)
    return -10 * float(torch.log10(((image - photo)[seen] ** 2).mean()))
