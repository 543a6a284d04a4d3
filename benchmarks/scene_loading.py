"""Measures how long scenes take to load: `python benchmarks/scene_loading.py [--views 1000] [--out FILE]`.

The scenes are generated: an MVSNet folder of JPEG files with pair.txt, the same without pair.txt (ranked by
geometry), and a COLMAP model with tracks (ranked by tracks). Only the headers of images are read, so the
number of files matters, but not their size in pixels. Times are the best of several runs, with their CPU
time.
"""

from __future__ import annotations

import argparse
import shutil
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import report
from PIL import Image

from gbinet.scenes import load_scene


def pose(index: int, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Cameras on three rings around the origin, looking at it."""
    angle = 6 * np.pi * index / count
    centre = np.array([5 * np.sin(angle), 0.5 * (3 * index // count) - 0.5, -5 * np.cos(angle)])
    forward = -centre / np.linalg.norm(centre)
    right = np.cross([0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right)
    matrix = np.eye(4)
    matrix[:3, :3] = [right, np.cross(forward, right), forward]
    matrix[:3, 3] = -matrix[:3, :3] @ centre
    return matrix


def make_mvsnet(folder: Path, count: int) -> None:
    (folder / "images").mkdir(parents=True)
    (folder / "cams").mkdir()
    Image.fromarray(np.zeros((480, 640, 3), np.uint8)).save(folder / "images" / "00000000.jpg")
    lines = [str(count)]
    for view in range(count):
        if view:
            shutil.copyfile(folder / "images" / "00000000.jpg", folder / "images" / f"{view:08d}.jpg")
        rows = "\n".join(" ".join(f"{v:.9g}" for v in row) for row in pose(view, count))
        text = f"extrinsic\n{rows}\n\nintrinsic\n600 0 320\n0 600 240\n0 0 1\n\n2.0 0.02\n"
        (folder / "cams" / f"{view:08d}_cam.txt").write_text(text)
        sources = " ".join(f"{(view + k) % count} {100 / k:.3f}" for k in range(1, 11))
        lines += [str(view), f"10 {sources}"]
    (folder / "pair.txt").write_text("\n".join(lines) + "\n")


def make_colmap(folder: Path, images: Path, count: int, points: int, track: int) -> None:
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    shutil.copytree(images, folder / "images")
    camera = struct.pack("<QIiQQ4d", 1, 1, 1, 640, 480, 600, 600, 320, 240)
    (model / "cameras.bin").write_bytes(camera)
    # Quaternions of rotations about y are enough here.
    rows = [struct.pack("<Q", count)]
    for view in range(count):
        half = 3 * np.pi * view / count
        record = struct.pack("<I7dI", view, np.cos(half), 0, np.sin(half), 0, 0, 0, 5, 1)
        rows.append(record + f"{view:08d}.jpg".encode() + b"\0" + struct.pack("<Q", 0))
    (model / "images.bin").write_bytes(b"".join(rows))
    generator = np.random.default_rng(0)
    xyz = generator.uniform(-1, 1, (points, 3))
    start = generator.integers(0, count, points)
    with (model / "points3D.bin").open("wb") as file:
        file.write(struct.pack("<Q", points))
        for index in range(points):
            file.write(struct.pack("<Q3d3BdQ", index, *xyz[index], 1, 2, 3, 0.5, track))
            seen = (start[index] + np.arange(track)) % count
            file.write(np.stack([seen, seen], 1).astype("<u4").tobytes())


def seconds(folder: Path, repeats: int) -> dict[str, float]:
    """The best of several: the machine may be shared."""
    times = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        load_scene(folder)
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    best = min(times)
    return {"wall_s": round(best[0], 3), "cpu_s": round(best[1], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--views", type=int, default=1000)
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--track", type=int, default=8, help="views that see each point")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: dict[str, object] = {
        "views": options.views,
        "points": options.points,
        "track_length": options.track,
        "target_wall_s_of_mvsnet": 2.0,
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_mvsnet(folder / "mvsnet", options.views)
        figures["mvsnet"] = seconds(folder / "mvsnet", options.repeats)
        (folder / "mvsnet" / "pair.txt").unlink()
        figures["mvsnet_ranked_by_geometry"] = seconds(folder / "mvsnet", options.repeats)
        images = folder / "mvsnet" / "images"
        make_colmap(folder / "colmap", images, options.views, options.points, options.track)
        figures["colmap_ranked_by_tracks"] = seconds(folder / "colmap", options.repeats)
    report("scene_loading", figures, options.out)


if __name__ == "__main__":
    main()
