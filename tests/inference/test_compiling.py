"""Kernels are compiled ahead: found by calling the code with nothing in its tensors, and never launched.

Each test is a process of its own, without Triton's interpreter and with a driver that has no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

# Not importorskip: whoever imports Triton here takes the interpreter from the tests of kernels.
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

_PREAMBLE = """
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from gbinet import ops

class NoGPU:  # whoever launches a kernel here asks for more than this, and fails
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

driver.set_active(NoGPU())
ops.usable = lambda *_: True
compiled = []
"""


def answer(script: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _PREAMBLE + script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_kernels_of_fusion_are_compiled_by_threads(tmp_path: object) -> None:
    script = f"""
import threading
from gbinet.fusion.fuse import FusionConfig
from gbinet.fusion.judging import rehearse
from gbinet.inference.compiling import compiling_only

knobs.cache.dir = {str(tmp_path)!r}
here, plain = threading.get_ident(), JITFunction.run

def hear(*, src, cache_hit, **_):
    compiled.append((src.name, cache_hit, threading.get_ident() == here))

knobs.compilation.listener = hear
told = []
with compiling_only(lambda done, total: told.append((done, total))):
    rehearse(FusionConfig(), torch.device("cpu"))
assert JITFunction.run is plain
assert told[-1] == (3, 3), told
print(sorted(compiled))
"""
    expected = [(name, False, False) for name in ("_agree", "_points", "_sight")]
    assert answer(script) == str(expected)


@pytest.mark.slow
def test_the_network_can_be_called_with_nothing_in_its_tensors() -> None:
    script = """
from gbinet.inference.compiling import MapKind, _rehearse
from gbinet.inference.predictor import DepthConfig
from gbinet.model.gbinet import GBiNet

def run(self, *args, grid, warmup, **options):
    compiled.append(self.fn.__name__)

JITFunction.run = run
kinds = [MapKind(320, 256, 16), MapKind(200, 136, None)]
config = DepthConfig(device="cpu", precision="float16")
_rehearse(GBiNet.from_pretrained(), config, kinds, torch.device("cpu"))
print(len(set(compiled)))
"""
    assert int(answer(script)) >= 4  # convolutions, cost volume, sampling, smoothing
