"""CUDA graphs: a computation recorded once and replayed, so that the host does not launch its kernels again.

Half the time of the coarse stages is the host's. Graphs keep their working memory for as long as they live.
All share it, and the copies of inputs of one shape: results are copied out before another graph is replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

log = logging.getLogger(__name__)
Computation = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]  # where the graph reads; filled before each replay
    outputs: tuple[Tensor, ...]  # where it writes


class Graphs:
    """Recorded computations by key. A key is recorded when it comes for the second time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # keys recorded at most; later ones are computed as if there were no graphs
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, _Recorded] = {}
        self._held: dict[Hashable, tuple[Tensor, ...]] = {}  # inputs by shape, layout and type

    def __len__(self) -> int:
        return len(self._recorded)

    def __call__(
        self, key: Hashable, compute: Computation, inputs: Sequence[Tensor], kinds: Sequence[torch.dtype]
    ) -> tuple[Tensor, ...]:
        """compute(*inputs), from a graph where there is one, which holds copies of the inputs in these types.

        The key must tell apart all that differs beyond the values in `inputs`: shapes, layouts, options.
        """
        found = self._recorded.get(key)
        if found is None and key in self._seen and len(self._recorded) < self.limit:
            found = self._record(key, compute, inputs, kinds)
        if found is None:
            self._seen.add(key)
            return compute(*inputs)  # also compiles the kernels, which recording could not do
        with torch.inference_mode():  # what was recorded in this mode may not be written to outside it
            for target, source in zip(found.inputs, inputs, strict=True):
                target.copy_(source)
        found.graph.replay()
        return tuple(output.clone() for output in found.outputs)

    def _record(
        self, key: Hashable, compute: Computation, inputs: Sequence[Tensor], kinds: Sequence[torch.dtype]
    ) -> _Recorded | None:
        try:
            held = self._buffers(inputs, kinds)
            graph = torch.cuda.CUDAGraph()
            first = next(iter(self._recorded.values()), None)
            with torch.cuda.graph(graph, pool=first.graph.pool() if first else None):
                outputs = compute(*held)
        except RuntimeError as error:  # out of memory, say: it goes without
            log.warning("no CUDA graph (%s); continuing without", str(error).splitlines()[0])
            self.give_up()
            return None
        self._recorded[key] = _Recorded(graph, held, outputs)
        return self._recorded[key]

    def _buffers(self, inputs: Sequence[Tensor], kinds: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
        """Where graphs with inputs like these read."""
        pairs = list(zip(inputs, kinds, strict=True))
        likeness = tuple((tuple(t.shape), t.stride(), t.device, kind) for t, kind in pairs)
        if likeness not in self._held:
            self._held[likeness] = tuple(torch.empty_like(t, dtype=kind) for t, kind in pairs)
        return self._held[likeness]

    def give_up(self) -> None:
        """Free the memory of all graphs and record no more: it is needed for the work itself."""
        self.limit = 0
        self._seen.clear()
        self._recorded.clear()
        self._held.clear()
