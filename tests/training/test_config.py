"""Presets are the paper's, flags come from the fields, impossible runs are refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbinet.errors import InputError
from gbinet.training.__main__ import parser
from gbinet.training.config import PRESETS, TrainConfig, field_help, preset
from gbinet.training.optimise import learning_rate


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_survive_json(name: str):
    import json

    config = preset(name, data=Path("some/folder"))
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_the_paper_trains_two_to_eight_stages():
    config = preset("dtu")
    assert [config.stages_in_epoch(e) for e in range(16)] == [2, 3, 4, 5, 6, 7, *[8] * 10]


def test_the_paper_halves_after_epochs_10_12_14():
    config = preset("dtu")
    rates = [learning_rate(config, e, e / 16) for e in range(16)]
    assert rates == [1e-4] * 10 + [5e-5] * 2 + [2.5e-5] * 2 + [1.25e-5] * 2


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_cosine_never_rises_and_ends_at_its_floor(a: float, b: float):
    config = preset("rendered", total_steps=10, warmup_steps=0)
    early, late = sorted((a, b))
    assert learning_rate(config, 0, early) >= learning_rate(config, 0, late)
    assert learning_rate(config, 0, 1.0) == pytest.approx(config.learning_rate * config.final_rate)


def test_warm_up_rises_to_the_full_rate():
    config = preset("rendered", total_steps=10**9, warmup_steps=10)
    rates = [learning_rate(config, s, 0.0) for s in range(12)]
    assert rates[0] == pytest.approx(config.learning_rate / 10)
    assert rates == sorted(rates)
    assert rates[9] == rates[11] == config.learning_rate


def test_every_field_is_explained():
    assert [name for name, text in field_help().items() if len(text) < 10] == []


def test_every_field_is_a_flag():
    flags = {f.name for f in fields(TrainConfig)}
    given = vars(parser().parse_args(["--out", "x", "--stage-weights", "1", "2.5", "--dtu-like", "True"]))
    assert flags <= set(given)
    assert given["stage_weights"] == [1.0, 2.5]
    assert given["dtu_like"] is True
    assert given["batch_size"] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"height": 100}, "multiples of 64"),
        ({"model": "resnet"}, "no network 'resnet'"),
        ({"views": 1}, "a reference and a source"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"ema": 1.0}, "ema"),
        ({"stage_weights": (1.0, -1.0)}, "stage_weights"),
        ({"first_bins": 3}, "first stage"),
    ],
)
def test_impossible_runs_are_refused(change: dict[str, object], said: str):
    with pytest.raises(InputError, match=said):
        preset("rendered", **change)


def test_a_run_needs_a_length():
    with pytest.raises(InputError, match="how long"):
        TrainConfig()


def test_unknown_presets_and_fields_are_refused():
    with pytest.raises(InputError, match="no training preset"):
        preset("kitti")
    with pytest.raises(InputError, match="newer"):
        TrainConfig.from_dict({"total_steps": 1, "quantum": True})


@given(st.lists(st.floats(0, 10), min_size=1, max_size=4), st.integers(1, 9))
def test_the_last_stage_weight_counts_on(weights: list[float], stage: int):
    config = preset("rendered", total_steps=1, stage_weights=tuple(weights))
    assert config.stage_weight(stage) == weights[min(stage, len(weights)) - 1]


def test_the_network_takes_over_the_confidence() -> None:
    plain = TrainConfig(total_steps=1).network
    assert (plain.confidence, plain.confidence_stages) == ("largest", 6)
    nearby = TrainConfig(total_steps=1, stages=7, confidence="nearby").network
    assert (nearby.confidence, nearby.confidence_stages) == ("nearby", 7)
