"""PFM: exact round trips in both byte orders, and files that say what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gbinet.errors import FormatError, InputError
from gbinet.formats.pfm import read_pfm, write_pfm

images = st.one_of(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9))),
    hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
)


@settings(max_examples=60, deadline=None)
@given(images, st.booleans())
def test_round_trip_is_bit_exact(tmp_path_factory, image, big_endian):
    path = write_pfm(tmp_path_factory.mktemp("pfm") / "a.pfm", image, big_endian)
    back = read_pfm(path)
    assert back.dtype == np.float32 and back.shape == image.shape
    assert back.tobytes() == image.tobytes()  # NaN payloads and the sign of zero too


def test_layout_is_the_published_one(tmp_path):
    path = write_pfm(tmp_path / "a.pfm", np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    header, data = b"Pf\n2 2\n-1.0\n", np.array([3, 4, 1, 2], "<f4").tobytes()  # bottom row first
    assert path.read_bytes() == header + data


def test_line_ends_of_windows_and_other_scales(tmp_path):
    path = tmp_path / "a.pfm"
    path.write_bytes(b"Pf\r\n1 1\r\n-0.003922\r\n" + np.float32(7).tobytes())
    assert read_pfm(path).tolist() == [[7.0]]


@pytest.mark.parametrize(
    "content,problem",
    [
        (b"", "not a PFM"),
        (b"P6\n2 2\n255\n", "not a PFM"),
        (b"Pf\n2 2\n-1.0\n" + bytes(15), "cut short"),
        (b"Pf\n999999999 999999999\n-1.0\n" + bytes(16), "cut short"),
        (b"Pf\n0 2\n-1.0\n", "empty"),
        (b"Pf\n1 1\n0\n" + bytes(4), "scale"),
        (b"Pf\n1 1\n1e999\n" + bytes(4), "scale"),
        (b"Pf\n1 1\n--1\n" + bytes(4), "scale"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path, content, problem):
    path = tmp_path / "broken.pfm"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=problem) as caught:
        read_pfm(path)
    assert "broken.pfm" in str(caught.value)


def test_missing_file_and_wrong_shape(tmp_path):
    with pytest.raises(FormatError, match="no such file"):
        read_pfm(tmp_path / "none.pfm")
    with pytest.raises(InputError, match=r"\[2, 2, 2\]"):
        write_pfm(tmp_path / "a.pfm", np.zeros((2, 2, 2), np.float32))
