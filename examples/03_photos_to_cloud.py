"""Reconstructs a point cloud from photos: depth of every view, fused where views agree.

`gbinet.reconstruct` also takes a folder: `gbinet.reconstruct("folder")` detects what is in it. With `out=`,
it keeps depth maps and a report (report.html), and a second call continues where the first one stopped.
"""

from __future__ import annotations

from pathlib import Path

import gbinet
from gbinet.pipeline.demo import DemoConfig, render_scene


def main(out: Path = Path("example-cloud")) -> None:
    scene = render_scene(out / "scene", DemoConfig(views=5, width=256, height=192))
    model = gbinet.GBiNet.from_pretrained()
    cloud = gbinet.reconstruct(scene, model, out=out)
    trusted = cloud if cloud.num_views is None else cloud[cloud.num_views >= 5]
    trusted.save(out / "trusted.ply")
    print(f"{len(cloud)} points in {out / 'cloud.ply'}; all five views agree on {len(trusted)} of them")


if __name__ == "__main__":
    main()
