"""Prints every stage of the search: its bins, its confidence and its error.

Each stage halves the bins. The share of pixels whose true depth lies in one of the bins shows how many pixels
the earlier stages have lost. The width of a bin shows the resolution so far.
"""

from __future__ import annotations

from pathlib import Path

import torch

import gbinet
from gbinet.model import search
from gbinet.pipeline.demo import DemoConfig, render_scene
from gbinet.scenes.transforms import resize_nearest


@torch.inference_mode()
def main(out: Path = Path("example-search")) -> None:
    scene = render_scene(out, DemoConfig(views=5, width=256, height=192))
    sample = gbinet.MVSDataset([scene])[0]
    model = gbinet.GBiNet.from_pretrained()
    result = model(sample.images, sample.cameras, sample.depth_range, keep_stages=True)

    near, far = sample.depth_range[0].tolist()
    print(f"range {near:.3f} to {far:.3f} m")
    print("stage    size   bin width   truth inside   probability   median error")
    for number, stage in enumerate(result.stages, start=1):
        height, width = stage.logits.shape[-2:]
        truth = resize_nearest(sample.depth[0], width, height)[None]  # [1, h, w]
        known = truth > 0
        inside = float(search.label(stage.state, truth)[1][known].float().mean())
        probability = float(stage.probabilities.amax(1)[known].mean())
        error = 1000 * float((search.depth(stage.next_state) - truth).abs()[known].median())
        bin_width = 1000 * (far - near) / stage.next_state.grid.cells(number)
        answer = f"{bin_width:7.2f} mm {inside:12.1%} {probability:13.1%} {error:11.2f} mm"
        print(f"{number:5d} {width:4d}x{height:<4d} {answer}")


if __name__ == "__main__":
    main()
