"""Objects and surface textures from a folder, kept on the device in the form that scenes use.

A library folder holds objects (`NAME.npz` + `NAME.jpg`) in `gso/` and `polyhaven/` and images in `textures/`.
A user's own meshes (OBJ, glTF, PLY) may lie in `meshes/`; they are read by trimesh (extra `assets`).
A folder of such folders is a library of all of them.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from gbinet.errors import FormatError, SceneError
from gbinet.render.mesh import Mesh, vertex_normals
from gbinet.render.seeding import Generator
from gbinet.render.texture import Texture, make_texture

HELD_OUT_EVERY = 8  # of the sorted names of each folder, every eighth is for validation only
MESH_SUFFIXES = (".obj", ".glb", ".gltf", ".ply", ".stl", ".off")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
FOLDERS = {  # of a library, and the endings of what is read in them
    "gso": (".npz",),
    "polyhaven": (".npz",),
    "meshes": MESH_SUFFIXES,
    "textures": IMAGE_SUFFIXES,
}
# Words, without the s of a plural, in the names of objects that are thin or full of holes.
THIN_WORDS = (
    *("fern", "tree", "branch", "root", "rail", "streetlight", "studiolight", "ladder", "rack", "drainer"),
    *("basket", "swing", "scissor", "utensil", "net", "flag"),
)
THIN_ENDINGS = (  # they may also end a longer word, as in signpost
    *("plant", "fence", "railing", "barrier", "lamp", "chandelier", "easel", "wire", "pipe", "stool"),
    *("chair", "post"),
)
SOLID_WORDS = (  # they follow a thin word, as in plant pot, or end like one
    *("pot", "planter", "saucer", "bowl", "container", "box", "holder", "trunk", "stump", "clamp"),
    "compost",
)


@dataclass(frozen=True)
class Asset:
    """An object of unit largest extent that stands on z = 0, centred over the origin."""

    name: str
    mesh: Mesh
    texture: Texture
    extent: tuple[float, float, float]
    metres: float  # its real largest extent


@dataclass
class AssetLibrary:
    """Objects and textures of a folder; each is read when it is first used and then stays on the device."""

    root: Path
    device: torch.device
    objects: tuple[Path, ...]  # small things: scanned household objects, the user's meshes
    furniture: tuple[Path, ...]  # things of about a metre
    surfaces: tuple[Path, ...]
    thin: tuple[Path, ...]  # objects and furniture that are thin, judged by their names
    _loaded: dict[Path, Asset | Texture] = field(default_factory=dict)

    @staticmethod
    def open(root: Path | str, device: torch.device | str = "cpu", *, held_out: bool = False) -> AssetLibrary:
        """The training part of a folder, or (held_out) the part that is kept for validation."""
        root = Path(root)
        if not root.is_dir():
            raise SceneError(
                f"{root}: there is no such asset folder; give one with gso/, polyhaven/ or textures/"
            )
        roots = libraries(root)
        objects = _parts(roots, "gso", held_out) + _parts(roots, "meshes", held_out)
        furniture = _parts(roots, "polyhaven", held_out)
        surfaces = _parts(roots, "textures", held_out)
        if not objects and not furniture and not surfaces:
            raise SceneError(f"{root}: {_why_empty(roots)}")
        thin = tuple(p for p in objects + furniture if is_thin(p.stem))
        return AssetLibrary(root, torch.device(device), objects, furniture, surfaces, thin)

    def preload(self, threads: int = 8) -> AssetLibrary:
        """Read everything now, several files at a time."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self.asset, [*self.objects, *self.furniture]))
            list(pool.map(self.surface, self.surfaces))
        return self

    def asset(self, path: Path) -> Asset:
        asset = self._loaded.get(path)
        if not isinstance(asset, Asset):
            asset = (read_asset(path) if path.suffix == ".npz" else read_mesh(path)).to(self.device)
            self._loaded[path] = asset
        return asset

    def surface(self, path: Path) -> Texture:
        texture = self._loaded.get(path)
        if not isinstance(texture, Texture):
            texture = make_texture(_square_image(path).to(self.device))
            self._loaded[path] = texture
        return texture

    def any_object(self, rng: Generator) -> Asset:
        return self.asset(_pick(rng, self.objects or self.furniture))

    def any_furniture(self, rng: Generator) -> Asset:
        return self.asset(_pick(rng, self.furniture or self.objects))

    def any_thin(self, rng: Generator) -> Asset:
        return self.asset(_pick(rng, self.thin))

    def any_surface(self, rng: Generator) -> Texture:
        return self.surface(_pick(rng, self.surfaces))


def _pick(rng: Generator, paths: Sequence[Path]) -> Path:
    return paths[int(rng.integers(len(paths)))]


def is_thin(name: str) -> bool:
    """Whether the object of this name is thin. The last known word decides: a plant pot is a pot."""
    thin = False
    for word in re.findall("[a-z]+", name.lower()):
        singular = word.removesuffix("s")
        if singular in SOLID_WORDS:
            thin = False
        elif singular in THIN_WORDS or singular.endswith(THIN_ENDINGS):
            thin = True
    return thin


def libraries(root: Path) -> list[Path]:
    """The folder itself, or the libraries in it, by name."""
    if not root.is_dir() or any((root / name).is_dir() for name in FOLDERS):
        return [root]
    inner = sorted(p for p in root.iterdir() if any((p / name).is_dir() for name in FOLDERS))
    return inner or [root]


