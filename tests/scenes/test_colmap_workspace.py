"""COLMAP's own code reads what we write, and fuses it to where the surface is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from exact_plane import DISTANCE, NORMAL, plane_depth

from gbinet.errors import InputError
from gbinet.formats.colmap_array import read_colmap_array, write_colmap_array
from gbinet.formats.ply import read_ply
from gbinet.scenes.colmap import write_workspace

pycolmap = pytest.importorskip("pycolmap")


def test_dense_maps_are_those_of_colmap(tmp_path):
    rng = np.random.default_rng(0)
    depth, normals = rng.random((5, 7), np.float32), rng.random((5, 7, 3), np.float32)
    ours = write_colmap_array(tmp_path / "d.bin", depth)
    theirs = pycolmap.DepthMap()
    theirs.read(ours)
    assert np.array_equal(theirs.to_array(), depth)
    theirs.write(tmp_path / "d2.bin")
    assert np.array_equal(read_colmap_array(tmp_path / "d2.bin"), depth)
    ours = write_colmap_array(tmp_path / "n.bin", normals)
    theirs = pycolmap.NormalMap()
    theirs.read(ours)
    # Not to_array: in pycolmap 4.2 that mixes up the planes. Red and green of the picture are (1 - n) / 2.
    picture = theirs.to_bitmap().to_array()[..., :2]
    assert np.abs(picture - (1 - normals[..., :2]) * 127.5).max() <= 1
    theirs.write(tmp_path / "n2.bin")
    assert np.array_equal(read_colmap_array(tmp_path / "n2.bin"), normals)
    with pytest.raises(InputError):
        write_colmap_array(tmp_path / "e.bin", np.zeros((0, 3)))


def fuse(folder, views: int):
    options = pycolmap.StereoFusionOptions(min_num_pixels=views)
    return pycolmap.stereo_fusion(folder / "fused.ply", folder, options=options, output_type="PLY")


def test_stereo_fusion_gives_the_plane(tmp_path, plane_scene):
    scene, depth_maps = plane_scene
    write_workspace(scene, tmp_path, zip(scene.views, depth_maps, strict=True))
    assert (tmp_path / "stereo" / "fusion.cfg").read_text().split() == [f"view_{i}.png" for i in range(5)]
    assert (tmp_path / "stereo" / "patch-match.cfg").read_text().splitlines()[:2] == [
        "view_0.png",
        "view_1.png, view_2.png, view_3.png, view_4.png",
    ]
    fused = fuse(tmp_path, 3)
    xyz = np.array([point.xyz for point in fused.points3D.values()])
    assert len(xyz) > 2000
    distance = np.abs(xyz @ NORMAL.numpy() - DISTANCE)
    # COLMAP takes the median of x, y and z over the views, one pixel apart on a slanted plane.
    assert np.median(distance) < 2e-3 and distance.max() < 2e-2
    cloud = read_ply(tmp_path / "fused.ply")
    assert len(cloud) == len(xyz)
    facing = cloud.normals.double() @ NORMAL
    assert facing.median() > 0.999  # NORMAL points towards the cameras


def test_views_without_depth_and_holes_are_left_out(tmp_path, plane_scene):
    scene, depth_maps = plane_scene
    holes = [replace(d, depth=torch.where(torch.arange(96) < 48, d.depth, 0)) for d in depth_maps]
    write_workspace(scene, tmp_path, list(zip(scene.views, holes, strict=True))[:4])
    assert (tmp_path / "stereo" / "fusion.cfg").read_text().split() == [f"view_{i}.png" for i in range(4)]
    model = pycolmap.Reconstruction(tmp_path / "sparse")
    assert model.num_images() == 5
    whole = tmp_path / "whole"
    write_workspace(scene, whole, list(zip(scene.views, depth_maps, strict=True))[:4])
    assert 0 < len(fuse(tmp_path, 3).points3D) < 0.75 * len(fuse(whole, 3).points3D)


def test_smaller_depth_maps_work_too(tmp_path, plane_scene):
    scene, _ = plane_scene
    small = [plane_depth(view.camera.resized(48, 36)) for view in scene.views]
    write_workspace(scene, tmp_path, zip(scene.views, small, strict=True))
    xyz = np.array([point.xyz for point in fuse(tmp_path, 3).points3D.values()])
    assert len(xyz) > 500 and np.median(np.abs(xyz @ NORMAL.numpy() - DISTANCE)) < 1e-2
