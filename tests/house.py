"""The source read as text: its packages, its imports, and the map of both in CONTRIBUTING.md.

`python tests/house.py` writes the map anew; `tests/test_arrows.py` fails where it is out of date.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gbinet"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"

# Every package by level: a module may import what lies on a lower level, and its own package.
LEVELS: list[set[str]] = [
    {"cores", "names", "progress"},
    {"errors"},
    {"camera", "scene", "depthmap", "pointcloud", "provenance"},
    {"formats", "ops"},
    {"model", "scenes", "render"},
    {"inference", "fusion", "evaluation", "viewer", "training", "georeference"},
    {"cluster"},
    {"pipeline"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

_MAP = re.compile(r"(?<=<!-- map: python tests/house.py -->\n```\n).*?(?=```\n)", re.DOTALL)


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


def _imports() -> Iterator[Import]:
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
                # `from gbinet import ops` names a package, `from gbinet.camera import Camera` a thing in one
                targets = [f"gbinet.{a.name}" for a in node.names] if module == "gbinet" else [module]
            for target in targets:
                yield Import(path.relative_to(SOURCE), node.lineno, target, id(node) in inside)


IMPORTS = list(_imports())


def _purpose(room: str) -> str:
    """The first sentence of what the room says about itself."""
    path = SOURCE / room / "__init__.py"
    text = ast.get_docstring(tree_of(path if path.is_file() else SOURCE / f"{room}.py")) or ""
    return re.split(r"\.(?:\s|$)", text.replace("\n", " "), maxsplit=1)[0]


def house_map() -> str:
    """One paragraph a level, the highest first: what each package is for, and which ones it imports."""
    levels = []
    for rooms in reversed(LEVELS):
        lines = []
        for room in sorted(rooms):
            own = [i.target.split(".") for i in IMPORTS if i.room == room]
            used = {target[1] for target in own if target[0] == "gbinet" and len(target) > 1}
            arrows = ", ".join(sorted((used & set(LEVEL)) - {room}, key=lambda r: (-LEVEL[r], r)))
            lines.append(f"{room:<11} {_purpose(room)}\n" + (f"{'':<11} -> {arrows}\n" if arrows else ""))
        levels.append("".join(lines))
    return "\n".join(levels)


def written_map() -> str | None:
    """The map as CONTRIBUTING.md has it."""
    found = _MAP.search(CONTRIBUTING.read_text())
    return found.group() if found else None


if __name__ == "__main__":
    CONTRIBUTING.write_text(_MAP.sub(lambda _: house_map(), CONTRIBUTING.read_text()))
