"""Who may import whom, and what only one package may know, read from the source.

The levels are in `house.py`: cli -> pipeline -> other packages -> formats -> nouns.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from house import IMPORTS, LEVEL, LEVELS, SOURCE, files, house_map, tree_of, written_map

# Arrows between neighbours on one level, each with its reason.
SIDEWAYS = {
    ("scene", "camera"): "a view has a camera",
    ("depthmap", "camera"): "a depth map has a camera",
    ("render", "scenes"): "rendered samples are batches",
    ("training", "evaluation"): "validation uses the measures of evaluation",
    ("georeference", "evaluation"): "cameras are aligned with positions as trajectories are in a benchmark",
    ("viewer", "fusion"): "the viewer loads clouds and meshes as fusion left them",
}

# The only arrows that point up: `cloud.save("cloud.ply")` is what people type. All are local imports.
UPWARDS = {("pointcloud.py", "gbinet.formats.cloud_files")}

# Who asks which kernels can be used outside ops: the renderer has kernels of its own. (`usable` is also a
# tensor in training/optimise.py, and a truth value in formats/colmap.py.)
USABLE_ELSEWHERE = {
    "fusion/comparing.py",
    "inference/compiling.py",
    "render/seeding.py",
    "render/rasterise.py",
    "render/shade.py",
    "training/optimise.py",
    "formats/colmap.py",
}

# Third parties that may be imported at the top of a module; all others are imported where they are used.
EVERYWHERE = {"torch", "numpy", "PIL", "safetensors"}

# What turns the bytes of a file into values: functions by their full names, and modules for nothing else.
PARSERS = {
    *("json.load", "json.loads", "zipfile.ZipFile", "tarfile.open", "torch.load", "PIL.Image.open"),
    *(f"numpy.{name}" for name in ("load", "loadtxt", "genfromtxt", "fromfile", "fromstring", "memmap")),
    *("numpy.frombuffer", "torch.frombuffer", "torch.from_file", "imageio.imread", "cv2.imread"),
    *("safetensors.safe_open", "safetensors.torch.load_file", "safetensors.torch.load", "trimesh.load"),
}
PARSING_MODULES = {"struct", "csv", "xml", "pickle", "tomllib", "configparser", "scipy.io", "yaml"}
PARSING_ELSEWHERE = {
    (
        "model/weights.py",
        "safetensors.safe_open",
    ): "weights are the network's own file; safetensors checks it",
    ("model/weights.py", "torch.load"): "published checkpoints, without code (weights_only)",
    ("inference/compilers.py", "json.loads"): "messages between processes of ours",
    ("training/checkpoint.py", "safetensors.torch.load_file"): "a run's own file; safetensors checks it",
    ("render/assets.py", "numpy.load"): "objects to render, without pickle; the user's own folder",
    ("render/assets.py", "trimesh.load"): "meshes to render; trimesh reads their formats",
    ("render/assets.py", "PIL.Image.open"): "textures to render; they have no camera and are made square",
}

# Words that tell half a pixel, and the arithmetic of bins, from other sums. Triton kernels are not looked at:
# they cannot call camera.py or search.py, and a test compares each with its plain twin, which does.
PIXEL_WORDS = {"pixel", "pixels", "row", "rows", "column", "columns", "x", "y", "u", "v", "xs", "ys", "K"}
PIXEL_WORDS |= {"arange", "meshgrid", "mgrid", "indices", "nonzero", "width", "height"}
BIN_WORDS = {"cell", "cells", "bins", "num_bins", "first_bin", "first_bins", "tolerance"}
PIXELS_ELSEWHERE = {
    "scenes/complete.py": "the middle of an image as a share of its size",
    "render/seeding.py": "random bits to a number in (0, 1)",
    "render/outdoors.py": "columns of windows, and where a terrain is looked up",
    "render/paint.py": "patterns on a texture, which no camera took",
    "render/shade.py": "texels of shadow maps and surroundings, as its kernel counts them",
    "render/shapes.py": "the height of a shape above its ground",
    "render/texture.py": "texels of a texture that repeats",
}
BINS_ELSEWHERE = {
    "evaluation/nearest.py": "cells of a grid in space",
    "ops/bins.py": "the centre of a cell: bins come split, as numbers",
    "ops/choose.py": "an answer counted in cells, from the centres of bins",
    "render/paint.py": "cells of noise",
    "training/loss.py": "how far the centre of a parent's cell is from the truth",
}


# Classes whose names several files may use.
SHARED_NAMES: set[str] = set()


def test_every_room_has_a_place() -> None:
    rooms = {i.room for i in IMPORTS} - {"__init__"}
    assert rooms <= set(LEVEL), "a new package needs a level in house.py"


def test_the_map_in_contributing_is_that_of_the_source() -> None:
    assert written_map() == house_map(), "run `python tests/house.py`"


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


def is_kernel_file(file: Path) -> bool:
    return file.stem.endswith("_triton")


def test_operations_know_only_nouns() -> None:
    nouns = {"ops", *LEVELS[0], *LEVELS[1], *LEVELS[2]}
    targets = [(i, i.target.split(".")) for i in IMPORTS if i.room == "ops"]
    assert [str(i) for i, parts in targets if parts[0] == "gbinet" and parts[1] not in nouns] == []


def test_kernels_are_imported_where_they_are_chosen() -> None:
    """Triton may be missing: what holds kernels is imported inside functions, by other kernels at the top."""
    kernels = [i for i in IMPORTS if i.target.startswith("gbinet.") and i.target.endswith("_triton")]
    assert [str(i) for i in kernels if not i.local and not is_kernel_file(i.file)] == []
    assert [str(i) for i in kernels if i.room != i.target.split(".")[1]] == []


def test_only_operations_ask_which_kernels_can_be_used() -> None:
    asking = set()
    for path in files():
        name = path.relative_to(SOURCE)
        names = {n.attr for n in ast.walk(tree_of(path)) if isinstance(n, ast.Attribute)}
        names |= {n.id for n in ast.walk(tree_of(path)) if isinstance(n, ast.Name)}
        if "usable" in names and name.parts[0] != "ops":
            asking.add(str(name))
    assert asking == USABLE_ELSEWHERE


def test_only_light_libraries_are_imported_at_the_top() -> None:
    wrong = []
    for found in IMPORTS:
        top = found.target.split(".")[0]
        allowed = EVERYWHERE | ({"triton"} if is_kernel_file(found.file) else set())
        allowed |= {"tyro", "rich"} if found.room == "cli" else set()
        if not found.local and top != "gbinet" and top not in sys.stdlib_module_names | allowed:
            wrong.append(str(found))
    assert wrong == []


def test_the_product_does_not_know_the_research_package() -> None:
    assert [str(i) for i in IMPORTS if i.target.startswith("gbinet_research")] == []


def test_ranks_are_known_in_one_place() -> None:
    places = {str(i.file) for i in IMPORTS if i.target.startswith("torch.distributed")}
    assert places <= {"training/distributed.py"}


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the full name of what is called, whatever it was imported as."""
    full = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            full |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, *rest = ast.unparse(node.func).split(".")
            yield node, ".".join([full.get(first, first), *rest])


