"""Bare photos -> posed scene: structure from motion with pycolmap, kept in the output folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gbinet.data.load import list_photos
from gbinet.errors import FormatError, GBiNetError, SceneError
from gbinet.formats.atomic import atomic_path
from gbinet.formats.fingerprint import Fingerprints
from gbinet.formats.image import read_header
from gbinet.formats.reading import read_json
from gbinet.names import file_stem

Progress = Callable[[int, int, str], None]  # done, total, what

_MAX_SIZE = 2000  # px, longer side for finding features: more costs time and adds little
_ALL_PAIRS = 300  # up to so many photos every pair is compared; beyond, only neighbours in name order
_PHOTO_BYTES = 6 << 20  # of disk per photo: 2 MiB of features and matches, and as much again while they grow
_LISTS = ("placed", "missing", "broken", "copies")  # of PosedPhotos, as sfm.json holds them
_ADVICE = (
    "Photos must overlap by two thirds or more, be sharp, show texture, and be taken from different places "
    "(walking around, not turning on the spot)"
)


@dataclass(frozen=True)
class PosedPhotos:
    """Where the poses are, and which photos have one."""

    folder: Path  # a COLMAP scene: images/ and sparse/0
    placed: tuple[str, ...]
    missing: tuple[str, ...]  # photos without a pose
    broken: tuple[str, ...]  # photos that cannot be read
    copies: tuple[str, ...] = ()  # photos that are the same file as an earlier one

    def warnings(self) -> list[str]:
        texts = []
        if self.missing:
            names = ", ".join(self.missing[:8]) + (", ..." if len(self.missing) > 8 else "")
            total = len(self.missing) + len(self.placed)
            texts.append(f"{len(self.missing)} of {total} photos could not be placed: {names}")
        if self.broken:
            texts.append(f"{len(self.broken)} photos cannot be read: {', '.join(self.broken[:8])}")
        if self.copies:
            texts.append(
                f"{len(self.copies)} photos are copies of others and were left out: "
                f"{', '.join(self.copies[:8])}{', ...' if len(self.copies) > 8 else ''}"
            )
        return texts


def pose_photos(photos: Path, out: Path, progress: Progress | None = None) -> PosedPhotos:
    """Find the cameras of all photos in a folder; the result lies in `out` and is found again there."""
    readable, broken = _readable(list_photos(photos))
    paths, copies = _distinct(readable)
    if len(readable) > 1 and len(paths) == 1:
        raise SceneError(f"{photos}: all {len(readable)} photos are copies of {paths[0].name}. {_ADVICE}")
    if len(paths) < 2:
        unreadable = f" ({len(broken)} more cannot be read: {', '.join(broken[:8])})" if broken else ""
        raise SceneError(
            f"{photos}: structure from motion needs at least 2 photos, found {len(paths)}{unreadable}"
        )
    hashes = Fingerprints(out / "fingerprints.json")
    state = {"photos": [[p.name, digest] for p, digest in hashes.of_all(paths).items()]}
    if (finished := _finished(out, state)) is not None:
        hashes.save()
        _follow(paths, out / "images")
        return finished
    _begin(out, state)
    hashes.save()
    paths = _collect(paths, out / "images")
    _check_space(out, len(paths))
    with _quiet() as pycolmap:
        database = out / "database.db"
        try:
            _find_features(pycolmap, database, out / "images", paths, progress)
            _match(pycolmap, database, len(paths), progress)
            model = _map(pycolmap, database, out, len(paths), progress)
        except GBiNetError:
            raise
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            raise SceneError(f"{photos}: structure from motion failed ({reason}). {_ADVICE}") from error
    if model is None:
        who = "the two photos could not" if len(paths) == 2 else f"no two of the {len(paths)} photos could"
        raise SceneError(f"{photos}: {who} be placed together. {_ADVICE}")
    placed = {image.name for image in model.images.values() if image.has_pose}
    sparse = out / "sparse" / "0"
    sparse.mkdir(parents=True, exist_ok=True)
    model.write(sparse)
    names = [p.name for p in paths]
    result = PosedPhotos(
        out,
        tuple(n for n in names if n in placed),
        tuple(n for n in names if n not in placed),
        tuple(broken),
        tuple(copies),
    )
    content = {**state, **{key: getattr(result, key) for key in _LISTS}}
    with atomic_path(out / "sfm.json") as temporary:  # last: whoever finds it finds the model too
        temporary.write_text(json.dumps(content, indent=2) + "\n")
    return result


def _readable(paths: list[Path]) -> tuple[list[Path], list[str]]:
    good, broken = [], []
    for path in paths:
        try:
            read_header(path)
            good.append(path)
        except FormatError:
            broken.append(path.name)
    return good, broken


def _distinct(paths: list[Path]) -> tuple[list[Path], list[str]]:
    """The first of each set of files with the same bytes, and the names of the others."""
    first: dict[tuple[int, bytes], Path] = {}
    sizes = Counter(path.stat().st_size for path in paths)
    kept, copies = [], []
    for path in paths:
        size = path.stat().st_size
        if sizes[size] > 1 and first.setdefault((size, _digest(path)), path) is not path:
            copies.append(path.name)
        else:
            kept.append(path)
    return kept, copies


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _finished(out: Path, state: dict[str, Any]) -> PosedPhotos | None:
    """The result of an earlier run over the same photos."""
    try:
        stored = read_json(out / "sfm.json", 1 << 28)
        if stored["photos"] != state["photos"] or not (out / "sparse" / "0").is_dir():
            return None
        return PosedPhotos(out, *(tuple(stored[key]) for key in _LISTS))
    except (FormatError, KeyError, TypeError):
        return None


def _begin(out: Path, state: dict[str, Any]) -> None:
    """Features in a database of an earlier run are kept only if they are of the same photos."""
    (out / "sfm.json").unlink(missing_ok=True)  # the model that it speaks of is about to be replaced
    begun = out / "begun.json"
    try:
        earlier = read_json(begun)
        ours = link_names([Path(name) for name, _ in earlier["photos"]])
    except (OSError, FormatError, ValueError, KeyError, TypeError):
        earlier, ours = None, []
    for name in ours:  # links (or copies) of photos, made anew
        (out / "images" / name).unlink(missing_ok=True)
    if earlier != state:
        for name in ("database.db", "database.db-wal", "database.db-shm", "database.db-journal"):
            (out / name).unlink(missing_ok=True)
        with atomic_path(begun) as temporary:
            temporary.write_text(json.dumps(state, indent=2) + "\n")


def link_names(paths: Sequence[Path]) -> list[str]:
    """Names of the links to photos. pycolmap takes only UTF-8, so that they may differ from the photos'."""
    stems = [file_stem(path.stem) for path in paths]
    pairs = enumerate(zip(paths, stems, strict=True))
    return [p.name if stem == p.stem else f"{stem}-{number}{p.suffix}" for number, (p, stem) in pairs]


