"""A kind of scene is one file and a line in a list: everything else follows from these."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import posed_folders as folders
import pytest
from exact_plane import make_plane_scene

from gbinet.cli import convert, info, options
from gbinet.cli.main import main
from gbinet.errors import SceneError
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.scenes import kinds, load_scene
from gbinet.scenes.kind import DepthMaps, Kind, ReadOptions, Writer

DOCS = Path(__file__).parents[2] / "docs" / "reference"


# ---- a kind that the package does not know: a file that says where the real scene is -----------------------


def recognise(folder: Path) -> bool:
    return (folder / "signpost.json").is_file()


def read(folder: Path, options: ReadOptions) -> Scene:
    target = json.loads((folder / "signpost.json").read_text())
    return replace(load_scene(target), kind="signpost", root=folder)


def write(scene: Scene, folder: Path, depth_maps: DepthMaps = (), cloud: PointCloud | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "signpost.json").write_text(json.dumps(str(scene.root)))
    return folder


SIGNPOST = Kind(
    "signpost",
    "signpost",
    "signpost.json",
    recognise,
    read,
    (Writer("signpost", write),),
    folders=("post",),
)


@pytest.fixture
def signpost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The line in the list; the modules below read it when they are imported."""
    with monkeypatch.context() as patch:
        patch.setattr(kinds, "KINDS", [*kinds.KINDS, SIGNPOST])
        for module in (options, info, convert):
            importlib.reload(module)
        yield
    for module in (options, info, convert):
        importlib.reload(module)


def test_a_new_kind_is_known_everywhere(
    tmp_path: Path, signpost: None, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = folders.mvsnet(tmp_path / "scene")
    post = tmp_path / "post"
    assert main(["convert", str(scene), str(post), "--to", "signpost"]) == 0
    assert load_scene(post).kind == "signpost"
    there = load_scene(post, kind="signpost")
    assert [v.image_path for v in there.views] == [v.image_path for v in load_scene(scene).views]
    assert main(["info", str(post)]) == main(["info", str(post), "--kind", "signpost"]) == 0
    assert "scene: signpost" in capsys.readouterr().out
    assert main(["convert", str(post), str(tmp_path / "back"), "--to", "mvsnet"]) == 0
    assert load_scene(tmp_path / "back").kind == "mvsnet"
    assert kinds.is_scene_folder("post")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(SceneError, match=r"signpost \(signpost.json\)"):
        load_scene(tmp_path / "nothing")


def test_without_its_line_it_is_unknown(tmp_path: Path) -> None:
    folder = write(make_plane_scene(tmp_path / "images")[0], tmp_path / "post")
    assert kinds.recognise(folder) is None and not kinds.is_scene_folder("post")
    with pytest.raises(SceneError, match="not a kind of scene"):
        load_scene(folder, kind="signpost")


# ---- the kinds that there are ------------------------------------------------------------------------------


def test_recognising_is_a_question_with_an_answer(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert kinds.recognise(tmp_path / "nothing") is None
    assert "is not a scene" in kinds.why_not(tmp_path / "nothing")
    for kind in ("mvsnet", "blendedmvs", "colmap", "nerfstudio", "rgbd"):
        found = kinds.recognise(getattr(folders, kind)(tmp_path / kind))
        assert found is not None and found.name == kind
    assert f"holds 5; give one of them: {tmp_path / 'blendedmvs'}" in kinds.why_not(tmp_path)
    horse = kinds.recognise(folders.mvsnet(tmp_path / "Horse"))
    assert horse is not None and horse.name == "tanks"
    blended_horse = kinds.recognise(folders.blendedmvs(tmp_path / "blended" / "Horse"))
    assert blended_horse is not None and blended_horse.name == "blendedmvs"
    photos = folders.mvsnet(tmp_path / "photos") / "images"
    bare = kinds.recognise(photos)
    assert bare is not None and bare.name == "photos" and not bare.posed
    with pytest.raises(SceneError, match="photos without camera poses"):
        load_scene(photos)


@pytest.mark.parametrize("make", [folders.mvsnet, folders.blendedmvs])
@pytest.mark.parametrize("kind", ["mvsnet", "blendedmvs"])
def test_either_layout_of_mvsnet_is_read_as_the_other(
    tmp_path: Path, make: Callable[[Path], Path], kind: str
) -> None:
    folder = make(tmp_path / "scene")
    own, named = load_scene(folder), load_scene(folder, kind=kind)
    assert [v.image_path for v in own.views] == [v.image_path for v in named.views]
    assert [v.depth_range for v in own.views] == [v.depth_range for v in named.views]


def test_names_are_given_once() -> None:
    names = [kind.name for kind in kinds.KINDS]
    assert len(names) == len(set(names))
    formats = [writer.name for kind in kinds.KINDS for writer in kind.writers]
    assert len(formats) == len(set(formats))


def test_the_pages_list_every_kind_and_every_format() -> None:
    def first_cells(page: str, heading: str) -> set[str]:
        part = (DOCS / page).read_text().split(heading, 1)[1].split("\n## ", 1)[0]
        cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("|")]
        return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}

    assert first_cells("scenes.md", "## Folder layouts") == {kind.name for kind in kinds.KINDS if kind.read}
    assert first_cells("formats.md", "## Converting") - {"--to"} == set(kinds.writers())
