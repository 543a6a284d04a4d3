"""CUDA graphs: a call is recorded once and replayed, so that the host does not launch its kernels again.

Launching takes half the time of the coarse stages. Graphs keep their working memory for as long as they live.
They share it, and copies of inputs of the same shape: results are copied before another graph is replayed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gbinet import ops
from gbinet.camera import Camera
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import Features, GBiNet, SearchResult

log = logging.getLogger(__name__)
T = TypeVar("T")
GRAPHS = 8  # calls of a scene that are recorded at most


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]  # what the graph reads; copied to before each replay
    result: Any  # what it writes


class Graphs:
    """Recorded calls. A call is recorded when one with the same signature comes for the second time.

    The signature is everything but the values in tensors: the function, shapes, layouts and options.
    """

    def __init__(self, limit: int, dtype: torch.dtype = torch.float32) -> None:
        self.limit = limit  # graphs at most; further calls are computed without
        self.dtype = dtype  # in which graphs hold the first argument: images or features
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, _Recorded] = {}
        self._buffers: dict[Hashable, tuple[Tensor, ...]] = {}  # inputs by shape, layout and type

    def __len__(self) -> int:
        return len(self._recorded)

    def __call__(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """function(*args, **options), from a graph where there is one."""
        arguments = (args, tuple(sorted(options.items())))
        inputs = list(tensors_in(arguments))
        key = (function.__qualname__, _signature(arguments))
        recorded = self._recorded.get(key)
        if recorded is None and key in self._seen and len(self._recorded) < self.limit:
            recorded = self._record(key, function, arguments, inputs)
        if recorded is None:
            self._seen.add(key)
            return function(*args, **options)  # also compiles the kernels, which is impossible in a recording
        with torch.inference_mode():  # tensors of this mode cannot be written to outside it
            for target, source in zip(recorded.inputs, inputs, strict=True):
                target.copy_(source)
        recorded.graph.replay()
        result: T = with_tensors(recorded.result, (t.clone() for t in tensors_in(recorded.result)))
        return result

    def _record(
        self, key: Hashable, function: Callable[..., Any], arguments: Any, inputs: Sequence[Tensor]
    ) -> _Recorded | None:
        try:
            maps = sum(1 for _ in tensors_in(arguments[0][0]))
            buffers = self._buffers_like(inputs, [self.dtype] * maps + [t.dtype for t in inputs[maps:]])
            args, options = with_tensors(arguments, iter(buffers))
            graph = torch.cuda.CUDAGraph()
            first = next(iter(self._recorded.values()), None)
            pool = first.graph.pool() if first else None
            # Work of other threads on the GPU is not recorded, and allowed.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = function(*args, **dict(options))
        except RuntimeError as error:  # out of memory, for example
            log.warning("no CUDA graph (%s); continuing without", str(error).splitlines()[0])
            self.give_up()
            return None
        self._recorded[key] = _Recorded(graph, buffers, result)
        return self._recorded[key]

    def _buffers_like(self, inputs: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
        """The tensors that graphs with inputs like these read."""
        pairs = list(zip(inputs, dtypes, strict=True))
        key = tuple((tuple(t.shape), t.stride(), t.device, dtype) for t, dtype in pairs)
        if key not in self._buffers:
            self._buffers[key] = tuple(torch.empty_like(t, dtype=dtype) for t, dtype in pairs)
        return self._buffers[key]

    def give_up(self) -> None:
        """Free the memory of all graphs and record no more, because memory ran out."""
        self.limit = 0
        self._seen.clear()
        self._recorded.clear()
        self._buffers.clear()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in tuples, lists and dataclasses, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same value with other tensors in place of its own."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, tuple | list):
        return type(value)(with_tensors(part, tensors) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value)]
        return replace(value, **{name: with_tensors(getattr(value, name), tensors) for name in names})
    return value


def _signature(value: Any) -> Hashable:
    """A value without the numbers in its tensors."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride()
    if isinstance(value, tuple | list):
        return tuple(_signature(part) for part in value)
    if is_dataclass(value):
        return type(value), tuple(_signature(getattr(value, f.name)) for f in fields(value))
    assert isinstance(value, Hashable)
    return value


class GraphedNetwork(nn.Module):
    """A network made ready whose calls are replayed from CUDA graphs where possible. Called like the network.

    limit: graphs (of image sizes, numbers of views, first bins) that are recorded at most; each takes memory.
    """

    def __init__(self, network: GBiNet, limit: int) -> None:
        super().__init__()
        self.network, self.config = network, network.config
        self.graphs = Graphs(limit, next(network.parameters()).dtype)

    def encode(self, images: Tensor) -> Features:
        if not self.graphs.limit or not ops.recordable(images):
            return self.network.encode(images)
        return self.graphs(self.network.encode, images)

    def first_bins(self, cameras: Camera, depth_range: Tensor) -> int | None:
        return self.network.first_bins(cameras, depth_range)

    def forward(self, *args: Any, **options: Any) -> SearchResult:
        return self._replayed(self.network.forward, *args, **options)

    def search(self, *args: Any, **options: Any) -> SearchResult:
        return self._replayed(self.network.search, *args, **options)

    def _replayed(
        self,
        function: Callable[..., SearchResult],
        maps: Any,
        cameras: Camera,
        depth_range: Tensor,
        **options: Any,
    ) -> SearchResult:
        """A call of the network that begins with images or features, cameras and ranges."""
        whole = not (options.get("keep_stages") or options.get("resume"))
        if not whole or not self.graphs.limit or not ops.recordable(*tensors_in(maps)):
            return function(maps, cameras, depth_range, **options)
        # Looks at the cameras' numbers and waits for the device: not while recording.
        options["first_bins"] = options.get("first_bins") or self.first_bins(cameras, depth_range)
        return self.graphs(_without_fractional_cells(function), maps, cameras, depth_range, **options)


def _without_fractional_cells(function: Callable[..., SearchResult]) -> Callable[..., SearchResult]:
    """Resuming needs only the cells; a graph would keep the memory of the fractional ones too."""

    @functools.wraps(function)
    def compute(*args: Any, **options: Any) -> SearchResult:
        result = function(*args, **options)
        assert result.state is not None
        return replace(result, state=replace(result.state, fractional_cell=None))

    return compute


def for_inference(
    model: GBiNet | GraphedNetwork, device: torch.device, dtype: torch.dtype, max_memory: float | None
) -> GBiNet | GraphedNetwork:
    """The network made ready, with CUDA graphs unless memory is limited; as it is, if it is ready already.

    CUDA graphs pay, because a scene has many views of few kinds (one or two sizes, some numbers of first
    bins).
    """
    if type(model) is not GBiNet or model.ready:
        return model
    return GraphedNetwork(prepare(model, device, dtype), GRAPHS if max_memory is None else 0)
