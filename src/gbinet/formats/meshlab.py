"""MeshLab projects (.mlp): a list of meshes or scans, with the pose of each."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError
from gbinet.formats.allowed_folders import AllowedFolders
from gbinet.formats.reading import read_bounded


@dataclass(frozen=True)
class MeshLabMesh:
    label: str
    path: Path
    world_from_mesh: NDArray[np.float64]  # [4, 4] rigid


def read_meshlab(path: str | Path) -> list[MeshLabMesh]:
    """Meshes of the first group of a project; their files are named relative to it."""
    path = Path(path)
    data = read_bounded(path, 1 << 24)
    # XML entities can expand without bound; a project needs none.
    if b"<!ENTITY" in data:
        raise FormatError(path, "defines XML entities, which a MeshLab project never does")
    try:
        root = ET.fromstring(data)
    except (ET.ParseError, ValueError, LookupError) as error:
        raise FormatError(path, f"is not XML: {error}") from error
    group = root.find("MeshGroup")
    if root.tag != "MeshLabProject" or group is None:
        raise FormatError(path, "is not a MeshLab project with a MeshGroup")
    meshes = [_mesh(path, node) for node in group.findall("MLMesh")]
    if not meshes:
        raise FormatError(path, "lists no meshes")
    return meshes


def _mesh(path: Path, node: ET.Element) -> MeshLabMesh:
    name = node.get("filename")
    if not name:
        raise FormatError(path, "a mesh has no filename")
    if not AllowedFolders(path.parent).contains(path.parent / name):
        raise FormatError(path, f"names {name}, which lies outside its folder; put the scans beside it")
    words = (node.findtext("MLMatrix44") or "").split()
    try:
        matrix = np.array(words, dtype=np.float64).reshape(4, 4)
    except ValueError as error:
        raise FormatError(path, f"{name}: its MLMatrix44 is not 16 numbers") from error
    rotation = matrix[:3, :3]
    rigid = np.isfinite(matrix).all() and np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3)
    if not rigid or not np.array_equal(matrix[3], [0, 0, 0, 1]):
        raise FormatError(path, f"{name}: its MLMatrix44 is not a rotation and a shift")
    return MeshLabMesh(node.get("label", name), path.parent / name, matrix)
