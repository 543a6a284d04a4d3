from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ball_scene import RADIUS, SceneMaker, true_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, GBiNetError, InputError, flag
from gbinet.fusion.consistency import agree, reproject
from gbinet.fusion.duplicates import UsedPixels, VoxelFilter
from gbinet.fusion.fuse import FusionConfig, fuse, fuse_views
from gbinet.fusion.photometric import blank, texture, trusted
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene


class TrueDepth:
    """Exact maps from memory; counts what is loaded."""

    def __init__(self, scene: Scene, confidence: float | None = None) -> None:
        self.scene, self.confidence, self.loads = scene, confidence, 0
        centre = torch.stack([v.camera.centre for v in scene.views]).mean(0)
        self.shift = torch.round(centre / 1000) * 1000  # scenes in map coordinates

    def load(self, index: int) -> DepthMap | None:
        self.loads += 1
        camera = self.scene.views[index].camera
        pose = camera.cam_from_world.clone()
        pose[:3, 3] += pose[:3, :3] @ self.shift
        depth = true_depth(replace(camera, cam_from_world=pose))
        confidence = None if self.confidence is None else torch.full_like(depth, self.confidence)
        return DepthMap(depth, camera, confidence)


def distance_to_truth(xyz: torch.Tensor) -> torch.Tensor:
    ball = (xyz.norm(dim=-1) - RADIUS).abs()
    return torch.minimum(ball, (xyz[:, 1] - RADIUS).abs())


def fused(scene: Scene, tmp_path: Path, source: object = None, **options: object) -> PointCloud:
    path = tmp_path / "cloud.ply"
    fuse(scene, source or TrueDepth(scene), path, FusionConfig(**options))  # type: ignore[arg-type]
    return PointCloud.load(path)


# ---- consistency ----


def test_exact_maps_come_back_to_the_same_pixel_and_depth(ball_scene: SceneMaker) -> None:
    maps = TrueDepth(scene := ball_scene(views=2, width=160, height=120))
    ref, src = maps.load(0), maps.load(1)
    assert ref and src and scene
    seen = reproject(ref, src)
    agrees = torch.isfinite(seen.distance)
    # Occluded pixels and bilinear samples across the ball's outline come back elsewhere; most do not.
    close = agrees & (seen.distance < 0.1) & ((seen.depth / ref.depth - 1).abs() < 0.002)
    assert agrees.sum() > 0.5 * ref.valid.sum()
    assert close.sum() > 0.9 * agrees.sum()


def test_a_depth_map_agrees_with_itself_everywhere(ball_scene: SceneMaker) -> None:
    ref = TrueDepth(ball_scene(views=1)).load(0)
    assert ref
    verdict = agree(ref, [ref], max_distance=0.01, max_relative_depth=1e-4, min_sources=1, dynamic=False)
    assert torch.equal(verdict.consistent, ref.valid)
    assert torch.allclose(verdict.depth, ref.depth, rtol=1e-4)
    own = torch.arange(ref.depth.numel()).reshape(ref.depth.shape)
    assert torch.equal(verdict.source_pixels[0][ref.valid], own[ref.valid])


