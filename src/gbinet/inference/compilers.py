"""A subprocess that compiles many kernels at a time. (In one process, Triton's compiler holds Python's lock.)

It needs no GPU. Requests name the GPU that they are for, and kernels and their launchers are stored in
Triton's cache, where the main process finds them when it launches them. The subprocess imports the kernels
once and forks a child for each request. Requests are lines of JSON; when one is done, its number is written
as the answer. When the input ends, the subprocess and all children end.
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

_CHILD_BYTES = 256 << 20  # memory of a compiler and its assembler, beyond what all children share
_PIPE_BYTES = 1 << 20  # holds all requests, so that writing them does not wait for the subprocess to start
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gbinet.inference.compilers import serve; serve(int(sys.argv[2]))"
)


class Request(NamedTuple):
    """A kernel to compile."""

    module: str
    name: str  # of the function
    specialization: str  # JSON of Triton: signature, constants, options
    backend: str  # this and the next two are what Triton calls a target: the GPU
    arch: int | str
    warp_size: int


def compile_here(request: Request) -> Any:
    """Compile a kernel in this process, or load it from the cache, so that launching it does not wait."""
    return getattr(import_module(request.module), request.name).preload(request.specialization)


def hash_triton() -> None:
    """Compute or load the first part of the keys in Triton's cache: a hash of Triton itself, 400 MB.

    That takes half a second, so it is stored in the cache, for as long as no file of Triton changes.
    """
    with suppress(ImportError, AttributeError, OSError, GBiNetError):  # Triton will compute it by itself
        import triton
        from triton.runtime import cache

        stored = Path(triton.knobs.cache.dir) / f"gbinet-triton-{_state_of(Path(triton.__file__).parent)}"
        if stored.is_file():
            key = stored.read_text(encoding="utf-8")
            cache.triton_key = lambda: key
        else:
            write_text(stored, cache.triton_key())


def _state_of(folder: Path) -> str:
    """A digest of the sizes and times of a package's files."""
    digest = hashlib.blake2b(digest_size=12)
    for file in sorted((*folder.rglob("*.py"), *folder.glob("_C/*"))):
        stat = file.stat()
        digest.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


class Compilers:
    """The subprocess, for the time of a `with` block. Requests that are not done at its end are abandoned."""

    def __init__(self, cache: Path) -> None:
        self.requests: list[Request] = []
        self._answered: set[int] = set()
        self._scratch = tempfile.TemporaryDirectory(prefix="gbinet-kernels-", ignore_cleanup_errors=True)
        # Store binaries only: intermediate steps would be loaded with them and never read.
        environment = {"TRITON_STORE_BINARY_ONLY": "1", **os.environ}
        environment |= {"TRITON_CACHE_DIR": str(cache), "TMPDIR": self._scratch.name}
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError, ValueError):  # not allowed, no memory: then `left` returns all requests
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), str(_max_processes())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
                pipesize=_PIPE_BYTES,
                start_new_session=True,  # Ctrl-C reaches it as the end of its input
            )

    def __enter__(self) -> Compilers:
        return self

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # the subprocess has died
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()

    def finished(self) -> Iterator[int]:
        """The number of requests that are done, each time it grows, until all are or the process dies."""
        if self._process is None or self._process.stdout is None:
            return
        while len(self._answered) < len(self.requests) and (line := self._process.stdout.readline()):
            self._answered.add(int(line))
            yield len(self._answered)

    def left(self) -> list[Request]:
        """Requests without an answer."""
        return [r for number, r in enumerate(self.requests) if number not in self._answered]

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]  # both are pipes
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # children too, and even while it starts
            self._process.wait()
        self._scratch.cleanup()


def _max_processes() -> int:
    """As many compilers as cores, if there is enough memory."""
    cores = usable_cores()
    with suppress(OSError, ValueError, StopIteration):  # not Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))  # kiB
        return max(1, min(cores, int(available) * 1024 // _CHILD_BYTES))
    return cores


# ---- inside the subprocess --------------------------------------------------------------------------------


class _NamedGPU:
    """A Triton driver without a GPU, which only names the target of a request."""

    def __init__(self) -> None:
        self.target: Any = None

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target


def serve(max_processes: int) -> None:
    """Compile the kernels requested on standard input, in up to `max_processes` children at a time."""
    stand_in_for_torch()
    from triton.runtime import driver

    hashing = threading.Thread(target=hash_triton)  # reads files while Python imports
    hashing.start()
    for module in _PRELOADED:  # children inherit them
        with suppress(Exception):  # a child that needs it will raise it again
            import_module(module)
    hashing.join()
    gpu = _NamedGPU()
    driver.set_active(gpu)
    waiting: list[tuple[int, Request]] = []
    running: dict[int, tuple[int, int]] = {}  # pipe that a child holds open -> its process id, its request
    signatures: set[str] = set()  # of the kernels so far: each needs one launcher
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
                os.killpg(0, signal.SIGKILL)  # children, their assemblers, and this process
        waiting.sort(key=lambda entry: (_slowness(entry[1]), entry[0]))
        while waiting and len(running) < max_processes:
            number, request = waiting.pop()  # the slowest first: the total time depends on it
            signature = json.dumps(json.loads(request.specialization).get("signature"))
            pipe, child = _forked(request, gpu, signature not in signatures)
            signatures.add(signature)
            running[pipe] = (child, number)
            selector.register(pipe, selectors.EVENT_READ)


_PRELOADED = (
    "gbinet.fusion.consistency_triton",
    *(f"gbinet.ops.{path.stem}" for path in sorted((Path(__file__).parents[1] / "ops").glob("*_triton.py"))),
    "triton.compiler.code_generator",
)
# Modules whose kernels take a second or two to compile, in ascending order; all others take less.
_SLOW = ("gbinet.ops.conv_triton", "gbinet.ops.conv_transpose_triton", "gbinet.ops.cost_volume_triton")


def _slowness(request: Request) -> int:
    return _SLOW.index(request.module) if request.module in _SLOW else -1


def _forked(request: Request, gpu: _NamedGPU, with_launcher: bool) -> tuple[int, int]:
    """Start a child that compiles one kernel; returns a pipe that closes when it ends, and its process id."""
    from triton.backends.compiler import GPUTarget

    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        return read_end, child
    status = 1
    try:
        gpu.target = GPUTarget(request.backend, request.arch, request.warp_size)
        kernel = compile_here(request)
        if with_launcher and request.backend == "cuda":
            _compile_launcher(kernel)
        status = 0
    finally:
        os._exit(status)  # an error will be raised again where the kernel is launched


def _compile_launcher(kernel: Any) -> None:
    """Store the launcher of a kernel's signature, which Triton 3.6 and older build with a C compiler.

    Otherwise it is built at the first launch, a quarter of a second each. Later versions need none.
    """
    with suppress(Exception):  # no C compiler or CUDA driver: raised again where the kernel is launched
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(kernel.src, kernel.metadata)