def test_only_the_command_line_prints() -> None:
    """Libraries report through return values, callbacks and logging."""
    wrong = []
    forbidden = ("print", "sys.exit", "exit", "logging.basicConfig", "input")
    for path in files():
        name = path.relative_to(SOURCE)
        if name.parts[0] == "cli":
            continue
        wrong += [f"{name}:{node.lineno} {call}" for node, call in calls(tree_of(path)) if call in forbidden]
    assert wrong == []


def parsing(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node, call in calls(tree):
        copied = call == "json.loads" and ast.unparse(node.args[0]).startswith("json.dumps(")
        if call in PARSERS and not copied:
            yield node.lineno, call


def test_only_formats_parses_files() -> None:
    elsewhere = [p for p in files() if p.relative_to(SOURCE).parts[0] != "formats"]
    found = [(str(p.relative_to(SOURCE)), *hit) for p in elsewhere for hit in parsing(tree_of(p))]
    assert [f"{f}:{line} {call}" for f, line, call in found if (f, call) not in PARSING_ELSEWHERE] == []
    assert set(PARSING_ELSEWHERE) == {(f, call) for f, _, call in found}
    modules = [i for i in IMPORTS if i.room != "formats" and i.target.startswith(tuple(PARSING_MODULES))]
    names = re.compile("|".join(rf"{re.escape(m)}(\.|$)" for m in PARSING_MODULES))
    assert [str(i) for i in modules if names.match(i.target)] == []


def sums(tree: ast.Module, words: set[str]) -> Iterator[ast.BinOp]:
    """Sums, products and shifts that use or give one of these words; Triton kernels are skipped."""
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        if any(ast.unparse(d).startswith("triton.jit") for d in function.decorator_list):
            continue
        given: dict[ast.AST, set[str]] = {}  # what a node's value is assigned to
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                targets = {name for target in node.targets for name in names_in(target)}
                given |= dict.fromkeys(ast.walk(node.value), targets)
            if isinstance(node, ast.BinOp) and words & (names_in(node) | given.get(node, set())):
                yield node


def arithmetic(words: set[str], owner: str) -> Iterator[tuple[str, str, ast.BinOp]]:
    """File, line and node of all of these outside the file that owns them."""
    for path in files():
        name = str(path.relative_to(SOURCE))
        for node in sums(tree_of(path), words) if name != owner else []:
            yield name, f"{name}:{node.lineno} {ast.unparse(node)}", node


def names_in(tree: ast.AST) -> set[str]:
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}


