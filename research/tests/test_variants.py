"""The rows of the comparison: each step of the ladder is one lever, and all rows share one budget."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from gbinet.errors import InputError
from gbinet.model.config import PRESETS, GBiNetConfig
from gbinet_research.dense import PRESETS as DENSE
from gbinet_research.variants import (
    COMPARISONS,
    LADDER,
    RUNGS,
    VARIANTS,
    Budget,
    chosen,
    differing,
    train_config,
)


def changed(before: GBiNetConfig, after: GBiNetConfig) -> set[str]:
    names = (f.name for f in fields(GBiNetConfig))
    return {name for name in names if getattr(before, name) != getattr(after, name)}


def test_each_row_of_the_ladder_is_the_one_before_plus_the_lever_it_names() -> None:
    for (_, before), (rung, after) in pairwise((r, VARIANTS[r.name]) for r in RUNGS):
        assert changed(before.config, after.config) == set(rung.network), rung.name
        differ = {
            k for k in {*before.changes, *after.changes} if before.changes.get(k) != after.changes.get(k)
        }
        assert differ == set(rung.training), rung.name
        assert len(rung.training) + bool(rung.network) == 1, rung.name  # one lever, not two
        assert after.seed == before.seed == 0


def test_the_ladder_leads_from_the_published_design_to_the_one_that_ships() -> None:
    first, last = VARIANTS[LADDER[0]], VARIANTS[LADDER[-1]]
    assert first.config == PRESETS["gbinet"] and first.changes["update"] == "per-stage"
    assert last.config == PRESETS["bundled"] and last.changes["recover"]


def test_every_variant_can_be_built_and_shares_the_budget(budget: Budget) -> None:
    for variant in VARIANTS.values():
        config = train_config(variant, budget, torch.device("cpu"))
        assert config.total_steps == budget.steps == 2
        assert (config.learning_rate, config.readout_weight, config.zoom) == (1e-3, 0.0, 2.0)
        assert (config.width, config.height, config.batch_size) == (64, 64, 1)
        assert config.seed == budget.seed + variant.seed
        variant.network(config.network)
        # All alike, so that their costs can stand beside each other: not twice for one and once for another.
        assert not train_config(variant, budget, torch.device("cuda")).encode_twice and config.encode_twice


def test_second_seeds_differ_in_nothing_else() -> None:
    names = COMPARISONS["chance"]
    for first, second in zip(names[::2], names[1::2], strict=True):
        one, other = VARIANTS[first], VARIANTS[second]
        assert (one.config, one.changes) == (other.config, other.changes) and one.seed != other.seed


def test_the_helped_dense_search_reaches_as_far_as_the_binary_one() -> None:
    """At the same scale: the same radius, and the same share of the range after the last stage there."""
    helped, ships = DENSE["coarse-to-fine-helped"], PRESETS["bundled"]
    assert helped.inverse_depth == ships.inverse_depth
    for (radius, reach), scale in zip(helped.settling, helped.scale_of_stage, strict=True):
        stage = max(s for s in range(1, ships.stages + 1) if ships.scale_index(s) == scale)
        own, cells = ships.smoothing[scale]
        assert radius == own and reach == pytest.approx(cells / ships.grid.cells(stage))


def test_a_design_is_the_same_after_json_and_with_fields_that_networks_get_later() -> None:
    for variant in VARIANTS.values():
        stored = json.loads(json.dumps(variant.design))
        assert variant.has_design(stored)
        earlier = {k: v for k, v in stored["network"].items() if k not in ("context", "choice_again")}
        plain = not (variant.config.context or variant.config.choice_again)
        assert variant.has_design({**stored, "network": earlier}) == plain
        for other in VARIANTS.values():
            same = (other.config, other.changes, other.seed) == (
                variant.config,
                variant.changes,
                variant.seed,
            )
            assert other.has_design(stored) == same
    assert not variant.has_design(None) and not variant.has_design({"network": 3})


def test_names_are_variants_or_comparisons(budget: Budget) -> None:
    assert [v.name for v in chosen(("gbinet", "bins"))] == ["gbinet", "binet", "gbinet-6"]
    for names, message in (((), "name what"), (("looks",), "no comparison or variant 'looks'")):
        with pytest.raises(InputError, match=message):
            chosen(names)


def test_budgets_that_train_alike_are_the_same(budget: Budget, tmp_path: Path) -> None:
    stored = budget.to_dict()
    earlier = {k: v for k, v in stored.items() if k not in ("zoom", "start")}  # as b27bad1 wrote them
    assert not differing(earlier, stored) and not differing({**stored, "cloud_scenes": 9}, stored)
    assert differing({**stored, "samples": 3}, stored) == ["--samples"] and differing(None, stored)
    begun = []
    for folder, content in (("first", b"1"), ("other", b"2"), ("copy", b"1")):
        path = tmp_path / folder / "w.safetensors"
        path.parent.mkdir()
        path.write_bytes(content)
        begun.append(replace(budget, start=path).to_dict())
    first, other, copy = begun
    assert differing(first, stored) == differing(first, other) == ["--start"]  # what is in it, not its name
    assert first == copy
