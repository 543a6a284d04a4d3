"""Things that scenes are furnished with: materials and objects, procedural or from the asset library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gbinet.render import catalogue
from gbinet.render.assets import AssetLibrary
from gbinet.render.mesh import Mesh
from gbinet.render.paint import PAINTERS, SHARES
from gbinet.render.scenery import Material, Part, Role, triple
from gbinet.render.seeding import Generator, log_uniform
from gbinet.render.shapes import pose
from gbinet.render.texture import Texture
from gbinet.render.thin import THIN_SHAPES

# Shapes of furniture, and of small things.
SOLID = ("box", "cylinder", "vase", "blob", "tower", "sphere", "torus", "stairs", "frame", "plates")
SMALL = (*SOLID, "hill", "rods")


@dataclass(frozen=True)
class Thing:
    """An object of unit largest extent, standing on z = 0 over the origin."""

    mesh: Mesh
    material: Material
    extent: tuple[float, float, float]
    metres: float  # a natural size


class Store:
    """Draws materials and things for one scene."""

    def __init__(self, rng: Generator, assets: AssetLibrary | None, device: torch.device) -> None:
        self.rng, self.assets, self.device = rng, assets, device

    def with_rng(self, rng: Generator) -> Store:
        """The same store, drawing from another generator."""
        return Store(rng, self.assets, self.device)

    @property
    def has_surfaces(self) -> bool:
        return self.assets is not None and bool(self.assets.surfaces)

    def texture(self, kind: str | None = None) -> Texture:
        if self.assets is not None and self.has_surfaces and kind is None and self.rng.random() < 0.65:
            return self.assets.any_surface(self.rng)
        kind = kind or str(self.rng.choice(list(PAINTERS), p=SHARES))
        return catalogue.texture(kind, int(self.rng.integers(catalogue.TEXTURES_PER_KIND)), self.device)

    def material(self, kind: str | None = None, texture: Texture | None = None) -> Material:
        """A surface: most are matt, some shine, few mirror."""
        rng = self.rng
        shiny = rng.random() < 0.3
        mirror = rng.uniform(0.05, 0.35) if rng.random() < 0.06 else 0.0
        tint = np.clip(rng.normal(1, rng.choice([0.04, 0.04, 0.15]), 3) * rng.uniform(0.7, 1.05), 0.3, 1.2)
        return Material(
            texture or self.texture(kind),
            triple(tint),
            log_uniform(rng, 0.03, 0.6) if shiny else 0.0,
            log_uniform(rng, 8, 200),
            mirror,
        )

    def shape(self, name: str | None = None, device: torch.device | None = None) -> catalogue.Shape:
        """A shape of the catalogue, by name or any small one."""
        name = name or str(self.rng.choice(SMALL))
        number = int(self.rng.integers(catalogue.SHAPES_PER_NAME))
        return catalogue.shape(name, number, device or self.device)

    def procedural(self, name: str | None = None) -> Thing:
        """A shape with a material of its own, stretched a little."""
        rng = self.rng
        shape = self.shape(name)
        by = np.exp(rng.normal(0, 0.2, 3)).clip(0.6, 1.6)
        extent = by * shape.extent
        by, extent = by / extent.max(), extent / extent.max()
        mesh = shape.mesh.stretched(triple(by)).textured(log_uniform(rng, 0.4, 2.0))
        return Thing(mesh, self.material(), triple(extent), log_uniform(rng, 0.05, 0.3))

    def thing(self) -> Thing:
        """A small object."""
        if self.assets is not None and self.assets.objects and self.rng.random() < 0.85:
            asset = self.assets.any_object(self.rng)
            return Thing(asset.mesh, self.material(texture=asset.texture), asset.extent, asset.metres)
        return self.procedural()

    def furniture(self) -> Thing:
        """An object of about a metre."""
        if self.assets is not None and self.assets.furniture and self.rng.random() < 0.75:
            asset = self.assets.any_furniture(self.rng)
            size = self.rng.uniform(0.5, 1.3)
            return Thing(asset.mesh, self.material(texture=asset.texture), asset.extent, size)
        thing = self.procedural(str(self.rng.choice(SOLID)))
        return Thing(thing.mesh, thing.material, thing.extent, self.rng.uniform(0.4, 1.4))

    def thin(self, names: tuple[str, ...] | None = None) -> Thing:
        """Something thin; with names, one of these shapes."""
        if names is None and self.assets is not None and self.assets.thin and self.rng.random() < 0.4:
            asset = self.assets.any_thin(self.rng)
            return Thing(asset.mesh, self.material(texture=asset.texture), asset.extent, 1.0)
        return self.procedural(str(self.rng.choice(names or tuple(THIN_SHAPES))))

    def flat(self, mesh: Mesh, tile: float, kind: str | None = None, role: Role = "thing") -> Part:
        """A mesh whose uv are metres, covered with a texture that repeats every `tile` metres."""
        return Part(mesh.textured(1 / tile), self.material(kind), role)


def placed(
    thing: Thing,
    x: float,
    y: float,
    z: float,
    size: float,
    turn: float,
    tilt: float = 0.0,
    lying: bool = False,
) -> tuple[Part, np.ndarray]:
    """The thing at a position, and a sphere (x, y, z, r) around it. lying: turned by 90 degrees about x."""
    ex, ey, ez = (e * size for e in thing.extent)
    quarter = np.pi / 2 if lying else 0.0
    matrix = pose(x, y, z, turn, quarter + tilt, size)
    if lying:  # the back (y = +ey / 2) is now on top; lift the front to the ground and centre the height
        shift = np.array([-np.sin(turn), np.cos(turn)]) * ez / 2
        matrix[0, 3] += float(shift[0])
        matrix[1, 3] += float(shift[1])
        matrix[2, 3] += ey / 2
        ey, ez = ez, ey
    radius = 0.5 * float(np.sqrt(ex * ex + ey * ey + ez * ez))
    return Part(thing.mesh.moved(matrix.to(thing.mesh.positions.device)), thing.material), np.array(
        [x, y, z + ez / 2, radius]
    )
