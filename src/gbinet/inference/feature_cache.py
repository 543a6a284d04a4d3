"""Features of recent views, so that an image that is a source of many references is encoded once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

import torch

from gbinet.inference.tiles import Features


class FeatureCache:
    """Drops the least recently used features when there are more than `max_bytes`.

    `expect()` announces requests; features are dropped after the last announced one.
    """

    def __init__(
        self, encode: Callable[[int], Features], max_bytes: int, storage: torch.device, compute: torch.device
    ) -> None:
        self._encode = encode
        self.max_bytes = max_bytes
        self.storage = storage  # device that features are kept on
        self.compute = compute  # device that they are returned on
        self.encoded: Counter[int] = Counter()  # view -> times encoded
        self.held_bytes = 0
        self._held: OrderedDict[int, Features] = OrderedDict()  # least recently used first
        self._expected: Counter[int] = Counter()  # view -> announced requests that are still to come

    def __contains__(self, view: int) -> bool:
        return view in self._held

    def get(self, view: int) -> Features:
        """The features of a view on the computing device; encoded if they are not in the cache."""
        self._expected[view] -= 1
        last = self._expected[view] == 0
        if view in self._held:
            self._held.move_to_end(view)
            features = tuple(f.to(self.compute, non_blocking=True) for f in self._held[view])
            if last:
                self.held_bytes -= _bytes(self._held.pop(view))
            return features
        features = self._encode(view)
        self.encoded[view] += 1
        if not last:
            self._hold(view, tuple(f.to(self.storage) for f in features))
        return features

    def expect(self, views: Iterable[int]) -> None:
        """Announce requests: a view counts as often as it is named."""
        self._expected.update(views)

    def clear(self) -> None:
        """Drop all features."""
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
