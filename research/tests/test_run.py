"""Training side by side, what it costs, and clouds: whoever is trained beside it, a variant is the same."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from plane_scenes import PlaneSource

from gbinet.errors import GBiNetError, InputError, flag
from gbinet.fusion.photometric import blank, trusted
from gbinet.inference.resources import Resources
from gbinet.model.gbinet import GBiNet
from gbinet.provenance import hash_of
from gbinet.training.distributed import Processes
from gbinet.training.samples import SourceStream
from gbinet.training.trainer import train
from gbinet.training.updates import Step
from gbinet_research import clouds, run
from gbinet_research.__main__ import main
from gbinet_research.cost import PARTS, measure_costs
from gbinet_research.dense import DenseNet
from gbinet_research.results import Results
from gbinet_research.start import take_over
from gbinet_research.variants import VARIANTS, Budget, Variant, train_config


def silent(text: str) -> None:
    pass


class Together:
    """`train_together` on planes, which cost nothing."""

    def __init__(self, out: Path, budget: Budget) -> None:
        self.out, self.budget, self.said = out, budget, list[str]()
        self.source = PlaneSource()
        self.stream = SourceStream(self.source, budget.batch_size, Processes())

    def __call__(self, *names: str, minutes: float = 0.0) -> None:
        run.train_together(
            [VARIANTS[name] for name in names],
            self.budget,
            self.out,
            self.out / "work",
            minutes=minutes,
            stream=self.stream,
            samples=[self.source.batch(900, 1)],
            tell=self.said.append,
        )

    def stored(self, name: str) -> dict[str, Any]:
        content = json.loads((self.out / f"{name}.json").read_text())
        assert isinstance(content, dict)
        return content


@pytest.fixture
def together(tmp_path: Path, budget: Budget) -> Together:
    return Together(tmp_path / "out", budget)


def test_side_by_side_is_bit_for_bit_what_it_is_alone(together: Together, tmp_path: Path) -> None:
    """Also with a seed of its own beside another one, and with a dense search."""
    together("inverse-depth", "coarse-to-fine-seed1")
    for name in ("inverse-depth", "coarse-to-fine-seed1"):
        variant = VARIANTS[name]
        config = train_config(variant, together.budget, torch.device("cpu"))
        alone = tmp_path / name
        train(config, alone, stream=together.stream, network=variant.network, loss=variant.loss)
        model = variant.network.from_pretrained(alone / "last.safetensors")
        kept = variant.network.from_pretrained(model.save(tmp_path / "half.safetensors", half=True))
        assert together.stored(name)["made_by"]["weights"] == hash_of(kept)
    assert together.stored("inverse-depth")["trained"]["side_by_side"] == [
        "inverse-depth",
        "coarse-to-fine-seed1",
    ]


def test_a_stopped_command_goes_on_and_a_finished_one_stays(
    together: Together, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Together(tmp_path / "whole", together.budget)
    whole("binet")
    monkeypatch.setattr(run, "_loop", _stopping(run._loop))
    together("binet")
    assert "1 of 2 steps" in together.said[-1] and not (together.out / "binet.json").exists()
    together("binet")
    content = together.stored("binet")
    assert content["trained"]["samples"] == 2
    assert content["made_by"]["weights"] == whole.stored("binet")["made_by"]["weights"]
    assert set(content["validation"]["centres"]) == {str(k) for k in range(1, 10)}  # beyond its own 8
    monkeypatch.setattr(run, "Training", None)
    together("binet", "continuous")  # nothing left to train: the second is another read-out of gbinet
    assert together.said[-1] == "binet: finished before"
    monkeypatch.setitem(VARIANTS, "binet", replace(VARIANTS["binet"], changes={"recover": True}))
    with pytest.raises(InputError, match="another design than `binet`"):
        together("binet")
    monkeypatch.undo()
    together.budget = replace(together.budget, samples=9)
    with pytest.raises(InputError, match="another budget"):
        together("binet")
    (together.out / "binet.json").write_text("[")
    with pytest.raises(InputError, match="delete it"):
        together("binet")


def _stopping(loop: Any) -> Any:
    """The first time there are seconds for a single step only."""
    limits = iter([True])

    def stopped(trainings: Any, stream: Any, budget: Budget, device: Any, limit: float, tell: Any) -> bool:
        if next(limits, False):
            loop(trainings, stream, replace(budget, samples=1), device, limit, tell)
            return bool(loop(trainings, stream, budget, device, 1e-9, tell))
        return bool(loop(trainings, stream, budget, device, limit, tell))

    return stopped


def test_one_that_fails_does_not_stop_the_others(together: Together, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(training: run.Training) -> None:
        training.failure = "not finite" if training.variant.name == "binet" else ""

    monkeypatch.setattr(run.Training, "check", check)
    together("binet", "dense-linear")
    assert not (together.out / "binet.json").exists() and together.stored("dense-linear")["stages"] == 1
    assert any("binet: given up: not finite" in line for line in together.said)


def test_what_could_not_be_scored_is_not_trained_again(
    together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = run.validate

    def fail(model: GBiNet, *rest: Any) -> Any:
        if isinstance(model, DenseNet):
            raise RuntimeError("CUDA out of memory")
        return validate(model, *rest)

    monkeypatch.setattr(run, "validate", fail)
    together("dense-linear", "binet")
    assert together.stored("binet") and not (together.out / "dense-linear.json").exists()
    assert any("dense-linear: could not be scored" in line for line in together.said)
    monkeypatch.setattr(run, "validate", validate)
    monkeypatch.setattr(run.Training, "train", None)
    together("dense-linear", "binet")
    assert together.stored("dense-linear")["trained"]["samples"] == 2


def test_a_training_goes_on_with_what_it_was_begun_with_only(
    together: Together, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, weights = together.budget, tmp_path / "w.safetensors"
    DenseNet(VARIANTS["dense-linear"].config).save(weights)
    monkeypatch.setattr(run, "_loop", _stopping(run._loop))
    together("dense-linear")
    together.budget = replace(scratch, start=weights)
    with pytest.raises(InputError, match=r"dense-linear was made with another budget \(--start\)"):
        together("dense-linear")
    together.budget = replace(scratch, assets=tmp_path)  # what checkpoints themselves let pass
    with pytest.raises(InputError, match="--assets"):
        together("dense-linear")
    together.budget = scratch
    together("dense-linear")
    assert together.stored("dense-linear")["budget"]["start"] is None


def test_what_is_not_ours_is_not_replaced(together: Together) -> None:
    """Weights that no result names, and a work folder that no training of ours has begun."""
    theirs = [together.out / "binet.safetensors", together.out / "work" / "binet" / "last.safetensors"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        with pytest.raises(InputError, match=f"{'binet' if path == theirs[1] else path.name} .*move"):
            together("binet")
        assert path.read_text() == "mine"
        path.unlink()
    together("binet")
    stored = together.stored("binet")
    (together.out / "binet.json").unlink()  # as if it had been stopped just before: the weights are ours
    together("binet")
    assert together.stored("binet")["made_by"] == stored["made_by"]


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_a_start_that_cannot_be_read_is_one_sentence(
    content: bytes | None, together: Together, tmp_path: Path
) -> None:
    start = tmp_path / "w.safetensors"
    if content is not None:
        start.write_bytes(content)
    together.budget = replace(together.budget, start=start)
    with pytest.raises(GBiNetError, match=r"^--start .*w\.safetensors.*omit it$"):
        together("binet")


def test_weights_are_taken_over_as_far_as_they_fit() -> None:
    torch.manual_seed(0)
    given, model = GBiNet(VARIANTS["learned"].config), GBiNet(VARIANTS["again"].config)
    take_over(model, given.state_dict())
    for name, tensor in given.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    for at, scale in enumerate(model.config.scales_choosing_again):
        pairs = zip(
            model.again_choosers[at].parameters(), given.choosers[scale - 1].parameters(), strict=True
        )
        assert all(torch.equal(own, other) for own, other in pairs)
    with pytest.raises(GBiNetError, match="none of the tensors"):
        take_over(model, {"other": torch.zeros(1)})


def test_regression_learns_a_plane(budget: Budget) -> None:
    """The dense networks have gradients from end to end: on a sample seen again and again, the loss falls."""
    from gbinet.training.optimise import Optimiser, to_channels_last
    from gbinet.training.updates import Step, update

    for name in ("dense-linear", "coarse-to-fine-helped"):
        torch.manual_seed(0)
        config = train_config(VARIANTS[name], budget, torch.device("cpu"))
        model = VARIANTS[name].network(config.network).train()
        to_channels_last(model)
        optimiser = Optimiser(model, config, Processes())
        optimiser.schedule(2e-3, 0)
        batch = PlaneSource().batch(0, 1)
        step = Step(config, config.network.stages, loss=VARIANTS[name].loss)
        losses = []
        for _ in range(5):
            optimiser.begin()
            measures = update(config.update, model, batch, step, optimiser.apply)
            optimiser.end()
            losses.append(float(measures[:, 2].sum()))
        assert losses[-1] < 0.9 * losses[0], name


def test_what_is_measured_is_what_is_trained(
    together: Together, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is measured has the configuration of one that is trained, on a GPU too."""
    on_gpu = partial(train_config, device=torch.device("cuda"))
    for place in ("cost", "run"):
        monkeypatch.setattr(f"gbinet_research.{place}.train_config", lambda v, b, device: on_gpu(v, b))
    steps: list[Step] = []

    def remember(model: GBiNet, optimiser: Any, batch: Any, step: Step) -> Any:
        steps.append(step)
        raise InterruptedError

    monkeypatch.setattr("gbinet_research.cost.eager_step", remember)
    device = torch.device("cpu")
    for name in ("gbinet-per-stage", "gbinet-accumulate"):
        variant = VARIANTS[name]
        with pytest.raises(InterruptedError):
            PARTS["training"](variant, together.budget, device, 1)
        training = run.Training(variant, together.budget, tmp_path, together.stream, device)
        assert steps[-1].config == training.trainer.config
        assert not steps[-1].config.encode_twice  # so that their memory may be compared


