"""Settings beside results: finished depth maps are kept, and never mixed with those of other settings."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gbinet.errors import FormatError, GBiNetError
from gbinet.formats.atomic import atomic_path
from gbinet.formats.reading import read_json
from gbinet.model.config import GBiNetConfig
from gbinet.provenance import maker
from gbinet.scene import Scene

if TYPE_CHECKING:
    from gbinet.inference.predictor import DepthConfig

FILE = "settings.json"
_NO_EFFECT = ("device", "max_memory", "cache_memory")  # settings that do not change the depth


class Finished:
    """The settings of the depth maps in a folder."""

    def __init__(self, folder: Path, scene: Scene, model: torch.nn.Module, config: DepthConfig) -> None:
        self.folder = folder
        values = {k: v for k, v in asdict(config).items() if k not in _NO_EFFECT}
        self.maps = [folder / f"{view.name}.npz" for view in scene.views]
        self.maker = maker(model)
        values["weights"] = self.maker.weights
        network = getattr(model, "config", None)  # bins, read-out, confidence: no tensor tells them
        if isinstance(network, GBiNetConfig):
            values["configuration of the network"] = network.to_dict()
        values["photos and cameras"] = fingerprint_scene(scene)
        self.settings: dict[str, Any] = json.loads(json.dumps(values))

    def check(self, overwrite: bool) -> None:
        """Compare with the settings that are stored; store ours in a new folder.

        `made_by` is not compared: another version of the software may go on with what is left, and is added.
        """
        path = self.folder / FILE
        stored = _read(path)
        makers = stored.pop("made_by", []) if stored else []
        makers = makers if isinstance(makers, list) else []
        if stored == self.settings:
            if self.maker.to_dict() not in makers and not all(path.exists() for path in self.maps):
                self._store(path, [*makers, self.maker.to_dict()])
            return
        if stored is not None or any(self.folder.glob("**/*.npz")):
            if not overwrite:
                raise GBiNetError(self._difference(stored))
            for old in self.folder.glob("**/*.npz"):
                old.unlink()
        self._store(path, [self.maker.to_dict()])

    def _store(self, path: Path, makers: list[dict[str, object]]) -> None:
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps({**self.settings, "made_by": makers}, indent=2) + "\n")

    def _difference(self, stored: dict[str, Any] | None) -> str:
        if stored is None:
            what = "whose settings are not known"
        else:
            keys = [k for k in self.settings if stored.get(k) != self.settings[k]]
            changes = [_change(k, stored.get(k), self.settings[k]) for k in keys]
            what = f"made with other settings ({', '.join(changes)})"
        return (
            f"{self.folder} holds depth maps {what}; "
            "choose another output folder, or --overwrite to replace them"
        )


def _read(path: Path) -> dict[str, Any] | None:
    if not os.path.lexists(path):
        return None
    try:
        content = read_json(path)
    except FormatError:
        return {}  # garbled: equal to nothing
    return content if isinstance(content, dict) else {}


def _change(key: str, old: object, new: object) -> str:
    if key in ("weights", "configuration of the network", "photos and cameras"):
        return f"other {key}"
    return f"{key} {old} there, {new} now"


def fingerprint_scene(scene: Scene) -> str:
    """Changes with every camera, range, neighbour and with the size of every photo."""
    digest = hashlib.sha256()
    for view in scene.views:
        numbers = [view.camera.K, view.camera.cam_from_world]
        digest.update(b"".join(n.double().cpu().contiguous().numpy().tobytes() for n in numbers))
        sources = [s.index for s in view.sources]
        size = view.image_path.stat().st_size if view.image_path.exists() else 0
        digest.update(repr((view.name, view.camera.width, view.depth_range, sources, size)).encode())
    return digest.hexdigest()[:16]
