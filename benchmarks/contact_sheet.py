"""Draws training samples: a row per difficulty, with its scenes side by side (reference, source, depth).

    python benchmarks/contact_sheet.py sheet.png [--assets DIR --size 200x160 --scenes 4 --only gloss sky]

The scenes are those of the validation set `life`. Near depths are bright; pixels without depth are grey.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from gbinet.render import LIFE, Sample, life_samples
from gbinet.viewer.colour import colourise_depth

NAMES_WIDTH = 84  # pixels at the left for the name of the row


def strip(sample: Sample) -> np.ndarray:
    """Reference, first source and depth beside each other, [H, 3 W, 3] uint8."""
    photos = [(image * 255).round().byte().permute(1, 2, 0).numpy() for image in sample.images[:2].cpu()]
    return np.concatenate([*photos, colourise_depth(sample.depth.cpu().numpy())], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--assets", type=Path, help="folder of objects and textures")
    parser.add_argument("--size", default="200x160", help="WIDTHxHEIGHT of a picture")
    parser.add_argument("--scenes", type=int, default=4, help="scenes of each difficulty")
    parser.add_argument("--only", nargs="+", choices=LIFE, default=LIFE)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    width, height = (int(n) for n in given.size.split("x"))
    sheet = Image.new("RGB", (NAMES_WIDTH + 3 * width * given.scenes, height * len(given.only)), "white")
    draw = ImageDraw.Draw(sheet)
    for sample in life_samples(given.assets, (width, height), given.device, given.scenes, 3, given.only):
        name, number = sample.name.split("/")
        row = given.only.index(name)
        sheet.paste(Image.fromarray(strip(sample)), (NAMES_WIDTH + 3 * width * int(number), row * height))
        if number == "00":
            draw.text((4, row * height + 4), name, "black")
        print(f"{sample.name}: {', '.join(sample.difficulties) or 'none'}", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(given.out)


if __name__ == "__main__":
    main()
