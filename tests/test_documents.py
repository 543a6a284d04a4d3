"""What the pages show works: commands parse with the real parser, and those marked `<!-- runs -->` run."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tyro
from documents import ROOT, Block, blocks, commands_of, inline_commands, inline_flags

import gbinet
from gbinet.cli import main as cli
from gbinet.cli.cluster_options import spelled_out
from gbinet.cli.completion import flags
from gbinet.cli.main import VERBS
from gbinet.depthmap import DepthMap
from gbinet.formats.depth_files import read_depth
from gbinet.formats.image import write_image
from gbinet.pipeline.demo import DemoConfig, render_scene
from gbinet.scenes.kinds import write_scene

BLOCKS = blocks()
SHELL = [b for b in BLOCKS if b.language == "bash"]
PYTHON = [b for b in BLOCKS if b.language == "python"]
OTHERS = {"colmap", "ns-train", "DensifyPointCloud", "ReconstructMesh", "TextureMesh", "cd"}


# ---- commands parse ----


def parsed(verb: str, arguments: list[str]) -> None:
    """Parse as `gbinet VERB ...` does, without running anything."""
    arguments = spelled_out(arguments)
    module = importlib.import_module(f"gbinet.cli.{verb}")
    run = module.command(arguments) if hasattr(module, "command") else module.run
    if isinstance(run, dict):
        tyro.extras.subcommand_cli_from_dict({k: idle(v) for k, v in run.items()}, args=arguments)
    else:
        tyro.cli(idle(run), args=arguments)


def idle(run: Any) -> Any:
    """The same options, and nothing happens."""

    @functools.wraps(run)
    def nothing(*values: Any, **options: Any) -> None:
        return None

    return nothing


@functools.cache
def source_of(command: str) -> str:
    """The text in which the options of a script of ours stand."""
    if command == "gbinet_research":
        return "".join(p.read_text() for p in (ROOT / "research" / "gbinet_research").glob("*.py"))
    path = ROOT / command
    assert path.is_file(), f"there is no {command}"
    return path.read_text() + (ROOT / "benchmarks" / "_common.py").read_text()


def knows(source: str, flag: str) -> bool:
    """argparse spells the flag; tyro derives it from a name."""
    return flag in source or re.search(rf"\b{flag[2:].replace('-', '_')}\b", source) is not None


def check(words: list[str]) -> None:
    program, rest = words[0], words[1:]
    if program == "source":
        # tests/cli/test_main.py runs the former
        assert rest in (["<(gbinet", "--completion", "bash)"], [".venv/bin/activate"])
        return
    if program.startswith(".venv/bin/"):
        program = program.removeprefix(".venv/bin/")
    if program == "torchrun":
        program, rest = "gbinet", rest[rest.index("gbinet.cli.main") + 1 :]
    if program == "gbinet":
        if rest[0] not in ("--version", "--help"):
            assert rest[0] in VERBS, f"there is no verb {rest[0]}"
            if "--help" not in rest:
                # A run to resume is not there; what `--resume` changes is not what is looked at here.
                parsed(rest[0], [word for word in rest[1:] if word != "--resume"])
    elif program == "python" and rest[0] == "-m":
        module, options = rest[1], rest[2:]
        if module == "gbinet_research":
            for flag in (o for o in options if o.startswith("--")):
                assert knows(source_of(module), flag), flag
        else:
            assert module in ("pytest", "gbinet.cli.main"), module
    elif program == "python" and rest[0] != "train.py":  # which belongs to Gaussian splatting
        for flag in (o for o in rest[1:] if o.startswith("--")):
            assert knows(source_of(rest[0]), flag), f"{rest[0]} has no {flag}"
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.M), f"make {rest[0]}"
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extra in re.findall(r"\[([\w,]+)\]", " ".join(rest)):
            assert set(extra.split(",")) <= set(extras)
    elif program.endswith(".sh"):
        assert (ROOT / program).is_file()
    else:
        assert program in OTHERS | {"python", "pre-commit"}, f"a command that no test knows: {program}"


@pytest.mark.parametrize("block", SHELL, ids=lambda b: b.name)
def test_commands_parse(block: Block) -> None:
    for words in block.commands():
        while "&&" in words:
            check(words[: words.index("&&")])
            words = words[words.index("&&") + 1 :]
        try:
            check(words)
        except SystemExit:
            pytest.fail(f"gbinet refuses: {' '.join(words)}")


def test_a_flag_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(SystemExit):
        check(["gbinet", "reconstruct", "photos", "-o", "result", "--no-such-flag", "1"])
    with pytest.raises(AssertionError, match=r"there is no benchmarks/no_such"):
        check(["python", "benchmarks/no_such.py", "--size", "640"])


def test_every_block_says_its_language() -> None:
    """But for the map of the house, which a script draws."""
    assert [b.name for b in BLOCKS if b.language == "" and b.page != "CONTRIBUTING.md"] == []


@pytest.mark.parametrize(("page", "words"), inline_commands(), ids=str)
def test_commands_in_sentences_exist(page: str, words: list[str]) -> None:
    """These have placeholders and dots: the verb or script must exist, and every flag."""
    given = [w for w in words if re.fullmatch(r"--[a-z][a-z-]*", w)]
    if words[0] in ("pip", "make"):
        check(words[: words.index("&&")] if "&&" in words else words)
    elif words[0] == "gbinet":
        if words[1].isalpha() and words[1].islower():
            assert words[1] in VERBS, page
            known = flags_of_verb(words[1])
            assert set(given) <= known | {"--help", "--debug"}, page
    elif words[1] == "-m":
        assert words[2] in ("gbinet_research", "pytest"), page
    else:
        for flag in given:
            assert knows(source_of(words[1]), flag), f"{page}: {words[1]} has no {flag}"


@functools.cache
def flags_of_verb(verb: str) -> frozenset[str]:
    return frozenset(flags(verb))


def test_options_in_sentences_exist() -> None:
    known = frozenset().union(*(flags_of_verb(verb) for verb in VERBS)) | {"--help", "--debug", "--version"}
    known |= {"--resolution-level"}  # of OpenMVS
    scripts = "".join(p.read_text() for p in (ROOT / "benchmarks").glob("*.py")) + source_of(
        "gbinet_research"
    )
    unknown = [
        (page, flag) for page, flag in inline_flags() if flag not in known and not knows(scripts, flag)
    ]
    assert unknown == []


# ---- Python ----


@pytest.mark.parametrize("block", PYTHON, ids=lambda b: b.name)
def test_python_names_what_exists(block: Block) -> None:
    """It compiles, and what it takes from gbinet is there."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gbinet"):
            home = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(home, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gbinet":
            assert hasattr(gbinet, node.attr) or importlib.import_module(f"gbinet.{node.attr}")


# ---- and those that are marked run ----


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages assume: `photos`, without cameras, and `masks`; `my-scene`, with cameras and depth."""
    folder = tmp_path_factory.mktemp("pages")
    render_scene(folder / "demo", DemoConfig(views=7, width=512, height=384))
    (folder / "demo" / "photos").rename(folder / "photos")
    for photo in sorted((folder / "photos").iterdir()):
        write_image(folder / "masks" / photo.name, np.full((384, 512), 255, np.uint8))
    small = render_scene(folder / "small", DemoConfig(views=5, width=128, height=96))
    write_scene(small, folder / "my-scene", "mvsnet", truth_of(small))
    assert gbinet.load_scene(folder / "my-scene").views[0].depth_path is not None
    shutil.rmtree(folder / "demo")
    shutil.rmtree(folder / "small")
    return folder


def truth_of(scene: Any) -> Any:
    """The scene's true depth maps."""
    for view in scene.views:
        yield view, DepthMap(torch.from_numpy(read_depth(view.depth_path)), view.camera)


@pytest.mark.slow
@pytest.mark.parametrize("block", {b.text: b for b in BLOCKS if b.runs}.values(), ids=lambda b: b.name)
def test_marked_blocks_run(
    block: Block, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("photos", "masks", "my-scene"):
        shutil.copytree(folders / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    before = commands_of(block.after)
    for words in before if block.language == "python" else [*before, *block.commands()]:
        assert words[0] == "gbinet" and cli.main(words[1:]) == 0, words
    if block.language == "python":
        subprocess.run([sys.executable, "-c", block.text], check=True)


# Pages with commands of gbinet that are parsed only.
PARSED_ONLY = {
    "README.md": "`.venv/bin/gbinet`; the page Start runs the same",
    "docs/benchmarks/designs.md": "weights of a training that takes 20 minutes on a GPU",
    "docs/how-to/evaluate.md": "DTU, Tanks and Temples, ETH3D",
    "docs/how-to/nerfstudio.md": "a folder of nerfstudio",
    "docs/how-to/train.md": "hours on a GPU; DTU and BlendedMVS",
    "docs/how-to/turntable.md": "the extra `mesh`",
    "docs/index.md": "`gbinet view` does not end",
    "docs/scale.md": "a cluster",
    "src/gbinet/weights/README.md": "hours on a GPU",
}


def test_what_can_run_is_marked() -> None:
    """A page whose commands are only parsed says why in the list above."""
    parsed_only = {b.page for b in SHELL if not b.runs and any(w[0].endswith("gbinet") for w in b.commands())}
    assert parsed_only == set(PARSED_ONLY)
    run = {words[1] for b in SHELL if b.runs for words in b.commands()}
    assert {"demo", "reconstruct", "depth", "fuse", "info", "convert", "evaluate", "render", "train"} <= run


# ---- the site ----


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strictly: a link or an anchor that leads nowhere is an error. No page fetches anything."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    fetched = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=\"?(https?://[^\s\">]+)")
    for page in tmp_path.rglob("*.html"):
        assert fetched.findall(page.read_text()) == [], page
    commands = (tmp_path / "reference" / "command-line.html").read_text()
    assert all(f"gbinet {verb}" in commands for verb in VERBS) and "--min-views" in commands
    assert "from_pretrained" in (tmp_path / "model-card.html").read_text()
