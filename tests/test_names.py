"""Any name that a file system can hold: one home for how it is shown, and every verb works with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from PIL import Image

from gbinet.cli.main import main
from gbinet.names import MAX_BYTES, distinct_stems, file_stem, printable

ANY_TEXT = st.text(st.characters(exclude_characters="\0"))  # surrogates included
ANY_BYTES = st.binary(max_size=300).map(os.fsdecode)


@given(ANY_TEXT | ANY_BYTES)
def test_what_is_shown_is_one_printable_line_of_utf8(text: str) -> None:
    result = printable(text)
    assert result.isprintable() and result.encode().decode() == result
    assert printable(result) == result
    assert result == text or not text.isprintable()


def test_how_names_are_shown() -> None:
    assert printable("café [/b] <script>.jpg") == "café [/b] <script>.jpg"  # pages and tables escape it
    assert printable(os.fsdecode(b"caf\xe9.jpg")) == r"caf\xe9.jpg"
    assert printable("a\x1b[31m\nb") == r"a\x1b[31m\x0ab"
    assert printable("\ud800 \u202e") == r"\ud800 \u202e"


@given(ANY_TEXT | ANY_BYTES)
def test_a_stem_of_ours_is_a_name_that_any_file_can_have(text: str) -> None:
    stem = file_stem(text)
    assert stem.isprintable() and stem not in ("", ".", "..") and not set("/\\\0") & set(stem)
    assert len(stem.encode()) <= MAX_BYTES
    assert file_stem(stem) == stem and not stem.startswith(" ")


@given(st.lists(ANY_TEXT | ANY_BYTES | st.sampled_from(["a\n", "a%0A", "é" * 150]), max_size=8))
def test_stems_are_distinct(names: list[str]) -> None:
    stems = distinct_stems(names)
    assert len(set(stems)) == len(names)


# ---- every verb ----

NASTY = {
    "latin-1": os.fsdecode(b"caf\xe9"),
    "line end": "two\nlines",
    "escape sequence": "\x1b[31mred\x1b]0;title\x07",
    "markup": "[b]bold[/b][/i] :smile:",  # as folders: `[b]bold[`, `b][`, `i] :smile:`
    "page": "<script>alert(1)</script>",
    "long": "x" * 251,
    "bytes of a long name": "é" * 125,
}


def nasty_scene(folder: Path, name: str) -> Path:
    """Three photos of one plane, the first with an odd name, as transforms.json; with true depth."""
    name = name.replace("/", "-")
    (folder / "images").mkdir(parents=True)
    (folder / "true").mkdir()
    pattern = np.random.default_rng(0).integers(0, 256, (48, 120, 3), dtype=np.uint8)
    frames = []
    for index, stem in enumerate((name, "b", "c")):
        Image.fromarray(pattern[:, 12 * index : 12 * index + 64]).save(folder / "images" / f"{stem}.png")
        np.save(folder / "true" / f"{stem}.npy", np.full((48, 64), 4.0, np.float32))
        pose = np.eye(4)
        pose[0, 3] = 0.8 * index
        frames.append({"file_path": f"images/{stem}.png", "transform_matrix": pose.tolist()})
    for frame, stem in zip(frames, (name, "b", "c"), strict=True):
        frame["depth_file_path"] = f"true/{stem}.npy"
    top = {"fl_x": 60.0, "cx": 32.0, "cy": 24.0, "w": 64, "h": 48, "depth_unit_scale_factor": 1.0}
    (folder / "transforms.json").write_text(json.dumps({**top, "frames": frames}))
    return folder


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """All that went to the terminal, which takes UTF-8 and nothing else."""
    captured = capsys.readouterr()
    text = captured.out + captured.err
    odd = {c for c in text if not c.isprintable()} - {"\n"}
    assert text.encode() and not odd and "Traceback" not in text
    return text


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY)
def test_info_convert_and_fuse(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = nasty_scene(tmp_path / name[:120], name)
    assert main(["info", str(scene), "--picture", str(tmp_path / "a.png")]) == 0
    assert main(["fuse", str(scene), "-o", str(tmp_path / "p" / f"{name[:100]}.ply")]) == 0
    for kind in ("mvsnet", "colmap", "colmap-text", "colmap-dense", "nerfstudio", "openmvs"):
        assert main(["convert", str(scene), str(tmp_path / kind / name[:100]), "--to", kind]) == 0
        if kind != "openmvs":
            again = tmp_path / "again" / kind
            assert main(["convert", str(tmp_path / kind / name[:100]), str(again), "--to", "mvsnet"]) == 0
            assert len(list((again / "images").iterdir())) == 3
    text = printed(capsys)
    assert "3 views (nerfstudio -> mvsnet)" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY)
def test_reconstruct_depth_evaluate_and_view(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = nasty_scene(tmp_path / "s" / name[:120], name)
    out, only_depth = tmp_path / "o" / name[:120], tmp_path / "d" / name[:120]
    common = ["--max-size", "64", "--views", "2", "--device", "cpu"]
    keep_all = ["--min-views", "1", "--min-confidence", "0"]
    reconstruct = ["reconstruct", str(scene), "-o", str(out), *keep_all, *common]
    assert main(reconstruct) == 0
    assert main(["depth", str(scene), "-o", str(only_depth), "--stages-report", *common]) == 0
    assert main(["evaluate", "depth", str(only_depth), str(scene), "--unit", "m"]) == 0
    evaluate = ["evaluate", "depth", str(only_depth), str(scene / "true")]
    assert main([*evaluate, "--out", str(tmp_path / "e")]) == 0
    assert main(reconstruct) == 0
    text = printed(capsys)
    assert "3 depth maps were there already, 0 are new" in text
    record = json.loads((out / "run.json").read_text("utf-8"))
    assert Path(record["scene"]["root"]) == scene and scene.is_dir()
    report = (out / "report.html").read_text("utf-8")
    assert "<script>alert" not in report and "\x1b" not in report
    for path in (only_depth / "evaluation").glob("*.md"):
        assert path.read_text("utf-8").isprintable() or "\x1b" not in path.read_text("utf-8")
    from gbinet.cli import view

    found = view._scene(out, None, None)  # what `gbinet view` finds again through run.json
    assert found is not None and len(found.views) == 3


def test_half_a_surrogate_pair_costs_one_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON can hold names that no file system can."""
    scene = nasty_scene(tmp_path / "scene", "a")
    content = json.loads((scene / "transforms.json").read_text())
    extra = {**content["frames"][0], "file_path": "images/\ud800.png", "depth_file_path": "\ud800"}
    content["frames"].append(extra)
    content["frames"].append({**extra, "file_path": "y" * 300 + ".png"})
    (scene / "transforms.json").write_text(json.dumps(content))
    assert main(["info", str(scene)]) == 0
    assert main(["convert", str(scene), str(tmp_path / "out"), "--to", "colmap"]) == 0
    text = printed(capsys)
    assert r"left out images/\ud800.png" in text and "no file can have this name" in text
    assert "3 views (nerfstudio -> colmap)" in text


def test_an_error_names_the_file_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9\x1b[2J\nnew")
    assert main(["info", str(folder)]) == 2
    assert r"caf\xe9\x1b[2J\x0anew: there is no such folder" in printed(capsys)