def _parts(roots: list[Path], name: str, held_out: bool) -> tuple[Path, ...]:
    """The files for training, or those held out, in a folder of each library."""
    paths: list[Path] = []
    for folder in (root / name for root in roots if (root / name).is_dir()):
        names = sorted(p for p in folder.iterdir() if p.suffix.lower() in FOLDERS[name])
        paths += [p for i, p in enumerate(names) if (i % HELD_OUT_EVERY == 0) == held_out]
    return tuple(paths)


def _why_empty(roots: list[Path]) -> str:
    """Why a part of the libraries is empty, as a message for the user."""
    counts = {name: len(_parts(roots, name, held_out=True)) for name in FOLDERS}
    if not any(counts.values()):
        return "no objects in gso/, polyhaven/ or meshes/ and no images in textures/"
    textures = counts.pop("textures")
    kinds = [(sum(counts.values()), "mesh", "meshes"), (textures, "texture", "textures")]
    contents = " and ".join(f"{n} {singular if n == 1 else plural}" for n, singular, plural in kinds if n)
    return f"{contents}, but the first of every eight is held back for validation: give at least two of each"


def read_asset(path: Path) -> AssetOnHost:
    """`NAME.npz` with arrays p, uv, lo, hi, f and `NAME.jpg` beside it."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            p, uv, lo, hi, faces = (arrays[k] for k in ("p", "uv", "lo", "hi", "f"))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(path, f"is not an object with arrays p, uv, lo, hi, f ({error})") from error
    if p.ndim != 2 or p.shape[1] != 3 or uv.shape != (len(p), 2) or faces.ndim != 2 or faces.shape[1] != 3:
        raise FormatError(
            path, f"p, uv, f have shapes {p.shape}, {uv.shape}, {faces.shape}; expected [V,3] [V,2] [F,3]"
        )
    if faces.size == 0 or int(faces.max()) >= len(p):
        raise FormatError(path, "faces are missing or name vertices that do not exist")
    positions = p.astype(np.float64) / 65535 * (hi - lo) + lo
    packed = p.astype(np.int64) @ np.array([1 << 32, 1 << 16, 1])  # equal positions: doubled at texture seams
    _, welded = np.unique(packed, return_inverse=True)
    size = float((hi - lo).max())
    metres = size if size <= 1 else 0.8  # only the scanned objects come in metres
    image = _square_image(path.with_suffix(".jpg"))
    return AssetOnHost(path.stem, positions, uv / 65535.0, faces.astype(np.int64), welded, image, metres)


def read_mesh(path: Path) -> AssetOnHost:
    """A user's own mesh through trimesh; a mesh without a texture gets its mean vertex colour."""
    try:
        import trimesh
    except ImportError as error:
        raise SceneError(f"{path}: reading meshes needs trimesh: pip install 'gbinet[assets]'") from error
    try:
        mesh: Any = trimesh.load(path, force="mesh")
        positions, faces = np.asarray(mesh.vertices, np.float64), np.asarray(mesh.faces, np.int64)
    except Exception as error:  # trimesh raises many kinds
        raise FormatError(path, f"trimesh cannot read it ({error})") from error
    if len(faces) == 0 or not np.isfinite(positions).all():
        raise FormatError(path, "the mesh has no triangles, or a vertex that is not finite")
    if path.suffix.lower() in (".glb", ".gltf", ".obj"):
        positions = positions[:, [0, 2, 1]] * [1, -1, 1]  # y up -> z up
    uv = getattr(mesh.visual, "uv", None)
    picture = getattr(getattr(mesh.visual, "material", None), "baseColorTexture", None)
    picture = picture or getattr(getattr(mesh.visual, "material", None), "image", None)
    if uv is None or picture is None or len(uv) != len(positions):
        uv = np.zeros((len(positions), 2))
        image = torch.full((3, 4, 4), 160, dtype=torch.uint8)
    else:
        image = _squared(picture)
    _, welded = np.unique(positions.round(9), axis=0, return_inverse=True)
    return AssetOnHost(path.stem, positions, np.asarray(uv), faces, welded.reshape(-1), image, 0.3)


@dataclass(frozen=True)
class AssetOnHost:
    """An object as read, before it is normalised and moved to the device."""

    name: str
    positions: np.ndarray  # [V, 3]
    uv: np.ndarray  # [V, 2]
    faces: np.ndarray  # [F, 3]
    welded: np.ndarray  # [V]
    image: Tensor  # [3, S, S] uint8
    metres: float

    def to(self, device: torch.device) -> Asset:
        lo, hi = self.positions.min(0), self.positions.max(0)
        size = max(float((hi - lo).max()), 1e-12)
        foot = np.array([(lo[0] + hi[0]) / 2, (lo[1] + hi[1]) / 2, lo[2]])
        positions = torch.from_numpy(((self.positions - foot) / size).astype(np.float32))
        faces = torch.from_numpy(self.faces)
        normals = vertex_normals(positions, faces, torch.from_numpy(self.welded))
        uv = torch.from_numpy(self.uv.astype(np.float32))
        mesh = Mesh(positions.to(device), normals.to(device), uv.to(device), faces.to(device))
        extent = (hi - lo) / size
        return Asset(
            self.name,
            mesh,
            make_texture(self.image.to(device)),
            (float(extent[0]), float(extent[1]), float(extent[2])),
            self.metres,
        )


def _square_image(path: Path) -> Tensor:
    try:
        with Image.open(path) as image:
            return _squared(image)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise FormatError(path, f"is not a readable image ({error})") from error


def _squared(image: Image.Image) -> Tensor:
    """[3, S, S] uint8 with S = 512 or 1024, whichever keeps the detail."""
    size = 1024 if max(image.size) > 640 else 512
    square = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()
