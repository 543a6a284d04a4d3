"""Textured meshes as files: glTF (`.glb`, one file) and Wavefront (`.obj` with `.mtl` and a picture).

Both are simple enough to be written by hand. A `.glb` stores positions relative to an origin, which is the
translation of its node, so that map coordinates survive 32-bit floats; an `.obj` has decimal numbers.
"""

from __future__ import annotations

import io
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gbinet.formats.atomic import atomic_file, atomic_path, write_text

_FLOAT, _UINT, _TRIANGLES, _ARRAY, _ELEMENTS = 5126, 5125, 4, 34962, 34963  # numbers of glTF
_QUALITY = 92  # of the JPEG in a .glb
_PRIMITIVE = {
    "attributes": {"POSITION": 0, "TEXCOORD_0": 1},
    "indices": 2,
    "material": 0,
    "mode": _TRIANGLES,
}
_MATERIAL: dict[str, Any] = {
    "name": "photos",
    "doubleSided": True,
    "pbrMetallicRoughness": {
        "baseColorTexture": {"index": 0},
        "metallicFactor": 0,
        "roughnessFactor": 1,
    },
    "extensions": {"KHR_materials_unlit": {}},  # the light is in the photos already
}
_SAMPLER = {"magFilter": 9729, "minFilter": 9987, "wrapS": 33071, "wrapT": 33071}  # linear, clamped


@dataclass(frozen=True)
class TexturedMesh:
    """Triangles and their texture."""

    vertices: NDArray[np.float64]  # [N, 3]
    faces: NDArray[np.int64]  # [F, 3]
    uv: NDArray[np.float32]  # [N, 2] from 0 to 1, from the top left corner of the picture
    picture: NDArray[np.uint8]  # [S, S, 3]


def write_glb(path: Path, mesh: TexturedMesh, up: NDArray[np.float64] | None = None) -> Path:
    """One file with mesh and picture (JPEG). In glTF y is up: a node turns `up` there."""
    origin = mesh.vertices.mean(axis=0)
    positions = (mesh.vertices - origin).astype("<f4")
    picture = io.BytesIO()
    Image.fromarray(mesh.picture).save(picture, "JPEG", quality=_QUALITY, subsampling=0)
    parts = [
        positions.tobytes(),
        mesh.uv.astype("<f4").tobytes(),
        mesh.faces.astype("<u4").tobytes(),
        picture.getvalue(),
    ]
    blocks = [part + b"\0" * (-len(part) % 4) for part in parts]
    starts = np.cumsum([0, *map(len, blocks)]).tolist()
    views: list[dict[str, Any]] = [
        {"buffer": 0, "byteOffset": start, "byteLength": len(part)}
        for start, part in zip(starts, parts, strict=False)
    ]
    views[0]["target"] = views[1]["target"] = _ARRAY
    views[2]["target"] = _ELEMENTS
    content = {
        "asset": {"version": "2.0", "generator": "gbinet"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [
            {"rotation": _rotation_to_y(up), "children": [1]},
            {"mesh": 0, "translation": origin.tolist()},
        ],
        "meshes": [{"primitives": [_PRIMITIVE]}],
        "accessors": [
            {
                **_accessor(0, _FLOAT, len(positions), "VEC3"),
                "min": positions.min(axis=0).tolist(),
                "max": positions.max(axis=0).tolist(),
            },
            _accessor(1, _FLOAT, len(mesh.uv), "VEC2"),
            _accessor(2, _UINT, 3 * len(mesh.faces), "SCALAR"),
        ],
        "materials": [_MATERIAL],
        "extensionsUsed": list(_MATERIAL["extensions"]),
        "textures": [{"source": 0, "sampler": 0}],
        "samplers": [_SAMPLER],
        "images": [{"bufferView": 3, "mimeType": "image/jpeg"}],
        "bufferViews": views,
        "buffers": [{"byteLength": starts[-1]}],
    }
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    with atomic_file(path) as file:
        file.write(struct.pack("<4sII", b"glTF", 2, 12 + 8 + len(text) + 8 + starts[-1]))
        file.write(struct.pack("<I4s", len(text), b"JSON") + text)
        file.write(struct.pack("<I4s", starts[-1], b"BIN\0"))
        for block in blocks:
            file.write(block)
    return path


def _accessor(view: int, kind: int, count: int, shape: str) -> dict[str, Any]:
    return {"bufferView": view, "componentType": kind, "count": count, "type": shape}


def _rotation_to_y(up: NDArray[np.float64] | None) -> list[float]:
    """The quaternion x y z w that rotates `up` to the y axis."""
    if up is None:
        return [0.0, 0.0, 0.0, 1.0]
    up = up / np.linalg.norm(up)
    axis, cosine = np.cross(up, [0.0, 1.0, 0.0]), float(up[1])
    if cosine < -1 + 1e-9:
        return [1.0, 0.0, 0.0, 0.0]  # upside down: half a turn about x
    quaternion = np.array([*axis, 1 + cosine])
    unit: list[float] = (quaternion / np.linalg.norm(quaternion)).tolist()
    return unit


def write_obj(path: Path, mesh: TexturedMesh) -> Path:
    """Write `path`, and beside it `<name>.mtl` and `<name>.png`; the .obj comes last."""
    stem = path.stem
    with atomic_path(path.with_suffix(".png")) as temporary:
        Image.fromarray(mesh.picture).save(temporary, format="PNG")
    write_text(path.with_suffix(".mtl"), f"newmtl photos\nKa 1 1 1\nKd 1 1 1\nillum 0\nmap_Kd {stem}.png\n")
    with atomic_path(path) as temporary, temporary.open("w") as file:
        file.write(f"mtllib {stem}.mtl\nusemtl photos\n")
        file.writelines(f"v {x:.10g} {y:.10g} {z:.10g}\n" for x, y, z in mesh.vertices.tolist())
        file.writelines(f"vt {u:.7g} {1 - v:.7g}\n" for u, v in mesh.uv.tolist())
        file.writelines(f"f {a}/{a} {b}/{b} {c}/{c}\n" for a, b, c in (mesh.faces + 1).tolist())
    return path