@given(st.integers(0, 5), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_as_many_agreeing_copies_as_asked_for_are_enough(good: int, wanted: int) -> None:
    camera = Camera(torch.tensor([[20.0, 0, 10], [0, 20, 8], [0, 0, 1]]), torch.eye(4), 20, 16)
    flat = DepthMap(torch.full((16, 20), 3.0), camera)
    off = DepthMap(torch.full((16, 20), 4.0), camera)
    options = {"max_distance": 0.5, "max_relative_depth": 0.01, "min_sources": wanted, "dynamic": False}
    verdict = agree(flat, [flat] * good + [off] * (5 - good), strict=True, **options)
    assert bool(verdict.consistent.all()) == (good >= wanted) and verdict.min_sources == wanted
    # All five see every pixel: three of them are enough unless strict.
    relaxed = agree(flat, [flat] * good + [off] * (5 - good), **options)
    assert relaxed.min_sources == min(wanted, 3)
    assert bool(relaxed.consistent.all()) == (good >= min(wanted, 3))
    assert bool((verdict.num_views == good + 1).all())
    assert torch.allclose(verdict.depth, flat.depth)


def test_dynamic_thresholds_take_many_loose_views_or_few_close_ones() -> None:
    camera = Camera(torch.tensor([[20.0, 0, 10], [0, 20, 8], [0, 0, 1]]), torch.eye(4), 20, 16)

    def at(depth: float) -> DepthMap:
        return DepthMap(torch.full((16, 20), depth), camera)

    def kept(depths: list[float]) -> bool:
        verdict = agree(
            at(1.0),
            [at(d) for d in depths],
            max_distance=0.5,
            max_relative_depth=0.01,
            min_sources=2,
            dynamic=True,
            strict=True,
        )
        assert verdict.consistent.all() or not verdict.consistent.any()
        return bool(verdict.consistent.all())

    assert kept([1.005, 1.015])  # two within twice the threshold
    assert not kept([1.005, 1.035])  # the second needs four times, and there are only two
    assert kept([1.035, 1.036, 1.037, 1.038])  # four within four times
    assert not kept([1.035, 1.036, 1.037])


@given(st.integers(0, 6), st.integers(0, 4), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_sources_that_look_elsewhere_are_not_waited_for(seeing: int, away: int, wanted: int) -> None:
    camera = Camera(torch.tensor([[20.0, 0, 10], [0, 20, 8], [0, 0, 1]]), torch.eye(4), 20, 16)
    flat = DepthMap(torch.full((16, 20), 3.0), camera)
    turned = torch.diag(torch.tensor([-1.0, 1, -1, 1]))
    behind = DepthMap(flat.depth, replace(camera, cam_from_world=turned))
    options = {"max_distance": 0.5, "max_relative_depth": 0.01, "min_sources": wanted, "dynamic": False}
    verdict = agree(flat, [behind] * away + [flat] * seeing, **options)
    assert verdict.min_sources == min(wanted, max(1, (seeing + 1) // 2))
    assert bool(verdict.consistent.all()) == (seeing > 0)


def test_unknown_depth_agrees_with_nothing(ball_scene: SceneMaker) -> None:
    maps = TrueDepth(ball_scene(views=2))
    ref, src = maps.load(0), maps.load(1)
    assert ref and src
    nothing = replace(src, depth=torch.zeros_like(src.depth))
    options = {"max_distance": 9.0, "max_relative_depth": 1.0, "min_sources": 1, "dynamic": False}
    assert not agree(ref, [nothing], **options).consistent.any()
    assert not agree(nothing, [ref], **options).consistent.any()
    assert not agree(ref, [], **options).consistent.any()


# ---- fusion ----


@pytest.mark.parametrize("duplicates", ["used-pixel", "voxel", "none"])
def test_points_lie_on_the_true_surface(ball_scene: SceneMaker, tmp_path: Path, duplicates: str) -> None:
    cloud = fused(ball_scene(), tmp_path, duplicates=duplicates, strict_views=True)
    assert len(cloud) > 500
    # A bilinear sample of the depth of a curved surface is off by a little.
    assert distance_to_truth(cloud.xyz).quantile(0.95) < 0.01
    assert cloud.num_views is not None and cloud.num_views.min() >= 4
    assert cloud.normals is not None and cloud.rgb is not None and cloud.confidence is not None
    on_ball = cloud.xyz.norm(dim=-1) < RADIUS * 1.02
    inner = on_ball & (cloud.xyz[:, 1] < 0.5) & (cloud.normals.norm(dim=-1) > 0)
    cosine = (cloud.normals * cloud.xyz).sum(-1)[inner]
    assert cosine.median() > 0.97  # the normal of a ball is its radius


def test_used_pixels_leave_each_surface_point_about_once(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    every = len(fused(scene, tmp_path, duplicates="none", strict_views=True))
    once = len(fused(scene, tmp_path, duplicates="used-pixel", strict_views=True))
    assert once < 0.5 * every
    cells = VoxelFilter(0.15)
    covered = len(cells.first_in_cell(fused(scene, tmp_path, duplicates="none", strict_views=True).xyz))
    still = len(
        VoxelFilter(0.15).first_in_cell(
            fused(scene, tmp_path, duplicates="used-pixel", strict_views=True).xyz
        )
    )
    assert still > 0.9 * covered


def test_wrong_depth_is_thrown_out(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()

    class OneLies(TrueDepth):
        def load(self, index: int) -> DepthMap | None:
            found = super().load(index)
            return replace(found, depth=found.depth * 1.3) if found and index == 2 else found

    cloud = fused(scene, tmp_path, OneLies(scene))
    assert distance_to_truth(cloud.xyz).quantile(0.95) < 0.01


def test_low_confidence_masks_and_boxes_remove_points(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    assert len(fused(scene, tmp_path, TrueDepth(scene, 0.4), min_confidence=0.5)) == 0
    assert len(fused(scene, tmp_path, TrueDepth(scene, 0.6), min_confidence=0.5)) > 500
    box = (-1.1, -1.1, -1.1, 1.1, 0.9, 1.1)
    inside = fused(scene, tmp_path, box=box).xyz
    assert len(inside) and (inside >= torch.tensor(box[:3])).all() and (inside <= torch.tensor(box[3:])).all()
    mask = np.zeros((48, 64), np.uint8)
    mask[:, :32] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    masked = replace(scene, views=tuple(replace(v, mask_path=tmp_path / "mask.png") for v in scene.views))
    for view in fuse_views(masked, TrueDepth(masked), FusionConfig(min_views=1)):
        assert not view.consistent[:, 32:].any()
        assert view.consistent[:, :32].any()


def test_blank_pixels_need_more_confidence_and_burnt_out_ones_go() -> None:
    photo = torch.randint(60, 200, (40, 60, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    photo[:, 20:40] = 90  # blank
    photo[:, 40:] = 255  # burnt out
    sure = torch.full((40, 60), 0.45)

    def kept(confidence: float, if_blank: float, burnt_out: bool) -> list[bool]:
        """Of the textured, blank and burnt-out third, well inside."""
        passed = trusted(sure * 0 + confidence, photo, blank(photo), 0.4, if_blank, burnt_out)
        inner = passed[:, [10, 30, 50]]
        assert (inner == inner[0]).all()
        return inner[0].tolist()

    assert kept(0.45, 0.5, False) == [True, False, False]
    assert kept(0.55, 0.5, False) == [True, True, False]
    assert kept(0.45, 0.0, True) == [True, True, True]
    assert kept(0.35, 0.0, True) == [False, False, False]
    assert torch.equal(trusted(sure, None, None, 0.4, 0.5, False), sure >= 0.4)


def test_texture_is_the_standard_deviation_in_a_window() -> None:
    photo = torch.randint(0, 256, (12, 15, 3), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    grey = photo.double().mean(-1)
    found = texture(photo)
    for row, column in ((0, 0), (5, 7), (11, 3)):
        window = grey[max(0, row - 2) : row + 3, max(0, column - 2) : column + 3]
        assert float(found[row, column]) == pytest.approx(float(window.std(correction=0)), abs=0.01)


def test_scenes_in_map_coordinates_lose_no_precision(ball_scene: SceneMaker, tmp_path: Path) -> None:
    shift = (512_000.0, 5_403_000.0, 1000.0)
    cloud = fused(ball_scene(shift=shift), tmp_path)
    assert cloud.xyz.dtype == torch.float64 and len(cloud) > 500
    local = cloud.xyz - torch.tensor(shift, dtype=torch.float64)
    assert distance_to_truth(local).quantile(0.95) < 0.01


def test_two_photos_are_enough_and_give_a_warning(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=2)
    result = fuse(scene, TrueDepth(scene), tmp_path / "cloud.ply")
    assert result.points > 500
    assert any("fewer others than usual" in w and "2 of 2 views" in w for w in result.warnings)
    strict = fuse(scene, TrueDepth(scene), tmp_path / "cloud.ply", FusionConfig(strict_views=True))
    assert strict.points == 0 and not any("fewer than 3" in w for w in strict.warnings)


def test_missing_and_broken_maps_lose_the_view_not_the_cloud(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()

    class Patchy(TrueDepth):
        def load(self, index: int) -> DepthMap | None:
            if index == 1:
                return None
            if index == 2:
                raise FormatError("two.npz", "cut short")
            return super().load(index)

    result = fuse(scene, Patchy(scene), tmp_path / "cloud.ply", FusionConfig(min_views=1))
    assert result.views == 3 and result.points > 500

    class Nothing(TrueDepth):
        def load(self, index: int) -> DepthMap | None:
            return None

    with pytest.raises(GBiNetError, match="no depth map"):
        fuse(scene, Nothing(scene), tmp_path / "none.ply")
    assert not (tmp_path / "none.ply").exists()


def test_a_broken_mask_loses_the_view_not_the_cloud(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(5)
    (tmp_path / "mask.png").write_bytes(b"no picture")
    broken = replace(scene.views[2], mask_path=tmp_path / "mask.png")
    views = (*scene.views[:2], broken, *scene.views[3:])
    result = fuse(replace(scene, views=views), TrueDepth(scene), tmp_path / "cloud.ply", FusionConfig())
    assert result.views == 4 and result.points > 0


def test_maps_are_read_about_once_along_the_walk(ball_scene: SceneMaker, tmp_path: Path) -> None:
    maps = TrueDepth(scene := ball_scene(views=24, width=32, height=24))
    fuse(scene, maps, tmp_path / "cloud.ply", FusionConfig(max_sources=4, cached_maps=6))
    assert maps.loads <= 1.5 * len(scene.views)


def test_maps_of_other_sizes_than_the_photos(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()

    class Half(TrueDepth):
        def load(self, index: int) -> DepthMap | None:
            camera = self.scene.views[index].camera.resized(32, 24)
            return DepthMap(true_depth(camera), camera)

    cloud = fused(scene, tmp_path, Half(scene), max_relative_depth=0.02)
    assert len(cloud) > 150 and distance_to_truth(cloud.xyz).quantile(0.9) < 0.03


@pytest.mark.parametrize(
    "wrong", [{"min_views": 0}, {"min_confidence": 1.5}, {"voxel_size": -1.0}, {"box": (0, 0, 0, 1, 1, 0)}]
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=flag(next(iter(wrong)))):
        FusionConfig(**wrong)  # type: ignore[arg-type]


# ---- duplicates ----


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 19)), max_size=60), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_used_pixels_are_what_was_marked_packed_or_not(marks: list[tuple[int, int]], keep: int) -> None:
    used = UsedPixels(keep_unpacked=keep)
    like = torch.zeros(4, 5)
    for view, pixel in marks:
        used.mark(view, like, torch.tensor([pixel]))
    for view in range(6):
        assert set(used.take(view, like).flatten().nonzero()[:, 0].tolist()) == {
            p for v, p in marks if v == view
        }
        assert not used.take(view, like).any()  # forgotten


@given(st.lists(st.tuples(*[st.floats(-3, 3)] * 3), min_size=1, max_size=40), st.integers(1, 39))
@settings(max_examples=50, deadline=None)
def test_voxels_keep_the_first_point_of_each_cell(points: list[tuple[float, float, float]], cut: int) -> None:
    xyz = torch.tensor(points, dtype=torch.float64)
    whole = xyz[VoxelFilter(0.7).first_in_cell(xyz)]
    cells = torch.floor(whole / 0.7)
    assert len(torch.unique(cells, dim=0)) == len(whole) == len(torch.unique(torch.floor(xyz / 0.7), dim=0))
    piecewise = VoxelFilter(0.7)
    parts = [part[piecewise.first_in_cell(part)] for part in (xyz[:cut], xyz[cut:])]
    assert torch.equal(torch.cat(parts), whole)


def test_strips_change_nothing(ball_scene: SceneMaker) -> None:
    from gbinet.fusion.consistency import each_strip
    from gbinet.fusion.points import _normals

    maps = TrueDepth(ball_scene(views=1, width=700, height=500))
    whole = maps.load(0)
    assert whole
    strips = each_strip(lambda part: part[1], whole)
    assert len(strips) > 3
    assert torch.equal(torch.cat([strip.depth for strip in strips]), whole.depth)
    assert torch.allclose(torch.cat([strip.points() for strip in strips]), whole.points(), atol=1e-4)
    assert torch.allclose(_normals(whole), whole.normals(), atol=1e-4)


def test_cells_that_no_integer_counts_are_refused():
    """All points had one cell, and one of them was left."""
    points = torch.rand(100, 3)
    with pytest.raises(InputError, match="--voxel-size 1e-30 is too small"):
        VoxelFilter(1e-30).first_in_cell(points)
    assert len(VoxelFilter(1e-12).first_in_cell(points)) == 100
