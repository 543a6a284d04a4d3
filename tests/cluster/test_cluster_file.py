"""The cluster file of the documents is one that Ray takes."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_cluster.yaml"


def test_ray_takes_it() -> None:
    pytest.importorskip("ray")
    util = pytest.importorskip("ray.autoscaler._private.util")
    yaml = pytest.importorskip("yaml")
    config = util.prepare_config(yaml.safe_load(EXAMPLE.read_text()))
    util.validate_config(config)
    assert config["provider"]["type"] == "local"
