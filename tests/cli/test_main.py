"""The command line's front door: quick, and errors in one sentence."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from gbinet import __version__
from gbinet.cli import main as front
from gbinet.cli.completion import below, help_of
from gbinet.cli.main import VERBS, main
from gbinet.errors import SceneError

HEAVY = ("torch", "numpy", "PIL", "pycolmap", "tyro", "rich", "safetensors")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], [], ["--version"], ["nonsense"]])
def test_the_front_door_imports_nothing_heavy(arguments: list[str]) -> None:
    """`gbinet --help` answers at once because it does not even import torch."""
    code = (
        "import sys; from gbinet.cli.main import main\n"
        f"main({arguments!r})\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_gbinet_imports_nothing_heavy() -> None:
    code = f"import sys, gbinet; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


OTHERS = (
    "pycolmap",
    "scipy",
    "tensorboard",
    "viser",
    "open3d",
    "trimesh",
    "plyfile",
    "matplotlib",
    "gbinet_research",
)


@pytest.mark.parametrize("verb", ["train", "validate"])
def test_training_needs_few_packages(verb: str, tmp_path: Path) -> None:
    """A machine that trains has torch, numpy, pillow, safetensors and rich; tyro comes along in a folder."""
    train = """train --out run --size 64x64 --views 2 --batch-size 1 --stages 1 --total-steps 1
        --zoom 1 --dtu-like --precision float32 --validation-scenes 0"""
    arguments = {"train": train.split(), "validate": ["validate", "--help"]}[verb]
    code = f"""
import sys
for name in {OTHERS!r}:
    sys.modules[name] = None  # importing it fails
