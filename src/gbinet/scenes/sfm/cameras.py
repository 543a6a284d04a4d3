"""Which photos were taken with the same camera, and so share one set of lens parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from gbinet.formats.exif import Exif, read_exif
from gbinet.formats.image import WRITABLE, read_header, read_image

CameraSharing = Literal["shared", "per-folder", "per-photo"]

_MIRRORED = (2, 4, 5, 7)  # EXIF orientations


@dataclass(frozen=True)
class InputPhoto:
    """A photo as structure from motion uses it."""

    path: Path
    name: str  # below the folder of photos, with /
    size: tuple[int, int]  # of the pixels that features are found in
    exif: Exif
    rewritten: bool = False  # those pixels are an upright copy, not the file's own


def input_photo(path: Path, name: str) -> InputPhoto:
    """Read what structure from motion needs to know about a photo.

    Features are found in the pixels as stored, so that a camera held upright stays the same camera. Photos
    are rewritten upright first if they are mirrored (they do not fit the others), TIFF with an orientation
    (Pillow turns these by itself), HEIC or camera raw (pycolmap cannot read them).
    """
    header, exif = read_header(path), read_exif(path)
    rewritten = header.orientation in _MIRRORED or exif.orientation != header.orientation
    rewritten |= path.suffix.lower() not in WRITABLE
    if rewritten:
        read_image(path)  # raises now if the pixels are broken
    return InputPhoto(path, name, header.size if rewritten else header.stored_size, exif, rewritten)


def camera_groups(photos: Sequence[InputPhoto], sharing: CameraSharing | None = None) -> list[list[str]]:
    """Names of the photos of each camera, in the order of the photos.

    By default photos share a camera when size, make, model, lens and focal length are the same. One camera
    has one size in any case.
    """
    groups: dict[object, list[str]] = {}
    for photo in photos:
        groups.setdefault((photo.size, _key(photo, sharing)), []).append(photo.name)
    return list(groups.values())


def _key(photo: InputPhoto, sharing: CameraSharing | None) -> object:
    if sharing == "shared":
        return None
    if sharing == "per-folder":
        return str(PurePosixPath(photo.name).parent)
    if sharing == "per-photo":
        return photo.name
    exif = photo.exif
    return exif.make, exif.model, exif.lens, exif.focal_mm, exif.focal_35mm
