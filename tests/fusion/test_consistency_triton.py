"""Fusion by kernels equals fusion by plain operations: verdicts, used pixels, points."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ball_scene import SceneMaker, true_depth

from gbinet.depthmap import DepthMap
from gbinet.fusion import comparing
from gbinet.fusion import consistency_triton as kernels
from gbinet.fusion.fuse import FusedView, FusionConfig, fuse_views
from gbinet.scene import Scene


class Noisy:
    """True depth with noise, holes, and a map of another size: every branch has pixels."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def load(self, index: int) -> DepthMap:
        camera = self.scene.views[index].camera
        if index == 1:
            camera = camera.resized(40, 30)
        depth = true_depth(camera)
        random = torch.Generator().manual_seed(index)
        depth = depth * (1 + 0.004 * torch.randn(depth.shape, generator=random))
        depth[torch.rand(depth.shape, generator=random) < 0.05] = 0
        return DepthMap(depth, camera, torch.rand(depth.shape, generator=random))


def fused(
    scene: Scene, config: FusionConfig, device: torch.device, fast: bool, patch: pytest.MonkeyPatch
) -> list[FusedView]:
    with patch.context() as patched:
        patched.setattr(comparing.ops, "usable", lambda *_: fast)
        if device.type == "cpu":  # the interpreter takes as long for a large tile as for a small one
            patched.setattr(kernels, "_TILE", 1 << 14)
            patched.setattr(kernels, "_BLOCK", 1 << 10)
        return list(fuse_views(scene, Noisy(scene), config, device))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dynamic": True, "min_views": 2},
        {"strict_views": True, "min_views": 2, "cached_maps": 2},
        {"duplicates": "voxel", "voxel_size": 0.1},
        {"duplicates": "none", "max_sources": 1, "min_views": 1},
        {"certainty": 0.6},
        {"certainty": 0.3, "min_views": 2, "dynamic": True},
    ],
)
def test_fast_fusion_is_plain_fusion(
    options: dict[str, object],
    ball_scene: SceneMaker,
    kernel_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = ball_scene(views=4, width=56, height=44)
    config = FusionConfig(min_confidence=0.05, blank_confidence=0.05, **options)  # type: ignore[arg-type]
    plain, fast = (fused(scene, config, kernel_device, way, monkeypatch) for way in (False, True))
    assert sum(len(view.cloud) for view in plain) > 200
    compared = 0
    for one, other in zip(plain, fast, strict=True):
        for name in ("index", "known", "confident", "asked", "needed"):
            assert getattr(one, name) == getattr(other, name), name
        # Rounding may tip a pixel that lies on a threshold, and with it the use of another.
        same = one.consistent == other.consistent
        assert same.float().mean() > 0.999
        both = one.consistent & other.consistent
        assert torch.allclose(one.confirmed.depth[both], other.confirmed.depth[both], rtol=1e-5)
        assert abs(len(one.cloud) - len(other.cloud)) <= 2
        if len(one.cloud) == len(other.cloud) and bool(same.all()):
            for column, atol in {"xyz": 1e-5, "normals": 2e-3, "confidence": 0, "rgb": 0}.items():
                found = getattr(other.cloud, column)
                torch.testing.assert_close(found, getattr(one.cloud, column), rtol=0, atol=atol)
            assert torch.equal(one.cloud.num_views, other.cloud.num_views)  # type: ignore[arg-type]
            compared += len(one.cloud)
    assert compared > 100  # point by point


def test_map_coordinates_and_photos_that_cannot_be_read(
    ball_scene: SceneMaker, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ball_scene(views=3, width=48, height=36, shift=(512_000.0, 5_403_000.0, 1000.0))
    scene = replace(scene, views=tuple(replace(v, image_path=Path("nowhere.png")) for v in scene.views))

    class Exact(Noisy):
        def load(self, index: int) -> DepthMap:
            camera = self.scene.views[index].camera
            pose = camera.cam_from_world.clone()
            pose[:3, 3] += pose[:3, :3] @ torch.tensor([512_000.0, 5_403_000.0, 1000.0]).double()
            return DepthMap(true_depth(replace(camera, cam_from_world=pose)), camera)

    monkeypatch.setitem(globals(), "Noisy", Exact)
    plain, fast = (fused(scene, FusionConfig(), kernel_device, way, monkeypatch) for way in (False, True))
    assert sum(len(view.cloud) for view in plain) > 200
    for one, other in zip(plain, fast, strict=True):
        assert other.cloud.xyz.dtype == torch.float64
        torch.testing.assert_close(other.cloud.xyz, one.cloud.xyz, rtol=0, atol=1e-5)
        assert other.photo is None and bool((other.cloud.rgb == 128).all())  # type: ignore[attr-defined]
