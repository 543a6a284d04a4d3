"""Presets are the paper's, every field is a flag with a help text, impossible runs are refused."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from gbinet.cli.train import command
from gbinet.errors import InputError
from gbinet.model.config import GBiNetConfig
from gbinet.training.config import PRESETS, TrainConfig, preset
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
    assert learning_rate(config, 0, 1.0) == pytest.approx(0.01 * config.learning_rate)


def test_warm_up_rises_to_the_full_rate():
    config = preset("rendered", total_steps=10**9, warmup_steps=10)
    rates = [learning_rate(config, s, 0.0) for s in range(12)]
    assert rates[0] == pytest.approx(config.learning_rate / 10)
    assert rates == sorted(rates)
    assert rates[9] == rates[11] == config.learning_rate


def flags(arguments: list[str]) -> TrainConfig:
    """What `gbinet train` would run."""
    run = command(arguments)
    found: list[TrainConfig] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gbinet.cli.train._run", lambda start, config: found.append(config))
        tyro.cli(run, args=arguments)
    return found[0]


def test_every_field_is_a_flag_that_is_explained(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        tyro.cli(command(["--help"]), args=["--help"])
    shown = capsys.readouterr().out
    names = {field.name for field in (*fields(TrainConfig), *fields(GBiNetConfig))}
    for name in (names | {"size"}) - {"network", "height", "width"}:
        explained = re.search(rf"--{name.replace('_', '-')}\b(.*?)\(default", shown, re.S)
        assert explained and len(re.findall(r"[a-z]{2,}", explained[1])) > 2, name
    assert "--height" not in shown and "--width" not in shown
    assert ".py" not in shown.split("\n\n", 1)[1], "users do not have the source"  # usage names us


def test_size_is_width_and_height() -> None:
    assert (flags([]).width, flags([]).height) == (TrainConfig.width, TrainConfig.height)
    given = flags(["--size", "192x128"])
    assert type(given) is TrainConfig and (given.width, given.height) == (192, 128)
    assert (flags(["--preset", "dtu"]).width, flags(["--preset", "dtu"]).height) == (1280, 1024)


def test_flags_change_the_preset_and_its_network():
    plain = flags([])
    assert plain == preset("rendered") and plain.network.readout == "expectation"
    words = """--stage-weights 1 2.5 --dtu-like --minutes 5 --model gbinet-6 --first-bins 24 --stages 7
        --confidence nearby --smoothing 1 6 1 6 2 12 5 32 --readout smooth --regulariser-width 16 16 8 8"""
    given = flags(words.split())
    network = given.network
    assert (given.stage_weights, given.dtu_like, given.minutes) == ((1.0, 2.5), True, 5.0)
    assert (network.bins, network.first_bins, network.stages) == (6, 24, 7)
    assert network.smoothing == ((1, 6), (1, 6), (2, 12), (5, 32))
    assert network.regulariser_widths == (16, 16, 8, 8)
    assert given.batch_size == preset("rendered").batch_size
    paper = flags(["--preset", "dtu", "--data", "some/folder"])
    assert paper == preset("dtu", data=Path("some/folder"))


def test_a_resumed_run_starts_from_its_own_options(tmp_path: Path):
    from gbinet.model.gbinet import GBiNet
    from gbinet.training import checkpoint
    from gbinet.training.distributed import Processes
    from gbinet.training.optimise import Optimiser

    config = preset("dtu", batch_size=3, stage_weights=(1.0, 2.0)).with_network(first_bins=8)
    model = GBiNet(config.network)
    optimiser = Optimiser(model, config, Processes())
    checkpoint.save(tmp_path, model, optimiser, config, checkpoint.TrainProgress(step=5))
    given = flags(["--out", str(tmp_path), "--resume", "--minutes", "3"])
    assert given == replace(config, minutes=3.0)
    with pytest.raises(InputError, match="--model"):
        command(["--out", str(tmp_path), "--resume", "--model", "binet"])
    with pytest.raises(InputError, match="no checkpoint"):
        command(["--out", str(tmp_path / "empty"), "--resume"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"height": 100}, "multiples of 64"),
        ({"model": "resnet"}, "unknown network 'resnet'"),
        ({"update": "refiner"}, "--refiner"),
        ({"views": 1}, "a reference and a source"),
        ({"batch_size": 0}, "--batch-size"),
        ({"learning_rate": 0.0}, "--learning-rate"),
        ({"ema": 1.0}, "--ema"),
        ({"stage_weights": (1.0, -1.0)}, "--stage-weights"),
        ({"total_steps": -1}, "--total-steps must not be negative"),
        ({"minutes": -1.0}, "--minutes must not be negative"),
        ({"clip": -1.0}, "--clip must not be negative"),
        ({"warmup_steps": -5}, "--warmup-steps must not be negative"),
        ({"readout_weight": float("nan")}, "--readout-weight must not be negative"),
        ({"samples_per_scene": 0}, "--samples-per-scene must be at least 1"),
    ],
)
def test_impossible_runs_are_refused(change: dict[str, object], said: str):
    with pytest.raises(InputError, match=said):
        preset("rendered", **change)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "."], "--data is only read with --preset scenes"),
        (["--preset", "dtu"], "--data is missing"),
        (["--preset", "dtu", "--data", "no-such-folder"], "no-such-folder: there is no such folder"),
        (["--assets", "no-such-folder"], "no-such-folder: there is no such folder"),
    ],
)
def test_folders_that_are_not_read_or_not_there_are_refused(words: list[str], said: str, tmp_path: Path):
    words = [*words, "--out", str(tmp_path / "run")]
    with pytest.raises(InputError, match=said):
        tyro.cli(command(words), args=words)
    assert not list(tmp_path.iterdir())


def test_unknown_presets_and_fields_are_refused():
    with pytest.raises(InputError, match="no training preset"):
        preset("kitti")
    with pytest.raises(InputError, match="newer"):
        TrainConfig.from_dict({"total_steps": 1, "quantum": True})


@given(st.lists(st.floats(0, 10), min_size=1, max_size=4), st.integers(1, 9))
def test_the_last_stage_weight_is_repeated(weights: list[float], stage: int):
    config = preset("rendered", total_steps=1, stage_weights=tuple(weights))
    assert config.stage_weight(stage) == weights[min(stage, len(weights)) - 1]


def test_all_stages_of_a_product_count() -> None:
    assert GBiNetConfig().stages_counted == 6
    assert GBiNetConfig(stages=7, confidence="nearby").stages_counted == 7
    assert GBiNetConfig(stages=7, confidence="nearby", confidence_stages=3).stages_counted == 3


def test_a_network_that_reads_out_in_its_own_way_keeps_it() -> None:
    assert preset("rendered", "bundled").network.readout == "refined"
    assert preset("rendered").network.readout == preset("rendered", "binet").network.readout == "expectation"


def test_a_file_in_the_place_of_the_run_is_reported(tmp_path: Path):
    from gbinet.errors import GBiNetError
    from gbinet.training.tracking import Tracker

    (tmp_path / "run").write_text("a file")
    with pytest.raises(GBiNetError, match=r"cannot write .*run: a part of this path is a file"):
        Tracker(tmp_path / "run")
