from __future__ import annotations

import pytest
from plane_scenes import PlaneSource

from gbinet.model.config import GBiNetConfig
from gbinet.training.config import TrainConfig


@pytest.fixture
def planes() -> PlaneSource:
    return PlaneSource()


@pytest.fixture
def tiny() -> TrainConfig:
    """A run of a few seconds on a CPU."""
    return TrainConfig(
        views=3,
        height=64,
        width=64,
        batch_size=2,
        network=GBiNetConfig(stages=3),
        precision="float32",
        total_steps=4,
        warmup_steps=0,
        log_every=2,
        validation_scenes=0,
        tensorboard=False,
    )
