"""Fixtures of tests of kernels."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kernel_fixtures import fast, kernel_device  # noqa: F401  # fixtures
