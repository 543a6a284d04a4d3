"""Sky is found by what is measured, with its fringe on roofs, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gbinet.fusion import sky as skies
from gbinet.fusion.photometric import blank

HEIGHT, WIDTH = 60, 80


def sky(photo: Tensor, confidence: Tensor, confident: float) -> Tensor:
    return skies.sky(photo, blank(photo), confidence, confident)


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


def confidence_of(solid: Tensor, beside: float = 0.0) -> Tensor:
    """1 on the house, `beside` on two pixels around it, 0 elsewhere."""
    near = torch.nn.functional.max_pool2d(solid.float()[None, None], 5, 1, 2)[0, 0]
    return torch.maximum(solid.float(), beside * near)


@pytest.mark.parametrize("beside", [0.0, 0.5, 0.9])
def test_the_fringe_goes_and_the_house_stays(beside: float) -> None:
    """However confident the network is of it: it has the colour of the sky."""
    photo, solid = house()
    fringe = confidence_of(solid, 0.5) == 0.5
    found = sky(photo, confidence_of(solid, beside), 0.6)
    assert not (found & solid).any()
    assert found[~solid].float().mean() > 0.95
    assert found[fringe].float().mean() > 0.9


@given(seed=st.integers(0, 1000), share=st.floats(0, 1))
def test_what_is_sure_is_never_sky(seed: int, share: float) -> None:
    """Neither specks in the sky nor what has its colour beside it: a pale roof keeps its points."""
    photo, solid = house(seed)
    rng = torch.Generator().manual_seed(seed)
    sure = solid | (torch.rand(HEIGHT, WIDTH, generator=rng) < share)
    sure[28:30, 20:60] = True  # a roof's edge, as pale as the sky
    assert not (sky(photo, 0.96 * sure.float(), 0.6) & sure).any()


@given(reach=st.integers(0, 50))
def test_sky_does_not_spread_far(reach: int) -> None:
    """A confident wall of the sky's colour loses its rim at most."""
    photo = torch.full((HEIGHT, WIDTH, 3), 220, dtype=torch.uint8)
    confidence = torch.full((HEIGHT, WIDTH), 0.9)
    confidence[:reach] = 0
    found = sky(photo, confidence, 0.6)
    assert not found[reach + 16 :].any()
    assert reach < 5 or found[: reach - 2].all()


def test_a_confident_blank_wall_is_not_sky() -> None:
    photo, _ = house()
    assert not sky(photo, torch.full((HEIGHT, WIDTH), 0.7), 0.6).any()


def test_what_does_not_touch_the_upper_edge_is_not_sky() -> None:
    photo, _ = house()
    assert not sky(photo.flip(0), torch.zeros(HEIGHT, WIDTH), 0.6)[:10].any()


@pytest.mark.parametrize("seed", range(3))
def test_texture_everywhere_is_not_sky(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    photo = torch.randint(0, 256, (HEIGHT, WIDTH, 3), generator=rng, dtype=torch.uint8)
    assert not sky(photo, torch.zeros(HEIGHT, WIDTH), 0.6).any()


def test_sky_does_not_walk_down_a_gradient() -> None:
    """A shaded wall below a blank ceiling: only what has the ceiling's colour goes."""
    rows = torch.arange(200).clamp_min(40)
    photo = (220 - 2 * (rows - 40)).clamp_min(20)[:, None, None].repeat(1, 400, 3).to(torch.uint8)
    confidence = torch.where(rows > 40, 0.9, 0.1)[:, None].repeat(1, 400)
    assert not sky(photo, confidence, 0.6)[40 + 16 :].any()
