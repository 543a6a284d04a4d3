"""MVSNet's text files: `%08d_cam.txt` and `pair.txt`. gbinet.scenes knows the folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.errors import FormatError, SceneError
from gbinet.formats.textfile import Line, lines_of
from gbinet.scene import View

PLANES = 192  # of the tail `near interval planes far` that is written: what MVSNet itself would sweep
_MAX_CAM_BYTES = 64 * 1024
_MAX_PAIR_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class CamFile:
    """One cam.txt. The tail is `near interval [planes [far]]` or `near far`; see `far`."""

    K: NDArray[np.float64]  # [3, 3]
    cam_from_world: NDArray[np.float64]  # [4, 4]
    near: float
    interval: float | None  # None where the tail is `near far`
    planes: int | None  # None where the tail does not give it
    stated_far: float | None  # None where the tail does not give it

    def far(self, interval_scale: float, planes: int) -> float:
        """The far end: as stated, or near + interval * (planes - 1).

        The caller's number and scale are used only if the file does not give the number of planes: DTU's
        `425 2.5` with scale 0.8 and 256 planes means 425 + 2.5 * 0.8 * 255 = 935.
        """
        if self.stated_far is not None:
            return self.stated_far
        assert self.interval is not None  # one of the two is always there
        if self.planes is not None:
            return self.near + self.interval * (self.planes - 1)
        return self.near + self.interval * interval_scale * (planes - 1)


def read_cam(path: Path) -> CamFile:
    lines = lines_of(path, _MAX_CAM_BYTES)
    if len(lines) < 10:
        parts = ["extrinsic", *["4 numbers"] * 4, "intrinsic", *["3 numbers"] * 3, "the depth range"]
        position = f"line {lines[-1].number + 1 if lines else 1}"
        raise FormatError(path, f"ends too early: {parts[len(lines)]} is missing", position)
    _expect_word(lines[0], "extrinsic")
    cam_from_world = np.stack([line.floats(4) for line in lines[1:5]])
    _expect_word(lines[5], "intrinsic")
    K = np.stack([line.floats(3) for line in lines[6:9]])
    near, interval, planes, far = _tail(lines[9])
    return CamFile(K, cam_from_world, near, interval, planes, far)


def _expect_word(line: Line, word: str) -> None:
    if line.text.lower() != word:
        raise line.error(f"expected `{word}`, found {line.text[:60]!r}; is this an MVSNet camera file?")


def _tail(line: Line) -> tuple[float, float | None, int | None, float | None]:
    """(near, interval, planes, far) of a cam file's last line."""
    values = line.floats()
    if not 2 <= len(values) <= 4:
        raise line.error(f"expected 2 to 4 numbers (near, interval, planes, far), found {len(values)}")
    near, second = float(values[0]), float(values[1])
    if len(values) == 2 and second > near:
        # An interval is a small part of the range, so a second number beyond near can only be far.
        return near, None, None, second
    if second <= 0 and len(values) < 4:
        raise line.error(f"depth interval {second:g} is not positive")
    if len(values) == 2:
        return near, second, None, None
    planes = float(values[2])
    if not 1 < planes <= 1e6:
        raise line.error(f"number of depth planes {planes:g} is impossible")
    return near, second, int(planes), float(values[3]) if len(values) == 4 else None


def read_pairs(path: Path) -> dict[int, list[tuple[int, float]]]:
    """View number -> its source views with scores, best first, as pair.txt lists them."""
    lines = lines_of(path, _MAX_PAIR_BYTES)
    if not lines:
        raise FormatError(path, "is empty; a pair file begins with the number of views", "line 1")
    count = lines[0].integer(0, 2**31)
    if len(lines) < 1 + 2 * count:
        raise FormatError(path, f"announces {count} views, but ends too early", f"line {lines[-1].number}")
    pairs: dict[int, list[tuple[int, float]]] = {}
    for row in range(count):
        head, body = lines[1 + 2 * row], lines[2 + 2 * row]
        view = head.integer(0, 2**31)
        if view in pairs:
            raise head.error(f"view {view} is listed twice")
        pairs[view] = _sources(body)
    return pairs


def _sources(line: Line) -> list[tuple[int, float]]:
    values = line.floats()
    count = int(values[0])
    if values[0] != count or count < 0 or len(values) < 1 + 2 * count:
        raise line.error(f"announces {values[0]:g} source views, but holds {(len(values) - 1) // 2}")
    numbers, scores = values[1 : 1 + 2 * count : 2], values[2 : 2 + 2 * count : 2]
    if count and not ((numbers >= 0) & (numbers < 2**31) & (numbers == np.floor(numbers))).all():
        raise line.error("a source view's number is not a whole number from 0")
    return [(int(n), float(s)) for n, s in zip(numbers, scores, strict=True)]


# ---- writing: numbers read back exactly --------------------------------------------------------------------


def cam_text(view: View) -> str:
    limits = view.depth_range
    if limits is None:
        raise SceneError(f"view {view.name} has no depth range, which this format needs; give one")
    camera = view.camera.to("cpu", torch.float64)
    interval = (limits.far - limits.near) / (PLANES - 1)
    return (
        f"extrinsic\n{_rows(camera.cam_from_world)}\n\n"
        f"intrinsic\n{_rows(camera.K)}\n\n"
        f"{limits.near!r} {interval!r} {PLANES} {limits.far!r}\n"
    )


def pair_text(views: Sequence[View]) -> str:
    lines = [str(len(views))]
    for number, view in enumerate(views):
        sources = " ".join(f"{source.index} {source.score!r}" for source in view.sources)
        lines += [str(number), f"{len(view.sources)} {sources}".rstrip()]
    return "\n".join(lines) + "\n"


def _rows(matrix: torch.Tensor) -> str:
    return "\n".join(" ".join(map(repr, row)) for row in matrix.tolist())
