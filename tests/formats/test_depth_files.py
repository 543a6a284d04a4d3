"""Depth files: every suffix round-trips, 0 means unknown everywhere, broken files are named."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from gbinet.camera import Camera
from gbinet.errors import FormatError, InputError
from gbinet.formats.depth_files import read_confidence, read_depth, read_depth_map, write_depth

EXACT = [".npz", ".npy", ".pfm", ".tif", ".tiff", ".bin"]
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
depths = hnp.arrays(np.float32, sizes, elements=st.floats(0, 1e6, width=32, allow_subnormal=False))


@pytest.mark.parametrize("suffix", EXACT)
@settings(max_examples=15, deadline=None)
@given(depths)
def test_round_trip_is_bit_exact(tmp_path_factory, suffix, depth):
    path = tmp_path_factory.mktemp("depth") / f"a{suffix}"
    assert write_depth(path, depth) == path
    back = read_depth(path)
    assert back.dtype == np.float32 and np.array_equal(back, depth)


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(np.float32, sizes, elements=st.floats(0, 65, width=32)), st.sampled_from([0.001, 0.002, 1.0])
)
def test_png_is_exact_to_half_a_step(tmp_path_factory, depth, scale):
    path = write_depth(tmp_path_factory.mktemp("depth") / "a.png", depth, scale=scale)
    assert Image.open(path).mode == "I;16"
    assert np.abs(read_depth(path, scale) - depth).max() <= scale / 2 + 1e-5


@pytest.mark.parametrize("suffix", [*EXACT, ".png"])
def test_whole_numbers_and_scales_agree(tmp_path, suffix):
    depth = torch.tensor([[0.0, 1.0], [500.0, 65535.0]])
    path = write_depth(tmp_path / f"a{suffix}", depth * 0.001, scale=0.001)
    assert np.allclose(read_depth(path), depth.numpy(), rtol=1e-6)
    assert np.allclose(read_depth(path, 0.001), depth.numpy() * 0.001, rtol=1e-6)


@pytest.mark.parametrize("suffix", [*EXACT, ".png"])
def test_values_that_are_not_depths_become_unknown(tmp_path, suffix):
    path = write_depth(tmp_path / f"a{suffix}", np.array([[np.nan, np.inf, -np.inf, -3.0, 5.0]]))
    assert read_depth(path).tolist() == [[0, 0, 0, 0, 5]]


def test_values_that_others_store_are_cleaned_on_reading(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[np.nan, -1.0, 1e300, 2.0]]))
    assert read_depth(tmp_path / "a.npy").tolist() == [[0, 0, 0, 2]]
    np.save(tmp_path / "b.npy", np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)))
    assert read_depth(tmp_path / "b.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
    Image.fromarray(np.array([[3, 255]], np.uint8)).save(tmp_path / "c.png")
    assert read_depth(tmp_path / "c.png", 2.0).tolist() == [[6, 510]]


def test_confidence_that_is_no_share_is_refused_and_nan_is_none(tmp_path):
    """One NaN would take the points of all views that look it up; 0 to 255 is no probability."""
    depth, confidence = torch.rand(3, 4) + 1, torch.rand(3, 4)
    odd = confidence.clone()
    odd[0, 0] = torch.nan
    read = torch.from_numpy(read_confidence(write_depth(tmp_path / "a.npz", depth, odd)))
    odd[0, 0] = 0
    assert torch.equal(read, odd)
    for wrong in (100 * confidence + 2, -confidence - 0.1, confidence / 0):
        with pytest.raises(FormatError, match=r"a\.npz, confidence: .*between 0 and 1"):
            read_confidence(write_depth(tmp_path / "a.npz", depth, wrong))


def test_confidence_travels_in_npz(tmp_path):
    depth, confidence = torch.rand(3, 4) + 1, torch.rand(3, 4)
    path = write_depth(tmp_path / "a.npz", depth, confidence)
    assert torch.equal(torch.from_numpy(read_confidence(path)), confidence)
    assert read_confidence(write_depth(tmp_path / "b.npz", depth)) is None
    assert read_confidence(write_depth(tmp_path / "b.pfm", depth, confidence)) is None
    with np.load(path) as stored:  # as others will read it
        assert sorted(stored) == ["confidence", "depth"]
    with pytest.raises(InputError, match="confidence"):
        write_depth(tmp_path / "c.npz", depth, confidence[:2])


def test_depth_map_gets_the_camera_of_its_size(tmp_path):
    camera = Camera(
        torch.tensor([[8.0, 0, 4], [0, 8, 3], [0, 0, 1]], dtype=torch.float64), torch.eye(4).double(), 8, 6
    )
    path = write_depth(tmp_path / "a.npz", torch.ones(3, 4), torch.ones(3, 4))
    result = read_depth_map(path, camera)
    assert (result.camera.width, result.camera.height) == (4, 3)
    assert result.camera.K[0].tolist() == [4.0, 0, 2]
    assert result.confidence is not None


def test_depth_map_has_the_camera_of_its_file(tmp_path):
    K = torch.tensor([[8.0, 0, 2], [0, 8, 1.5], [0, 0, 1]], dtype=torch.float64)
    pose = torch.eye(4).double()
    pose[0, 3] = 0.5
    path = write_depth(tmp_path / "a.npz", torch.ones(3, 4), camera=Camera(K, pose, 4, 3))
    found = read_depth_map(path).camera
    assert torch.equal(found.K, K) and torch.equal(found.cam_from_world, pose)
    for name in ("b.npz", "b.pfm"):
        bare = write_depth(tmp_path / name, torch.ones(3, 4))
        with pytest.raises(InputError, match=rf"{name}: holds no camera.*read_depth_map\(path, camera\)"):
            read_depth_map(bare)


def npz_of(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def npy_of(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    "name,content,problem",
    [
        ("a.npz", b"not a zip", "decoded"),
        ("a.npz", npz_of(other=npy_of(np.zeros((2, 2)))), "no array 'depth'"),
        ("a.npz", npz_of(depth=npy_of(np.zeros((2, 2)))[:-8]), "cut short"),
        ("a.npz", npz_of(depth=npy_of(np.zeros((2, 2, 2)))), r"\[2, 2, 2\]"),
        ("a.npy", npy_of(np.array([[{}, None]], dtype=object)), "not numbers"),
        ("a.npy", npy_of(np.zeros((2, 2))).replace(b"(2, 2)", b"(9**9,"), "decoded"),
        ("a.npy", npy_of(np.zeros((2, 2))).replace(b"(2, 2), }     ", b"(999999, 99),}"), "cut short"),
        ("a.npy", npy_of(np.array([["a", "b"]])), "not numbers"),
        ("a.png", b"\x89PNG\r\n\x1a\n", "not a readable image"),
        ("a.bin", b"3&2&1&" + bytes(23), "cut short"),
        ("a.bin", b"3&2&3&" + bytes(72), "H, W"),
        ("a.bin", b"3x2", "W&H&C&"),
        ("a.bin", b"0&2&1&", "empty"),
        ("a", b"", "unknown kind"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path, name, content, problem):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FormatError, match=problem) as caught:
        read_depth(path)
    assert name in str(caught.value)


def test_colour_pictures_are_no_depth(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    with pytest.raises(FormatError, match="one channel"):
        read_depth(tmp_path / "a.png")


def test_impossible_values_are_refused(tmp_path):
    with pytest.raises(InputError, match="16 bits"):
        write_depth(tmp_path / "a.png", np.full((2, 2), 70000.0))
    with pytest.raises(InputError, match="H, W"):
        write_depth(tmp_path / "a.npy", np.zeros((2, 2, 2)))
    with pytest.raises(InputError, match="scale"):
        write_depth(tmp_path / "a.npy", np.zeros((2, 2)), scale=0.0)
    assert list(tmp_path.iterdir()) == []


def test_exr_in_a_folder_that_is_not_utf8_is_refused_in_a_sentence(tmp_path):
    """OpenEXR takes no such name, and said so with an error of Python's."""
    pytest.importorskip("OpenEXR")
    folder = tmp_path / "\udcff"
    with pytest.raises(FormatError, match="only names in UTF-8"):
        write_depth(folder / "a.exr", np.ones((4, 5), np.float32))
    with pytest.raises(FormatError, match="only names in UTF-8"):
        read_depth(folder / "a.exr")
