"""Designs of the network against each other: trained side by side on the same samples, scored alike.

    python benchmarks/ladder.py shipped choice --assets DIR --out OUT

Every rung is trained on the same batches (rendered once, handed to all) with the same seed, so that a
difference is the design's: from scratch, or with --start from weights whose tensors are taken as far as they
fit (networks that choose again begin with the choosers of their scale). A rung is a line in RUNGS. OUT gets
NAME.json, NAME.safetensors, a table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from _common import report
from safetensors.torch import load_file

from gbinet.model.config import PRESETS, GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.scenes.batch import Batch
from gbinet.training.config import TrainConfig
from gbinet.training.distributed import Processes
from gbinet.training.samples import open_stream, validation_batches
from gbinet.training.trainer import Trainer
from gbinet.training.validate import Validation, table, validate

# The network of the first bundled weights, without its refiner.
SHIPPED = replace(
    PRESETS["bundled"],
    refiner=False,
    refiner_sides=False,
    regulariser_width=GBiNetConfig.regulariser_width,
    context=False,
    choice_widths=(),
    choice_again=False,
    confidence="nearby",
    readout="smooth",
)
CHOICE = replace(SHIPPED, choice_widths=(64, 32, 16))
WIDE = replace(CHOICE, regulariser_width=(16, 16, 8, 8))
CONTEXT = replace(WIDE, context=True)
REFINED = replace(CONTEXT, refiner=True, refiner_sides=True, readout="refined")
LEARNED = replace(REFINED, confidence="learned")
AGAIN = PRESETS["bundled"]

RUNGS: dict[str, GBiNetConfig] = {
    "shipped": SHIPPED,
    "choice": CHOICE,
    "wide": WIDE,
    "context": CONTEXT,
    "refined": REFINED,
    "learned": LEARNED,
    "again": AGAIN,
}


def train_config(name: str, given: argparse.Namespace) -> TrainConfig:
    steps = given.samples // given.batch_size
    return TrainConfig(
        network=RUNGS[name],
        recover=True,
        assets=given.assets,
        dtu_like=True,  # as the validation set is
        zoom=given.zoom[1],
        least_zoom=given.zoom[0],
        width=given.size[0],
        height=given.size[1],
        batch_size=given.batch_size,
        seed=given.seed,
        warmup_steps=min(100, steps // 10),
        total_steps=steps,
        encode_twice=False,
        validation_scenes=given.scenes,
        tensorboard=False,
    )


class Rung:
    """One design in training, on a CUDA stream of its own."""

    def __init__(self, name: str, given: argparse.Namespace, device: torch.device) -> None:
        self.name = name
        self.config = train_config(name, given)
        out = given.out / "work" / name
        self.trainer = Trainer(self.config, out, Processes(), device, False, _Nothing(), [], None)
        if given.start is not None:
            _start(self.trainer.model, load_file(given.start))
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def step(self, batch: Batch) -> torch.Tensor:
        """One step; its measures [stages, M]."""
        fraction = self.trainer.fraction()
        if self.side is None:
            return self.trainer.train_step(batch, fraction)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            measures = self.trainer.train_step(batch, fraction)
        for tensor in batch.tensors():
            tensor.record_stream(self.side)
        return measures

    def score(self, samples: list[Batch], out: Path) -> Validation:
        if self.side is not None:
            self.side.synchronize()
        self.trainer.runner.release()
        model = self.trainer.shipped()
        model.save(out / f"{self.name}.safetensors", half=True)
        return validate(model, samples, self.config.network.stages)


def _start(model: GBiNet, given: dict[str, torch.Tensor]) -> None:
    """Tensors of other weights into a network, as far as they fit."""
    for at, scale in enumerate(model.config.scales_choosing_again):
        for again, other in (("again_choosers", "choosers"), ("again_weights", "choice_weights")):
            prefix = f"{other}.{scale - 1}."
            found = {k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)}
            given = {f"{again}.{at}.{k}": v for k, v in found.items()} | given
    own = model.state_dict()
    fits = {k: v.float() for k, v in given.items() if k in own and own[k].shape == v.shape}
    if not fits:
        raise SystemExit("none of the tensors of --start fits this network")
    print(f"{len(fits)} of {len(own)} tensors taken from the given weights", flush=True)
    model.load_state_dict(fits, strict=False)


class _Nothing:
    """Batches come from elsewhere."""

    steps_per_epoch = 0

    def batches(self, first_step: int) -> Iterator[Batch]:
        raise AssertionError("the ladder hands out the batches")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rungs", nargs="+", choices=RUNGS)
    parser.add_argument("--assets", type=Path, help="folder of objects and textures")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=24_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, nargs=2, default=(320, 256), help="width and height")
    parser.add_argument("--scenes", type=int, default=8, help="validation scenes")
    parser.add_argument("--validation-size", type=int, nargs=2, default=(1600, 1152))
    parser.add_argument("--zoom", type=float, nargs=2, default=(1, 5), help="least and most, see training")
    parser.add_argument("--start", type=Path, help="weights to start from; omit to start from scratch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0, help="stop training after so many; 0 = never")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    given.out.mkdir(parents=True, exist_ok=True)
    rungs = [Rung(name, given, device) for name in given.rungs]
    first = rungs[0].config
    batches = open_stream(first, Processes(), device).batches(0)
    began = shown = time.monotonic()
    for step in range(first.total_steps):
        batch = next(batches).to(device, non_blocking=True)
        measures = [rung.step(batch) for rung in rungs]
        if time.monotonic() - shown > 20 or step == 3:
            for rung in rungs:
                if rung.side is not None:
                    rung.side.synchronize()
            shown = time.monotonic()
            entropies = [f"{float(m[-1, 2] / m[-1, 0]):.3f}" for m in measures]
            failures = {r.trainer.runner.failure for r in rungs if r.trainer.runner.failure}
            progress = f"step {step + 1}, {shown - began:.0f} s, loss of the last stage {entropies}"
            print(progress, failures or "", flush=True)
        if given.minutes and time.monotonic() - began > 60 * given.minutes:
            print(f"stopped after {step + 1} of {first.total_steps} steps: the minutes are over", flush=True)
            break
    seconds = time.monotonic() - began
    samples = list(validation_batches(first, device, tuple(given.validation_size)))
    figures: dict[str, object] = {"seconds for all": seconds, "samples": given.samples}
    for rung in rungs:
        result = rung.score(samples, given.out)
        (given.out / f"{rung.name}.json").write_text(json.dumps(result.to_dict(), indent=1))
        print(f"\n{rung.name}\n{table(result, rung.config.network.stages)}", flush=True)
        figures[rung.name] = {
            "mean of the shares": round(100 * result.score, 2),
            "away from edges": [round(100 * share, 1) for share in result.final.within.values()],
            "all": [round(100 * share, 1) for share in result.all_pixels.within.values()],
            "edge band": [round(100 * share, 1) for share in result.edge_band.within.values()],
        }
    report("ladder", figures, str(given.out / "ladder.json"))


if __name__ == "__main__":
    main()
