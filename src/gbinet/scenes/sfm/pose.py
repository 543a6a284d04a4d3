"""Bare photos -> posed scene: structure from motion with pycolmap, stored in the output folder."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gbinet.errors import FormatError, GBiNetError, SceneError
from gbinet.formats.atomic import atomic_path, write_json
from gbinet.formats.fingerprint import Fingerprints
from gbinet.formats.image import WRITABLE, read_image, write_image
from gbinet.formats.reading import read_json, read_record
from gbinet.names import file_stem
from gbinet.progress import Progress
from gbinet.scenes.photos import list_photos
from gbinet.scenes.sfm.cameras import CameraSharing, InputPhoto, camera_groups, input_photo
from gbinet.scenes.sfm.colmap import find_features, find_models, match, numbered, quiet
from gbinet.scenes.sfm.matching import plan
from gbinet.scenes.sfm.outcome import (
    ADVICE,
    Outcome,
    camera_facts,
    listed,
    no_model,
    photos_with_impossible_camera,
)

_PHOTO_BYTES = 6 << 20  # of disk per photo: 2 MiB of features and matches, and as much again while they grow
VERSION = 3  # raise it when this module changes: results of other versions are not used
_LISTS = ("placed", "missing", "broken", "copies")  # of PosedPhotos, as sfm.json holds them


@dataclass(frozen=True)
class PosedPhotos:
    """Where the poses are, and which photos have one."""

    folder: Path  # a COLMAP scene: images/ and sparse/0
    placed: tuple[str, ...]
    missing: tuple[str, ...]  # photos without a pose
    broken: tuple[str, ...]  # photos that cannot be read
    copies: tuple[str, ...] = ()  # photos that are the same file as an earlier one
    outcome: Outcome | None = None

    def to_dict(self) -> dict[str, Any]:
        """For run.json."""
        lists = {key: list(getattr(self, key)) for key in _LISTS}
        return {**lists, **({} if self.outcome is None else self.outcome.to_dict())}

    def summary(self) -> str:
        """One line for people."""
        total = len(self.placed) + len(self.missing)
        text = f"{len(self.placed)} of {total} photos posed"
        if self.outcome is None:
            return text
        outcome, cameras = self.outcome, len(self.outcome.cameras)
        return (
            f"{text} with {cameras} camera{'s' * (cameras != 1)}: {outcome.points:,} points, "
            f"{outcome.error:.2f} px reprojection error, {outcome.total_seconds:.0f} s"
        )

    def warnings(self) -> list[str]:
        total = len(self.missing) + len(self.placed)
        texts = [] if self.outcome is None else self.outcome.warnings(len(self.placed), total)
        if self.missing:
            texts.append(f"{len(self.missing)} of {total} photos could not be placed: {listed(self.missing)}")
        if self.broken:
            texts.append(f"{len(self.broken)} photos cannot be read: {listed(self.broken)}")
        if self.copies:
            texts.append(
                f"{len(self.copies)} photos are copies of others and were left out: {listed(self.copies)}"
            )
        return texts


def pose_photos(
    photos: Path, out: Path, progress: Progress | None = None, camera: CameraSharing | None = None
) -> PosedPhotos:
    """Find the cameras of all photos in a folder; the result is stored in `out` and read by later calls.

    camera  which photos share a camera; by default those of the same size and EXIF camera. "per-folder": one
            camera for each subfolder; photos in subfolders are read too.
    """
    readable, broken = _readable(photos, subfolders=camera == "per-folder")
    hashes = Fingerprints(out / "fingerprints.json")
    content_of = hashes.of_all(p.path for p in readable)
    distinct, copies = _distinct(readable, content_of)
    if len(readable) > 1 and len(distinct) == 1:
        raise SceneError(f"{photos}: all {len(readable)} photos are copies of {distinct[0].name}. {ADVICE}")
    if len(distinct) < 2:
        unreadable = f" ({len(broken)} more cannot be read: {listed(broken)})" if broken else ""
        raise SceneError(
            f"{photos}: structure from motion needs at least 2 photos, found {len(distinct)}{unreadable}"
        )
    state = {
        "photos": [[p.name, content_of[p.path]] for p in distinct],
        "camera": camera or "auto",
        "version": VERSION,
    }
    if (finished := _read_finished(out, state)) is not None:
        hashes.save()
        _update_links(distinct, out / "images")
        return finished
    _prepare_folder(distinct, out, state)
    hashes.save()
    try:
        placed, outcome = _reconstructed(photos, out, distinct, camera, progress)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise SceneError(f"{photos}: structure from motion failed ({reason}). {ADVICE}") from error
    names = [p.name for p in distinct]
    result = PosedPhotos(
        out,
        tuple(n for n in names if n in placed),
        tuple(n for n in names if n not in placed),
        tuple(broken),
        tuple(copies),
        outcome,
    )
    content = {**state, **{key: getattr(result, key) for key in _LISTS}, "outcome": outcome.to_dict()}
    write_json(out / "sfm.json", content)  # last: whoever finds it finds the model too
    return result


def _reconstructed(
    folder: Path,
    out: Path,
    photos: list[InputPhoto],
    camera: CameraSharing | None,
    progress: Progress | None,
) -> tuple[set[str], Outcome]:
    """Features, matches, models; the best one is written. Returns the names of the photos that it holds."""
    database, images = out / "database.db", out / "numbered"
    number = {photo.name: numbered(i, photo) for i, photo in enumerate(photos)}
    name = {number: name for name, number in number.items()}
    times = [time.perf_counter()]
    with quiet() as pycolmap:
        cameras = [[number[n] for n in group] for group in camera_groups(photos, camera)]
        find_features(pycolmap, database, images, cameras, progress)
        times.append(time.perf_counter())
        how = plan(photos)
        pairs = match(pycolmap, database, photos, how, progress)
        times.append(time.perf_counter())
        models, fixed_focal = find_models(pycolmap, database, images, len(photos), progress)
        times.append(time.perf_counter())
        if not models:
            raise SceneError(no_model(folder, len(photos)))
        best, others = models[0], models[1:]
        unsound = photos_with_impossible_camera(best)
        if best.num_reg_images() - len(unsound) < 2:
            raise SceneError(
                f"{folder}: the photos fit together only with lenses that cannot exist (focal lengths of "
                f"{best.cameras[best.images[unsound[0]].camera_id].mean_focal_length():.3g} px). {ADVICE}"
            )
        left_out = tuple(name[best.images[image_id].name] for image_id in unsound)
        for image_id in unsound:
            best.deregister_frame(best.images[image_id].frame_id)
        _write_model(pycolmap, best, name, database, out)
    placed = _names(best)
    outcome = Outcome(
        points=best.num_points3D(),
        error=float(best.compute_mean_reprojection_error()),
        cameras=camera_facts(best),
        compared=how,
        pairs=len(pairs),
        others=tuple(tuple(sorted({name[n] for n in _names(other)} - placed)) for other in others),
        unsound=left_out,
        fixed_focal=fixed_focal,
        seconds={
            "features": round(times[1] - times[0], 3),
            "matching": round(times[2] - times[1], 3),
            "mapping": round(times[3] - times[2], 3),
        },
    )
    return placed, outcome


def _names(model: Any) -> set[str]:
    return {image.name for image in model.images.values() if image.has_pose}


def _write_model(pycolmap: Any, model: Any, name: dict[str, str], database: Path, out: Path) -> None:
    """sparse/0 and the database with the photos' own names."""
    (out / "database.json").unlink()  # from here on, an interrupted run starts anew
    for image in model.images.values():
        image.name = name[image.name]
    with pycolmap.Database.open(database) as opened:
        for image in opened.read_all_images():
            image.name = name[image.name]
            opened.update_image(image)
    sparse = out / "sparse" / "0"
    sparse.mkdir(parents=True, exist_ok=True)
    model.write(sparse)
    shutil.rmtree(out / "numbered", ignore_errors=True)


