"""Cam files with every tail, pair files, and what is wrong with broken ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbinet.errors import FormatError
from gbinet.formats.mvsnet import read_cam, read_pairs

POSE = "extrinsic\n1 0 0 0.5\n0 1 0 -2\n0 0 1 3e1\n0 0 0 1\n\nintrinsic\n100 0 50\n0 101 40\n0 0 1\n\n"


def written(folder: Path, text: str, name: str = "00000000_cam.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("tail", "far"),
    [
        ("425 2.5", 935.0),  # DTU: 425 + 2.5 * 0.8 * 255
        ("425 2.5 192", 425 + 2.5 * 191),
        ("425 2.5 192.0 933.8", 933.8),
        ("425 935", 935.0),  # `near far`
        ("0.5 0.5", 0.5 + 0.5 * 0.8 * 255),  # equal cannot be far
    ],
)
def test_far_end_of_every_tail(tmp_path: Path, tail: str, far: float) -> None:
    cam = read_cam(written(tmp_path, POSE + tail + "\n"))
    assert cam.far(interval_scale=0.8, planes=256) == pytest.approx(far, rel=1e-12)
    assert np.array_equal(cam.K, [[100, 0, 50], [0, 101, 40], [0, 0, 1]])
    assert np.array_equal(cam.cam_from_world[:3, 3], [0.5, -2, 30])


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", "line 1"),
        ("hello\n" + POSE + "1 2", "line 1"),
        (POSE, "line 11"),
        (POSE + "1", "line 12"),
        (POSE + "1 -2", "line 12"),
        (POSE + "nan 2", "line 12"),
        (POSE.replace("0.5", "x") + "1 2", "line 2"),
        (POSE.replace("101 40", "101") + "1 2", "line 9"),
        (POSE + "1 1 1e9", "line 12"),
    ],
)
def test_broken_cam_files_say_where(tmp_path: Path, text: str, position: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_cam(written(tmp_path, text))
    assert caught.value.position == position
    assert "00000000_cam.txt" in str(caught.value)


@given(
    st.dictionaries(
        st.integers(0, 10**8),
        st.lists(st.tuples(st.integers(0, 10**8), st.floats(0, 1e9)), max_size=12),
        max_size=8,
    )
)
def test_pair_files_round_trip(
    tmp_path_factory: pytest.TempPathFactory, pairs: dict[int, list[tuple[int, float]]]
) -> None:
    lines = [str(len(pairs))]
    for view, sources in pairs.items():
        lines += [str(view), " ".join([str(len(sources)), *(f"{n} {s!r}" for n, s in sources)])]
    path = written(tmp_path_factory.mktemp("p"), "\n".join(lines) + "\n", "pair.txt")
    assert read_pairs(path) == pairs


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", "line 1"),
        ("many\n", "line 1"),
        ("2\n0\n1 1 5.0\n", "line 3"),
        ("1\n0\n3 1 5.0\n", "line 3"),
        ("2\n0\n1 1 5.0\n0\n1 1 5.0\n", "line 4"),
        ("1\n0\n1 1.5 5.0\n", "line 3"),
        ("999999999\n0\n1 1 5.0\n", "line 3"),
    ],
)
def test_broken_pair_files_say_where(tmp_path: Path, text: str, position: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_pairs(written(tmp_path, text, "pair.txt"))
    assert caught.value.position == position