def adds_half(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return isinstance(node.op, ast.Add | ast.Sub) and any(ast.unparse(s) in ("0.5", "1 / 2") for s in sides)


def splits(node: ast.BinOp) -> bool:
    """2 * cell, cell << 1, (bins - 2) // 2, first - tolerance: from one stage's cells to the next one's."""
    sides = {ast.unparse(node.left), ast.unparse(node.right)}
    doubles = isinstance(node.op, ast.Mult | ast.FloorDiv | ast.Div) and "2" in sides
    return doubles or isinstance(node.op, ast.LShift | ast.RShift) or any("tolerance" in s for s in sides)


def test_only_the_camera_knows_where_a_pixel_has_its_centre() -> None:
    bins = {text for _, text, _ in arithmetic(BIN_WORDS, "camera.py")}
    found = [hit for hit in arithmetic(PIXEL_WORDS, "camera.py") if adds_half(hit[2]) and hit[1] not in bins]
    assert [text for file, text, _ in found if file not in PIXELS_ELSEWHERE] == []
    assert set(PIXELS_ELSEWHERE) == {file for file, *_ in found}


def test_only_the_search_knows_how_bins_split() -> None:
    every = arithmetic(BIN_WORDS, "model/search.py")
    found = [hit for hit in every if splits(hit[2]) or adds_half(hit[2])]
    assert [text for file, text, _ in found if file not in BINS_ELSEWHERE] == []
    assert set(BINS_ELSEWHERE) == {file for file, *_ in found}


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("centre = torch.arange(width) + 0.5", adds_half),
        ("u = 0.5 + np.mgrid[:4, :4]", adds_half),
        ("z = pixels.double() + 1 / 2", adds_half),
        ("column = where(front, a / b - 0.5, -2)", adds_half),
        ("first = 2 * cell - tolerance", splits),
        ("first = (state.cell << 1) - 1", splits),
        ("side = (bins - 2) // 2", splits),
    ],
)
def test_these_spellings_are_seen(code: str, seen: Callable[[ast.BinOp], bool]) -> None:
    tree = ast.parse(f"def function():\n    {code}")
    words = PIXEL_WORDS if seen is adds_half else BIN_WORDS
    assert any(seen(node) for node in sums(tree, words))


@pytest.mark.parametrize(
    "code",
    [
        "from json import loads as read\nread(text)",
        "import numpy as np\nnp.load(path)",
        "from PIL import Image\nwith Image.open(path) as image: pass",
    ],
)
def test_parsers_are_seen_under_any_name(code: str) -> None:
    assert list(parsing(ast.parse(code)))


def test_corners_are_never_aligned() -> None:
    """`align_corners=True` would put the centre of the first pixel at 0."""
    given = [(p, k) for p in files() for node, _ in calls(tree_of(p)) for k in node.keywords]
    wrong = [(p, k) for p, k in given if k.arg == "align_corners" and ast.unparse(k.value) != "False"]
    assert [f"{p.relative_to(SOURCE)}:{k.value.lineno}" for p, k in wrong] == []


def test_a_class_has_its_name_for_itself() -> None:
    homes: dict[str, list[str]] = {}
    for path in files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(str(path.relative_to(SOURCE)))
    shared = {name: at for name, at in homes.items() if len(at) > 1 and name not in SHARED_NAMES}
    assert shared == {}


def test_nothing_is_left_open() -> None:
    words = ("TO" + "DO", "FIX" + "ME")
    wrong = [str(p) for p in files() if any(w in p.read_text() for w in words)]
    assert wrong == []
