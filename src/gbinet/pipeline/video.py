"""A video -> photos: sharp frames at equal distances, stored in the output folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import InputError, SceneError
from gbinet.formats.atomic import write_json
from gbinet.formats.fingerprint import Fingerprints
from gbinet.formats.image import write_image
from gbinet.formats.reading import is_file, names_in, read_record
from gbinet.formats.video import read_frames
from gbinet.progress import Progress
from gbinet.scenes.photos import FRAME

Grey = NDArray[np.float32]  # [h, w]

_SMALL = 320  # px: width of the frames that are compared
_BLOCK = 64  # px: side of the squares whose shift is found
_MIN_STEP = 0.03  # of the width: how far the picture moves between two photos, at least
_NEW_REFERENCE = 8.0  # px: a shift after which the next frames are compared with this one
_MIN_PEAK = 0.05  # of a correlation that counts
_OFFSET_COST = 0.25  # a frame half a step off must be sharper than one in its place by about this share
_MIN_PHOTOS = 12  # that a video should give: with little motion, steps are smaller
_RECORD = "video.json"


@dataclass(frozen=True)
class FrameTrack:
    """What is known about every frame of a video."""

    moved: NDArray[np.float64]  # [F] shift of the picture since the first frame, as a share of its width
    sharpness: NDArray[np.float64]  # [F]


def video_photos(video: Path, out: Path, most: int, progress: Progress | None = None) -> Path:
    """Write chosen frames to the folder `out/frames/<name of the video>`, unless an earlier run did."""
    if most < 2:
        raise InputError(f"--frames must be at least 2, got {most}")
    folder = out / "frames" / video.stem
    hashes = Fingerprints(folder / "fingerprints.json")
    state = {"video": video.name, "content": hashes.of(video), "frames": most}
    known = read_record(folder / _RECORD)
    earlier = names_in(known, "photos")
    same = all(known.get(key) == value for key, value in state.items())
    if same and earlier and all(is_file(folder / name) for name in earlier):
        hashes.save()
        return folder
    track = track_of(read_frames(video, _SMALL), progress)
    chosen = choose_frames(track, most)
    if len(chosen) < 2:
        raise SceneError(f"{video}: nothing moves in this video; walk around the thing while you film it")
    for name in earlier:
        (folder / name).unlink(missing_ok=True)
    names = [FRAME.format(number) for number in range(1, len(chosen) + 1)]
    # Before they are written: the run after a killed one removes what it finds here.
    write_json(folder / _RECORD, {**state, "photos": names, "numbers": chosen})
    _write(video, folder, dict(zip(chosen, names, strict=True)), progress)
    hashes.save()
    return folder


def _write(video: Path, folder: Path, names: dict[int, str], progress: Progress | None) -> None:
    """Frames by their numbers, under these names."""
    written = 0
    for number, pixels in enumerate(read_frames(video)):
        if number in names:
            write_image(folder / names[number], pixels, quality=97)
            written += 1
            if progress:
                progress(written, len(names), "writing frames")
        if written == len(names):
            return


def choose_frames(track: FrameTrack, most: int) -> list[int]:
    """Numbers of at most `most` sharp frames at about equal distances along the camera's way.

    Unequal distances would cost depth: a frame would be far from one neighbour and close to the other.
    """
    way = float(track.moved[-1]) if len(track.moved) else 0.0
    if way <= 0:
        return []
    step = max(way / most, min(_MIN_STEP, way / _MIN_PHOTOS))
    count = max(2, round(way / step))
    along = track.moved / way * (count - 1)  # [F] in steps
    nearest = along.round().astype(int)
    chosen = []
    for position in range(count):
        inside = np.flatnonzero(nearest == position)
        if len(inside):
            offset = 2 * (along[inside] - position)  # from -1 to 1
            value = np.log(track.sharpness[inside].clip(1e-9)) - _OFFSET_COST * offset**2
            chosen.append(int(inside[value.argmax()]))
    return sorted(chosen)


def track_of(frames: Iterable[NDArray[np.uint8]], progress: Progress | None = None) -> FrameTrack:
    """How far the picture has moved up to every frame, and how sharp each is. Holds two frames."""
    moved, sharpness = list[float](), list[float]()
    reference: Grey | None = None
    base = 0.0  # way up to the reference
    for number, pixels in enumerate(frames):
        grey = pixels.astype(np.float32).mean(-1)
        sharpness.append(_sharpness(grey))
        shift = 0.0 if reference is None or reference.shape != grey.shape else _shift(reference, grey)
        moved.append(max(base + shift / grey.shape[1], moved[-1] if moved else 0.0))
        if reference is None or shift >= _NEW_REFERENCE:
            reference, base = grey, moved[-1]
        if progress and number % 10 == 0:
            progress(number, number + 10, "looking at frames")
    return FrameTrack(np.array(moved), np.array(sharpness))


def _sharpness(grey: Grey) -> float:
    """Strength of the finest detail, whatever the contrast: blur takes it away."""
    detail = grey[1:-1, 1:-1] * 4 - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
    return float(detail.std() / (grey.std() + 1.0))


def _shift(one: Grey, other: Grey) -> float:
    """Pixels by which most parts of the picture have moved, by phase correlation of squares."""
    window = np.outer(np.hanning(_BLOCK), np.hanning(_BLOCK)).astype(np.float32)
    shifts = []
    for top in range(0, one.shape[0] - _BLOCK + 1, _BLOCK):
        for left in range(0, one.shape[1] - _BLOCK + 1, _BLOCK):
            a, b = (g[top : top + _BLOCK, left : left + _BLOCK] for g in (one, other))
            if a.std() < 3:  # nothing to see
                continue
            cross = np.fft.rfft2((a - a.mean()) * window) * np.conj(np.fft.rfft2((b - b.mean()) * window))
            peak = np.fft.irfft2(cross / (np.abs(cross) + 1e-6))
            at = np.unravel_index(int(peak.argmax()), peak.shape)
            if peak[at] >= _MIN_PEAK:
                dy, dx = ((p + _BLOCK // 2) % _BLOCK - _BLOCK // 2 for p in at)
                shifts.append(float(np.hypot(dx, dy)))
    return float(np.quantile(shifts, 0.6)) if shifts else 0.0
