"""Numbered procedural textures and shapes that scenes share, because making them takes longer than rendering.

Each is determined by its name and number, made when it is first used, and cached on the device.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from gbinet.render.mesh import Mesh
from gbinet.render.paint import paint
from gbinet.render.seeding import generator
from gbinet.render.shapes import SHAPES
from gbinet.render.texture import Texture
from gbinet.render.thin import THIN_SHAPES

TEXTURES_PER_KIND = 64
SHAPES_PER_NAME = 48


@dataclass(frozen=True)
class Shape:
    """A mesh of unit largest extent, standing on z = 0 over the origin."""

    mesh: Mesh
    extent: tuple[float, float, float]


@functools.lru_cache(maxsize=512)
def texture(kind: str, number: int, device: torch.device) -> Texture:
    return paint(generator(number, "texture", kind), kind, device=device)


@functools.lru_cache(maxsize=2048)
def shape(name: str, number: int, device: torch.device) -> Shape:
    if device.type != "cpu":
        on_cpu = shape(name, number, torch.device("cpu"))
        return Shape(on_cpu.mesh.to(device), on_cpu.extent)
    mesh = (SHAPES | THIN_SHAPES)[name](generator(number, "shape", name))
    low, high = mesh.positions.amin(0), mesh.positions.amax(0)
    size = float((high - low).max())
    foot = torch.stack([(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]])
    extent = ((high - low) / size).tolist()
    normalised = Mesh((mesh.positions - foot) / size, mesh.normals, mesh.uv / size, mesh.faces)
    return Shape(normalised, (extent[0], extent[1], extent[2]))
