"""Sky is found by what is measured, with its fringe on roofs, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gbinet.fusion.sky import sky

HEIGHT, WIDTH = 60, 80


def house(seed: int = 0, blue: tuple[int, int, int] = (200, 215, 235)) -> tuple[Tensor, Tensor]:
    """A textured house before a pale, slightly noisy sky, and where the house is."""
    rng = torch.Generator().manual_seed(seed)
    photo = torch.tensor(blue).repeat(HEIGHT, WIDTH, 1) + torch.randint(
        -1, 2, (HEIGHT, WIDTH, 3), generator=rng
    )
    solid = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    solid[30:, 20:60] = True
    solid[50:] = True
    walls = torch.randint(20, 140, (HEIGHT, WIDTH, 3), generator=rng)
    return torch.where(solid[..., None], walls, photo).to(torch.uint8), solid


def test_the_fringe_goes_and_the_house_stays() -> None:
    photo, solid = house()
    fringe = torch.nn.functional.max_pool2d(solid.float()[None, None], 5, 1, 2)[0, 0] > 0
    found = sky(photo, confident=fringe)  # the network gives the house's depth to two pixels of sky around it
    assert not (found & solid).any()
    assert found[~solid].float().mean() > 0.95
    assert found[fringe & ~solid][:].float().mean() > 0.9


def test_a_confident_blank_wall_is_no_sky() -> None:
    photo, _ = house()
    assert not sky(photo, confident=torch.ones(HEIGHT, WIDTH, dtype=torch.bool)).any()


def test_what_does_not_touch_the_upper_edge_is_no_sky() -> None:
    photo, _ = house()
    upside_down, nothing = photo.flip(0), torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    assert not sky(upside_down, nothing)[:10].any()


@pytest.mark.parametrize("seed", range(3))
def test_texture_everywhere_is_no_sky(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    photo = torch.randint(0, 256, (HEIGHT, WIDTH, 3), generator=rng, dtype=torch.uint8)
    assert not sky(photo, torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)).any()
