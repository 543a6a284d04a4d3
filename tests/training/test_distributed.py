"""Two processes on the CPU train as one process with twice the batch does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from planes_run import run
from safetensors.torch import load_file
from torch import nn

from gbinet.model.gbinet import GBiNet
from gbinet.training.distributed import Processes, synchronise_batch_norm

SCRIPT = Path(__file__).parent / "planes_run.py"


def losses(out: Path) -> list[float]:
    lines = [json.loads(text) for text in (out / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "train"]


def two_processes(out: Path, steps: int, mode: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*command, str(SCRIPT), str(out), str(steps), "2", mode],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
        capture_output=True,
    )


def test_two_processes_equal_one_with_twice_the_batch(tmp_path: Path):
    two_processes(tmp_path / "two", 2, "shared-encoder")
    run(tmp_path / "one", 2, 4, "shared-encoder")
    ours, expected = losses(tmp_path / "two"), losses(tmp_path / "one")
    assert ours[0] == pytest.approx(expected[0], rel=1e-5)
    assert ours[1] == pytest.approx(expected[1], rel=1e-3)
    state = "state-00000002"
    one = GBiNet.from_pretrained(tmp_path / "one" / state / "weights.safetensors").state_dict()
    two = GBiNet.from_pretrained(tmp_path / "two" / state / "weights.safetensors").state_dict()
    # Adam's first steps have the size of the learning rate (1e-4) whatever the gradient, so rounding of
    # gradients near zero shows in single weights: few may differ.
    moved = torch.cat([(one[k] - two[k]).flatten().abs() for k in one if one[k].is_floating_point()])
    assert float(moved.max()) < 1e-3
    assert float((moved > 2e-5).float().mean()) < 0.02
    # The gradients themselves, as Adam remembers them: equal to 1e-3 after one step; in the second, single
    # pixels choose another bin. A wrong mean over the processes would be off by a factor.
    a, b = (load_file(tmp_path / n / state / "exp_avg.safetensors") for n in ("one", "two"))
    assert set(a) == set(b)
    gradients = [torch.cat([values[k].flatten() for k in sorted(a)]) for values in (a, b)]
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 0.15


@pytest.mark.slow
def test_two_processes_take_a_step_after_every_stage(tmp_path: Path):
    two_processes(tmp_path / "two", 1, "per-stage")
    run(tmp_path / "one", 1, 4, "per-stage")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)


def test_synchronised_batch_norm_alone_is_batch_norm(monkeypatch: pytest.MonkeyPatch):
    """With one process the sums are its own: the same output, gradient and statistics as torch's."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda tensor: None)
    plain, synced = nn.Sequential(nn.BatchNorm3d(5)), nn.Sequential(nn.BatchNorm3d(5))
    nn.init.uniform_(plain[0].weight)
    synced.load_state_dict(plain.state_dict())
    synchronise_batch_norm(synced)
    a = torch.randn(3, 5, 2, 4, 4, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    outputs = [net(x) for net, x in ((plain, a), (synced, b))]
    for output in outputs:
        (output**3).sum().backward()
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(synced.state_dict(), plain.state_dict())
    synced.eval(), plain.eval()
    torch.testing.assert_close(synced(a), plain(a))


def test_a_process_alone_sums_nothing():
    values = torch.ones(3)
    assert Processes().sum(values) is values
    assert Processes().from_main(2.5, torch.device("cpu")) == 2.5
