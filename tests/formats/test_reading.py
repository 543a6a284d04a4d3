"""Only regular files are opened, and none is unpacked beyond the limit: no hang, no crash, no swelling."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from time_limit import time_limit

from gbinet.errors import FormatError, InputError
from gbinet.formats import colmap_binary, colmap_text
from gbinet.formats.depth_files import read_confidence, read_depth
from gbinet.formats.dtu import read_plane
from gbinet.formats.image import image_size, read_image, read_mask
from gbinet.formats.limits import VARIABLE, max_unpacked
from gbinet.formats.meshlab import read_meshlab
from gbinet.formats.mvsnet import read_cam, read_pairs
from gbinet.formats.nerfstudio import read_transforms
from gbinet.formats.ply import read_ply
from gbinet.formats.reading import is_file, names_in, read_json
from gbinet.formats.rgbd import read_intrinsics, read_poses
from gbinet.formats.tanks import read_crop, read_log

READERS: dict[str, Callable[[Path], object]] = {
    "a.png": read_image,
    "size.jpg": image_size,
    "mask.png": lambda path: read_mask(path, (4, 4)),
    **{f"depth{s}": read_depth for s in (".npz", ".npy", ".pfm", ".png", ".tif", ".bin", ".dmap")},
    "confidence.npz": read_confidence,
    "K.txt": read_intrinsics,
    "poses.txt": read_poses,
    "0_cam.txt": read_cam,
    "pair.txt": read_pairs,
    "transforms.json": read_transforms,
    "crop.json": read_crop,
    "a.json": read_json,
    "a.log": read_log,
    "a.ply": read_ply,
    "a.mlp": read_meshlab,
    "a.mat": read_plane,
    "cameras.bin": colmap_binary.read_cameras,
    "images.txt": colmap_text.read_images,
}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path)


def folder(path: Path) -> None:
    path.mkdir()


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path.relative_to(Path.cwd())))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes among the files of this system")
@pytest.mark.parametrize("make", [fifo, device, circle, folder, listening])
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_opened(
    name: str, make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket has at most 108 bytes
    path = tmp_path / name
    make(path)
    with time_limit(10), pytest.raises(FormatError) as caught:
        READERS[name](path)
    assert caught.value.path == path and not is_file(path)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    assert not is_file(tmp_path / name)
    with pytest.raises(FormatError):
        read_image(tmp_path / name)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 10_000, "\xff", "", "nul"])
def test_json_of_any_kind_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match="JSON"):
        read_json(tmp_path / "a.json")


def test_a_number_without_bounds_in_a_crop(tmp_path: Path) -> None:
    corner = [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    content = {"orthogonal_axis": "Z", "axis_min": 0, "axis_max": 10**400, "bounding_polygon": corner}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(FormatError, match="axis_max"):
        read_crop(tmp_path / "a.json")


# ---- what unpacks ----


def bombs(folder: Path) -> dict[Path, Callable[[Path], object]]:
    """Small files that unpack to 36 MiB and more."""
    side = 3000
    Image.new("RGBA", (side, side)).save(folder / "rgba.png")
    Image.fromarray(np.zeros((4400, 4400), np.uint16)).save(folder / "wide.png")
    Image.new("RGB", (side, side)).save(folder / "a.tif", compression="tiff_deflate")
    Image.new("RGB", (side, side)).save(folder / "a.jpg")
    Image.new("RGB", (side, side)).save(folder / "a.webp")
    Image.fromarray(np.zeros((side, side), np.float32)).save(folder / "d.tif", compression="tiff_deflate")
    np.savez_compressed(folder / "d.npz", depth=np.zeros((side, side), np.float32))
    with zipfile.ZipFile(folder / "c.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("confidence.npy", bytes(1 << 26))
    found = {path: read_image for path in folder.iterdir() if path.name[0] in "rwa"}
    return {
        **found,
        folder / "d.tif": read_depth,
        folder / "d.npz": read_depth,
        folder / "c.npz": read_confidence,
    }


def test_what_unpacks_to_too_much_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = bombs(tmp_path)
    monkeypatch.setenv(VARIABLE, "0.03")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path, read in found.items():
        assert path.stat().st_size < 1 << 20
        with pytest.raises(FormatError, match=rf"would unpack to .* GiB.*{VARIABLE}=1") as caught:
            read(path)
        assert caught.value.path == path
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024
    monkeypatch.setenv(VARIABLE, "0.2")  # the user's word counts
    for path, read in found.items():
        if path.name != "c.npz":  # holds no array
            read(path)


@pytest.mark.parametrize("text", ["nan", "-1", "0", "much", "inf"])
def test_a_limit_that_is_not_a_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(InputError, match=VARIABLE):
        max_unpacked()


def test_photos_of_200_megapixels_are_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert max_unpacked() >= 4 * 200_000_000


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "I;16", "L"])
def test_a_large_photo_takes_what_it_needs(mode: str, tmp_path: Path) -> None:
    """The decoded picture (4 bytes per pixel at most) and the result (3), and no further copies."""
    pixels = 9000 * 8000
    shape = (8000, 9000, *{"RGB": (3,), "RGBA": (4,)}.get(mode, ()))
    kind = np.uint16 if mode == "I;16" else np.uint8
    Image.fromarray(np.zeros(shape, kind)).save(tmp_path / "a.png", compress_level=1)
    code = (
        "import resource, sys; from pathlib import Path; from gbinet.formats.image import read_image\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = used(); read_image(Path(sys.argv[1])); print(used() - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.png")]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 8 * pixels


def test_names_of_a_record_stay_below_its_folder() -> None:
    names = ["a.jpg", "b/c.jpg", "../x", "/etc/passwd", "b/../../x", "", ".", "./.", "a\0b", 5, None, ["d"]]
    assert names_in({"files": names}, "files") == ["a.jpg", "b/c.jpg"]
    for damaged in ({}, {"files": 5}, {"files": None}, {"files": "abc"}, {"files": {"a": 1}}):
        assert names_in(damaged, "files") == []
