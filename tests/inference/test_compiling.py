"""Kernels are compiled in advance: found by calling the code with tensors without data, never launched.

Each test is a process of its own, without Triton's interpreter and with a driver that has no GPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

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
ops.usable, ops.usable_on_cpu = (lambda *_: True), (lambda *_: False)
compiled = []
"""


def answer(script: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _PREAMBLE + script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


_COMPILE = """
import sys
from pathlib import Path
from gbinet.fusion.fuse import FusionConfig
from gbinet.fusion.judging import rehearse
from gbinet.inference import compilers
from gbinet.inference.compiling import compiling_only

knobs.cache.dir = CACHE
plain = JITFunction.run

def hear(*, src, cache_hit, **_):
    compiled.append((src.name, cache_hit))

def launch():
    rehearse(FusionConfig(), torch.device("cpu"))

def as_if_launched():
    \"\"\"Compile in this process what a launch with these arguments needs.\"\"\"
    def run(self, *args, grid, warmup, **options):
        return plain(self, *args, grid=grid, warmup=True, **options)
    JITFunction.run = run
    launch()

knobs.compilation.listener = hear
told = []
BEFORE
with compiling_only(Path(CACHE), lambda done, total: told.append((done, total))):
    launch()
assert JITFunction.run is plain and knobs.runtime.jit_cache_hook is None
assert sorted(told) == [(1, 3), (2, 3), (3, 3)], told
here = len(compiled)
as_if_launched()
print(here, sorted(compiled[here:]))
"""


@pytest.mark.parametrize("processes", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_kernels_compiled_in_advance_are_found_when_they_are_launched(
    tmp_path: Path, processes: bool
) -> None:
    """By processes that have no GPU; by this one where none can be started."""
    before = "" if processes else "sys.executable = '/there/is/no/such/program'"
    script = _COMPILE.replace("CACHE", repr(str(tmp_path))).replace("BEFORE", before)
    in_the_cache = [(name, True) for name in ("_agree", "_points", "_sight")]
    assert answer(script) == (f"0 {in_the_cache}" if processes else "3 []")  # there, they are in memory


def test_what_was_compiled_is_loaded_before_it_is_launched(tmp_path: Path) -> None:
    """From the list that the one who compiled has left; launches find all of it in memory."""
    loading = """
from contextlib import nullcontext
from triton.compiler.compiler import CompiledKernel
from gbinet.formats.atomic import write_json
from gbinet.inference.compiling import load_kernels
brought = []
CompiledKernel._init_handles = lambda self: brought.append(self.name)
torch.cuda.device = lambda _: nullcontext()
with compiling_only(Path(CACHE)) as asked:
    launch()
load_kernels(write_json(Path(CACHE) / "mark", {"kernels": asked.requests}), torch.device("cpu"))
here = len(compiled)
as_if_launched()
print(sorted(brought), compiled[here:])
"""
    script = _COMPILE.partition("told = []")[0] + loading
    assert answer(script.replace("CACHE", repr(str(tmp_path)))) == "['_agree', '_points', '_sight'] []"


def test_tritons_hash_of_itself_is_kept_until_its_files_change(tmp_path: Path) -> None:
    script = """
from triton.runtime import cache
from gbinet.inference import compilers
knobs.cache.dir = CACHE
calls = []

def counted():
    calls.append(1)
    return "a key"

def asked():
    cache.triton_key = counted
    compilers.hash_triton()
    return cache.triton_key()

first = asked()
after_first = len(calls)
again = asked()
after_second = len(calls)
compilers._state_of = lambda folder: "other"
asked()
print(first == again, after_second == after_first, len(calls) > after_second)
"""
    assert answer(script.replace("CACHE", repr(str(tmp_path)))) == "True True True"


@pytest.mark.slow
def test_an_error_of_the_progress_callback_ends_compiling(tmp_path: Path) -> None:
    script = """
import os
from pathlib import Path
from gbinet.fusion.fuse import FusionConfig
from gbinet.fusion.judging import rehearse
from gbinet.inference.compiling import compiling_only

def tell(done, total):
    raise InterruptedError("enough")

try:
    with compiling_only(Path(CACHE), tell):
        rehearse(FusionConfig(), torch.device("cpu"))
except InterruptedError as error:
    told = str(error)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(told, "and nobody is left")
"""
    assert answer(script.replace("CACHE", repr(str(tmp_path)))) == "enough and nobody is left"


@pytest.mark.slow
def test_compilers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Also when that one is killed and can say nothing."""
    script = """
import os, signal, sys
from pathlib import Path
from gbinet.fusion.fuse import FusionConfig
from gbinet.fusion.judging import rehearse
from gbinet.inference.compilers import Compilers
from gbinet.inference.compiling import recording_launches

with Compilers(Path(CACHE)) as compilers, recording_launches(compilers.submit):
    rehearse(FusionConfig(), torch.device("cpu"))
    print(compilers._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _PREAMBLE + script.replace("CACHE", repr(str(tmp_path)))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    group, deadline = int(done.stdout), time.monotonic() + 60
    while _alive(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(group)


def _alive(group: int) -> bool:
    """Whether a process of the group runs; one that ended and that nobody asked about does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                return True
    return False


@pytest.mark.slow
def test_the_network_can_be_called_with_tensors_without_data() -> None:
    script = """
from gbinet.inference.compiling import MapKind, _trace
from gbinet.inference.predictor import DepthConfig
from gbinet.model.gbinet import GBiNet

def run(self, *args, grid, warmup, **options):
    compiled.append(self.fn.__name__)

JITFunction.run = run
kinds = [MapKind(320, 256, 16), MapKind(200, 136, None)]
config = DepthConfig(device="cpu", precision="float16")
_trace(GBiNet.from_pretrained(), config, kinds, torch.device("cpu"))
print(len(set(compiled)))
"""
    assert int(answer(script)) >= 4  # convolutions, cost volume, sampling, smoothing


@pytest.mark.slow
def test_all_kernels_of_a_reconstruction_compile(tmp_path: Path) -> None:
    """For a GPU that need not be there: whatever only its compiler refuses shows here."""
    script = """
from gbinet.fusion.fuse import FusionConfig
from gbinet.fusion.judging import rehearse
from gbinet.inference.compilers import compile_here
from gbinet.inference.compiling import MapKind, _trace, recording_launches
from gbinet.inference.predictor import DepthConfig
from gbinet.model.gbinet import GBiNet

knobs.cache.dir = CACHE
config, requests = DepthConfig(device="cpu", precision="float16"), []
with recording_launches(requests.append):
    rehearse(FusionConfig(), torch.device("cpu"))
    _trace(GBiNet.from_pretrained(), config, [MapKind(320, 256, 24)], torch.device("cpu"))
for request in requests:
    compile_here(request)
print(len(requests))
"""
    assert int(answer(script.replace("CACHE", repr(str(tmp_path))))) > 50


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gbinet.inference.compiling import UnwritableCacheError, check_cache

    check_cache(tmp_path / "new" / "cache")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UnwritableCacheError, match=r"cache: .*TRITON_CACHE_DIR=FOLDER"):
        check_cache(tmp_path / "cache")
