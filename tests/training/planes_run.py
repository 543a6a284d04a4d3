"""A short run on planes, started by torchrun from test_distributed.py: OUT STEPS BATCH_SIZE MODE."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from plane_scenes import PlaneSource

from gbinet.model.config import GBiNetConfig
from gbinet.training.config import TrainConfig
from gbinet.training.distributed import connect
from gbinet.training.samples import SourceStream
from gbinet.training.trainer import train


def run(out: Path, steps: int, batch_size: int, mode: str) -> None:
    torch.set_num_threads(1)
    processes, _ = connect()
    config = TrainConfig(
        views=3,
        height=64,
        width=64,
        batch_size=batch_size,
        network=GBiNetConfig(stages=3),
        precision="float32",
        total_steps=steps,
        warmup_steps=0,
        learning_rate=1e-4,
        readout_weight=0.2,
        log_every=1,
        tensorboard=False,
        update=mode,  # type: ignore[arg-type]
    )
    source = PlaneSource()
    train(config, out, stream=SourceStream(source, batch_size, processes), validation=[source.batch(900, 1)])


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
