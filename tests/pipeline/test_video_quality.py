"""A video of a thing is as good as photos of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_video import write_video

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.evaluation.align import fit_similarity, icp, transformed
from gbinet.evaluation.cloud import compare_clouds, score_cloud
from gbinet.formats.image import write_image
from gbinet.formats.ply import read_ply
from gbinet.formats.reading import read_json
from gbinet.georeference.similarity import Points
from gbinet.inference.predictor import DepthConfig
from gbinet.pipeline.reconstruct import ReconstructConfig, Reconstruction, run
from gbinet.render.compose import make_scene
from gbinet.render.scenery import look_at
from gbinet.render.seeding import generator
from gbinet.render.sensor import SensorConfig, expose
from gbinet.render.shade import render

pytest.importorskip("av")

FRAMES, STILLS, WIDTH, HEIGHT = 61, 13, 448, 336
DISTANCE, NEAR = 0.75, 0.005  # metres: of the cameras, and within which a point is right


def path_around() -> Camera:
    """A camera that is carried around a table, [FRAMES]."""
    focal = 1.35 * WIDTH
    K = torch.tensor([[focal, 0, WIDTH / 2], [0, focal, HEIGHT / 2], [0, 0, 1]], dtype=torch.float32)
    poses = []
    for share in np.linspace(-1, 1, FRAMES):
        turn, lift = np.radians(40 * share), np.radians(34 + 5 * np.sin(6 * share))
        direction = np.array([np.cos(lift) * np.sin(turn), -np.cos(lift) * np.cos(turn), np.sin(lift)])
        poses.append(look_at(DISTANCE * direction, np.array([0.0, 0.0, 0.03]), 0.0))
    return Camera(K.repeat(FRAMES, 1, 1), torch.from_numpy(np.stack(poses)).float(), WIDTH, HEIGHT)


def fscore(result: Reconstruction, centres: dict[str, Points], truth: Points) -> float:
    """Of a cloud in a frame of its own: by the places of its cameras to the scene's, then by ICP.

    Places alone are not enough: a focal length that is off by 1 % moves the scene away from the cameras.
    """
    views = [v for v in result.scene.views if v.name in centres]
    found = np.stack([v.camera.centre.double().numpy() for v in views])
    matrix = fit_similarity(found, np.stack([centres[v.name] for v in views]))
    cloud = transformed(read_ply(result.cloud).xyz.double().numpy(), matrix)
    rng = np.random.default_rng(0)
    some, few = (rng.choice(points, 40_000, replace=False) for points in (cloud, truth))
    cloud = transformed(cloud, icp(some, few, max_distance=4 * NEAR, iterations=30))
    score = score_cloud(compare_clouds(cloud, truth), [NEAR], 20 * NEAR)
    return 100 * next(iter(score.fscore.values()))


@pytest.mark.slow
def test_a_video_gives_a_cloud_as_good_as_that_of_as_many_stills(tmp_path: Path) -> None:
    cameras, made = path_around(), make_scene(8, kind="table")
    shots = [render(made, cameras[index : index + 1]) for index in range(FRAMES)]
    light = torch.cat([shot.images for shot in shots])
    pictures = expose(light, generator(8, "video"), SensorConfig(blur=0.3, jpeg=0.0))
    frames = [(p * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy() for p in pictures]
    still = [round(n) for n in np.linspace(0, FRAMES - 1, STILLS)]
    for number in still:
        write_image(tmp_path / "stills" / f"s{number:03d}.png", frames[number])
    video = write_video(tmp_path / "clip.mp4", frames)
    depths = [DepthMap(shots[n].depth[0], cameras[n]) for n in still]
    truth = torch.cat([d.points()[d.valid & (d.depth < 1.5 * DISTANCE)] for d in depths]).double().numpy()
    place = [cameras[n].centre.double().numpy() for n in range(FRAMES)]
    config = ReconstructConfig(DepthConfig(max_size=WIDTH, views=5), frames=STILLS)
    photos = run(tmp_path / "stills", None, tmp_path / "a", config)
    film = run(video, None, tmp_path / "b", config)
    numbers = read_json(tmp_path / "b" / "frames" / "clip" / "video.json")["numbers"]
    by_stills = fscore(photos, {f"s{n:03d}": place[n] for n in still}, truth)
    by_video = fscore(film, {f"frame_{i + 1:04d}": place[n] for i, n in enumerate(numbers)}, truth)
    print(f"stills {by_stills:.1f} %, video {by_video:.1f} % from {len(film.scene.views)} frames")
    assert by_stills > 50 and by_video > by_stills - 2
