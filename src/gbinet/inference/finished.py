"""Which depth maps in a folder are finished: the settings they were made with, and what each was made from.

Every map stores a key: a hash of the settings, the weights, its range, the photos it was made from (their
bytes) and their cameras. A map whose key is still right is finished; one whose key is not, or that is
damaged, is computed again. Masks are not part of the key: they act in fusion, which always starts from the
beginning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from gbinet.camera import Camera
from gbinet.errors import GBiNetError, SceneError
from gbinet.formats.atomic import json_ready, remove_temporary, write_json
from gbinet.formats.depth_files import npz_intact
from gbinet.formats.fingerprint import Fingerprints
from gbinet.formats.lock import locked
from gbinet.formats.made_by import maker_of
from gbinet.formats.reading import is_file, names_in, read_record
from gbinet.model.calibration import Calibration
from gbinet.model.config import GBiNetConfig
from gbinet.provenance import maker
from gbinet.scene import Scene, View
from gbinet.scenes.depth_folder import DepthFolder

if TYPE_CHECKING:
    from gbinet.inference.predictor import DepthConfig

FILE = "settings.json"
FINGERPRINTS = "fingerprints.json"
_ADVICE = "choose another output folder, or --overwrite to replace them"
_State = Literal["absent", "finished", "changed", "damaged", "foreign"]
_NO_EFFECT = ("device", "max_memory", "cache_memory")  # settings that do not change the depth


@contextmanager
def making_maps(
    out: Path,
    scene: Scene,
    model: torch.nn.Module,
    config: DepthConfig,
    *,
    overwrite: bool,
    accepted: Callable[[], None] | None = None,
) -> Iterator[FinishedMaps]:
    """Lock a folder for this run to write depth maps into, and find the finished ones in it.

    An error if the folder holds maps that must not be replaced; then nothing is changed.

    Args:
        accepted: Called after the checks, before anything is changed; an error from it also ends the run.
    """
    if len(scene.views) < 2:
        raise SceneError(f"{scene.root}: depth needs at least 2 photos, this scene has {len(scene.views)}")
    with locked(out):
        remove_temporary(out, *{DepthFolder(scene, out).path(i).parent for i in range(len(scene.views))})
        finished = FinishedMaps(out, scene, model, config)
        try:
            finished.check(overwrite, accepted)
            yield finished
        except BaseException:
            finished.give_up()
            raise


class FinishedMaps:
    """The depth maps in a folder: which are finished, and which may be replaced.

    `settings.json` lists all maps that were ever written, or are about to be: nothing else in the folder is
    ever replaced or removed.
    """

    def __init__(self, folder: Path, scene: Scene, model: torch.nn.Module, config: DepthConfig) -> None:
        self.folder = folder
        self.kept: set[int] = set()  # indices of views whose map is finished
        self.notes: list[str] = []
        self.maker = maker(model, config.stages)
        self._views = scene.views
        self._range = config.depth_range
        self.settings = _settings(model, config, self.maker.weights)
        self._hashes = Fingerprints(folder / FINGERPRINTS)
        self._photos = self._hashes.of_all(view.image_path for view in scene.views)
        self._taken = self._hashes.of_all(view.original_path or view.image_path for view in scene.views)
        first = scene.views[0]
        self._photo_folder = str((first.original_path or first.image_path).resolve().parent)
        self._names = [f"{view.name}.npz" for view in scene.views]
        self._begun = False  # whether this run has written into the folder

    # ---- keys ----

    def made_by(self, index: int, tried: int) -> dict[str, object]:
        """What is stored with the map of a view. tried: views that were to be read, itself included."""
        return {
            "program": "gbinet",
            **self.maker.to_dict(),
            "inputs": self._key(index, tried),
            "asked": tried,
            "photo": self._taken[self._views[index].original_path or self._views[index].image_path],
        }

    def _key(self, index: int, tried: int) -> str:
        """A hash of everything that the map is made from, and of nothing else."""
        view = self._views[index]
        near_far = self._range or view.depth_range
        digest = hashlib.blake2b(json.dumps(self.settings, sort_keys=True).encode(), digest_size=16)
        digest.update(repr(None if near_far is None else (near_far.near, near_far.far)).encode())
        for used in self._candidates(view)[:tried]:  # in this order, up to the last that was tried
            digest.update(self._photos[used.image_path].encode())
            digest.update(_camera_bytes(used.camera))
        return digest.hexdigest()

    def _candidates(self, view: View) -> list[View]:
        return [view, *(self._views[i] for i in view.best_sources())]

    # ---- the folder ----

    def check(self, overwrite: bool, accepted: Callable[[], None] | None = None) -> None:
        """Find the finished maps and remove outdated ones; those of other settings need `overwrite`.

        `made_by` is not compared: another version of the software may continue, and is added to the list.
        """
        stored = read_record(self.folder / FILE)
        recorded, makers = _map_names(stored), stored.pop("made_by", [])
        stored.pop("maps", None)
        photos_elsewhere = stored.pop("photos", self._photo_folder) != self._photo_folder
        states = self._states(recorded)
        self.kept = {i for i, name in enumerate(self._names) if states[name] == "finished"}
        outdated = [name for name, state in states.items() if state in ("changed", "damaged")]
        same = stored == self.settings
        if not same:  # also maps of other views that were made with the old settings
            others = recorded - set(self._names)
            outdated += [name for name in others if (self.folder / name).exists() and not self._foreign(name)]
        if not overwrite and outdated and not same:
            raise GBiNetError(f"{self.folder} holds depth maps {self._difference(stored)}; {_ADVICE}")
        if not overwrite and outdated and photos_elsewhere and self._of_other_photos(outdated):
            raise GBiNetError(f"{self.folder} holds depth maps of other photos; {_ADVICE}")
        if accepted is not None:
            accepted()
        self._begun = True
        self._store(makers if same and isinstance(makers, list) else [], recorded | set(self._names))
        for name in outdated:  # after the record, so that a run after an interruption finds them
            (self.folder / name).unlink()
        if same:
            self._add_notes(states)
        self._hashes.save()

    def give_up(self) -> None:
        """After a failure: remove our own files from the folder if it has no map."""
        recorded = _map_names(read_record(self.folder / FILE))
        if self._begun and not any((self.folder / name).exists() for name in recorded):
            for name in (FILE, FINGERPRINTS):
                (self.folder / name).unlink(missing_ok=True)

    def _states(self, recorded: set[str]) -> dict[str, _State]:
        """Name of a view's map -> its state; an error if a file is not ours."""
        with ThreadPoolExecutor(4, "check") as pool:
            states = dict(zip(self._names, pool.map(self._state, range(len(self._names))), strict=True))
        replaceable = recorded | {name for name, state in states.items() if state in ("absent", "finished")}
        foreign = [name for name, state in states.items() if state == "foreign" or name not in replaceable]
        if foreign:
            raise GBiNetError(
                f"{self.folder / foreign[0]} already exists and was not written by gbinet into this folder "
                f"({len(foreign)} such files); move it or choose another output folder"
            )
        return states

    def _state(self, index: int) -> _State:
        path = self.folder / self._names[index]
        if not path.exists():
            return "absent"
        if self._foreign(self._names[index]):
            return "foreign"
        made_by, view = maker_of(path), self._views[index]
        if made_by is None or not npz_intact(path):
            return "damaged"
        tried = made_by.get("asked")
        if not isinstance(tried, int) or not 0 < tried <= len(self._candidates(view)):
            return "changed"
        return "finished" if made_by.get("inputs") == self._key(index, tried) else "changed"

    def _foreign(self, name: str) -> bool:
        """Whether this is an intact file that gbinet did not write, or not a regular file at all."""
        path = self.folder / name
        return not is_file(path) or (maker_of(path) is None and npz_intact(path))

    def _of_other_photos(self, outdated: list[str]) -> bool:
        """Whether no map here is of these photos: then probably another folder was meant."""
        makers = [maker_of(self.folder / name) for name in outdated]
        made_from = {made_by.get("photo") for made_by in makers if made_by}
        return not self.kept and bool(made_from) and made_from.isdisjoint(self._taken.values())

    def _store(self, makers: list[dict[str, object]], names: set[str]) -> None:
        if self.maker.to_dict() not in makers and len(self.kept) < len(self._names):
            makers = [*makers, self.maker.to_dict()]
        content = {**self.settings, "photos": self._photo_folder, "made_by": makers, "maps": sorted(names)}
        if content != read_record(self.folder / FILE):
            write_json(self.folder / FILE, content)

    def _add_notes(self, states: dict[str, _State]) -> None:
        reasons = {"changed": "what they are made from has changed", "damaged": "their files were damaged"}
        for state, reason in reasons.items():
            names = [name.removesuffix(".npz") for name, its_state in states.items() if its_state == state]
            if names:
                shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                count = f"{len(names)} of {len(states)} depth maps"
                self.notes.append(f"{count} had to be computed again, because {reason}: {shown}")

    def _difference(self, stored: dict[str, Any]) -> str:
        now = self.settings
        keys = [k for k in {**now, "calibration": None} if stored.get(k) != now.get(k)]
        changes = [_change(k, stored.get(k), now.get(k)) for k in keys]
        return f"made with other settings ({', '.join(changes)})"


