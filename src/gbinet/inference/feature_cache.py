"""Features of recent views, so that an image that serves many references is encoded once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

import torch

from gbinet.inference.tiles import Features


class FeatureCache:
    """Least recently used features are dropped first, when more than `max_bytes` are held.

    `expect()` announces later requests; features are dropped after the last announced one.
    """

    def __init__(
        self, encode: Callable[[int], Features], max_bytes: int, storage: torch.device, compute: torch.device
    ) -> None:
        self._encode = encode
        self.max_bytes = max_bytes
        self.storage = storage  # where features wait
        self.compute = compute  # where they are used
        self.encoded: Counter[int] = Counter()  # view -> times encoded
        self.held_bytes = 0
        self._held: OrderedDict[int, Features] = OrderedDict()
        self._to_come: Counter[int] = Counter()  # view -> times that it will be asked for, where known

    def __contains__(self, view: int) -> bool:
        return view in self._held

    def get(self, view: int) -> Features:
        """The features of a view on the computing device, encoded if they are not held."""
        self._to_come[view] -= 1
        last = self._to_come[view] == 0
        if view in self._held:
            self._held.move_to_end(view)
            found = tuple(f.to(self.compute, non_blocking=True) for f in self._held[view])
            if last:
                self.held_bytes -= _bytes(self._held.pop(view))
            return found
        features = self._encode(view)
        self.encoded[view] += 1
        if not last:
            self._hold(view, tuple(f.to(self.storage) for f in features))
        return features

    def expect(self, views: Iterable[int]) -> None:
        """These will be asked for, as often as they are named."""
        self._to_come.update(views)

    def clear(self) -> None:
        """Hold nothing: whatever is asked for next is encoded again."""
        self._held.clear()
        self.held_bytes = 0

    def _hold(self, view: int, features: Features) -> None:
        self._held[view] = features
        self.held_bytes += _bytes(features)
        while self.held_bytes > self.max_bytes and len(self._held) > 1:
            _, dropped = self._held.popitem(last=False)
            self.held_bytes -= _bytes(dropped)


def _bytes(features: Features) -> int:
    return sum(f.numel() * f.element_size() for f in features)
