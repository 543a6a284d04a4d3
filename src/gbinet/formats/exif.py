"""EXIF of photos: camera, lens, focal length, orientation, GPS. Broken EXIF is treated as absent."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gbinet.errors import FormatError
from gbinet.formats.image import opened

_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_MAKE, _MODEL, _ORIENTATION = 0x010F, 0x0110, 0x0112
_FOCAL, _FOCAL_35, _LENS = 0x920A, 0xA405, 0xA434


@dataclass(frozen=True)
class Exif:
    """EXIF of one photo; the defaults mean that a value is not known."""

    make: str = ""
    model: str = ""
    lens: str = ""
    focal_mm: float | None = None
    focal_35mm: float | None = None  # focal length with the same field of view on 36 x 24 mm film
    orientation: int = 1  # 1 to 8, also of TIFF files, which Pillow turns upright by itself
    gps: tuple[float, float, float] | None = None  # latitude and longitude in degrees, altitude in m


def read_exif(path: Path) -> Exif:
    """Read the EXIF of a photo, without decoding its pixels."""
    try:
        with opened(path) as image:
            if image.format == "PNG" and "exif" not in image.info:
                return Exif()  # Pillow would decode the pixels to look for more
            tags = image.getexif()
            return _exif(dict(tags), dict(tags.get_ifd(_EXIF_IFD)), dict(tags.get_ifd(_GPS_IFD)))
    except OSError as error:
        raise FormatError(path, f"is not a readable image ({error})") from error
    except FormatError:
        raise
    except (ValueError, TypeError, KeyError, SyntaxError, IndexError, ZeroDivisionError, struct.error):
        return Exif()


def _exif(main: dict[int, Any], detail: dict[int, Any], gps: dict[int, Any]) -> Exif:
    orientation = main.get(_ORIENTATION, 1)
    return Exif(
        _text(main.get(_MAKE)),
        _text(main.get(_MODEL)),
        _text(detail.get(_LENS)),
        _positive(detail.get(_FOCAL)),
        _positive(detail.get(_FOCAL_35)),
        int(orientation) if orientation in range(1, 9) else 1,
        _gps_position(gps),
    )


def _text(value: Any) -> str:
    return value.replace("\0", " ").strip() if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _positive(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _gps_position(gps: dict[int, Any]) -> tuple[float, float, float] | None:
    """Latitude, longitude, altitude."""
    latitude = _degrees(gps.get(2), gps.get(1) in ("S", "s"), 90)
    longitude = _degrees(gps.get(4), gps.get(3) in ("W", "w"), 180)
    if latitude is None or longitude is None or latitude == longitude == 0:  # 0, 0: no fix
        return None
    below_sea_level = gps.get(5) in (b"\x01", 1)
    altitude = _number(gps.get(6)) or 0.0
    return latitude, longitude, -altitude if below_sea_level else altitude


def _degrees(value: Any, negative: bool, limit: float) -> float | None:
    """Degrees, minutes and seconds as one number; None if they are broken or beyond the limit."""
    if not isinstance(value, tuple | list) or len(value) != 3:
        return None
    parts = [_number(part) for part in value]
    if any(part is None or part < 0 for part in parts):
        return None
    degrees = sum(part / 60**power for power, part in enumerate(parts) if part is not None)
    return None if degrees > limit else (-degrees if negative else degrees)
