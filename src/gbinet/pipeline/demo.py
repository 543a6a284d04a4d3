"""The demo: renders a scene, reconstructs it and compares the result with the truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import GBiNetError, InputError, check_not_negative
from gbinet.evaluation.cloud import CloudScore, compare_clouds, score_cloud
from gbinet.evaluation.depth import DepthErrors, depth_errors
from gbinet.formats.depth_files import read_depth, write_depth
from gbinet.formats.image import write_image
from gbinet.inference.predictor import DepthConfig
from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.reconstruct import ReconstructConfig, Reconstruction, run
from gbinet.pointcloud import PointCloud
from gbinet.progress import StepProgress
from gbinet.render.compose import make_scene
from gbinet.render.scenery import look_at
from gbinet.render.seeding import generator
from gbinet.render.sensor import SensorConfig, expose
from gbinet.render.shade import render
from gbinet.scene import DepthRange, Scene, View
from gbinet.scenes.complete import completed
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.result import write_result

_DISTANCE = 0.75  # metres from the cameras to the middle of the table


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the rendered scene."""

    views: int = 9  # photos, on an arc around the table
    width: int = 512
    height: int = 384
    seed: int = 8  # which scene
    threshold: float = 0.004  # a point is right if it is off by less than this share of the distance

    def __post_init__(self) -> None:
        if self.views < 2:
            raise InputError(f"--views must be 2 or more, got {self.views}")
        check_not_negative("--seed", self.seed)


@dataclass(frozen=True)
class DemoResult:
    """How close the reconstruction came."""

    reconstruction: Reconstruction
    score: CloudScore
    depth: DepthErrors  # over all pixels of all views
    threshold: float  # in the scene's unit (metres)


def run_demo(
    out: Path,
    model: GBiNet | None = None,
    config: DemoConfig | None = None,
    *,
    device: str = "auto",
    progress: StepProgress | None = None,
) -> DemoResult:
    """Render, reconstruct, compare; all files are written to `out`."""
    config = config or DemoConfig()
    scene = render_scene(out / "scene", config, progress)
    settings = ReconstructConfig(depth=DepthConfig(max_size=config.width, views=5, device=device))
    threshold = config.threshold * _DISTANCE
    scores: list[CloudScore] = []

    def judge(cloud: Path) -> list[tuple[str, str]]:
        scores.append(score(cloud, scene, threshold))
        return figures(scores[0], threshold)

    result = run(scene, model, out, settings, overwrite=True, progress=progress, judge=judge)
    return DemoResult(result, scores[0], _depth_errors(scene, out / "depth", threshold), threshold)


def score(cloud: Path, scene: Scene, threshold: float) -> CloudScore:
    points = PointCloud.load(cloud).xyz.numpy()
    if len(points) == 0:
        raise GBiNetError("the demo's cloud is empty: these weights do not work")
    distances = compare_clouds(points, true_cloud(scene).xyz.numpy())
    return score_cloud(distances, [threshold], 20 * threshold)


def figures(score: CloudScore, threshold: float) -> list[tuple[str, str]]:
    """The scores as label and value for people, in millimetres and per cent."""
    (precision,), (recall,), (fscore,) = (d.values() for d in (score.precision, score.recall, score.fscore))
    return [
        ("median error of the points", f"{score.accuracy_median * 1000:.2f} mm"),
        (f"points within {threshold * 1000:.1f} mm of the truth", f"{precision:.1%}"),
        (f"surface found within {threshold * 1000:.1f} mm", f"{recall:.1%}"),
        ("F-score of the two", f"{fscore:.1%}"),
    ]


def render_scene(folder: Path, config: DemoConfig, progress: StepProgress | None = None) -> Scene:
    """Photos and true depth of a rendered table, written to a folder."""
    made = make_scene(config.seed, kind="table")
    cameras = _arc(config)
    rng = generator(config.seed, "demo")
    views = []
    pictures = []
    for index in range(config.views):
        shot = render(made, cameras[index : index + 1])
        pictures.append((shot.images, shot.depth[0]))
        if progress:
            progress("rendering", index + 1, config.views, "photos")
    photos = expose(torch.cat([images for images, _ in pictures]), rng, SensorConfig(blur=0.3, jpeg=0.0))
    for index, (photo, (_, depth)) in enumerate(zip(photos, pictures, strict=True)):
        name = f"{index:02d}"
        pixels = (photo * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        path = write_image(folder / "photos" / f"{name}.png", pixels)
        truth = write_depth(folder / "truth" / f"{name}.npz", depth)
        near, far = depth[depth > 0].quantile(torch.tensor([0.01, 0.98])).tolist()
        around = DepthRange(0.85 * near, 1.15 * far)
        views.append(View(name, cameras[index].to(dtype=torch.float64), path, around, depth_path=truth))
    scene = completed(Scene("demo", "rendered", folder, tuple(views)))
    write_result(scene, folder)
    return scene


def _arc(config: DemoConfig) -> Camera:
    """Cameras around the middle of the table, 9 degrees apart. [V]."""
    focal = 1.35 * config.width
    K = torch.tensor(
        [[focal, 0, config.width / 2], [0, focal, config.height / 2], [0, 0, 1]], dtype=torch.float32
    )
    poses = []
    for index in range(config.views):
        turn = np.radians(9.0 * (index - (config.views - 1) / 2))
        lift = np.radians(32 + 4 * (index % 2))
        direction = np.array([np.cos(lift) * np.sin(turn), -np.cos(lift) * np.cos(turn), np.sin(lift)])
        poses.append(look_at(_DISTANCE * direction, np.array([0.0, 0.0, 0.03]), 0.0))
    pose = torch.from_numpy(np.stack(poses)).float()
    return Camera(K.repeat(config.views, 1, 1), pose, config.width, config.height)


def true_cloud(scene: Scene) -> PointCloud:
    """Surface points in range and in two photos or more: all that a reconstruction could find."""
    clouds = []
    for view in scene.views:
        assert view.depth_path is not None and view.depth_range is not None
        depth = torch.from_numpy(read_depth(view.depth_path))
        inside = (depth > 0) & (depth < view.depth_range.far)
        points = DepthMap(depth, view.camera).points()[inside]
        seen = torch.zeros(len(points), dtype=torch.int64)
        for other in scene.views:
            pixels, z = other.camera.to(dtype=torch.float32).project(points)
            seen += (
                (z > 0)
                & (pixels >= 0).all(-1)
                & (pixels[:, 0] < view.camera.width)
                & (pixels[:, 1] < view.camera.height)
            )
        clouds.append(PointCloud(points[seen >= 2]))
    return PointCloud.cat(clouds)


def _depth_errors(scene: Scene, folder: Path, threshold: float) -> DepthErrors:
    maps = DepthFolder(scene, folder)
    found, truths = [], []
    for index, view in enumerate(scene.views):
        depth_map = maps.load(index)
        if depth_map is not None and view.depth_path is not None:
            found.append(depth_map.depth)
            truths.append(torch.from_numpy(read_depth(view.depth_path)))
    return depth_errors(torch.stack(found), torch.stack(truths), thresholds=[threshold])
