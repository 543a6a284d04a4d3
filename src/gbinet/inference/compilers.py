"""A process beside this one that compiles kernels, many at a time: Triton's compiler holds Python's lock.

It needs no GPU. Requests name the GPU that they are for, and what is compiled goes into Triton's cache, where
whoever launches the kernel finds it, and with it its launcher. The process imports the kernels
once and forks a child for each request. Requests come as lines of JSON; each is answered by its number when
it is done. Where the input ends, all end.
"""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from gbinet.cores import usable_cores
from gbinet.errors import GBiNetError
from gbinet.formats.atomic import write_text
from gbinet.inference.no_torch import stand_in_for_torch

_CHILD_BYTES = 256 << 20  # of memory that a compiler may take with its assembler, beyond what all share
_PIPE_BYTES = 1 << 20  # room for all requests, so that nobody waits while the process starts
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gbinet.inference.compilers import serve; serve(int(sys.argv[2]))"
)


class Request(NamedTuple):
    """A kernel to compile."""

    module: str
    name: str  # of the function
    specialization: str  # in Triton's own words (JSON)
    backend: str  # of the GPU, with the next two: what Triton calls a target
    arch: int | str
    warp_size: int


def compile_here(request: Request) -> Any:
    """Compile one in this process, or take it from the cache; whoever launches it has it at once."""
    return getattr(import_module(request.module), request.name).preload(request.specialization)


def hash_triton() -> None:
    """Let Triton know what its cache's keys begin with: a hash of itself, 400 MB of it.

    That takes half a second, so it is kept in the cache, for as long as no file of Triton's is touched.
    """
    with suppress(ImportError, AttributeError, OSError, GBiNetError):  # it does so when it needs it
        import triton
        from triton.runtime import cache

        stored = Path(triton.knobs.cache.dir) / f"gbinet-triton-{_touched(Path(triton.__file__).parent)}"
        if stored.is_file():
            key = stored.read_text(encoding="utf-8")
            cache.triton_key = lambda: key
        else:
            write_text(stored, cache.triton_key())


def _touched(folder: Path) -> str:
    """Changes whenever a file of a package does."""
    digest = hashlib.blake2b(digest_size=12)
    for file in sorted((*folder.rglob("*.py"), *folder.glob("_C/*"))):
        found = file.stat()
        digest.update(f"{file}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


class Compilers:
    """The process, while a `with` block lasts. What it has not done by then is given up."""

    def __init__(self, cache: Path) -> None:
        self.requests: list[Request] = []
        self._answered: set[int] = set()
        self._scratch = tempfile.TemporaryDirectory(prefix="gbinet-kernels-", ignore_cleanup_errors=True)
        # Only what is launched is stored: nobody reads the steps in between, and all would be loaded with it.
        environment = {"TRITON_STORE_BINARY_ONLY": "1", **os.environ}
        environment |= {"TRITON_CACHE_DIR": str(cache), "TMPDIR": self._scratch.name}
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError, ValueError):  # no such right, no memory: `left` says that all is left
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), str(_most_at_a_time())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
                pipesize=_PIPE_BYTES,
                start_new_session=True,  # it hears of Ctrl-C by the end of its input
            )

    def __enter__(self) -> Compilers:
        return self

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has died
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()

    def finished(self) -> Iterator[int]:
        """How many are done, each time one more is; ends when all are, or when the process has died."""
        if self._process is None or self._process.stdout is None:
            return
        while len(self._answered) < len(self.requests) and (line := self._process.stdout.readline()):
            self._answered.add(int(line))
            yield len(self._answered)

    def left(self) -> list[Request]:
        """What has not been tried."""
        return [r for number, r in enumerate(self.requests) if number not in self._answered]

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]  # both are pipes
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # at once, also while it starts
            self._process.wait()
        self._scratch.cleanup()


def _most_at_a_time() -> int:
    """As many compilers as cores, but no more than memory has room for."""
    cores = usable_cores()
    with suppress(OSError, ValueError, StopIteration):  # a system that does not say it
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))  # kiB
        return max(1, min(cores, int(available) * 1024 // _CHILD_BYTES))
    return cores


# ---- inside the process -----------------------------------------------------------------------------------


class _NamedGPU:
    """A driver for Triton that knows only which GPU is meant."""

    def __init__(self) -> None:
        self.target: Any = None

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target


def serve(most: int) -> None:
    """Compile what is asked for on standard input, `most` at a time."""
    stand_in_for_torch()
    from triton.runtime import driver

    hashing = threading.Thread(target=hash_triton)  # reads files while Python imports
    hashing.start()
    for needed in _NEEDED:  # what is done here, children have
        with suppress(Exception):  # whoever needs it will see why
            import_module(needed)
    hashing.join()
    gpu = _NamedGPU()
    driver.set_active(gpu)
    waiting: list[tuple[int, Request]] = []
    running: dict[int, tuple[int, int]] = {}  # pipe that a child holds open -> its process, its request
    signatures: set[str] = set()  # of kernels so far
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    text, count = b"", 0
    while True:
        for key, _ in selector.select():
            if key.fd != 0:
                child, number = running.pop(key.fd)
                selector.unregister(key.fd)
                os.close(key.fd)
                os.waitpid(child, 0)
                os.write(1, f"{number}\n".encode())
            elif block := os.read(0, 1 << 16):
                *lines, text = (text + block).split(b"\n")
                waiting += [(count + i, Request(*json.loads(line))) for i, line in enumerate(lines)]
                count += len(lines)
            else:
                os.killpg(0, signal.SIGKILL)  # children, and the assemblers that they have started; and this
        waiting.sort(key=lambda one: (_slowness(one[1]), one[0]))
        while waiting and len(running) < most:
            number, request = waiting.pop()  # all end when the slowest does: it comes first
            signature = json.dumps(json.loads(request.specialization).get("signature"))
            pipe, child = _forked(request, gpu, signature not in signatures)
            signatures.add(signature)
            running[pipe] = (child, number)
            selector.register(pipe, selectors.EVENT_READ)


_NEEDED = (
    "gbinet.fusion.consistency_triton",
    *(f"gbinet.ops.{path.stem}" for path in sorted((Path(__file__).parents[1] / "ops").glob("*_triton.py"))),
    "triton.compiler.code_generator",
)
# Whose kernels take a second or two, where all others take less.
_SLOW = ("gbinet.ops.conv_triton", "gbinet.ops.conv_transpose_triton", "gbinet.ops.cost_volume_triton")


def _slowness(request: Request) -> int:
    return _SLOW.index(request.module) if request.module in _SLOW else -1


def _forked(request: Request, gpu: _NamedGPU, with_launcher: bool) -> tuple[int, int]:
    """A child that compiles one kernel; the pipe ends with it."""
    from triton.backends.compiler import GPUTarget

    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        return ours, child
    status = 1
    try:
        gpu.target = GPUTarget(request.backend, request.arch, request.warp_size)
        kernel = compile_here(request)
        if with_launcher and request.backend == "cuda":
            _compile_launcher(kernel)
        status = 0
    finally:
        os._exit(status)  # whoever launches a kernel that cannot be compiled will see why


def _compile_launcher(kernel: Any) -> None:
    """Triton 3.6 and older have a C compiler make what launches kernels of a signature, and keep it.

    It would be made at the first launch, a quarter of a second for each signature. Later versions need none.
    """
    with suppress(Exception):  # no C compiler, no driver of CUDA: whoever launches the kernel will see why
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(kernel.src, kernel.metadata)
