"""Lamps, sun, sky and the distant surroundings of a scene."""

from __future__ import annotations

import numpy as np
import torch

from gbinet.render.paint import Device, colour, mix, octave_noise, unit_grid
from gbinet.render.props import Store
from gbinet.render.scenery import Light, triple
from gbinet.render.seeding import Generator
from gbinet.render.texture import Texture, make_texture

Colour = tuple[float, float, float]


def lamp_colour(rng: Generator, strength: float) -> Colour:
    warmth = rng.normal(0, 0.12)
    return (strength * (1 + warmth), strength, strength * (1 - warmth))


def ambient_light(rng: Generator, strength: float) -> tuple[Colour, Colour]:
    above = lamp_colour(rng, strength)
    below = rng.uniform(0.3, 0.9)
    return above, (above[0] * below, above[1] * below, above[2] * below)


def direction(rng: Generator, low: float, high: float) -> np.ndarray:
    """Unit vector with an elevation between low and high (radians)."""
    up, around = rng.uniform(low, high), rng.uniform(0, 2 * np.pi)
    return np.array([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)])


def sun_light(rng: Generator, focus: np.ndarray, radius: float, strength: float, low: float = 0.35) -> Light:
    position = focus + direction(rng, low, 1.4) * radius * 12
    return Light(triple(position), triple(focus), lamp_colour(rng, strength), radius)


def sky(rng: Generator, device: Device) -> Texture:
    """Sky above, haze at the horizon, ground below."""
    size = 256
    _, y = unit_grid(size, device)
    height = 1 - 2 * y  # 1 zenith, -1 nadir: v = sin(elevation)
    blue = torch.tensor([[[0.25]], [[0.45]], [[0.85]]], device=device) * rng.uniform(0.6, 1.1)
    haze = torch.full((3, 1, 1), rng.uniform(0.7, 0.95), device=device)
    sky = mix(haze, blue, height.clamp(0, 1).sqrt())
    clouds = torch.sigmoid(3 * (octave_noise(rng, size, device, 4, 6, 0.6) - rng.uniform(-1.5, 1.5)))
    sky = mix(sky, haze, clouds)
    ground = colour(rng, device, 0.15, 0.5)
    return make_texture(mix(ground, sky, (height * 40).clamp(0, 1)))


def studio(rng: Generator, store: Store) -> Texture:
    """Dim or bright studio, photo or painted room around the scene."""
    choice = rng.random()
    if choice < 0.35:  # the dark or plain back of a studio
        return make_texture(colour(rng, store.device, 0.02, 0.7).expand(3, 256, 256))
    if choice < 0.6:
        return store.texture("gradient")
    return store.texture()
