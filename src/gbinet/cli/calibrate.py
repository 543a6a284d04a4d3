"""`gbinet calibrate`: calibrate the confidence of trained weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from gbinet.cli.options import Assets
from gbinet.inference.device import pick_device
from gbinet.training.calibrate import SIZES, calibrate


def run(
    weights: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="WEIGHTS")],
    assets: Assets = None,
    scenes: int = 2,
    sizes: tuple[int, ...] = SIZES,
) -> None:
    """Render scenes that are used neither for training nor for evaluation, compare confidence with the ground
    truth, and store a calibration curve in the weights file. Of the pixels with confidence c, a share c is
    then correct (at most one pixel off when projected into the source views).

    Args:
        weights: A weights file of gbinet (.safetensors). Only its header changes.
        assets: Folder of objects and textures, as in training.
        scenes: Number of scenes per difficulty and image size, and five times as many tables per size.
        sizes: Widths of the images in pixels. Confidence differs between small and large images, so give the
            widths that you use.
    """
    found = calibrate(weights, assets, pick_device(), scenes, sizes, _tell)
    print(f"before\n{found.before.table()}\n\nafter\n{found.after.table()}\n\nwritten to {weights}")


def _tell(name: str) -> None:
    print(name, file=sys.stderr)
