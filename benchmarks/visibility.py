"""Shows where depth is wrong: errors by the number of source views that see a pixel, and near depth edges.

    python benchmarks/visibility.py --assets DIR --scenes 5 --out visibility.json
    python benchmarks/visibility.py --assets DIR --scenes 5 --oracles

Uses rendered scenes like those of the validation set (1600x1152, 5 views, 425 to 935 mm) but with other
seeds, so that nothing is tuned to that set. Pixels with a depth edge within 2 px do not count, as in
validation. The depth of a pixel that no source view sees cannot be measured.

--oracles also runs networks that know a part of the truth, which shows how much it would help to learn that
part perfectly: the true visibility of source views, in all their weights; or the true cells after a stage.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import report
from torch import Tensor

from gbinet import ops
from gbinet.evaluation.depth import THRESHOLDS, away_from_edges, depth_errors
from gbinet.inference.device import pick_device
from gbinet.inference.prepare import prepare
from gbinet.model import search
from gbinet.model.cost_volume import ViewWeight
from gbinet.model.gbinet import GBiNet
from gbinet.model.search import SearchState
from gbinet.ops import warp
from gbinet.ops.bins import Bins
from gbinet.ops.cost_volume import Maps, views_of
from gbinet.render.source import RenderConfig, RenderedSource
from gbinet.scenes.transforms import depth_pyramid

SEED = 4242
DISTANCES = (4, 8, 16, 32)  # px
LEAST = 1e-3  # weight of a view that does not see a pixel: it counts where no other one does
ORACLES: Mapping[str, tuple[int, ...]] = {  # stages after which the true cells are known
    "true visibility": (),
    "true cells after stage 2": (2,),
    "true cells after stages 2 and 4": (2, 4),
}


class SeeingWeight(ViewWeight):
    """The learned weights of source views times whether they see a pixel."""

    visible: Tensor | None = None  # [B, V - 1, H, W] bool

    def cost_volume(self, maps: Maps, transforms: Tensor, hypotheses: Bins | Tensor, scale: int) -> Tensor:
        if self.visible is None:
            return super().cost_volume(maps, transforms, hypotheses, scale)
        depth = hypotheses.depths() if isinstance(hypotheses, Bins) else hypotheses
        reference, *sources = views_of(maps)
        seen = F.interpolate(self.visible.float(), size=reference.shape[-2:], mode="area")
        volumes, weights = [], []
        for number, transform in enumerate(warp.at_scale(transforms, scale).unbind(1)):
            volume = warp.warp_correlation(reference, sources[number], transform, depth, self.groups)
            weights.append(self(volume) * (seen[:, None, number : number + 1] + LEAST))
            volumes.append(volume * weights[-1])
        return torch.div(sum(volumes), sum(weights).clamp_min(ops.TINY)).to(reference.dtype)


class KnowingNet(GBiNet):
    """A network that may be told the truth: `told` says which part."""

    known_after: tuple[int, ...] = ()  # stages after which cells are the true ones
    depth: Tensor  # [B, H, W], 0 = unknown

    def told(self, depth: Tensor, visible: Tensor | None, known_after: tuple[int, ...]) -> None:
        self.depth, self.known_after = depth, known_after
        for module in self.modules():
            if isinstance(module, SeeingWeight):
                module.visible = visible

    def follow(self, state: SearchState, logits: Tensor) -> tuple[SearchState, Tensor]:
        after, confidence = super().follow(state, logits)
        if after.stage not in self.known_after or after.fractional_cell is None:
            return after, confidence
        (depth,) = depth_pyramid(self.depth, (self.config.scale_of(after.stage),))
        near, far = after.depth_range[:, :, None, None].unbind(1)
        position = after.grid.to_position(depth.clamp(min=near, max=far), after.depth_range)
        cells = torch.where(depth > 0, position * after.grid.cells(after.stage), after.fractional_cell)
        return search.descend_to(state, cells), confidence


def with_seeing_weights(model: KnowingNet) -> KnowingNet:
    """The network with SeeingWeights of the same parameters."""
    for modules in (model.view_weights, model.choice_weights, model.again_weights):
        for index, learned in enumerate(modules):
            assert isinstance(learned, ViewWeight)
            modules[index] = SeeingWeight(learned.groups)
            modules[index].load_state_dict(learned.state_dict())
    return model


def edge_distance(depth: Tensor) -> Tensor:
    """Upper bound of the distance to a depth edge in px, [H, W]: one of DISTANCES, or infinite."""
    edges = (~away_from_edges(depth, 0)).float()[None, None]
    distance = torch.full_like(depth, torch.inf)
    for reach in reversed(DISTANCES):
        near = F.max_pool2d(edges, 2 * reach + 1, 1, reach)[0, 0] > 0
        distance = torch.where(near, float(reach), distance)
    return distance


def shares(depth: Tensor, truth: Tensor, chosen: Tensor) -> dict[str, float]:
    """Of the chosen pixels: their share of all, percent within each threshold, share of all gross errors."""
    within = depth_errors(depth, truth, chosen).within
    gross = (depth - truth).abs() > THRESHOLDS[-1]
    share_of_gross = float((gross & chosen).sum()) / max(int(gross.sum()), 1)
    return {
        "of all pixels %": round(100 * float(chosen.float().mean()), 2),
        **{f"within {t:g} %": round(100 * share, 2) for t, share in within.items()},
        f"of all errors over {THRESHOLDS[-1]:g} %": round(100 * share_of_gross, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", help="file or name; default: the bundled weights")
    parser.add_argument("--assets", type=Path, help="folder of objects and textures, as in training")
    parser.add_argument("--size", default="1600x1152", help="WIDTHxHEIGHT")
    parser.add_argument("--scenes", type=int, default=5)
    parser.add_argument(
        "--oracles", action="store_true", help="also run networks that know a part of the truth"
    )
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    device = pick_device(given.device)
    width, height = (int(n) for n in given.size.split("x"))
    config = RenderConfig(
        width, height, 5, seed=SEED, assets=given.assets, dtu_like=True, samples_per_scene=1, visibility=True
    )
    source = RenderedSource(config, device)
    engine = prepare(with_seeing_weights(KnowingNet.from_pretrained(given.weights)), device)
    assert isinstance(engine, KnowingNet)
    rows = []  # [5, N] each: depth, confidence, true depth, sources that see the pixel, distance to an edge
    told: dict[str, list[Tensor]] = {name: [] for name in (ORACLES if given.oracles else ())}
    for index in range(given.scenes):
        with torch.inference_mode():
            batch = source.batch(index, 1)
            assert batch.visible is not None
            engine.told(batch.depth, None, ())
            found = engine(batch.images, batch.cameras, batch.depth_range)
            truth = batch.depth[0]
            near, far = batch.depth_range[0]
            counted = away_from_edges(truth) & (truth > near) & (truth < far)
            seen = batch.visible[0].sum(0).float()
            maps = (found.depth[0], found.confidence[0], truth, seen, edge_distance(truth))
            rows.append(torch.stack([m[counted].float() for m in maps]).cpu())
            for name, stages in ORACLES.items() if given.oracles else ():
                engine.told(batch.depth, None if stages else batch.visible, stages)
                told[name].append(
                    engine(batch.images, batch.cameras, batch.depth_range).depth[0][counted].cpu()
                )
    depth, confidence, true, seen, distance = torch.cat(rows, dim=1)
    of = partial(shares, depth, true)
    figures: dict[str, object] = {"scenes": given.scenes, "all": of(seen >= 0)}
    for number in range(config.views):
        figures[f"seen by {number}"] = of(seen == number)
    figures["seen by 2 or more"] = of(seen >= 2)
    for reach in (*DISTANCES, torch.inf):
        figures[f"edge within {reach:g} px"] = of(distance == reach)
    for bound in (0.3, 0.5, 0.8):
        figures[f"confidence below {bound:g}"] = of(confidence < bound)
    for name, parts in told.items():
        figures[name] = shares(torch.cat(parts), true, seen >= 0)
    report("visibility", figures, given.out)


if __name__ == "__main__":
    main()