# Options of a network that earlier versions did not have, with the value that means the same as without them:
# depth maps of those versions stay finished.
_ADDED_LATER: dict[str, object] = {"choice_again": False}


def _settings(model: torch.nn.Module, config: DepthConfig, weights: str) -> dict[str, Any]:
    """All settings that the depth of every view depends on, as JSON reads them back."""
    values = {k: v for k, v in asdict(config).items() if k not in _NO_EFFECT}
    values["weights"] = weights
    network = getattr(model, "config", None)  # bins, read-out, confidence: not in the tensors
    if isinstance(network, GBiNetConfig):
        options = network.to_dict()
        values["configuration of the network"] = {
            k: v for k, v in options.items() if k not in _ADDED_LATER or v != _ADDED_LATER[k]
        }
    calibration = getattr(getattr(model, "network", model), "calibration", None)
    if isinstance(calibration, Calibration):
        values["calibration"] = calibration.to_dict()
    settings: dict[str, Any] = json_ready(values)
    return settings


def _map_names(record: dict[str, Any]) -> set[str]:
    """Names of the depth maps that the record lists."""
    return {name for name in names_in(record, "maps") if name.endswith(".npz")}


def _camera_bytes(camera: Camera) -> bytes:
    numbers = [n.double().cpu().contiguous().numpy().tobytes() for n in (camera.K, camera.cam_from_world)]
    return b"".join(numbers) + f"{camera.width}x{camera.height}".encode()


def _change(key: str, old: object, new: object) -> str:
    if key in ("weights", "configuration of the network", "calibration"):
        return f"other {key}"
    return f"{key} {old} there, {new} now"