def _collect(paths: list[Path], folder: Path) -> list[Path]:
    """Links to the photos (copies where links are not possible): the scene's own images folder."""
    with atomic_path(folder.parent / "photos.txt") as temporary:  # says why, if the folder cannot be written
        temporary.write_bytes(b"".join(bytes(path.resolve()) + b"\n" for path in paths))
    folder.mkdir(parents=True, exist_ok=True)
    links = [folder / name for name in link_names(paths)]
    for path, link in zip(paths, links, strict=True):
        if link.exists() or link.is_symlink():
            raise GBiNetError(
                f"{link} is in the way: no run of gbinet put it there, so it is not replaced; "
                "move it away, or choose another output folder"
            )
        try:
            link.symlink_to(path.resolve())
        except FileExistsError:
            raise  # a copy would go through the link, over another photo
        except OSError:
            shutil.copyfile(path, link)
    return links


def _follow(paths: list[Path], folder: Path) -> None:
    """Links lead to the photos again, where these or the results were moved or copied."""
    for path, name in zip(paths, link_names(paths), strict=True):
        link = folder / name
        if link.is_symlink() and link.readlink() != path.resolve():
            link.unlink()
            link.symlink_to(path.resolve())


def _check_space(out: Path, count: int) -> None:
    """pycolmap ends the whole process when its database meets a full disk: better said before."""
    needed, free = count * _PHOTO_BYTES, shutil.disk_usage(out).free
    if free < needed:
        raise GBiNetError(
            f"{out}: structure from motion of {count} photos needs about {needed >> 20} MiB of disk, "
            f"{free >> 20} MiB are free; free some space and start again, or choose another folder"
        )


@contextmanager
def _quiet() -> Iterator[Any]:
    """pycolmap without its log on the terminal, and with the same random numbers every time."""
    import pycolmap

    level = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = 3
    pycolmap.set_random_seed(0)
    try:
        yield pycolmap
    finally:
        pycolmap.logging.minloglevel = level


def _find_features(
    pycolmap: Any, database: Path, images: Path, paths: list[Path], progress: Progress | None
) -> None:
    options = pycolmap.FeatureExtractionOptions()
    options.max_image_size = _MAX_SIZE
    sizes = {read_header(path).stored_size for path in paths}
    mode = pycolmap.CameraMode.SINGLE if len(sizes) == 1 else pycolmap.CameraMode.AUTO
    for done, path in enumerate(paths):
        if progress:
            progress(done, len(paths), f"features of {path.name}")
        pycolmap.extract_features(
            database, images, [path.name], mode, extraction_options=options, device=pycolmap.Device.cpu
        )
    if progress:
        progress(len(paths), len(paths), "features")


def _match(pycolmap: Any, database: Path, count: int, progress: Progress | None) -> None:
    if progress:
        progress(0, 1, f"comparing {count} photos")
    if count <= _ALL_PAIRS:
        pycolmap.match_exhaustive(database, device=pycolmap.Device.cpu)
    else:
        pairing = pycolmap.SequentialPairingOptions()
        pairing.overlap = 20
        pycolmap.match_sequential(database, pairing_options=pairing, device=pycolmap.Device.cpu)
    if progress:
        progress(1, 1, f"compared {count} photos")


def _map(pycolmap: Any, database: Path, out: Path, count: int, progress: Progress | None) -> Any:
    """The largest model, or None."""
    placed = 0

    def on_image() -> None:
        nonlocal placed
        placed = min(placed + 1, count)
        if progress:
            progress(placed, count, "placing photos")

    attempts = out / "mapping"
    shutil.rmtree(attempts, ignore_errors=True)
    attempts.mkdir(parents=True)
    models = pycolmap.incremental_mapping(
        database, out / "images", attempts, initial_image_pair_callback=on_image, next_image_callback=on_image
    )
    shutil.rmtree(attempts, ignore_errors=True)
    best = max(models.values(), key=lambda m: m.num_reg_images(), default=None)
    return best if best is not None and best.num_reg_images() >= 2 else None
