"""What belongs to depth maps on disk: the settings they were made with, and what each was made from.

Every map carries a key: a hash of the settings, of the weights, of its range, of the photos it was made from
(their bytes) and of their cameras. A map whose key is still right is finished; one whose key is not, or that
is damaged, is computed again. Masks have no part in it: they act in fusion, which always starts afresh.
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
from gbinet.formats.atomic import remove_temporary, write_json
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
) -> Iterator[Finished]:
    """A folder in which this run, and no other, makes depth maps; where it may not, nothing is changed.

    `accepted` is called when it may, before anything is changed or computed; it may refuse as well.
    """
    if len(scene.views) < 2:
        raise SceneError(f"{scene.root}: depth needs at least 2 photos, this scene has {len(scene.views)}")
    with locked(out):
        remove_temporary(out, *{DepthFolder(scene, out).path(i).parent for i in range(len(scene.views))})
        finished = Finished(out, scene, model, config)
        try:
            finished.check(overwrite, accepted)
            yield finished
        except BaseException:
            finished.give_up()
            raise


class Finished:
    """The depth maps in a folder: which are finished, and whose they are.

    `settings.json` lists the names of all that were ever written (or are about to be): nothing else in the
    folder is ever replaced or removed.
    """

    def __init__(self, folder: Path, scene: Scene, model: torch.nn.Module, config: DepthConfig) -> None:
        self.folder = folder
        self.kept: set[int] = set()  # indices of views whose map is finished
        self.notes: list[str] = []
        self.maker = maker(model)
        self._views = scene.views
        self._range = config.depth_range
        self.settings = _settings(model, config, self.maker.weights)
        self._hashes = Fingerprints(folder / FINGERPRINTS)
        self._photos = self._hashes.of_all(view.image_path for view in scene.views)
        self._taken = self._hashes.of_all(view.original_path or view.image_path for view in scene.views)
        first = scene.views[0]
        self._place = str((first.original_path or first.image_path).resolve().parent)  # of the photos
        self._names = [f"{view.name}.npz" for view in scene.views]
        self._begun = False  # whether files of ours in the folder are this run's

    # ---- keys ----

    def mark(self, index: int, asked: int) -> dict[str, object]:
        """What the map of a view says about itself. `asked`: views that were looked at, itself included."""
        return {
            "program": "gbinet",
            **self.maker.to_dict(),
            "inputs": self._key(index, asked),
            "asked": asked,
            "photo": self._taken[self._views[index].original_path or self._views[index].image_path],
        }

    def _key(self, index: int, asked: int) -> str:
        """Changes with every byte that the map is made from, and with nothing else."""
        view = self._views[index]
        near_far = self._range or view.depth_range
        digest = hashlib.blake2b(json.dumps(self.settings, sort_keys=True).encode(), digest_size=16)
        digest.update(repr(None if near_far is None else (near_far.near, near_far.far)).encode())
        for used in self._candidates(view)[:asked]:  # in this order, up to the last that was looked at
            digest.update(self._photos[used.image_path].encode())
            digest.update(_camera_bytes(used.camera))
        return digest.hexdigest()

    def _candidates(self, view: View) -> list[View]:
        return [view, *(self._views[i] for i in view.best_sources())]

    # ---- the folder ----

    def check(self, overwrite: bool, accepted: Callable[[], None] | None = None) -> None:
        """Find the finished maps and make room for the others; maps of other settings need `overwrite`.

        `made_by` is not compared: another version of the software may go on with what is left, and is added.
        """
        stored = read_record(self.folder / FILE)
        recorded, makers = _names(stored), stored.pop("made_by", [])
        stored.pop("maps", None)
        elsewhere = stored.pop("photos", self._place) != self._place
        states = self._states(recorded)
        self.kept = {i for i, name in enumerate(self._names) if states[name] == "finished"}
        unfit = [name for name, state in states.items() if state in ("changed", "damaged")]
        same = stored == self.settings
        if not same:  # whatever else was made with the old settings
            others = recorded - set(self._names)
            unfit += [name for name in others if (self.folder / name).exists() and not self._foreign(name)]
        if not overwrite and unfit and not same:
            raise GBiNetError(f"{self.folder} holds depth maps {self._difference(stored)}; {_ADVICE}")
        if not overwrite and unfit and elsewhere and self._of_other_photos(unfit):
            raise GBiNetError(f"{self.folder} holds depth maps of other photos; {_ADVICE}")
        if accepted is not None:
            accepted()
        self._begun = True
        self._store(makers if same and isinstance(makers, list) else [], recorded | set(self._names))
        for name in unfit:  # the record is written: the run after a killed one finds them again
            (self.folder / name).unlink()
        if same:
            self._note(states)
        self._hashes.save()

    def give_up(self) -> None:
        """After a failure: without any map, our own files in the folder mean nothing."""
        recorded = _names(read_record(self.folder / FILE))
        if self._begun and not any((self.folder / name).exists() for name in recorded):
            for name in (FILE, FINGERPRINTS):
                (self.folder / name).unlink(missing_ok=True)

    def _states(self, recorded: set[str]) -> dict[str, _State]:
        """Name of a view's map -> how it is; an error if one is not ours."""
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
        mark, view = maker_of(path), self._views[index]
        if mark is None or not npz_intact(path):
            return "damaged"
        asked = mark.get("asked")
        if not isinstance(asked, int) or not 0 < asked <= len(self._candidates(view)):
            return "changed"
        return "finished" if mark.get("inputs") == self._key(index, asked) else "changed"

    def _foreign(self, name: str) -> bool:
        """A good file that does not say that it is ours; or a folder, a pipe, a device, which never are."""
        path = self.folder / name
        return not is_file(path) or (maker_of(path) is None and npz_intact(path))

    def _of_other_photos(self, unfit: list[str]) -> bool:
        """Whether nothing here belongs to these photos, which lie elsewhere: another folder was meant."""
        made_from = {mark.get("photo") for name in unfit if (mark := maker_of(self.folder / name))}
        return not self.kept and bool(made_from) and made_from.isdisjoint(self._taken.values())

    def _store(self, makers: list[dict[str, object]], names: set[str]) -> None:
        if self.maker.to_dict() not in makers and len(self.kept) < len(self._names):
            makers = [*makers, self.maker.to_dict()]
        content = {**self.settings, "photos": self._place, "made_by": makers, "maps": sorted(names)}
        if content != read_record(self.folder / FILE):
            write_json(self.folder / FILE, content)

    def _note(self, states: dict[str, _State]) -> None:
        reasons = {"changed": "what they are made from has changed", "damaged": "their files were damaged"}
        for state, reason in reasons.items():
            names = [name.removesuffix(".npz") for name, found in states.items() if found == state]
            if names:
                shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                count = f"{len(names)} of {len(states)} depth maps"
                self.notes.append(f"{count} had to be computed again, because {reason}: {shown}")

    def _difference(self, stored: dict[str, Any]) -> str:
        now = self.settings
        keys = [k for k in {**now, "calibration": None} if stored.get(k) != now.get(k)]
        changes = [_change(k, stored.get(k), now.get(k)) for k in keys]
        return f"made with other settings ({', '.join(changes)})"


