"""The scale of stored depth that files beside depth maps state: our `cameras.json`, or `transforms.json`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from gbinet.errors import FormatError
from gbinet.formats.nerfstudio import DEPTH_SCALE, read_transforms
from gbinet.formats.reading import is_file, read_json
from gbinet.scenes.depth_pictures import CAMERAS
from gbinet.scenes.nerfstudio import transforms_file

_MAX_BYTES = 256 * 1024 * 1024


class StatedScales:
    """What stored depths in a folder are multiplied with, as files there or one folder up state it."""

    def __init__(self, folder: Path) -> None:
        place = folder.resolve()
        self._scales: dict[str, float] = {}  # by the names of the files
        for beside in (place.parent, place):  # what stands beside the maps counts more
            self._scales |= _of_transforms(beside, place) | _of_pictures(beside)

    def of(self, path: Path) -> float:
        """The scale of a file of the folder; 1 where nothing is said about it."""
        return self._scales.get(path.name, 1.0)


def _of_transforms(folder: Path, maps: Path) -> dict[str, float]:
    """The scale of the depth maps in the folder `maps` that a nerfstudio scene names."""
    path = transforms_file(folder)
    if path is None:
        return {}
    transforms = read_transforms(path)
    scale = DEPTH_SCALE if transforms.depth_scale is None else transforms.depth_scale
    named = [os.path.normpath(folder / f.depth_path) for f in transforms.frames if f.depth_path is not None]
    return {Path(name).name: scale for name in named if Path(name).parent == maps}


def _of_pictures(folder: Path) -> dict[str, float]:
    """The scale of the depth maps that are named in `cameras.json` of `gbinet`; other files are not ours."""
    path = folder / CAMERAS
    content: Any = read_json(path, _MAX_BYTES) if is_file(path) else None
    if not isinstance(content, dict) or "depth_scale" not in content:
        return {}
    scale, views = content["depth_scale"], content.get("views")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale <= sys.float_info.max:
        raise FormatError(path, f"`depth_scale` {str(scale)[:40]!r} is not a positive number")
    names = [view.get("depth") for view in views if isinstance(view, dict)] if isinstance(views, list) else []
    return {name: float(scale) for name in names if isinstance(name, str)}
