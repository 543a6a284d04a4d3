"""Fixtures of the formats."""

from __future__ import annotations

import pytest
from exact_plane import make_plane_scene

from gbinet.depthmap import DepthMap
from gbinet.scene import Scene


@pytest.fixture(scope="session")
def plane_scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, list[DepthMap]]:
    return make_plane_scene(tmp_path_factory.mktemp("plane"))
