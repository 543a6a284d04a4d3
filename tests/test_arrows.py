"""Who may import whom, read from the source: cli -> pipeline -> rooms -> formats -> nouns."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "gbinet"

# Every room by level: a module may import what lies on a lower level, and its own room.
LEVELS: list[set[str]] = [
    {"names"},
    {"errors"},
    {"camera", "scene", "depthmap", "pointcloud", "provenance"},
    {"formats"},
    {"model", "kernels", "data", "render"},
    {"inference", "fusion", "evaluation", "viewer", "training", "sfm"},
    {"pipeline"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

# Arrows between neighbours on one level, each with its reason.
SIDEWAYS = {
    ("scene", "camera"): "a view has a camera",
    ("depthmap", "camera"): "a depth map has a camera",
    ("model", "kernels"): "the plain reference calls its fast twin",
    ("kernels", "model"): "a fast twin names its plain reference and shares its types",
    ("render", "kernels"): "the plain reference calls its fast twin",
    ("kernels", "render"): "a fast twin names its plain reference and shares its types",
    ("render", "data"): "rendered samples are batches",
    ("training", "evaluation"): "validation uses the measures of evaluation",
    ("viewer", "fusion"): "the viewer loads clouds and meshes as fusion left them",
}

# The only arrows that point up: `cloud.save("cloud.ply")` is what people type. Both are local imports.
UPWARDS = {("pointcloud.py", "gbinet.formats.ply")}

# Third parties that may be imported at the top of a module; all others are imported where they are used.
EVERYWHERE = {"torch", "numpy", "PIL", "safetensors"}


@dataclass(frozen=True)
class Import:
    file: Path  # relative to SOURCE
    line: int
    target: str  # dotted name
    local: bool  # inside a function

    @property
    def room(self) -> str:
        return self.file.parts[0].removesuffix(".py")

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports() -> Iterator[Import]:
    for path in files():
        tree = tree_of(path)
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        inside = {id(child) for function in functions for child in ast.walk(function)}
        for node in ast.walk(tree):
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                module = node.module or ""
                # `from gbinet import kernels` names a room, `from gbinet.camera import Camera` a thing in one
                targets = [f"gbinet.{a.name}" for a in node.names] if module == "gbinet" else [module]
            for target in targets:
                yield Import(path.relative_to(SOURCE), node.lineno, target, id(node) in inside)


IMPORTS = list(imports())


def test_every_room_has_a_place() -> None:
    rooms = {i.room for i in IMPORTS} - {"__init__"}
    assert rooms <= set(LEVEL), f"a new room needs a level in {Path(__file__).name}"


def test_arrows_point_down() -> None:
    wrong = []
    for found in IMPORTS:
        parts = found.target.split(".")
        if parts[0] != "gbinet" or found.room == "__init__":
            continue
        target = parts[1] if len(parts) > 1 else "__init__"
        if target in ("__version__", found.room) or (found.room, target) in SIDEWAYS:
            continue
        if (str(found.file), found.target) in UPWARDS and found.local:
            continue
        if target not in LEVEL or LEVEL[target] >= LEVEL[found.room]:
            wrong.append(str(found))
    assert wrong == []


@pytest.mark.parametrize("room", ["fusion", "evaluation", "viewer"])
def test_what_works_on_depth_maps_does_not_know_the_network(room: str) -> None:
    assert [str(i) for i in IMPORTS if i.room == room and i.target.startswith("gbinet.model")] == []


def test_every_exception_is_in_use() -> None:
    """A permission that nobody needs any more is taken back."""
    used = {(i.room, i.target.split(".")[1]) for i in IMPORTS if i.target.startswith("gbinet.")}
    assert set(SIDEWAYS) - used == set()
    assert {(str(i.file), i.target) for i in IMPORTS} >= UPWARDS


def test_only_light_libraries_are_imported_at_the_top() -> None:
    wrong = []
    for found in IMPORTS:
        top = found.target.split(".")[0]
        allowed = EVERYWHERE | ({"triton"} if found.room == "kernels" else set())
        allowed |= {"tyro", "rich"} if found.room == "cli" else set()
        if not found.local and top != "gbinet" and top not in sys.stdlib_module_names | allowed:
            wrong.append(str(found))
    assert wrong == []


def test_the_product_does_not_know_the_research_package() -> None:
    assert [str(i) for i in IMPORTS if i.target.startswith("gbinet_research")] == []


def test_ranks_are_known_in_one_place() -> None:
    places = {str(i.file) for i in IMPORTS if i.target.startswith("torch.distributed")}
    assert places <= {"training/distributed.py"}


def calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


def test_only_the_command_line_prints() -> None:
    """Libraries report through return values, callbacks and logging."""
    wrong = []
    forbidden = ("print", "sys.exit", "exit", "logging.basicConfig", "input")
    for path in files():
        name = path.relative_to(SOURCE)
        if name.parts[0] == "cli":
            continue
        wrong += [f"{name}:{line} {call}" for line, call in calls(tree_of(path)) if call in forbidden]
    assert wrong == []


def test_only_the_camera_knows_where_a_pixel_has_its_centre() -> None:
    wrong = []
    for path in files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                text = ast.unparse(node)
                if "torch.arange(" in text and text.endswith("+ 0.5") and path.name != "camera.py":
                    wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno} {text}")
    assert wrong == []


def test_nothing_is_left_open() -> None:
    words = ("TO" + "DO", "FIX" + "ME")
    wrong = [str(p) for p in files() if any(w in p.read_text() for w in words)]
    assert wrong == []