# Parts of a network that earlier versions did not have: without them it is the network that it was, and the
# depth maps that it made are its own.
_YOUNGER: dict[str, object] = {"choice_again": False}


def _settings(model: torch.nn.Module, config: DepthConfig, weights: str) -> dict[str, Any]:
    """What decides the depth of every view alike, as JSON gives it back."""
    values = {k: v for k, v in asdict(config).items() if k not in _NO_EFFECT}
    values["weights"] = weights
    network = getattr(model, "config", None)  # bins, read-out, confidence: no tensor tells them
    if isinstance(network, GBiNetConfig):
        known = network.to_dict()
        values["configuration of the network"] = {
            k: v for k, v in known.items() if k not in _YOUNGER or v != _YOUNGER[k]
        }
    calibration = getattr(getattr(model, "network", model), "calibration", None)
    if isinstance(calibration, Calibration):
        values["calibration"] = calibration.to_dict()
    settings: dict[str, Any] = json.loads(json.dumps(values))
    return settings


def _names(record: dict[str, Any]) -> set[str]:
    """Depth maps that the record lists."""
    return {name for name in names_in(record, "maps") if name.endswith(".npz")}


def _camera_bytes(camera: Camera) -> bytes:
    numbers = [n.double().cpu().contiguous().numpy().tobytes() for n in (camera.K, camera.cam_from_world)]
    return b"".join(numbers) + f"{camera.width}x{camera.height}".encode()


def _change(key: str, old: object, new: object) -> str:
    if key in ("weights", "configuration of the network", "calibration"):
        return f"other {key}"
    return f"{key} {old} there, {new} now"
