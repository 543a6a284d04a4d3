"""What `import gbinet` promises."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gbinet

SOURCE = Path(gbinet.__file__)


def test_every_public_name_is_there() -> None:
    for name in dir(gbinet):
        assert getattr(gbinet, name) is not None
    promised = {
        "Camera",
        "DepthMap",
        "DepthRange",
        "GBiNet",
        "GBiNetConfig",
        "PointCloud",
        "Scene",
        "load_scene",
    }
    assert promised <= set(dir(gbinet))


def test_type_checkers_see_the_same_names() -> None:
    """The block for type checkers and the table of lazy names say the same, with the same homes."""
    tree = ast.parse(SOURCE.read_text())
    blocks = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    seen = {
        alias.name: (node.module or "").removeprefix("gbinet.")
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == gbinet._HOME


def test_errors_have_one_parent() -> None:
    for name in dir(gbinet):
        if name.endswith("Error"):
            assert issubclass(getattr(gbinet, name), gbinet.GBiNetError)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Kamera'"):
        gbinet.Kamera  # noqa: B018


def test_names_are_documented() -> None:
    for name in gbinet._HOME:
        assert (getattr(gbinet, name).__doc__ or "").strip(), name
