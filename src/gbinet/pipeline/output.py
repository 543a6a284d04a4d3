"""The output folder of a run: apart from the scene, one writer, no leftovers of killed runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gbinet.errors import InputError
from gbinet.formats.atomic import remove_temporary
from gbinet.formats.lock import FILE as LOCK_FILE
from gbinet.formats.lock import locked
from gbinet.scene import Scene
from gbinet.scenes.kinds import is_scene_folder
from gbinet.scenes.result import FOLDERS

# Folders that runs make in their output folder.
_RESULTS = ("depth", "undistorted", "refined", "export", "stages", "frames")
_SCENE = "sfm"  # one more, which is a scene of its own


@contextmanager
def output_folder(out: Path, scene: Scene | str | Path | None = None, *read: Path | None) -> Iterator[None]:
    """Lock `out` inside the block; raise a GBiNetError if another run has it or the scene is there.

    read  other folders that a user named, of photos and masks: no results may be put among them either
    """
    root = scene.root if isinstance(scene, Scene) else None if scene is None else Path(scene)
    if root is not None:
        _check_apart(out, root)
    # Photos of a Scene are taken as they are; of those in a folder, `photos` may get undistorted copies.
    results = _RESULTS if isinstance(scene, Scene) else (*_RESULTS, *FOLDERS)
    for folder in (root, *read):
        if folder is not None:
            _check_not_among(out, results, folder)
    with locked(out):
        below = [Path(base) for name in (*_RESULTS, _SCENE) for base, _, _ in os.walk(out / name)]
        remove_temporary(out, *below)
        yield


def is_output_folder(folder: Path) -> bool:
    """Whether runs wrote to a folder before, or one is writing to it now."""
    return any((folder / name).exists() for name in ("run.json", "depth/settings.json", LOCK_FILE))


def _check_apart(out: Path, root: Path) -> None:
    """Predictions must not lie where readers look for what belongs to a scene."""
    here, there = out.resolve(), root.resolve()
    example = f"choose another folder, e.g. -o {root / 'result'}"
    if here == there:
        raise InputError(
            f"{out} is the scene itself, and its files and the results must not be mixed; {example}"
        )
    if here.is_relative_to(there):
        taken = [part for part in here.relative_to(there).parts if is_scene_folder(part)]
        if taken:
            raise InputError(
                f"{out} lies in the scene, in a folder '{taken[0]}' where photos, cameras or true depth are "
                f"looked for; {example}"
            )


def _check_not_among(out: Path, results: tuple[str, ...], folder: Path) -> None:
    """What is read must not lie where results are written."""
    for part in results:
        if folder.resolve().is_relative_to((out / part).resolve()):  # also where one of them is a link
            raise InputError(
                f"{folder} lies where results go, which are put into {out / part}; choose another output "
                f"folder, e.g. -o {out / 'result'}"
            )
