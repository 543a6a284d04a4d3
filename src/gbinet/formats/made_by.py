"""What made a depth map, recorded so that nobody takes a prediction for the truth.

`.npz` files hold it themselves (`made_by`, JSON in a string); files of other formats are listed in a file
`made_by.json` in their folder.
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
FILE = "made_by.json"  # {name of a depth file: what made it}, beside depth files of other formats
_MAX_BYTES = 1 << 16  # of the array; a hundred times what is needed
_MAX_FILE = 1 << 26

Maker = Mapping[str, Any]  # gbinet.provenance.Maker as JSON


def maker_of(path: str | Path) -> dict[str, Any] | None:
    """What made a depth file; None where it is not recorded."""
    return makers_of([Path(path)]).get(Path(path))


def makers_of(paths: Iterable[Path]) -> dict[Path, dict[str, Any]]:
    """What made depth files, for those of which it is recorded."""
    listed: dict[Path, dict[str, dict[str, Any]]] = {}  # by folder
    makers = {}
    for path in paths:
        if path.parent not in listed:
            listed[path.parent] = _makers_listed_in(path.parent)
        own = _maker_inside(path) if path.suffix.lower() == ".npz" else None
        maker = own or listed[path.parent].get(path.name)
        if maker is not None:
            makers[path] = maker
    return makers


def as_array(maker: Maker) -> np.ndarray[Any, Any]:
    """The maker as an array of an .npz, readable with nothing but `numpy.load`."""
    return np.array(json.dumps(maker, sort_keys=True))


def record_maker(path: Path, maker: Maker | None) -> None:
    """List what makes a depth file, in its folder, before the file is written; None removes its entry."""
    listed = _makers_listed_in(path.parent)
    if listed.get(path.name) == maker:
        return
    listed.pop(path.name, None)
    if maker is not None:
        listed[path.name] = dict(maker)
    write_text(path.parent / FILE, json.dumps(listed, indent=1, sort_keys=True) + "\n")


def _maker_inside(path: Path) -> dict[str, Any] | None:
    """What an .npz says made it."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            member = archive.getinfo(f"{KEY}.npy")
            if member.file_size > _MAX_BYTES:
                return None
            with NPY_HEADER, archive.open(member) as stream:
                content = json.loads(str(np.lib.format.read_array(stream, allow_pickle=False)))
    except Exception:  # decoders fail in many ways; reading the depth reports what is wrong
        return None
    return content if isinstance(content, dict) else None


def _makers_listed_in(folder: Path) -> dict[str, dict[str, Any]]:
    """What FILE says made each depth file of a folder."""
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
