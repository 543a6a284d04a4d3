"""Checks that depth ranges contain the scene, on rendered scenes with few sparse points and gaps.

    python benchmarks/ranges.py --scenes 24 --points 100

Only depth is rendered. Views that see fewer than three of the points are left out, because structure from
motion could not place them: something right in front of the camera hides everything. Reports the share of the
true depths inside the ranges, over all views and for the worst scenes, and the width of the ranges compared
with the true ones.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from _common import report

from gbinet.render.compose import make_scene
from gbinet.render.rig import draw_path
from gbinet.render.seeding import generator
from gbinet.render.shade import render_depth
from gbinet.render.sparse import sparse_points
from gbinet.scenes.ranges import ranges_from_points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenes", type=int, default=24)
    parser.add_argument("--views", type=int, default=9)
    parser.add_argument("--points", type=int, default=100, help="a view")
    parser.add_argument("--gaps", type=float, default=0.4, help="share of the points lost in gaps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    inside, ratios, true_ratios, scenes = [], [], [], []
    for number in range(given.scenes):
        scene = make_scene(int(generator(given.seed, "ranges", number).integers(1 << 31)))
        paths = draw_path(generator(scene.seed, "path"), scene.kind, scene.layout, given.views, 160, 120)
        cameras = [paths[i] for i in range(given.views)]
        depths = [render_depth(scene, paths[i : i + 1])[0][0].cpu() for i in range(given.views)]
        points = sparse_points(cameras, depths, given.points, given.gaps, np.random.default_rng(number))
        assert points.view_index is not None
        seen = torch.bincount(points.view_index, minlength=given.views)
        shares = []
        for depth, found, count in zip(depths, ranges_from_points(cameras, points), seen, strict=True):
            known = depth[depth > 0]
            if len(known) == 0 or count < 3:
                continue
            near, far = (1.0, 1.0) if found is None else (found.near, found.far)
            shares.append(float(((known >= near) & (known <= far)).double().mean()))
            ratios.append(far / near)
            true_ratios.append(float(known.quantile(0.999) / known.quantile(0.001)))
        inside += shares
        scenes.append(float(np.mean(shares)))
    report(
        "ranges",
        {
            "scenes": given.scenes,
            "views": len(inside),
            "points a view": given.points,
            "true depths inside": round(float(np.mean(inside)), 4),
            "in the worst scenes": [round(share, 4) for share in sorted(scenes)[:3]],
            "views with all but 1 % inside": round(float(np.mean(np.array(inside) >= 0.99)), 4),
            "mean far/near": round(float(np.mean(ratios)), 2),
            "median far/near": round(float(np.median(ratios)), 2),
            "mean true far/near": round(float(np.mean(true_ratios)), 2),
        },
        given.out,
    )


if __name__ == "__main__":
    main()
