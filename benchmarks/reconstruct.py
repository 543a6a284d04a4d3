"""Measures `gbinet reconstruct` end to end on a rendered scene: time of each part, and peak memory.

    python benchmarks/reconstruct.py                                     # 9 views at 640x512, on the CPU
    python benchmarks/reconstruct.py --device cuda --views 49 --size 1600x1152
    python benchmarks/reconstruct.py --device cuda --views 500 --size 1152x864 --repeat 1
    python benchmarks/reconstruct.py --old ../other-clone                # compared with this source tree

The scene is rendered first, in a separate process, and not counted. Each run is a separate process, and each
source tree starts with an empty cache of kernels, so its first run includes compilation. Times are wall-clock
times from the call to the report, without starting Python. The timeline shows when each part was at work, in
all threads together and in the main thread.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import os
import pstats
import resource
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from _common import peak_memory_mib, report
from _timeline import RECONSTRUCT, Timeline

from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.reconstruct import preset, run
from gbinet.render.write import WriteConfig, write_dataset

HERE = Path(__file__).resolve().parents[1]


def rendered(options: argparse.Namespace) -> dict[str, object]:
    """Write the scene: photos (JPEG), cameras and pairs as an MVSNet folder."""
    width, height = (int(side) for side in options.size.split("x"))
    config = WriteConfig(
        scenes=1, views=options.views, width=width, height=height, kind="table", seed=options.seed
    )
    (scene,) = write_dataset(options.folder / "scene", config, device=options.device)
    return {"scene": str(scene)}


def kernels_in_the_cache() -> int:
    """Whoever compiled them: this process or others."""
    return sum(1 for _ in Path(os.environ["TRITON_CACHE_DIR"]).glob("*/*.cubin"))


def processor_seconds(whose: int) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def measured(options: argparse.Namespace) -> dict[str, object]:
    """Reconstruct it, once, as the command line does."""
    with suppress(ImportError):  # an older tree
        from gbinet.cli.allocator import keep_freed_memory

        keep_freed_memory()
    logging.basicConfig(level=logging.INFO)  # why kernels could not be compiled beforehand, say
    base = preset("balanced")
    longer = max(int(side) for side in options.size.split("x"))
    depth = replace(base.depth, max_size=longer, views=options.sources + 1, device=options.device)
    scene = next((options.folder / "scene").glob("scene*"))
    profile, kernels = cProfile.Profile(), kernels_in_the_cache()
    with tempfile.TemporaryDirectory(dir=options.folder) as out:
        model = GBiNet.from_pretrained(options.weights)
        torch.zeros(1, device=options.device)  # starting CUDA is not ours
        memory, compiling = peak_memory_mib(), processor_seconds(resource.RUSAGE_CHILDREN)
        before, timeline = resource.getrusage(resource.RUSAGE_SELF), Timeline(RECONSTRUCT)
        if options.profile:
            profile.enable()
        with timeline.watching():
            result = run(scene, model, Path(out), replace(base, depth=depth))
        profile.disable()
        total, after = timeline.ended - timeline.began, resource.getrusage(resource.RUSAGE_SELF)
        record = json.loads((Path(out) / "run.json").read_text())
        stored = sum(file.stat().st_size for file in (Path(out) / "depth").glob("*.npz"))
    if options.profile:
        for order in ("tottime", "cumulative"):
            pstats.Stats(profile, stream=sys.stderr).sort_stats(order).print_stats(35)
    seconds, maps, views = record["seconds"], result.depth, len(result.scene.views)
    steps = {name: spent for name, spent in seconds.items() if name != "total"}
    figures: dict[str, object] = {
        "points": result.points,
        "precision": maps.precision,
        "seconds": round(total, 2),
        "seconds per view": round(total / views, 4),
        "seconds of steps": {**steps, "everything else": round(total - sum(steps.values()), 3)},
        "seconds in the network": round(maps.network_seconds, 2),
        "share of all not in the network": round(1 - maps.network_seconds / total, 4),
        "processor seconds (user, system)": [
            round(after.ru_utime - before.ru_utime, 2),
            round(after.ru_stime - before.ru_stime, 2),
        ],
        "kernels compiled": kernels_in_the_cache() - kernels,
        "processor seconds of other processes": round(
            processor_seconds(resource.RUSAGE_CHILDREN) - compiling, 1
        ),
        "images": views,
        "images encoded": maps.encoded,
        "images encoded again": maps.encoded_again,
        "MiB of depth maps": round(stored / 2**20),
        "peak MiB": round(peak_memory_mib()),
        "of this before the run": round(memory),
        "timeline": timeline.table(),
    }
    if options.device.startswith("cuda"):
        figures["peak GPU MiB"] = round(torch.cuda.max_memory_allocated() / 2**20)
        figures["peak GPU MiB, reserved"] = round(torch.cuda.max_memory_reserved() / 2**20)
    return figures


def _shown(found: dict[str, object]) -> str:
    """The figures of a run on a line, and its timeline as a table."""
    numbers = {name: value for name, value in found.items() if name != "timeline"}
    lines = found.get("timeline", [])
    return "\n".join([json.dumps(numbers), *(lines if isinstance(lines, list) else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--views", type=int, default=9, help="photos of the scene")
    parser.add_argument("--sources", type=int, default=4, help="source views per depth map")
    parser.add_argument("--size", default="640x512", help="WIDTHxHEIGHT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=2, help="runs, each in a process of its own")
    parser.add_argument("--weights", default=None, help="file or name; default: the bundled weights")
    parser.add_argument("--old", type=Path, help="another tree, measured in turns with this one")
    parser.add_argument(
        "--profile", action="store_true", help="show where the main thread spends the last run"
    )
    parser.add_argument("--folder", type=Path, help="folder for the scene; one that is there is used again")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--step", choices=("render", "run"), help=argparse.SUPPRESS)  # inside a process
    options = parser.parse_args()
    if options.step is not None:
        print(json.dumps((rendered if options.step == "render" else measured)(options)))
        return
    trees = {"old": options.old.resolve(), "new": HERE} if options.old else {"this tree": HERE}
    given = [word for word in sys.argv[1:] if word != "--profile"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)

        def child(step: str, tree: Path, name: str, *more: str) -> dict[str, object]:
            command = [sys.executable, __file__, *given, "--folder", str(folder), "--step", step, *more]
            cache = str(Path(temporary) / f"kernels-{name}")
            environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "TRITON_CACHE_DIR": cache}
            if "OMP_WAIT_POLICY" not in environment:  # as the command line does
                environment["OMP_WAIT_POLICY"] = "passive"
                environment.setdefault("GOMP_SPINCOUNT", "1000")
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            found: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
            return found

        if not (folder / "scene").exists():
            child("render", HERE, "render")
        figures: dict[str, object] = {"size": options.size, "photos per depth map": options.sources + 1}
        for number in range(options.repeat):
            last = ["--profile"] if options.profile and number == options.repeat - 1 else []
            for name, tree in trees.items():
                found = child("run", tree, name, *last)
                figures[f"{name}, run {number + 1}"] = found
                print(f"{name}, run {number + 1}: {_shown(found)}", file=sys.stderr, flush=True)
    report("reconstruct", figures, options.out)


if __name__ == "__main__":
    main()
