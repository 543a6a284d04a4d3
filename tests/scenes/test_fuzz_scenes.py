"""Whole folders with one mutated file: a scene or one of our errors, never anything else, never a hang."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import posed_folders as folders
import pytest
from time_limit import time_limit

from gbinet.errors import GBiNetError
from gbinet.scenes import load_scene

SECONDS = 20.0  # for one small scene, on a busy machine


def distorted_colmap(folder: Path) -> Path:
    return folders.colmap(folder, camera=(4, [60.0, 61, 31, 25, -0.1, 0.01, 0.001, 0]))


def distorted_nerfstudio(folder: Path) -> Path:
    return folders.nerfstudio(folder, k1=-0.1, p1=0.001)


# Which files of which shape are mutated.
TARGETS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "colmap": (distorted_colmap, ["sparse/0/cameras.bin", "sparse/0/images.bin", "sparse/0/points3D.bin"]),
    "nerfstudio": (distorted_nerfstudio, ["transforms.json"]),
    "mvsnet": (folders.mvsnet, ["cams/00000001_cam.txt", "pair.txt"]),
    "rgbd": (folders.rgbd, ["K.txt", "poses.txt", "depth/00001.png", "images/00002.jpg"]),
}


def mutated(data: bytes, chance: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(chance.choice([1, 1, 3])):
        at = chance.randrange(len(result))
        kind = chance.randrange(4)
        if kind == 0:
            result[at] = chance.randrange(256)
        elif kind == 1:
            result[at : at + 8] = chance.choice([b"\xff" * 8, b"\0" * 8, b"9" * 8, b"-1 1e300"])
        elif kind == 2:
            result[at] = ord(chance.choice("0123456789-e. "))
        elif len(result) > 20:
            del result[at : at + chance.randrange(1, 10)]
    return bytes(result)


def fuzz(kind: str, folder: Path, count: int) -> int:
    make, names = TARGETS[kind]
    make(folder / "scene")
    load_scene(folder / "scene", cache=folder / "cache")
    chance = random.Random(kind)
    refused = 0
    for number in range(count):
        path = folder / "scene" / names[number % len(names)]
        original = path.read_bytes()
        path.write_bytes(mutated(original, chance))
        try:
            with time_limit(SECONDS):
                load_scene(folder / "scene", cache=folder / "cache")
        except GBiNetError:
            refused += 1
        finally:
            path.write_bytes(original)
            shutil.rmtree(folder / "cache", ignore_errors=True)
    return refused


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", TARGETS)
def test_mutated_scenes(kind: str, tmp_path: Path) -> None:
    fuzz(kind, tmp_path, 40)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", TARGETS)
def test_many_mutated_scenes(kind: str, tmp_path: Path) -> None:
    assert fuzz(kind, tmp_path, 1000) > 50