def _readable(folder: Path, subfolders: bool) -> tuple[list[InputPhoto], list[str]]:
    good, broken = [], []
    for number, path in enumerate(list_photos(folder, subfolders=subfolders)):
        name = _model_name(path.relative_to(folder) if subfolders else Path(path.name), number)
        try:
            good.append(input_photo(path, name))
        except FormatError:
            broken.append(name)
    return good, broken


def _model_name(path: Path, number: int) -> str:
    """A photo's name in the model, with /. Models hold only UTF-8, so that it may differ from the file's."""
    stem = file_stem(path.stem)
    own = path.name if stem == path.stem else f"{stem}-{number}{path.suffix}"
    own += "" if path.suffix.lower() in WRITABLE else ".jpg"  # what pycolmap does not read is copied as this
    return "/".join([*map(file_stem, path.parent.parts), own])


def _distinct(photos: list[InputPhoto], content_of: dict[Path, str]) -> tuple[list[InputPhoto], list[str]]:
    """The first of each set of files with the same bytes, and the names of the others."""
    first: dict[str, InputPhoto] = {}
    for photo in photos:
        first.setdefault(content_of[photo.path], photo)
    distinct = list(first.values())
    return distinct, [photo.name for photo in photos if first[content_of[photo.path]] is not photo]


