"""Computes the depth map of one photo from the photo and its neighbours.

The scene is rendered, so that this runs without any data and can compute the error. To use your own folder,
replace `render_scene` by `scene = gbinet.load_scene("folder")`.
"""

from __future__ import annotations

from pathlib import Path

import gbinet
from gbinet.formats.image import write_image
from gbinet.pipeline.demo import DemoConfig, render_scene
from gbinet.viewer.colour import colourise_depth


def main(out: Path = Path("example-depth")) -> None:
    scene = render_scene(out, DemoConfig(views=5, width=256, height=192))
    sample = gbinet.MVSDataset([scene])[0]  # the first view, its best neighbours, and its true depth

    model = gbinet.GBiNet.from_pretrained()
    depth_range = scene.views[0].depth_range
    assert depth_range is not None
    result = model.predict(sample.images[0], sample.cameras[0], depth_range)

    known = sample.mask[0]
    error = (result.depth - sample.depth[0])[known].abs().median()
    picture = write_image(out / "depth.png", colourise_depth(result.depth.numpy()))
    print(f"median error {1000 * float(error):.2f} mm over {int(known.sum())} pixels; picture in {picture}")


if __name__ == "__main__":
    main()
