"""Who made a depth map, so that nobody takes a prediction for the truth.

`.npz` files say it themselves (`made_by`, JSON in a string); formats without a place for it have a file
`made_by.json` in their folder that lists them.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gbinet.formats.atomic import write_text
from gbinet.formats.reading import NPY_HEADER

KEY = "made_by"  # of the array in an .npz
FILE = "made_by.json"  # {name of a depth file: who made it}, beside depth files of other formats
_MAX_BYTES = 1 << 16  # of the array; a hundred times what is needed
_MAX_FILE = 1 << 26

Maker = Mapping[str, Any]


def maker_of(path: str | Path) -> dict[str, Any] | None:
    """What made a depth file, where it was a program that says so; None for all others."""
    return makers_of([Path(path)]).get(Path(path))


def makers_of(paths: Iterable[Path]) -> dict[Path, dict[str, Any]]:
    """The same for many files: those that say who made them."""
    listed: dict[Path, dict[str, dict[str, Any]]] = {}
    found = {}
    for path in paths:
        if path.parent not in listed:
            listed[path.parent] = _listed(path.parent)
        inside = _inside(path) if path.suffix.lower() == ".npz" else None
        maker = inside or listed[path.parent].get(path.name)
        if maker is not None:
            found[path] = maker
    return found


def as_array(maker: Maker) -> np.ndarray[Any, Any]:
    """For an .npz: readable with `numpy.load` and nothing else."""
    return np.array(json.dumps(maker, sort_keys=True))


def record_maker(path: Path, maker: Maker | None) -> None:
    """Note in the folder of a depth file, before the file is written, who makes it; None forgets who did."""
    listed = _listed(path.parent)
    if listed.get(path.name) == maker:
        return
    listed.pop(path.name, None)
    if maker is not None:
        listed[path.name] = dict(maker)
    write_text(path.parent / FILE, json.dumps(listed, indent=1, sort_keys=True) + "\n")


def _inside(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            member = archive.getinfo(f"{KEY}.npy")
            if member.file_size > _MAX_BYTES:
                return None
            with NPY_HEADER, archive.open(member) as stream:
                content = json.loads(str(np.lib.format.read_array(stream, allow_pickle=False)))
    except Exception:  # decoders fail in many ways, and whoever reads the depth says what is wrong
        return None
    return content if isinstance(content, dict) else None


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text()) if path.stat().st_size <= _MAX_FILE else {}
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {name: maker for name, maker in content.items() if isinstance(maker, dict)}
