"""Frames of a video, one at a time: PyAV, extra `video`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError
from gbinet.formats.limits import check_unpacked
from gbinet.formats.optional import optional
from gbinet.formats.reading import regular_size

SUFFIXES = frozenset(
    {".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mts", ".m2ts", ".mpg", ".mpeg", ".3gp"}
)


def is_video_name(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def read_frames(path: Path, width: int | None = None) -> Iterator[NDArray[np.uint8]]:
    """All frames in order, upright, [H, W, 3]; shrunk to `width`, if given.

    A video that is cut off gives the frames before that; one without any is a FormatError.
    """
    av = optional("av", f"{path.name}: video", "video")
    regular_size(path)
    count = 0
    try:
        with av.open(str(path), mode="r") as container:
            if not container.streams.video:
                raise FormatError(path, "holds no video")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                check_unpacked(
                    path, frame.width * frame.height * 4, f"a frame of {frame.width}x{frame.height}"
                )
                yield _upright(frame, width)
                count += 1
    except FormatError:
        raise
    except av.error.FFmpegError as error:
        if count == 0:
            advice = "convert it to H.264 in .mp4, or give a folder of photos"
            raise FormatError(path, f"cannot be read as a video; {advice} ({error})") from error
    if count == 0:
        raise FormatError(path, "holds no frame that can be read")


def _upright(frame: Any, width: int | None) -> NDArray[np.uint8]:
    """Pixels as a player shows them: phones record how they were held."""
    if width is not None and frame.width > width:
        height = max(2, round(frame.height * width / frame.width))
        frame = frame.reformat(width=width, height=height)
    pixels = frame.to_ndarray(format="rgb24")
    turns = round(float(getattr(frame, "rotation", 0)) / 90) % 4
    turned: NDArray[np.uint8] = np.ascontiguousarray(np.rot90(pixels, turns))
    return turned
