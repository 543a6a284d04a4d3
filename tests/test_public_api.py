"""What `import gbinet` promises."""

from __future__ import annotations

import ast
import doctest
import inspect
import pydoc
import re
from pathlib import Path

import pytest
from small_scene import write_small_scene

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


# ---- documentation ----


@pytest.fixture(scope="module")
def scene_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documented")
    write_small_scene(folder / "my-scene")
    return folder


PUBLIC = sorted(set(gbinet.__all__) - {"__version__"})


def public_members(value: object) -> dict[str, object]:
    """Methods and properties that a class adds to its parents, of ours."""
    if not inspect.isclass(value):
        return {}
    return {
        name: member
        for name, member in vars(value).items()
        if not name.startswith("_")
        and (inspect.isroutine(member) or isinstance(member, property | staticmethod | classmethod))
    }


def test_all_names_the_public_surface() -> None:
    assert set(gbinet.__all__) == {"__version__", *gbinet._HOME} == set(dir(gbinet))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_explained(name: str) -> None:
    """The name and all its methods; a function says what its arguments are and what it returns."""
    value = getattr(gbinet, name)
    text = inspect.getdoc(value) or ""
    assert text.strip() and name in (gbinet.__doc__ or "")
    for member, found in public_members(value).items():
        assert (inspect.getdoc(found) or "").strip(), f"{name}.{member}"
    if inspect.isfunction(value):
        documented = set(re.findall(r"^    (\w+): ", text.partition("Args:")[2], re.M))
        assert set(inspect.signature(value).parameters) <= documented
        assert all(f"\n{part}:\n" in text for part in ("Args", "Returns", "Raises", "Example"))


@pytest.mark.parametrize("name", ["gbinet", *PUBLIC])
def test_examples_in_docstrings_run(name: str, scene_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that holds a small scene, `my-scene`."""
    monkeypatch.chdir(scene_folder)
    value = gbinet if name == "gbinet" else getattr(gbinet, name)
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder(recurse=inspect.isclass(value)).find(
        value, name, globs={"gbinet": gbinet}
    ):
        runner.run(test)
    assert runner.summarize().failed == 0


def test_the_help_of_the_package_names_everything() -> None:
    shown = pydoc.render_doc(gbinet, renderer=pydoc.plaintext)
    assert all(name in shown for name in PUBLIC)