from gbinet.cli.main import main
sys.exit(main({arguments!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert verb != "train" or (tmp_path / "run" / "last.safetensors").is_file()


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown and text in shown for verb, text in front.VERBS.items())


def test_every_verb_has_a_module() -> None:
    modules = {p.stem for p in Path(front.__file__).parent.glob("*.py")}
    assert set(front.VERBS) <= modules


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gbinet {__version__}\n"


def test_python_runs_the_package_like_the_command() -> None:
    for arguments, code in ((["--version"], 0), (["nonsense"], 2)):
        done = subprocess.run([sys.executable, "-m", "gbinet", *arguments], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "gbinet" in done.stdout + done.stderr


def test_an_unknown_verb_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main(["recnstruct"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "there is no verb 'recnstruct'. Did you mean" in captured.err
    assert "usage: gbinet VERB" in captured.err


def as_verb(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException | None, signalled: signal.Signals | None = None
) -> None:
    """Put a verb `broken` beside the real ones."""

    def run(folder: Path, count: int = 3) -> None:
        """Do it.

        Args:
            folder: where.
            count: how often.
        """
        if failure is not None:
            raise failure
        if signalled is not None:
            os.kill(os.getpid(), signalled)
        print(f"{folder} {count}")

    module = ModuleType("gbinet.cli.broken")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gbinet.cli.broken", module)
    monkeypatch.setitem(front.VERBS, "broken", "fail on purpose")


def test_a_verb_gets_its_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    as_verb(monkeypatch, None)
    assert front.main(["broken", "--folder", "here", "--count", "5"]) == 0
    assert capsys.readouterr().out == "here 5\n"


@pytest.mark.parametrize(
    ("failure", "code", "says"),
    [
        (SceneError("folder x: no images"), 2, "gbinet broken: folder x: no images\n"),
        (FileNotFoundError(2, "No such file or directory", "x.jpg"), 2, "x.jpg"),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), 2, "not enough memory"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_errors_end_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    code: int,
    says: str,
) -> None:
    as_verb(monkeypatch, failure)
    assert front.main(["broken", "--folder", "x"]) == code
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error
    assert len(error.strip().splitlines()) == 1


def test_ctrl_c_while_a_verb_is_still_loading_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loading(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(front, "_run", loading)
    assert front.main(["info", "x"]) == 130
    assert capsys.readouterr().err.strip() == "gbinet info: stopped"


def test_sigterm_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_verb(monkeypatch, None, signal.SIGTERM)
    monkeypatch.setitem(front.GO_ON, "broken", "Go on.")
    before = signal.getsignal(signal.SIGTERM)
    assert front.main(["broken", "--folder", "x"]) == 143
    assert signal.getsignal(signal.SIGTERM) is before
    said = capsys.readouterr()
    assert said.out == "" and said.err == "\ngbinet broken: stopped by SIGTERM. Go on.\n"


@pytest.mark.parametrize("verb", ["train", "demo"])
@pytest.mark.parametrize("size", ["0x0", "big", "640"])
def test_an_impossible_size_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], verb: str, size: str, tmp_path: Path
) -> None:
    assert front.main([verb, "-o", str(tmp_path / "out"), "--size", size]) == 2
    error = capsys.readouterr().err
    assert f"--size is WIDTHxHEIGHT in pixels, for example 1600x1152, not '{size}'" in error
    assert error.count("\n") == 1


def test_only_verbs_that_keep_their_work_say_so() -> None:
    assert set(front.GO_ON) < set(VERBS)
    assert "--resume" in front.GO_ON["train"] and "validate" not in front.GO_ON
    assert "DTU" in front.GO_ON["evaluate"]  # the only evaluation that keeps what is finished


def test_outside_the_main_thread_signals_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_verb(monkeypatch, None)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(front.main(["broken", "--folder", "here"])))
    thread.start()
    thread.join()
    assert codes == [0] and capsys.readouterr().out == "here 3\n"


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    as_verb(monkeypatch, SceneError("folder x: no images"))
    with pytest.raises(SceneError):
        front.main(["broken", "--folder", "x", "--debug"])


def test_wrong_options_end_in_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_verb(monkeypatch, None)
    with pytest.raises(SystemExit) as stopped:
        front.main(["broken", "--folder", "x", "--nonsense"])
    assert stopped.value.code == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--depth-scale", "--mesh-voxel"])
def test_numbers_that_are_none_are_refused_also_where_they_are_not_needed(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.main(["fuse", str(tmp_path), "-o", str(tmp_path / "out"), flag, "nan"]) == 2
    assert f"{flag} must be positive" in capsys.readouterr().err


def test_alone_it_shows_what_most_people_want(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("  gbinet")] == [
        "demo",
        "reconstruct",
        "view",
    ]


@pytest.mark.parametrize(("quality", "size", "pixels"), [("fast", "640", "1.0"), ("best", "1920", "0.75")])
def test_defaults_are_those_of_the_quality(quality: str, size: str, pixels: str) -> None:
    """As the help shows them."""
    shown = " ".join(help_of("reconstruct", "-q", quality).split())
    assert re.search(rf"--max-size INT [^()]*\(default: {size}\)", shown)
    assert re.search(rf"--max-reprojection FLOAT [^()]*\(default: {pixels}\)", shown)


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """`--help` of all verbs, on a screen on which no line has to be broken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "900")
        return {
            " ".join([verb, *name]): help_of(verb, *name)
            for verb in VERBS
            for name in [[name] for name in below(verb)] or [[]]
        }


DIFFERENT = {"--precision"}  # training has fewer


def test_one_option_has_one_meaning(helps: dict[str, str]) -> None:
    """It takes the same wherever it is found; what is on or off is so by --NAME and --no-NAME."""
    taken: dict[str, dict[str, str]] = {}
    for verb, shown in helps.items():
        assert "{True,False}" not in shown, verb
        for flag, what in re.findall(r"^\W*(?:-\w \S+, )?(--[a-z-]+)((?: \S+)*?)(?:  |\W*$)", shown, re.M):
            taken.setdefault(flag, {})[verb] = what.strip()
    assert taken["--max-size"]["depth"] == "INT" and taken["--out"]["fuse"] == "PATH"
    assert {f: uses for f, uses in taken.items() if len(set(uses.values())) > 1 and f not in DIFFERENT} == {}


def test_texts_flow(helps: dict[str, str]) -> None:
    """Where a text is broken in the source, it is not broken on the screen."""
    for verb, shown in helps.items():
        # A line of text alone belongs to an option that leaves it no room, not to a line of text above it.
        lines = pairwise(line.rstrip() for line in shown.splitlines())
        broken = [text for before, text in lines if text.startswith(" " * 12) and "  " in before.strip()]
        assert broken == [] or verb == "train", verb  # whose options stand in two columns on a wide screen
        assert "(default: )" not in shown, verb


def test_a_file_in_place_of_a_folder_is_called_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("none of them")
    for verb in (["info"], ["reconstruct", "-o", str(tmp_path / "out")]):
        assert main([*verb, str(tmp_path / "notes.txt")]) == 2
        assert "notes.txt: is a file, not a folder" in capsys.readouterr().err
        assert main([*verb, str(tmp_path)]) == 2
        assert "it holds no photos that can be read" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_verbs_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", shell]) == 0
    script = capsys.readouterr().out
    if shell == "zsh":
        assert "bashcompinit" in script
        return
    asked = 'COMP_WORDS=(gbinet reconstruct --min-v); COMP_CWORD=2; _gbinet; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--min-views"]
    assert main(["--completion", "fish"]) == 2


@pytest.mark.parametrize("flag", ["--data", "--assets"])
def test_training_says_at_once_that_a_folder_is_missing(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--preset", "rendered", "--out", str(tmp_path), flag, "/nowhere"]) == 2
    assert f"{flag} /nowhere: there is no such" in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb", ["reconstruct", "depth", "fuse", "view", "info", "convert", "render", "validate"]
)
def test_help_names_what_an_option_takes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert "--" in shown and "None" not in shown
