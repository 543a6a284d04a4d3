"""Photos and masks: bytes <-> arrays.

One rule for orientation: what `read_image` returns is upright (EXIF orientation applied), and `image_size` is
the size of exactly that. `stored=True` asks for the pixels as they are stored in the file instead, which is
what COLMAP uses.
"""

from __future__ import annotations

import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import atomic_path
from gbinet.formats.limits import check_unpacked
from gbinet.formats.optional import optional
from gbinet.formats.reading import open_sized

# Only formats whose decoders do nothing but decode (Pillow's EPS reader, for one, starts another program).
_READABLE = ("JPEG", "PNG", "TIFF", "BMP", "PPM", "WEBP")
WRITABLE = frozenset({".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".ppm", ".pgm", ".pnm", ".webp"})
HEIC = frozenset({".heic", ".heif"})  # phones; pillow-heif reads them
# Raw files of cameras; rawpy reads them.
RAW = frozenset({".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw"})
SUFFIXES = WRITABLE | HEIC | RAW

# Bytes of a decoded pixel in memory, per mode of Pillow; all others take 4.
_PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "LA": 4, "PA": 4, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
_STRIP = 1 << 22  # pixels that are converted at a time: no second copy of the whole picture
_ORIENTATION_TAG = 0x0112

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True)
class ImageHeader:
    """What is known about an image file before any pixel is decoded."""

    width: int  # of the pixels as stored
    height: int
    orientation: int  # EXIF: 1 = upright, 3 = upside down, 6 and 8 = on its side, 2 4 5 7 = mirrored
    has_alpha: bool

    @property
    def stored_size(self) -> tuple[int, int]:
        return self.width, self.height

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the upright image."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)


def is_image_name(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def read_header(path: Path) -> ImageHeader:
    """Size, orientation and alpha of an image file, without decoding it."""
    with opened(path) as image:
        return _header(image)


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of what read_image returns; reads only the header."""
    return read_header(path).size


def read_image(path: Path, *, stored: bool = False) -> NDArray[np.uint8]:  # [H, W, 3]
    """RGB of a photo, upright unless `stored`. Grey is repeated, 16 bits become 8, alpha is over black."""
    with opened(path) as image:
        header = _header(image)
        pixels = _in_strips(decoded(path, image), _rgb_of(path, image), (3,), np.uint8)
    return np.ascontiguousarray(pixels if stored else upright(pixels, header.orientation))


def shrunk(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """[H, W, 3] resized to (width, height), each pixel the mean of what it covers; not copied if it fits."""
    if pixels.shape[1::-1] == size:
        return pixels
    return np.array(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))


def read_mask(path: Path, size: tuple[int, int], *, stored: bool = False) -> NDArray[np.bool_]:  # [H, W]
    """True where pixels count. `size` is (width, height) of the image; a mask of another scale is resized.

    0 means ignore. Where a file has an alpha channel, that is the mask; alpha and lossy files (JPEG) count
    from one half up, since their zeros are not exact.
    """
    with opened(path) as image:
        header = _header(image)
        mask = _in_strips(decoded(path, image), _mask_of(image, header), (), np.bool_)
    if not stored:
        mask = upright(mask, header.orientation)
    return _fit_mask(path, np.ascontiguousarray(mask), size)


def write_image(path: Path, pixels: NDArray[np.generic], *, quality: int = 95) -> Path:
    """Write uint8 [H, W, 3] or [H, W], bool [H, W] (as 0 and 255) or uint16 [H, W]; `path` decides how."""
    if path.suffix.lower() not in WRITABLE:
        raise InputError(f"{path}: '{path.suffix}' is not a kind of image file; write .png or .jpg")
    array = pixels.astype(np.uint8) * 255 if pixels.dtype == np.bool_ else pixels
    options: dict[str, Any] = {}
    if path.suffix.lower() in (".jpg", ".jpeg"):
        options = {"quality": quality, "subsampling": 0}
    elif path.suffix.lower() == ".png":
        options = {"compress_level": 3}  # the default, 6, takes three times as long for 5 % smaller files
    with atomic_path(path) as temporary:
        Image.fromarray(array).save(temporary, **options)
    return path


# ---- decoding ----------------------------------------------------------------------------------------------


_PILLOW = threading.Lock()  # held while Pillow's limit, a global variable, is changed


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Yield the image with its header read and its size checked; no pixel is decoded yet."""
    readable: tuple[str, ...] = _READABLE
    raw = None
    if path.suffix.lower() in HEIC:
        optional("pillow_heif", f"{path.name}: HEIC", "photos").register_heif_opener()
        readable = (*_READABLE, "HEIF")
    elif path.suffix.lower() in RAW:
        raw = optional("rawpy", f"{path.name}: camera raw", "photos")
    with open_sized(path) as (file, size):
        try:
            with _without_pillow_limit():
                image = Image.open(file, formats=readable) if raw is None else _developed(raw, path)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise nearly anything on broken files
            raise FormatError(path, f"is not a readable image ({_reason(error)})", "header") from error
        with image:
            width, height = image.size
            if width < 1 or height < 1:
                raise FormatError(path, f"has {width}x{height} pixels", "header")
            if image.info.get("compression") == "raw" and width * height > 8 * size:  # a bit a pixel at least
                raise FormatError(path, f"claims {width}x{height} pixels in a file of {size} bytes", "header")
            needed = width * height * _PIXEL_BYTES.get(image.mode, 4)
            check_unpacked(path, needed, f"its {width}x{height} pixels")
            yield image


@contextmanager
def _without_pillow_limit() -> Iterator[None]:
    """Pillow's own limit counts pixels and only warns at first; `opened` counts bytes instead."""
    with _PILLOW, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what matters ends in an exception
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _developed(rawpy: Any, path: Path) -> Image.Image:
    """A camera raw file as its camera would render it, upright."""
    with rawpy.imread(str(path)) as raw:
        check_unpacked(path, raw.sizes.raw_width * raw.sizes.raw_height * 4, "its pixels")
        return Image.fromarray(raw.postprocess(use_camera_wb=True))


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its own text names the file object
        return "its bytes are those of no known format"
    return str(error) or type(error).__name__


def _header(image: Image.Image) -> ImageHeader:
    return ImageHeader(image.width, image.height, _orientation(image), _has_alpha(image))


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 if there is none. Must not decode pixels: Pillow's getexif does for some PNGs."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    if image.format == "TIFF":
        return 1  # Pillow turns these upright itself, size included
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
        return int(value) if value in range(1, 9) else 1
    except (ValueError, TypeError, KeyError, OSError, SyntaxError, IndexError, struct.error):
        return 1  # broken EXIF does not make the pixels unreadable


def decoded(path: Path, image: Image.Image) -> Image.Image:
    """The same image with its pixels decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.load()
    except MemoryError:
        raise
    except Exception as error:
        raise FormatError(path, f"its pixels are broken or cut short ({error})", "pixels") from error
    return image


def _in_strips(
    image: Image.Image,
    convert: Callable[[Image.Image], NDArray[T]],
    channels: tuple[int, ...],
    dtype: type[T],
) -> NDArray[T]:
    """Apply `convert` to some rows at a time; [H, W, *channels]."""
    pixels = np.empty((image.height, image.width, *channels), dtype)
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        pixels[top:bottom] = convert(image.crop((0, top, image.width, bottom)))
    return pixels


def _rgb_of(path: Path, image: Image.Image) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """The function that converts a strip of this image to RGB, [h, W, 3], or to grey, [h, W, 1]."""

    def from_integers(strip: Image.Image) -> NDArray[np.uint8]:
        values = np.clip(np.asarray(strip).astype(np.int64), 0, 65535)
        return ((values + 128) // 257).astype(np.uint8)[..., None]  # 65535 -> 255, rounded

    def blended_with_black(strip: Image.Image) -> NDArray[np.uint8]:
        rgba = np.asarray(strip.convert("RGBA"))
        alpha = rgba[..., 3:].astype(np.uint16)
        return ((rgba[..., :3] * alpha + 127) // 255).astype(np.uint8)

    if image.mode == "F":
        raise FormatError(path, "holds floating-point values; photos have 8 or 16 bits per channel")
    if image.mode.startswith("I"):
        return from_integers
    return blended_with_black if _has_alpha(image) else lambda strip: np.asarray(strip.convert("RGB"))


def _mask_of(image: Image.Image, header: ImageHeader) -> Callable[[Image.Image], NDArray[np.bool_]]:
    """The function that converts a strip of this mask to bool [h, W]."""
    threshold = 128 if image.format in ("JPEG", "MPO", "WEBP") else 1
    if header.has_alpha:
        return lambda strip: np.asarray(strip.convert("RGBA"))[..., 3] >= 128
    if image.mode.startswith(("I", "F")):
        return lambda strip: np.asarray(strip) > 0
    return lambda strip: np.asarray(strip.convert("RGB")).max(axis=-1) >= threshold


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def upright(pixels: NDArray[T], orientation: int) -> NDArray[T]:
    """Apply an EXIF orientation to [H, W, ...]."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _fit_mask(path: Path, mask: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    height, width = mask.shape
    if (width, height) == size:
        return mask
    # Rounding of a smaller copy moves each side by up to one pixel.
    if abs(width * size[1] - height * size[0]) > max(size) + max(width, height):
        raise FormatError(
            path, f"mask is {width}x{height}, its image {size[0]}x{size[1]}: they show different crops"
        )
    resized = Image.fromarray(mask.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
    return np.asarray(resized) > 0
