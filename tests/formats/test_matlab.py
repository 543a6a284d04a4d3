"""Matlab files: what scipy writes comes back, and no bytes do worse than a FormatError."""

from __future__ import annotations

import random
from pathlib import Path

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from gbinet.errors import FormatError
from gbinet.formats.matlab import read_mat

scipy_io = pytest.importorskip("scipy.io")

KINDS = st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
ARRAYS = npst.arrays(KINDS, npst.array_shapes(min_dims=2, max_dims=4, max_side=5))


@given(first=ARRAYS, second=ARRAYS, compressed=st.booleans())
def test_what_scipy_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory, first: np.ndarray, second: np.ndarray, compressed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.mat"
    scipy_io.savemat(path, {"first": first, "other": second, "text": "no"}, do_compression=compressed)
    found = read_mat(path, ("first", "absent"))
    assert list(found) == ["first"]
    assert found["first"].dtype == first.dtype
    np.testing.assert_array_equal(found["first"], first)


@pytest.mark.parametrize("compressed", [False, True])
def test_mutated_files(tmp_path: Path, compressed: bool) -> None:
    """SciPy's own reader ends the process on some of these."""
    path = tmp_path / "a.mat"
    contents = {"P": np.arange(12.0).reshape(3, 4), "Q": np.ones((2, 3, 4), bool)}
    scipy_io.savemat(path, contents, do_compression=compressed)
    good = path.read_bytes()
    chance = random.Random(0)
    for _ in range(1500):
        data = bytearray(good)
        for _ in range(chance.choice([1, 2, 6])):
            data[chance.randrange(100, len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.choice([len(data), len(data), chance.randrange(len(data))])])
        try:
            read_mat(path, ("P", "Q"))
        except FormatError as error:
            assert error.path == path and error.position


def test_an_array_that_is_too_large_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mat"
    scipy_io.savemat(path, {"P": np.zeros((1000, 1000))}, do_compression=True)
    monkeypatch.setenv("GBINET_MAX_UNPACKED_GIB", "0.001")
    with pytest.raises(FormatError, match=r"'P' would unpack to .*GBINET_MAX_UNPACKED_GIB=1"):
        read_mat(path, ("P",))


def test_other_versions_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(200))
    with pytest.raises(FormatError, match="save -v7"):
        read_mat(path, ("P",))
    scipy_io.savemat(path, {"P": np.ones((2, 2))}, format="4")
    with pytest.raises(FormatError, match="version 5 to 7"):
        read_mat(path, ("P",))