def _read_finished(out: Path, state: dict[str, Any]) -> PosedPhotos | None:
    """The result of an earlier run over the same photos."""
    try:
        stored = read_json(out / "sfm.json")
        if any(stored[key] != value for key, value in state.items()) or not (out / "sparse" / "0").is_dir():
            return None
        placed, missing, broken, copies = (tuple(map(str, stored[key])) for key in _LISTS)
        return PosedPhotos(out, placed, missing, broken, copies, Outcome.from_dict(stored["outcome"]))
    except (OSError, FormatError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _prepare_folder(photos: list[InputPhoto], out: Path, state: dict[str, Any]) -> None:
    """Make the folders of photos; keep the database of an interrupted run over the same photos."""
    (out / "sfm.json").unlink(missing_ok=True)  # the model that it describes is about to be replaced
    _remove_links(out)
    write_json(out / "begun.json", state)  # before the links: the next run finds them
    _link_photos(photos, out)
    _check_space(out, len(photos))
    database_state = out / "database.json"
    if read_record(database_state) != state:
        for name in ("database.db", "database.db-wal", "database.db-shm", "database.db-journal"):
            (out / name).unlink(missing_ok=True)
        write_json(database_state, state)


def _remove_links(out: Path) -> None:
    """Remove the links to photos (or copies) that an earlier run made here and recorded; nothing else."""
    shutil.rmtree(out / "numbered", ignore_errors=True)  # holds nothing of the user
    try:
        names = [str(name) for name, _ in read_json(out / "begun.json")["photos"]]
    except (OSError, FormatError, ValueError, KeyError, TypeError):
        return
    for name in names:
        if ".." not in Path(name).parts and not Path(name).is_absolute():
            (out / "images" / name).unlink(missing_ok=True)


def _link_photos(photos: list[InputPhoto], out: Path) -> None:
    """Link the photos (copy them where links are not possible) under their own names, and under numbers."""
    with atomic_path(out / "photos.txt") as temporary:  # says why, if the folder cannot be written
        temporary.write_bytes(b"".join(bytes(photo.path.resolve()) + b"\n" for photo in photos))
    (out / "numbered").mkdir(parents=True)
    for index, photo in enumerate(photos):
        own = out / "images" / photo.name
        if os.path.lexists(own):
            raise GBiNetError(
                f"{own} already exists and was not written by gbinet; move it or choose another output folder"
            )
        own.parent.mkdir(parents=True, exist_ok=True)
        if photo.rewritten:
            write_image(own, read_image(photo.path), quality=98)
        else:
            _link(photo.path.resolve(), own)
        _link(own.resolve(), out / "numbered" / numbered(index, photo))


def _update_links(photos: list[InputPhoto], folder: Path) -> None:
    """Make the links lead to the photos again, if these or the results were moved or copied."""
    for photo in photos:
        link = folder / photo.name
        if link.is_symlink() and link.readlink() != photo.path.resolve():
            link.unlink()
            link.symlink_to(photo.path.resolve())


def _link(target: Path, link: Path) -> None:
    try:
        link.symlink_to(target)
    except OSError:
        shutil.copyfile(target, link)


def _check_space(out: Path, count: int) -> None:
    """Raise an error if the disk may become full: pycolmap would end the whole process."""
    needed, free = count * _PHOTO_BYTES, shutil.disk_usage(out).free
    if free < needed:
        raise GBiNetError(
            f"{out}: structure from motion of {count} photos needs about {needed >> 20} MiB of disk, "
            f"{free >> 20} MiB are free; free some space and start again, or choose another folder"
        )
