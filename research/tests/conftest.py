"""The same hypothesis profile as gbinet's own tests, the planes that they train on, and a tiny budget."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
import pytest

from gbinet_research.variants import Budget

hypothesis.settings.register_profile("gbinet", deadline=None, derandomize=True)
hypothesis.settings.load_profile("gbinet")

sys.path.append(str(Path(__file__).parents[2] / "tests" / "training"))  # plane_scenes


@pytest.fixture
def budget() -> Budget:
    return Budget(
        samples=2,
        batch_size=1,
        height=64,
        width=64,
        views=3,
        precision="float32",
        validation_scenes=1,
        validation_size=(128, 64),
        cloud_scenes=1,
        cloud_size=(96, 64),
    )
