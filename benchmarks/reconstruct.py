"""`gbinet reconstruct` end to end on a rendered scene: where the time goes, and the peak memory.

    python benchmarks/reconstruct.py                                     # 9 views at 640x512, on the CPU
    python benchmarks/reconstruct.py --device cuda --views 49 --size 1600x1152

The scene is rendered first, by a process of its own, and not counted. Seconds are of the whole run: reading
photos, depth, fusion, report. The first run includes what a first run costs (kernels that are compiled).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from _common import peak_memory_mib, report

from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.reconstruct import preset, run
from gbinet.render.write import WriteConfig, write_dataset


def rendered(options: argparse.Namespace) -> dict[str, object]:
    """Write the scene: photos (JPEG), cameras and pairs as an MVSNet folder."""
    width, height = (int(side) for side in options.size.split("x"))
    config = WriteConfig(
        scenes=1, views=options.views, width=width, height=height, kind="table", seed=options.seed
    )
    (scene,) = write_dataset(options.folder / "scene", config, device=options.device)
    return {"scene": str(scene)}


def measured(options: argparse.Namespace) -> dict[str, object]:
    """Reconstruct it, once."""
    base = preset("balanced")
    longer = max(int(side) for side in options.size.split("x"))
    depth = replace(base.depth, max_size=longer, views=options.sources + 1, device=options.device)
    scene = next((options.folder / "scene").glob("scene*"))
    with tempfile.TemporaryDirectory(dir=options.folder) as out:
        model = GBiNet.from_pretrained(options.weights)
        result = run(scene, model, Path(out), replace(base, depth=depth))
        record = json.loads((Path(out) / "run.json").read_text())
    seconds, maps = record["seconds"], result.depth
    total, views = result.seconds, len(result.scene.views)
    figures: dict[str, object] = {
        "points": result.points,
        "precision": maps.precision,
        "seconds": round(total, 2),
        "seconds per view": round(total / views, 4),
        "depth, seconds per view": round(maps.seconds / views, 4),
        "fusion, seconds per view": round(seconds["fusion"] / views, 4),
        "seconds in the network": round(maps.network_seconds, 2),
        "share of depth not in the network": round(1 - maps.network_seconds / maps.seconds, 4),
        "share of all not in the network": round(1 - maps.network_seconds / total, 4),
        "images": views,
        "images encoded": maps.encoded,
        "images encoded again": maps.encoded_again,
        "peak MiB": round(peak_memory_mib()),
    }
    if options.device.startswith("cuda"):
        figures["peak GPU MiB"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--views", type=int, default=9, help="photos of the scene")
    parser.add_argument("--sources", type=int, default=4, help="source views per depth map")
    parser.add_argument("--size", default="640x512", help="WIDTHxHEIGHT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=2, help="runs, each in a process of its own")
    parser.add_argument("--weights", default=None, help="file or name; default: the bundled weights")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=("render", "run"), help=argparse.SUPPRESS)  # inside a process
    options = parser.parse_args()
    if options.step is not None:
        print(json.dumps((rendered if options.step == "render" else measured)(options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--folder", folder, "--step"]

        def child(step: str) -> dict[str, object]:
            answer = subprocess.run([*command, step], check=True, stdout=subprocess.PIPE, text=True)
            found: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
            return found

        child("render")
        figures: dict[str, object] = {"size": options.size, "photos per depth map": options.sources + 1}
        figures.update({f"run {number + 1}": child("run") for number in range(options.repeat)})
    report("reconstruct", figures, options.out)


if __name__ == "__main__":
    main()