def test_costs_are_measured_once_for_variants_that_are_alike(
    tmp_path: Path, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_costs([VARIANTS["dense-linear"]], budget, tmp_path, silent, repeat=1)
    measured: list[tuple[str, str]] = []

    def counting(part: str) -> Any:
        def measure(variant: Variant, *_: object) -> Resources:
            measured.append((variant.name, part))
            return Resources(1, 1, 1, 5.0, 1.0)

        return measure

    parts = ("network", "engine", "training")
    monkeypatch.setattr("gbinet_research.cost.PARTS", {part: counting(part) for part in parts})
    names = ("dense-linear", "gbinet", "gbinet-accumulate", "continuous", "again", "again-seed1")
    for _ in range(2):
        measure_costs([VARIANTS[name] for name in names], budget, tmp_path, silent)
    assert measured == [
        *(("gbinet", part) for part in parts),
        ("gbinet-accumulate", "training"),  # its depth maps are gbinet's
        *(("continuous", part) for part in ("network", "engine")),  # and its training gbinet's
        *(("again", part) for part in parts),  # seeds cost the same
    ]
    results = Results.read(tmp_path)
    assert all(results.cost(name, part, "milliseconds") for name in names for part in parts)
    assert results.cost("binet", "network", "milliseconds") is None


def test_a_cost_that_cannot_be_measured_does_not_lose_the_others(
    tmp_path: Path, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("gbinet_research.cost.PARTS", dict.fromkeys(("network", "engine", "training"), fail))
    measure_costs([VARIANTS["gbinet"]], budget, tmp_path, silent)
    results = Results.read(tmp_path)
    assert results.costs["gbinet"]["network"] == {"error": "not enough memory"}
    assert results.cost("gbinet", "network", "peak_mib") is None

    def work(*_: object) -> Resources:
        return Resources(1, 1, 1, 5.0, 1.0)

    monkeypatch.setattr("gbinet_research.cost.PARTS", dict.fromkeys(("network", "engine", "training"), work))
    measure_costs([VARIANTS["gbinet"]], budget, tmp_path, silent)  # the next command tries again
    assert Results.read(tmp_path).cost("gbinet", "network", "milliseconds") == 5.0
    for other in ({"batch_size": 2}, {"validation_size": (64, 64)}, {"precision": "bfloat16"}):
        (option,) = other
        with pytest.raises(InputError, match=rf"`gbinet` was measured .* \({flag(option)}\)"):
            measure_costs([VARIANTS["binet"]], replace(budget, **other), tmp_path, silent)
    measure_costs([VARIANTS["binet"]], replace(budget, samples=9), tmp_path, silent)  # costs the same


def test_only_geometry_filters_clouds() -> None:
    confidence, white = torch.zeros(8, 8), torch.full((8, 8, 3), 255, dtype=torch.uint8)
    how = clouds.FUSION
    kept = trusted(
        confidence, white, blank(white), how.min_confidence, how.blank_confidence, how.keep_burnt_out
    )
    assert kept.all()


@pytest.mark.slow
def test_clouds_come_from_the_weights_that_are_kept(tmp_path: Path, budget: Budget) -> None:
    torch.manual_seed(0)
    DenseNet(VARIANTS["dense-linear"].config).save(tmp_path / "dense-linear.safetensors")
    variants = [VARIANTS["dense-linear"], VARIANTS["binet"]]
    clouds.score_clouds(variants, budget, tmp_path, silent)
    content = json.loads((tmp_path / "clouds.json").read_text())
    assert set(content) == {"dense-linear"} and set(content["dense-linear"]["stages"]) == {"1"}
    assert {p.name for p in tmp_path.iterdir()} == {"dense-linear.safetensors", "clouds.json"}


def test_the_command_line_takes_names_and_a_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: dict[str, Any] = {}

    def remember(variants: Any, budget: Budget, out: Path, work: Path, **how: Any) -> None:
        given.update(names=[v.name for v in variants], budget=budget, out=out, work=work, **how)

    monkeypatch.setattr("gbinet_research.__main__.train_together", remember)
    words = f"train binet chance --minutes 2.5 --out {tmp_path} --samples 9 --zoom 2 6.5"
    assert main([*words.split(), "--batch-size", "3"]) == 0
    assert given["names"] == ["binet", "coarse-to-fine", "coarse-to-fine-seed1", "again", "again-seed1"]
    assert (given["minutes"], given["work"]) == (2.5, tmp_path / "work")
    assert given["budget"] == Budget(samples=9, batch_size=3, zoom=(2.0, 6.5))
