"""Shows where depth is wrong: errors by the number of source views that see a pixel, and near depth edges.

    python benchmarks/visibility.py --assets DIR --scenes 5 --out visibility.json

Uses rendered scenes like those of the validation set (1600x1152, 5 views, 425 to 935 mm) but with other
seeds, so that nothing is tuned to that set. A source view sees a pixel if the true point falls into its
image and nothing is in front of it there (the source view's own true depth agrees within 1 %). Pixels with
a depth edge within 2 px do not count, as in validation. The depth of a pixel that no source view sees
cannot be measured.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import report
from torch import Tensor

from gbinet.camera import Camera
from gbinet.evaluation.depth import THRESHOLDS, away_from_edges, depth_errors
from gbinet.inference.device import pick_device
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import GBiNet
from gbinet.render.shade import render_depth
from gbinet.render.source import RenderConfig, RenderedSource
from gbinet.scenes.batch import Batch

SEED = 4242
MILLIMETRES = 1000.0
DISTANCES = (4, 8, 16, 32)  # px


def seen_by(source: RenderedSource, index: int, batch: Batch) -> Tensor:
    """How many sources see each pixel of the reference, [H, W] int."""
    cameras = batch.cameras[0]
    pose = cameras.cam_from_world.clone()
    pose[:, :3, 3] /= MILLIMETRES
    metres = Camera(cameras.K, pose, cameras.width, cameras.height)
    scene = source.scene_of(index)
    points = cameras[0].unproject(cameras[0].pixel_grid(), batch.depth[0])  # [H, W, 3], world
    count = torch.zeros_like(batch.depth[0], dtype=torch.int32)
    for view in range(1, cameras.K.shape[0]):
        truth = render_depth(scene, metres[view : view + 1])[0][0] * MILLIMETRES  # [H, W]
        pixels, depth = cameras[view].project(points)
        x, y = pixels[..., 0], pixels[..., 1]
        inside = (x > 0) & (x < cameras.width) & (y > 0) & (y < cameras.height) & (depth > 0)
        column = x.nan_to_num().clamp(0, cameras.width - 1).long()
        row = y.nan_to_num().clamp(0, cameras.height - 1).long()
        count += inside & ((depth - truth[row, column]).abs() < 0.01 * depth)
    return count


def edge_distance(depth: Tensor) -> Tensor:
    """Upper bound of the distance to a depth edge in px, [H, W]: one of DISTANCES, or infinite."""
    edges = (~away_from_edges(depth, 0)).float()[None, None]
    distance = torch.full_like(depth, torch.inf)
    for reach in reversed(DISTANCES):
        near = F.max_pool2d(edges, 2 * reach + 1, 1, reach)[0, 0] > 0
        distance = torch.where(near, float(reach), distance)
    return distance


def shares(depth: Tensor, truth: Tensor, chosen: Tensor) -> dict[str, float]:
    """Of the chosen pixels: their share of all, percent within each threshold, share of all gross errors."""
    within = depth_errors(depth, truth, chosen).within
    gross = (depth - truth).abs() > THRESHOLDS[-1]
    share_of_gross = float((gross & chosen).sum()) / max(int(gross.sum()), 1)
    return {
        "of all pixels %": round(100 * float(chosen.float().mean()), 2),
        **{f"within {t:g} %": round(100 * share, 2) for t, share in within.items()},
        f"of all errors over {THRESHOLDS[-1]:g} %": round(100 * share_of_gross, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", help="file or name; default: the bundled weights")
    parser.add_argument("--assets", type=Path, help="folder of objects and textures, as in training")
    parser.add_argument("--size", default="1600x1152", help="WIDTHxHEIGHT")
    parser.add_argument("--scenes", type=int, default=5)
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    device = pick_device(given.device)
    width, height = (int(n) for n in given.size.split("x"))
    config = RenderConfig(
        width, height, 5, seed=SEED, assets=given.assets, dtu_like=True, samples_per_scene=1
    )
    source = RenderedSource(config, device)
    engine = prepare(GBiNet.from_pretrained(given.weights), device)
    rows = []  # [4, N] each: depth, true depth, sources that see the pixel, distance to an edge
    for index in range(given.scenes):
        with torch.inference_mode():
            batch = source.batch(index, 1)
            found = engine(batch.images, batch.cameras, batch.depth_range).depth[0].float()
            truth = batch.depth[0]
            near, far = batch.depth_range[0]
            counted = away_from_edges(truth) & (truth > near) & (truth < far)
            maps = (found, truth, seen_by(source, index, batch).float(), edge_distance(truth))
            rows.append(torch.stack([m[counted] for m in maps]).cpu())
    depth, true, seen, distance = torch.cat(rows, dim=1)
    of = partial(shares, depth, true)
    figures: dict[str, object] = {"scenes": given.scenes, "all": of(seen >= 0)}
    for number in range(config.views):
        figures[f"seen by {number}"] = of(seen == number)
    figures["seen by 2 or more"] = of(seen >= 2)
    for reach in (*DISTANCES, torch.inf):
        figures[f"edge within {reach:g} px"] = of(distance == reach)
    report("visibility", figures, given.out)


if __name__ == "__main__":
    main()
