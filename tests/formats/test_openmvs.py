"""OpenMVS depth maps."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, InputError
from gbinet.formats.depth_files import read_confidence, read_depth
from gbinet.formats.openmvs import read_dmap, write_dmap


@pytest.fixture
def depth_map() -> DepthMap:
    """A tilted plane seen by a camera that is not at the origin; one pixel is unknown."""
    angle = torch.tensor(0.3, dtype=torch.float64)
    pose = torch.eye(4, dtype=torch.float64)
    pose[0, 0] = pose[2, 2] = torch.cos(angle)
    pose[0, 2], pose[2, 0] = torch.sin(angle), -torch.sin(angle)
    pose[:3, 3] = torch.tensor([0.1, -0.2, 0.3])
    K = torch.tensor([[30.0, 0, 12], [0, 31, 8], [0, 0, 1]], dtype=torch.float64)
    camera = Camera(K, pose, 24, 16)
    x = camera.pixel_grid()[..., 0]
    depth = (1.0 / (0.2 + 0.004 * x)).float()
    depth[5, 7] = 0
    return DepthMap(depth, camera, torch.rand(16, 24, generator=torch.Generator().manual_seed(0)))


def test_round_trip(tmp_path, depth_map):
    path = write_dmap(tmp_path / "depth0003.dmap", depth_map, (48, 32), "images/b.jpg", [3, 1, 2])
    back = read_dmap(path)
    assert np.array_equal(back.depth, depth_map.depth.numpy())
    assert np.array_equal(back.confidence, depth_map.confidence.numpy())
    assert back.image_name == "images/b.jpg" and back.view_ids == (3, 1, 2)
    expected = depth_map.camera.resized(48, 32)
    assert torch.allclose(back.image_camera.K, expected.K, atol=1e-12)
    assert torch.allclose(back.image_camera.cam_from_world, expected.cam_from_world, atol=1e-12)
    assert (back.image_camera.width, back.image_camera.height) == (48, 32)
    assert 0 < back.near < back.far
    world = torch.from_numpy(back.normals) @ back.image_camera.cam_from_world[:3, :3].float()
    assert torch.allclose(world, depth_map.normals(), atol=1e-6)
    assert np.array_equal(read_depth(path), back.depth) and np.array_equal(
        read_confidence(path), back.confidence
    )


def test_layout_is_openmvs(tmp_path, depth_map):
    data = write_dmap(tmp_path / "a.dmap", depth_map, (24, 16), "a.jpg", [0]).read_bytes()
    assert data[:4] == b"DR\x07\x00"
    assert struct.unpack_from("<4I", data, 4) == (24, 16, 24, 16)
    assert struct.unpack_from("<H5s", data, 28) == (5, b"a.jpg")
    assert struct.unpack_from("<2I", data, 35) == (1, 0)
    K = struct.unpack_from("<9d", data, 43)
    assert K[2] == pytest.approx(11.5) and K[5] == pytest.approx(
        7.5
    )  # OpenMVS: pixel centres at whole numbers
    assert len(data) == 43 + 21 * 8 + 24 * 16 * 4 * 5


def test_no_confidence_and_no_depth_at_all(tmp_path, depth_map):
    empty = DepthMap(torch.zeros_like(depth_map.depth), depth_map.camera)
    back = read_dmap(write_dmap(tmp_path / "a.dmap", empty, (24, 16), "a.jpg", [0]))
    assert back.confidence is None and not back.depth.any() and not back.normals.any()


def test_broken_files(tmp_path, depth_map):
    data = write_dmap(tmp_path / "a.dmap", depth_map, (24, 16), "a.jpg", [0]).read_bytes()
    path = tmp_path / "broken.dmap"
    for length in [0, 1, 27, 29, 33, 40, 100, 300, len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(FormatError, match=r"broken\.dmap.*cut short"):
            read_dmap(path)
    path.write_bytes(b"XX" + data[2:])
    with pytest.raises(FormatError, match="DR"):
        read_dmap(path)
    path.write_bytes(data[:43] + struct.pack("<d", float("nan")) + data[51:])
    with pytest.raises(FormatError, match="finite"):
        read_dmap(path)
    with pytest.raises(InputError):
        write_dmap(path, depth_map, (24, 16), "a.jpg", [])
