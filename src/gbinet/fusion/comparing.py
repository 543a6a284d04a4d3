"""Compares the views of a scene with their neighbours: all of fusion but the duplicates of earlier views."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch

from gbinet import ops
from gbinet.fusion.duplicates import UsedPixels
from gbinet.fusion.judging import Judged, judge_fast, judge_plainly
from gbinet.fusion.loading import Loaded, Loader, OnUnreadable
from gbinet.fusion.sources import DepthSource
from gbinet.scene import Scene
from gbinet.scenes.neighbours import visiting_order

if TYPE_CHECKING:
    from gbinet.fusion.fuse import FusionConfig


@dataclass(frozen=True)
class Compared:
    """A view with the verdict of its neighbours, on the device."""

    loaded: Loaded
    judged: Judged
    sources: tuple[tuple[int, tuple[int, int]], ...]  # neighbours that had a depth map: view, its [H, W]
    wanted: int  # neighbours that should agree, where enough of them see the same

    @property
    def asked(self) -> int:
        return len(self.sources)


class Comparer:
    """Compares views, in any order; with neighbours after each other, each map is read about once."""

    def __init__(
        self,
        scene: Scene,
        depths: DepthSource,
        config: FusionConfig,
        device: torch.device | str,
        on_unreadable: OnUnreadable | None = None,
    ) -> None:
        self.config, self.device = config, torch.device(device)
        self.neighbours = [view.best_sources(config.max_sources) for view in scene.views]
        self.order = visiting_order(self.neighbours)  # decides which of several views has a point
        self.position_type = position_type_of(scene)
        self._judge = judge_fast if ops.usable(torch.empty(0, device=self.device)) else judge_plainly
        self._loader = Loader(scene, depths, config, self.device, on_unreadable)

    def __enter__(self) -> Comparer:
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.__exit__()

    def in_order(self) -> Iterator[tuple[int, list[int]]]:
        """Each view of `order`, to be compared then, and the two after it; drops what will not be needed."""
        groups = [(view, *self.neighbours[view]) for view in self.order]  # asked for together
        uses = self._loader.uses
        for moment, used in enumerate(chain.from_iterable(groups)):
            uses.setdefault(used, deque()).append(moment)
        done = 0
        for position, group in enumerate(groups):
            yield group[0], self.order[position + 1 : position + 3]
            done += len(group)
            for used in group:
                while uses[used] and uses[used][0] < done:  # it was not asked for
                    uses[used].popleft()
                if not uses[used]:
                    self._loader.drop(used)

    def compare(self, index: int, used: UsedPixels | None, following: Sequence[int]) -> Compared | None:
        """Compare one view; None if it has no depth map. Reads ahead what the `following` views need."""
        loader, neighbours = self._loader, self.neighbours
        loaded = loader.get(index)
        if loaded is None:
            return None
        loader.read_ahead(neighbours[index])
        found = [(i, loader.get(i)) for i in neighbours[index]]
        sources = [(i, one.depth_map) for i, one in found if one is not None]
        for view in following:
            loader.read_ahead([view, *neighbours[view]])
        rule = self.config.rule_for(loaded.whole.made_by)
        judged = self._judge(loaded, sources, used, self.config, rule, index, self.position_type)
        shapes = [(i, (int(m.depth.shape[0]), int(m.depth.shape[1]))) for i, m in sources]
        return Compared(loaded, judged, tuple(shapes), rule.min_views)


def position_type_of(scene: Scene) -> torch.dtype:
    """float64 for scenes so far from the origin (map coordinates) that float32 would show steps."""
    centres = torch.stack([view.camera.centre for view in scene.views]).double()  # [V, 3]
    spread = float((centres - centres.mean(0)).norm(dim=-1).max())
    far = float(centres.mean(0).norm()) > 1000 * max(spread, 1e-9)
    return torch.float64 if far else torch.float32
