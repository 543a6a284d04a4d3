"""Depth maps for other programs: EXR, and folders of pictures with their cameras."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.errors import FormatError, GBiNetError, InputError
from gbinet.formats.depth_files import read_depth, write_depth
from gbinet.scenes.kinds import write_scene

openexr = pytest.importorskip("OpenEXR")


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**31))
def test_exr_is_exact(tmp_path_factory, height, width, seed):
    depth = np.random.default_rng(seed).uniform(0.5, 900, (height, width)).astype(np.float32)
    depth[0, 0] = 0
    path = write_depth(tmp_path_factory.mktemp("exr") / "depth.exr", depth)
    assert np.array_equal(read_depth(path), depth)
    assert np.array_equal(openexr.File(str(path)).channels()["Z"].pixels, depth)


@pytest.mark.parametrize("names", [["Depth.Z", "Combined.R"], ["V"], ["anything"]])
def test_the_channel_with_depth_is_found(tmp_path, names):
    depth = np.full((4, 5), 2.5, np.float32)
    channels = {name: depth if name == names[0] else np.zeros_like(depth) for name in names}
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    openexr.File(header, channels).write(str(tmp_path / "a.exr"))
    assert np.array_equal(read_depth(tmp_path / "a.exr"), depth)


def test_broken_exr_files_say_what_is_wrong(tmp_path):
    whole = write_depth(tmp_path / "a.exr", np.ones((30, 40), np.float32)).read_bytes()
    rng, path, refused = random.Random(0), tmp_path / "broken.exr", 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(4):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data))])
        try:
            read_depth(path)
        except FormatError as error:
            refused += 1
            assert "broken.exr" in str(error)
    assert refused > 30  # changes may hit what nobody reads


def test_without_openexr_the_error_names_it(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with pytest.raises(GBiNetError, match=r"pip install 'gbinet\[exr\]'"):
        write_depth(tmp_path / "a.exr", np.ones((2, 2), np.float32))


def test_a_depth_far_outside_the_ranges_asks_for_exr(tmp_path, plane_scene):
    scene, depth_maps = plane_scene
    far = [replace(depth_map, depth=1e4 * depth_map.depth) for depth_map in depth_maps]
    with pytest.raises(InputError, match="choose depth-exr"):
        write_scene(scene, tmp_path / "png", "depth-png", zip(scene.views, far, strict=True))
    assert not list((tmp_path / "png").glob("*.png"))
    write_scene(scene, tmp_path / "exr", "depth-exr", zip(scene.views, far, strict=True))


@pytest.mark.parametrize("kind", ["depth-png", "depth-exr"])
def test_a_folder_of_pictures_states_scale_and_cameras(tmp_path, plane_scene, kind):
    scene, depth_maps = plane_scene
    write_scene(scene, tmp_path / "out", kind, zip(scene.views, depth_maps, strict=True))
    content = json.loads((tmp_path / "out" / "cameras.json").read_text())
    assert len(content["views"]) == len(scene.views)
    for entry, depth_map in zip(content["views"], depth_maps, strict=True):
        depth = read_depth(tmp_path / "out" / entry["depth"], content["depth_scale"])
        step = content["depth_scale"] if kind == "depth-png" else 0.0
        assert np.abs(depth - depth_map.depth.numpy()).max() <= 0.51 * step + 1e-6
        K, pose = (torch.tensor(entry[k], dtype=torch.float64) for k in ("K", "cam_from_world"))
        camera = Camera(K, pose, entry["width"], entry["height"]).check()
        assert torch.equal(camera.K, depth_map.camera.K.double())
        assert torch.equal(camera.cam_from_world, depth_map.camera.cam_from_world.double())
