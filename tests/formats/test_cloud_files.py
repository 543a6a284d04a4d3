"""LAS, LAZ and XYZ: what is written is read back, by us and by laspy; endings decide."""

from __future__ import annotations

import errno
import random
import struct
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ply import cloud_of, optional_fields
from time_limit import time_limit

from gbinet.cli.main import main
from gbinet.errors import FormatError, GBiNetError, InputError
from gbinet.formats import las
from gbinet.formats.cloud_files import SUFFIXES, cloud_pieces, cloud_writer, read_cloud, write_cloud
from gbinet.formats.las import las_crs
from gbinet.formats.ply import read_ply, write_ply
from gbinet.pointcloud import PointCloud

laspy = pytest.importorskip("laspy")
UTM = torch.tensor([571000.0, 5188000.0, 200.0], dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([".las", ".laz", ".xyz"]),
    st.integers(0, 60),
    st.integers(0, 2**31),
    optional_fields,
    st.sampled_from([1e-3, 1.0, 250.0]),
    st.booleans(),
)
def test_round_trip(tmp_path_factory, suffix, count, seed, optional, size, on_the_map):
    cloud = cloud_of(count, seed, optional, double=True)
    cloud = PointCloud(
        cloud.xyz * size + (UTM if on_the_map else 0),
        cloud.rgb,
        cloud.normals,
        cloud.confidence,
        cloud.num_views,
    )
    path = tmp_path_factory.mktemp("cloud") / f"cloud{suffix}"
    found = read_cloud(write_cloud(path, cloud))
    step = 1e-4 * size + (1e-6 if on_the_map else 0)
    assert torch.allclose(found.xyz, cloud.xyz, rtol=0, atol=step)
    if count:
        assert (found.rgb is None) == (cloud.rgb is None)
        assert cloud.rgb is None or torch.equal(found.rgb, cloud.rgb)
    if suffix != ".xyz" and count:
        for field in ("confidence", "num_views"):
            own, back = getattr(cloud, field), getattr(found, field)
            assert (own is None) == (back is None) and (own is None or torch.equal(own, back))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_laspy_sees_colours_dimensions_and_the_map(tmp_path):
    pytest.importorskip("pyproj")
    cloud = cloud_of(500, 3, frozenset({"rgb", "confidence", "num_views"}), double=True)
    cloud = PointCloud(cloud.xyz * 80 + UTM, cloud.rgb, None, cloud.confidence, cloud.num_views)
    path = write_cloud(tmp_path / "cloud.laz", cloud, "EPSG:32615")
    found = laspy.read(path)
    assert found.header.parse_crs().to_epsg() == 32615 and las_crs(path) == "EPSG:32615"
    assert found.header.are_points_compressed
    assert found.header.version == "1.4" and found.header.point_count == 500
    assert np.abs(found.xyz - cloud.xyz.numpy()).max() <= 0.0006
    assert np.array_equal(np.asarray(found.red) // 257, cloud.rgb[:, 0].numpy())
    assert np.array_equal(found["num_views"], cloud.num_views.numpy())
    assert np.array_equal(found["confidence"], cloud.confidence.numpy())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_memory_does_not_grow_with_the_cloud(tmp_path, suffix):
    """Three times the points, no more memory: pieces are handed on as they come."""
    size = 2_000 if suffix == ".xyz" else 50_000
    piece = cloud_of(size, 0, frozenset({"rgb", "confidence", "num_views"}))

    def peak(pieces: int) -> int:
        tracemalloc.start()
        with cloud_writer(tmp_path / f"cloud{suffix}") as writer:
            for _ in range(pieces):
                writer.append(piece)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few = peak(12)  # more than LAS looks at before it begins
    assert writer_count(tmp_path / f"cloud{suffix}") == 12 * size
    assert peak(40) < 1.2 * few


def writer_count(path: Path) -> int:
    return sum(len(piece) for piece in cloud_pieces(path))


def test_a_point_far_beyond_the_first_ones_is_refused(tmp_path):
    with (
        pytest.raises(InputError, match="too far from the first"),
        cloud_writer(tmp_path / "a.las") as writer,
    ):
        writer.append(PointCloud(torch.randn(300_000, 3)))
        writer.append(PointCloud(torch.full((1, 3), 1e9)))
    assert list(tmp_path.iterdir()) == []


def test_pieces_of_a_ply_are_the_cloud(tmp_path):
    cloud = cloud_of(1000, 0, frozenset({"rgb", "normals"}))
    write_ply(tmp_path / "a.ply", cloud)
    from gbinet.formats.ply import ply_pieces

    pieces = list(ply_pieces(tmp_path / "a.ply", 300))
    assert [len(p) for p in pieces] == [300, 300, 300, 100]
    whole = PointCloud.cat(pieces)
    assert torch.equal(whole.xyz, cloud.xyz) and torch.equal(whole.normals, cloud.normals)


@pytest.mark.parametrize("suffix", [".las", ".laz", ".xyz"])
def test_mutated_files_give_a_cloud_or_say_what_is_wrong(tmp_path, suffix):
    cloud = cloud_of(200, 1, frozenset({"rgb", "confidence"}))
    whole = write_cloud(tmp_path / f"whole{suffix}", cloud).read_bytes()
    rng, path = random.Random(0), tmp_path / f"broken{suffix}"
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(min(len(data), 700) if rng.random() < 0.6 else len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data))
        with time_limit(5.0):
            try:
                read_cloud(path)
            except FormatError as error:
                assert path.name in str(error)


