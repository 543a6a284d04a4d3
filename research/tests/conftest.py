"""The same hypothesis profile as gbinet's own tests, and the planes that they train on."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis

hypothesis.settings.register_profile("gbinet", deadline=None, derandomize=True)
hypothesis.settings.load_profile("gbinet")

sys.path.append(str(Path(__file__).parents[2] / "tests" / "training"))  # plane_scenes
