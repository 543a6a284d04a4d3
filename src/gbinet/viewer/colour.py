"""Colour maps whose lightness rises evenly.

So equal steps look equal, also in grey and to colour-blind eyes. The maps are arcs in Oklab (Ottosson 2020),
computed, not tabulated.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

UNKNOWN = 58  # grey level of pixels without a value

Array = NDArray[Any]
MapName = Literal["depth", "confidence"]

# name -> lightness, chroma and hue (degrees) at both ends; chroma is higher in between
_ARCS: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "depth": ((0.25, 0.94), (0.10, 0.15), (300.0, 95.0)),  # violet, blue, green, yellow
    "confidence": ((0.28, 0.92), (0.11, 0.12), (20.0, 150.0)),  # dark red, orange, pale green
}


def table(name: MapName, steps: int = 256) -> NDArray[np.uint8]:
    """The colours of a map, [steps, 3], from dark to light."""
    t = np.linspace(0, 1, steps)
    lightness, chroma, hue = ((1 - t) * low + t * high for low, high in _ARCS[name])
    chroma = chroma + 0.03 * np.sin(math.pi * t)
    angle = np.radians(hue)
    return _srgb(lightness, chroma * np.cos(angle), chroma * np.sin(angle))


def colourise(
    values: Array, known: NDArray[np.bool_], name: MapName, low: float, high: float
) -> NDArray[np.uint8]:
    """[H, W] values -> [H, W, 3]; low is dark, high is light, unknown is a neutral grey."""
    span = max(high - low, 1e-12)
    position = np.nan_to_num(np.clip((values - low) / span, 0, 1))
    colours = table(name)[(position * 255).round().astype(np.int64)]
    colours[~known] = UNKNOWN
    return colours


def colourise_depth(depth: Array, known: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
    """[H, W] depth -> [H, W, 3]; near is light. The map spans the 2nd to 98th percentile of inverse depth."""
    known = (depth > 0) & np.isfinite(depth) if known is None else known
    inverse = np.where(depth > 0, 1 / np.maximum(depth, 1e-30), 0)
    span = colour_span(depth, known)
    if span is None:
        return colourise(inverse, known, "depth", 0, 1)
    return colourise(inverse, known, "depth", 1 / span[1], 1 / span[0])


def colour_span(depth: Array, known: NDArray[np.bool_] | None = None) -> tuple[float, float] | None:
    """Depths of the lightest and of the darkest colour of colourise_depth; None if no depth is known."""
    known = (depth > 0) & np.isfinite(depth) if known is None else known
    if not known.any():
        return None
    low, high = np.percentile(1 / depth[known], [2, 98])
    return 1 / float(high), 1 / float(low)


def _srgb(lightness: Array, a: Array, b: Array) -> NDArray[np.uint8]:
    """Oklab -> sRGB, clipped."""
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = np.stack(
        [
            4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
        ],
        axis=-1,
    ).clip(0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    result: NDArray[np.uint8] = (encoded * 255).round().astype(np.uint8)
    return result