@pytest.mark.parametrize("lie", ["chunks", "layers"])
def test_a_laz_that_states_more_than_it_holds_is_refused_before_room_is_made_for_it(tmp_path, lie):
    """The decoder reserves what a file states: gigabytes for a tiny one, or it aborts."""
    path = write_cloud(tmp_path / "a.laz", cloud_of(200, 1, frozenset({"rgb", "confidence"})))
    data = bytearray(path.read_bytes())
    points, size = struct.unpack_from("<I", data, 96)[0], struct.unpack_from("<H", data, 105)[0]
    table = struct.unpack_from("<q", data, points)[0]
    at = {"chunks": table + 4, "layers": points + 8 + size + 4}[lie]
    data[at : at + 4] = b"\xff\xff\xff\x3f"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="table of its chunks" if lie == "chunks" else "more than it holds"):
        read_cloud(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_a_full_disk_is_reported_as_one(tmp_path, monkeypatch, suffix):
    """lazrs has an error of its own, without the reason."""

    @contextmanager
    def full(path):
        (tmp_path / f"full{suffix}").symlink_to("/dev/full")
        yield tmp_path / f"full{suffix}"

    monkeypatch.setattr(las, "atomic_path", full)
    with pytest.raises(OSError, match="No space left") as failure:
        write_cloud(tmp_path / f"a{suffix}", cloud_of(200, 1, frozenset({"rgb"})))
    assert failure.value.errno == errno.ENOSPC


def test_a_broken_las_has_no_coordinate_system_but_a_sentence(tmp_path, capsys):
    path = write_cloud(tmp_path / "a.las", cloud_of(5, 1, frozenset()))
    data = bytearray(path.read_bytes())
    data[94] = 7  # size of the header
    path.write_bytes(data)
    assert main(["convert", str(path), str(tmp_path / "b.las")]) == 2
    assert "not a readable LAS file" in capsys.readouterr().err


def test_the_ending_decides_on_the_command_line(tmp_path, capsys):
    cloud = cloud_of(50, 2, frozenset({"rgb"}))
    write_ply(tmp_path / "a.ply", cloud)
    for suffix in (".laz", ".xyz", ".ply"):
        assert main(["convert", str(tmp_path / "a.ply"), str(tmp_path / f"b{suffix}")]) == 0
        assert torch.allclose(read_cloud(tmp_path / f"b{suffix}").xyz.float(), cloud.xyz, atol=1e-4)
    assert main(["convert", str(tmp_path / "a.ply"), str(tmp_path / "b.pcd")]) == 2
    assert ".las" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "b.laz"), str(tmp_path / "c.ply")]) == 0
    assert len(read_ply(tmp_path / "c.ply")) == 50


def test_a_missing_library_is_named_with_what_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "laspy", None)
    with pytest.raises(GBiNetError, match=r"pip install 'gbinet\[geo\]'"):
        write_cloud(tmp_path / "a.las", PointCloud(torch.zeros(1, 3)))
