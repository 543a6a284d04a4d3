"""PLY: what is written is read back, by us and by plyfile; what others write is read too."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.errors import FormatError, GBiNetError, InputError
from gbinet.formats.ply import PlyWriter, read_ply, write_ply
from gbinet.pointcloud import PointCloud

FIELDS = ("xyz", "rgb", "normals", "confidence", "num_views")


def cloud_of(count: int, seed: int, optional: frozenset[str], double: bool = False) -> PointCloud:
    g = torch.Generator().manual_seed(seed)
    every = {
        "rgb": torch.randint(0, 256, (count, 3), generator=g, dtype=torch.uint8),
        "normals": torch.nn.functional.normalize(torch.randn(count, 3, generator=g), dim=-1),
        "confidence": torch.rand(count, generator=g),
        "num_views": torch.randint(0, 256, (count,), generator=g, dtype=torch.uint8),
    }
    xyz = torch.randn(count, 3, generator=g, dtype=torch.float64 if double else torch.float32)
    return PointCloud(xyz, **{name: every[name] for name in optional})


def assert_same(a: PointCloud, b: PointCloud) -> None:
    for name in FIELDS:
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            assert x.dtype == y.dtype and torch.equal(x, y), name


optional_fields = st.sets(st.sampled_from(FIELDS[1:])).map(frozenset)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 50), st.integers(0, 2**31), optional_fields, st.booleans())
def test_round_trip_is_exact(tmp_path_factory, count, seed, optional, double):
    path = tmp_path_factory.mktemp("ply") / "deep" / "cloud.ply"
    cloud = cloud_of(count, seed, optional, double)
    assert write_ply(path, cloud) == path
    assert_same(read_ply(path), cloud)
    assert [p.name for p in path.parent.iterdir()] == ["cloud.ply"]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=5), st.integers(0, 2**31), optional_fields)
def test_pieces_give_the_file_of_the_whole(tmp_path_factory, sizes, seed, optional):
    folder = tmp_path_factory.mktemp("ply")
    whole = cloud_of(sum(sizes), seed, optional)
    with PlyWriter(folder / "pieces.ply") as writer:
        start = 0
        for size in sizes:
            writer.append(whole[start : start + size])
            start += size
    assert writer.count == len(whole)
    if sizes:
        write_ply(folder / "whole.ply", whole)
        assert (folder / "pieces.ply").read_bytes() == (folder / "whole.ply").read_bytes()
    else:
        assert len(read_ply(folder / "pieces.ply")) == 0


def test_plyfile_reads_ours(tmp_path):
    plyfile = pytest.importorskip("plyfile")
    cloud = cloud_of(17, 0, frozenset(FIELDS[1:]))
    vertex = plyfile.PlyData.read(write_ply(tmp_path / "a.ply", cloud))["vertex"]
    assert np.array_equal(np.stack([vertex[c] for c in "xyz"], -1), cloud.xyz.numpy())
    assert np.array_equal(np.stack([vertex[c] for c in ("red", "green", "blue")], -1), cloud.rgb.numpy())
    assert np.array_equal(vertex["num_views"], cloud.num_views.numpy())


@pytest.mark.parametrize("text,order", [(True, "="), (False, "<"), (False, ">")])
@pytest.mark.parametrize("faces_first", [False, True])
@pytest.mark.parametrize("vertex_lists", [False, True])
def test_we_read_plyfile(tmp_path, text, order, faces_first, vertex_lists):
    plyfile = pytest.importorskip("plyfile")
    if vertex_lists and order == ">":
        pytest.skip("plyfile 1.1 itself writes these scalars in the wrong byte order")
    rng = np.random.default_rng(0)
    layout = [
        ("x", "f4"),
        ("junk", "i2"),
        ("y", "f4"),
        ("z", "f4"),
        ("red", "u1"),
        ("green", "u1"),
        ("blue", "u1"),
    ]
    vertex = np.zeros(11, layout + ([("view_indices", "O")] if vertex_lists else []))
    for name, _ in layout:
        vertex[name] = rng.integers(0, 255, 11)
    if vertex_lists:
        vertex["view_indices"] = [np.arange(k % 4, dtype="u4") for k in range(11)]
    faces = np.zeros(3, [("vertex_indices", "O"), ("flags", "u1")])
    faces["vertex_indices"] = [np.arange(k + 3, dtype="i4") for k in range(3)]
    elements = [
        plyfile.PlyElement.describe(
            vertex, "vertex", val_types={"view_indices": "u4"}, len_types={"view_indices": "u1"}
        ),
        plyfile.PlyElement.describe(faces, "face", val_types={"vertex_indices": "i4"}),
    ]
    path = tmp_path / "theirs.ply"
    plyfile.PlyData(elements[::-1] if faces_first else elements, text=text, byte_order=order).write(path)
    cloud = read_ply(path)
    assert np.array_equal(cloud.xyz.numpy(), np.stack([vertex[c] for c in "xyz"], -1))
    assert np.array_equal(cloud.rgb.numpy(), np.stack([vertex[c] for c in ("red", "green", "blue")], -1))
    assert cloud.normals is None


def text_ply(properties: str, rows: str, count: int) -> bytes:
    lines = "".join(f"property {p}\n" for p in properties.split(","))
    return f"ply\nformat ascii 1.0\nelement vertex {count}\n{lines}end_header\n{rows}".encode()


def test_float_and_short_colours_become_bytes(tmp_path):
    path = tmp_path / "a.ply"
    xyz = "float x,float y,float z"
    path.write_bytes(text_ply(f"{xyz},float red,float green,float blue", "0 0 0 1 0.5 -3\n", 1))
    assert read_ply(path).rgb.tolist() == [[255, 128, 0]]
    path.write_bytes(text_ply(f"{xyz},ushort red,ushort green,ushort blue", "0 0 0 65535 257 0", 1))
    assert read_ply(path).rgb.tolist() == [[255, 1, 0]]


@pytest.mark.parametrize(
    "content,problem",
    [
        (b"", "line 1"),
        (b"solid stl", "line 1"),
        (b"ply\nformat ascii 1.0\n", "end_header"),
        (b"ply\nelement vertex 0\nend_header\n", "no 'format'"),
        (b"ply\nformat ascii 1.0\nend_header\n", "no 'vertex'"),
        (text_ply("float x,float y", "0 0", 1), "no x, y, z"),
        (text_ply("float x,float y,float z", "0 0 0", 10**15), "cut short"),
        (text_ply("float x,float y,float z", "0 0 0\n0 0 cat\n", 2), "not a row of numbers"),
        (text_ply("float x,float y,uchar z", "0 0 700\n", 1), "vertex 0"),
        (text_ply("float x,float x,float y,float z", "0 0 0 0", 1), "same name"),
        (text_ply("float x,whale y,float z", "0 0 0", 1), "line 5"),
        (text_ply("list float int v,float x,float y,float z", "0 0 0", 0), "line 4"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path, content, problem):
    path = tmp_path / "broken.ply"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=problem) as caught:
        read_ply(path)
    assert "broken.ply" in str(caught.value)


def test_every_truncation_is_noticed(tmp_path):
    whole = write_ply(tmp_path / "a.ply", cloud_of(5, 1, frozenset({"rgb"}))).read_bytes()
    cut = tmp_path / "cut.ply"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            read_ply(cut)


def test_missing_column_and_failed_block_leave_no_file(tmp_path):
    path = tmp_path / "a.ply"
    write_ply(path, cloud_of(3, 0, frozenset()))
    before = path.read_bytes()
    with pytest.raises(InputError, match="rgb"), PlyWriter(path) as writer:
        writer.append(cloud_of(2, 0, frozenset({"rgb"})))
        writer.append(cloud_of(2, 0, frozenset()))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.ply"]


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    class FullFile(io.BytesIO):
        def write(self, data) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda *_: FullFile())
    with pytest.raises(GBiNetError, match=r"a\.ply: the disk is full"):
        write_ply(tmp_path / "a.ply", cloud_of(1, 0, frozenset()))


def test_a_disk_that_becomes_full_while_points_come_is_reported(tmp_path, monkeypatch):
    """Bytes are flushed early; only the first flush fails, and it is not forgotten."""
    calls = []

    def fails_once(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "as the system says it")

    monkeypatch.setattr("gbinet.formats.atomic._FLUSH_BYTES", 1)
    monkeypatch.setattr("gbinet.formats.atomic.os.fsync", fails_once)
    with pytest.raises(GBiNetError, match="disk is full"), PlyWriter(tmp_path / "a.ply") as writer:
        writer.append(cloud_of(10, 0, frozenset()))
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder_is_reported(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(GBiNetError, match="not a folder"):
        write_ply(tmp_path / "file" / "a.ply", cloud_of(1, 0, frozenset()))


def test_save_and_load_of_the_cloud_itself(tmp_path):
    cloud = cloud_of(4, 0, frozenset({"normals"}))
    assert_same(PointCloud.load(cloud.save(tmp_path / "c.ply")), cloud)


@pytest.mark.parametrize("field", ["rgb", "num_views"])
def test_numbers_that_a_cloud_has_no_room_for_are_refused(field):
    """Colours from 0 to 1 were written as black, and 300 views as 44."""
    values = {"rgb": torch.rand(5, 3), "num_views": torch.full((5,), 300)}[field]
    with pytest.raises(InputError, match=f"{field} must be uint8"):
        PointCloud(torch.zeros(5, 3), **{field: values})
