"""Draws overview.jpg: a photo of the demo's scene, its depth map, its confidence, and the cloud of all views.

python docs/pictures/draw_overview.py [WEIGHTS]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gbinet.camera import Camera
from gbinet.formats.depth_files import read_depth_map
from gbinet.formats.image import read_image
from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.demo import DemoConfig, DemoResult, run_demo
from gbinet.pointcloud import PointCloud
from gbinet.viewer.colour import colourise, colourise_depth
from gbinet.viewer.splat import orbit, splat

CONFIG = DemoConfig(views=7, width=640, height=480, seed=8)
VIEW = 3  # the middle one
INK, BACKGROUND = (60, 64, 72), (255, 255, 255)


def panels(result: DemoResult) -> dict[str, NDArray[np.uint8]]:
    """Pictures [H, W, 3] by their titles."""
    done = result.reconstruction
    view = done.scene.views[VIEW]
    depth_map = read_depth_map(done.out / "depth" / f"{view.name}.npz", view.camera)
    assert depth_map.confidence is not None
    depth, confidence = depth_map.depth.numpy(), depth_map.confidence.numpy()
    cloud = PointCloud.load(done.cloud)
    centre = torch.tensor([0.0, 0.0, 0.03], dtype=torch.float64)  # what the demo's cameras look at
    front, up = torch.tensor([0.0, -1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    pose = orbit(centre, 0.8, front, up, turn=24, lift=48)  # metres, degrees
    camera = Camera(view.camera.K, pose, view.camera.width, view.camera.height)
    return {
        f"one of {len(done.scene.views)} photos": read_image(view.image_path),
        "its depth map": colourise_depth(depth),
        "its confidence": colourise(confidence, depth > 0, "confidence", 0.3, 1.0),
        "the cloud, from a new viewpoint": splat(cloud, camera, 2, BACKGROUND),
    }


def strip(pictures: dict[str, NDArray[np.uint8]], width: int = 400, gap: int = 8) -> Image.Image:
    """The pictures side by side, their titles below."""
    height = width * 3 // 4
    canvas = Image.new("RGB", (len(pictures) * (width + gap) - gap, height + 34), BACKGROUND)
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(18)
    for number, (title, picture) in enumerate(pictures.items()):
        left = number * (width + gap)
        canvas.paste(Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS), (left, 0))
        pen.text((left + width / 2, height + 8), title, fill=INK, font=font, anchor="ma")
    return canvas


if __name__ == "__main__":
    weights = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as folder:
        demo = run_demo(Path(folder), GBiNet.from_pretrained(weights), CONFIG, device="auto")
        strip(panels(demo)).save(Path(__file__).with_name("overview.jpg"), quality=88)
