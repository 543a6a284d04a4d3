"""Records when each part of a run is at work, in any thread, without changing these parts.

Functions are wrapped where they are called from, so this also works with source trees that lack this file.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

Parts = dict[
    str, tuple[str, ...]
]  # what a part is called -> functions, as "module:name" or "module:Class.name"
_MEMORY = ("VmRSS", "RssAnon", "RssFile", "RssShmem")  # all; of this arrays, libraries, shared and pinned
_HEAP = (
    "heap used",
    "heap free",
    "mapped",
)  # of the arrays: glibc's heaps, and large blocks
_EVERY = 0.02  # seconds
_BAR = 48  # characters for the whole time


class Interval(NamedTuple):
    begin: float
    end: float
    main: bool  # in the main thread


# The order is that of the table. Parts may lie inside others.
RECONSTRUCT: Parts = {
    "opening": ("gbinet.pipeline.reconstruct:prepare",),
    "kernels": ("gbinet.pipeline.reconstruct:prepare_kernels",),
    "kernels: rehearsal": ("gbinet.inference.compiling:_trace", "gbinet.pipeline.kernels:rehearse"),
    "kernels: loaded beside": ("gbinet.inference.compiling:load_kernels",),
    "kernels: loaded from the cache": ("triton.compiler.compiler:CompiledKernel.__init__",),
    "kernels: brought to the GPU": ("triton.compiler.compiler:CompiledKernel._init_handles",),
    "depth": ("gbinet.pipeline.computing:estimate_depths",),
    "depth: what is finished": (
        "gbinet.inference.finished:FinishedMaps.__init__",
        "gbinet.inference.finished:FinishedMaps.check",
    ),
    "depth: network made ready": ("gbinet.inference.predictor:for_inference",),
    "depth: photos read": ("gbinet.inference.predictor:DepthWorker._read",),
    "depth: encoding": ("gbinet.inference.predictor:DepthWorker._encode",),
    "depth: search": ("gbinet.inference.predictor:DepthWorker._search",),
    "depth: graphs recorded": ("gbinet.inference.graphs:Graphs._record",),
    "depth: maps written": ("gbinet.inference.predictor:DepthWorker._write",),
    "fusion": ("gbinet.pipeline.computing:fuse",),
    "fusion: views read": ("gbinet.fusion.loading:Loader._read",),
    "fusion: views awaited and filtered": ("gbinet.fusion.loading:Loader.get",),
    "fusion: compared": ("gbinet.fusion.comparing:judge_fast", "gbinet.fusion.comparing:judge_plainly"),
    "fusion: points brought": ("gbinet.fusion.fuse:arrived",),
    "fusion: points written": ("gbinet.formats.ply:PlyWriter.append",),
    "fusion: cloud closed": ("gbinet.formats.ply:PlyWriter.__exit__",),
    "fusion: cameras checked": ("gbinet.pipeline.record:cameras_fit",),
    "report: share of the points": ("gbinet.viewer.report_cloud:CloudSample.add",),
    "report: pictures of views": ("gbinet.pipeline.record:view_card",),
    "report: pictures awaited": ("gbinet.pipeline.record:ReportCollector.cards",),
    "report: written": ("gbinet.pipeline.reconstruct:write_report",),
    "report: from the sides": ("gbinet.viewer.report:side_views",),
    "report: cloud packed": ("gbinet.viewer.report_cloud:pack",),
    "bytes to the disk": ("gbinet.formats.atomic:_flush",),
    "the GPU awaited": ("torch.cuda:synchronize",),
}


class Timeline:
    """Watches parts while a `with watching()` block lasts."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.began = self.ended = 0.0
        self.found: dict[str, list[Interval]] = {name: [] for name in parts}
        self.memory: list[tuple[float, list[int]]] = []  # when, MiB of each kind
        self.compiled: list[str] = []  # kernels that were compiled in this process, with their seconds

    @contextmanager
    def watching(self) -> Iterator[None]:
        undo: list[tuple[Any, str, Any]] = []
        for name, functions in self.parts.items():
            for function in functions:
                module, _, path = function.partition(":")
                *owners, last = path.split(".")
                with suppress(ImportError, AttributeError):  # not in this tree
                    owner = functools.reduce(getattr, owners, importlib.import_module(module))
                    undo.append((owner, last, getattr(owner, last)))
                    setattr(owner, last, self._watched(name, undo[-1][2]))
        with suppress(ImportError, AttributeError):
            knobs = importlib.import_module("triton.knobs")
            undo.append((knobs.compilation, "listener", knobs.compilation.listener))
            knobs.compilation.listener = self._note_kernel
        over = threading.Event()
        sampler = threading.Thread(target=self._sample_memory, args=(over,), daemon=True)
        self.began = time.perf_counter()
        sampler.start()
        try:
            yield
        finally:
            self.ended = time.perf_counter()
            over.set()
            sampler.join()
            for owner, last, original in undo:
                setattr(owner, last, original)

    def _sample_memory(self, over: threading.Event) -> None:
        while not over.wait(_EVERY):
            with suppress(OSError):
                lines = Path("/proc/self/status").read_text().splitlines()
                found = dict(line.split(":", 1) for line in lines if ":" in line)
                sizes = [int(found[kind].split()[0]) >> 10 for kind in _MEMORY if kind in found]
                self.memory.append((time.perf_counter(), [*sizes, *_heap()]))

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                main = threading.current_thread() is threading.main_thread()
                self.found[name].append(Interval(begin, time.perf_counter(), main))

        return watched

    def _note_kernel(self, *, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            self.compiled.append(
                f"{src.name} {times.total / 1e6:.2f} s at {time.perf_counter() - self.began:.2f} s"
            )

    def table(self) -> list[str]:
        """A line a part: calls, from when to when, seconds by the clock, of all threads, of the main one."""
        head = f"{'part':36}{'calls':>6}{'from':>7}{'to':>7}{'clock':>7}{'threads':>8}{'main':>7}"
        lines = [f"{head}  0 s {'-' * (_BAR - 12)} {self.ended - self.began:.1f} s"]
        for name, found in self.found.items():
            if not found:
                continue
            spans = _union(found)
            numbers = (
                min(i.begin for i in found) - self.began,
                max(i.end for i in found) - self.began,
                sum(end - begin for begin, end in spans),
            )
            threads = sum(i.end - i.begin for i in found)
            main = sum(i.end - i.begin for i in found if i.main)
            clock = "".join(f"{number:7.2f}" for number in numbers)
            lines.append(f"{name:36}{len(found):6}{clock}{threads:8.2f}{main:7.2f}  {self._bar(spans)}")
        kinds = enumerate((*_MEMORY, *_HEAP))
        lines += [f"MiB {kind:12}{self._along(n)}" for n, kind in kinds if self.memory]
        return [*lines, *(f"compiled in this process: {kernel}" for kernel in self.compiled)]

    def _bar(self, spans: list[tuple[float, float]]) -> str:
        """'#' where a part was at work most of the time, '.' where it was some of it."""
        step, bar = (self.ended - self.began) / _BAR, ""
        for place in range(_BAR):
            low = self.began + place * step
            busy = sum(max(0.0, min(end, low + step) - max(begin, low)) for begin, end in spans) / step
            bar += "#" if busy > 0.5 else "." if busy > 0.02 else " "
        return bar.rstrip()

    def _along(self, kind: int) -> str:
        """The largest value of memory in each twelfth of the time."""
        step = (self.ended - self.began) / 12
        parts: list[list[int]] = [[] for _ in range(12)]
        for moment, sizes in self.memory:
            if len(sizes) > kind:
                parts[min(11, int((moment - self.began) / step))].append(sizes[kind])
        return "".join(f"{max(part, default=0):7}" for part in parts)


class _Mallinfo(ctypes.Structure):
    """mallinfo2 of malloc.h."""

    _NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    _fields_ = tuple((name, ctypes.c_size_t) for name in (*_NAMES, "keepcost"))


def _heap() -> list[int]:
    """MiB of glibc's heaps that are in use, that are free, and of large blocks; nothing elsewhere."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return []
    ask.restype = _Mallinfo
    found = ask()
    return [int(found.uordblks) >> 20, int(found.fordblks) >> 20, int(found.hblkhd) >> 20]


def _union(intervals: list[Interval]) -> list[tuple[float, float]]:
    """The time in which at least one thread was there."""
    spans: list[tuple[float, float]] = []
    for begin, end, _ in sorted(intervals):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans
