"""Draws cloud.jpg: a photo of the demo's scene, its depth map, and two new views of the cloud.

gbinet demo --out hero --views 13 --size 1024x768
python docs/pictures/draw_cloud.py hero
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gbinet.camera import Camera
from gbinet.pointcloud import PointCloud
from gbinet.viewer.colour import colourise_depth
from gbinet.viewer.splat import orbit, splat

PHOTO = "06"  # the middle one
SIDES = ((-16, 27), (20, 40))  # turn and lift in degrees
INK, BACKGROUND, GAP, LINE = (60, 64, 72), (255, 255, 255), 10, 30


def seen_from(cloud: PointCloud, turn: float, lift: float, width: int, height: int) -> Image.Image:
    """The cloud from a new side, drawn at twice the size and reduced."""
    centre = torch.tensor([0.0, 0.0, 0.03], dtype=torch.float64)  # what the demo's cameras look at
    front, up = torch.tensor([0.0, -1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    pose = orbit(centre, 0.78, front, up, turn, lift)  # metres
    w, h = 2 * width, 2 * height
    K = torch.tensor([[1.3 * h, 0, w / 2], [0, 1.3 * h, h / 2], [0, 0, 1]], dtype=torch.float64)
    picture = splat(cloud, Camera(K, pose, w, h), 3, BACKGROUND)
    return Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS)


def draw(demo: Path, height: int = 480) -> Image.Image:
    cloud = PointCloud.load(demo / "cloud.ply")
    depth: NDArray[np.float32] = np.load(demo / "depth" / f"{PHOTO}.npz")["depth"]
    small, large = (height - GAP - LINE) // 2, height * 4 // 3
    photo = Image.open(demo / "scene" / "photos" / f"{PHOTO}.png").convert("RGB")
    left = [photo, Image.fromarray(colourise_depth(depth))]
    canvas = Image.new("RGB", (small * 4 // 3 + 2 * (GAP + large), height + LINE), BACKGROUND)
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(18)
    for number, (picture, title) in enumerate(zip(left, ("one of 13 photos", "its depth map"), strict=True)):
        top = number * (small + LINE + GAP)
        canvas.paste(picture.resize((small * 4 // 3, small), Image.Resampling.LANCZOS), (0, top))
        pen.text((small * 2 // 3, top + small + 5), title, fill=INK, font=font, anchor="ma")
    for number, (turn, lift) in enumerate(SIDES):
        x = small * 4 // 3 + GAP + number * (large + GAP)
        canvas.paste(seen_from(cloud, turn, lift, large, height), (x, 0))
        title = "the cloud from a new viewpoint" if number == 0 else "from another viewpoint"
        pen.text((x + large // 2, height + 5), title, fill=INK, font=font, anchor="ma")
    return canvas


if __name__ == "__main__":
    draw(Path(sys.argv[1])).save(Path(__file__).with_name("cloud.jpg"), quality=86)
