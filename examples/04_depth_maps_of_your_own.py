"""Fuses your own depth maps: anything that returns a DepthMap per view can be fused into a cloud.

Here the depth maps are the renderer's exact depth with some noise. They could also come from a sensor,
another network, or files (`gbinet fuse SCENE --depth FOLDER -o cloud.ply` reads npz, npy, pfm, png, tif and
the depth maps of COLMAP and OpenMVS).
"""

from __future__ import annotations

from pathlib import Path

import torch

import gbinet
from gbinet.formats.depth_files import read_depth
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.pipeline.demo import DemoConfig, render_scene


class NoisyTruth:
    """Fusion asks for one view at a time, so that a scene of any length fits into memory."""

    def __init__(self, scene: gbinet.Scene) -> None:
        self.scene = scene

    def load(self, index: int) -> gbinet.DepthMap | None:
        view = self.scene.views[index]
        if view.depth_path is None:
            return None
        depth = torch.from_numpy(read_depth(view.depth_path))  # [H, W], 0 = unknown
        return gbinet.DepthMap(depth * (1 + 0.001 * torch.randn(depth.shape)), view.camera)


def main(out: Path = Path("example-fusion")) -> None:
    scene = render_scene(out / "scene", DemoConfig(views=5, width=256, height=192))
    result = fuse(scene, NoisyTruth(scene), out / "cloud.ply", FusionConfig(min_views=2))
    print(f"{result.points} points of {result.views} views in {out / 'cloud.ply'}")


if __name__ == "__main__":
    main()
