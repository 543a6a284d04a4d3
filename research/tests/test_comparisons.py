"""Comparisons: one budget for all, finished work is kept, tables say what is ours and what the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from plane_scenes import PlaneSource

from gbinet.errors import FormatError, InputError
from gbinet.evaluation.scores import write_json
from gbinet.fusion.photometric import trusted
from gbinet.provenance import hash_of
from gbinet.training import trainer
from gbinet.training.distributed import Processes
from gbinet.training.samples import SourceStream
from gbinet_research import clouds, paper, run, tables
from gbinet_research.__main__ import main
from gbinet_research.compare import compare
from gbinet_research.cost import measure_costs
from gbinet_research.dense import DenseNet
from gbinet_research.page import fill_docs, write_pages
from gbinet_research.variants import COMPARISONS, VARIANTS, Budget, train_config

BUDGET = Budget(
    samples=2,
    batch_size=1,
    height=64,
    width=64,
    views=3,
    precision="float32",
    validation_scenes=1,
    validation_size=(128, 64),
    cloud_scenes=1,
    cloud_size=(96, 64),
)


def silent(text: str) -> None:
    pass


@pytest.fixture
def planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that cost nothing, in place of rendered ones."""
    source = PlaneSource()
    monkeypatch.setattr(trainer, "open_stream", lambda c, *_: SourceStream(source, c.batch_size, Processes()))
    monkeypatch.setattr(run, "validation_samples", lambda *_: [source.batch(900, 1)])


def test_every_variant_can_be_configured_and_shares_the_budget() -> None:
    for variant in VARIANTS.values():
        config = train_config(variant, BUDGET)
        assert config.total_steps == BUDGET.steps == 2
        assert (config.learning_rate, config.seed, config.readout_weight) == (1e-3, 0, 0.0)
        variant.network(config.network)
    assert {name for names in COMPARISONS.values() for name in names} == set(VARIANTS)


def test_a_stopped_variant_goes_on_and_a_finished_one_stays(
    planes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    with pytest.raises(InputError, match="no time for a single step"):
        run.run_variant("coarse-to-fine", BUDGET, out, work, minutes=1e-9, tell=silent)
    result = run.run_variant("coarse-to-fine", BUDGET, out, work, tell=silent)
    assert result["finished"] and result["trained"]["samples"] == 2  # type: ignore[index]
    stored = json.loads((out / "coarse-to-fine.json").read_text())
    assert set(stored["validation"]["centres"]) == {"1", "2", "3"}
    model = DenseNet.from_pretrained(out / "coarse-to-fine.safetensors")
    assert stored["made_by"]["weights"] == hash_of(model)  # the file that is kept is the one that was scored
    monkeypatch.setattr(run, "train", None)
    assert run.run_variant("coarse-to-fine", BUDGET, out, work, tell=silent) == stored
    with pytest.raises(InputError, match="another budget"):
        run.run_variant("coarse-to-fine", Budget(samples=9), out, work, tell=silent)
    (out / "coarse-to-fine.json").write_text("[")
    with pytest.raises(InputError, match="delete it"):
        run.run_variant("coarse-to-fine", BUDGET, out, work, tell=silent)


def test_a_binary_search_is_scored_to_stage_nine(planes: None, tmp_path: Path) -> None:
    pages = compare("stages", tmp_path, BUDGET, parts=("train", "pages"), tell=silent)
    stored = json.loads((tmp_path / "gbinet.json").read_text())
    assert set(stored["validation"]["centres"]) == {str(k) for k in range(1, 10)}
    assert {p.name for p in pages} == {"strategies.md", "bins.md", "stages.md", "updates.md"}
    assert (tmp_path / "stages-depth.png").is_file()


def test_regression_learns_a_plane(planes: None, tmp_path: Path) -> None:
    """The dense networks have gradients from end to end: on a sample seen again and again, the loss falls."""
    torch.manual_seed(0)
    from gbinet.training.optimise import Optimiser, to_channels_last
    from gbinet.training.updates import Step, update

    for name in ("dense-linear", "coarse-to-fine"):
        config = train_config(VARIANTS[name], BUDGET)
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


def test_costs_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_costs(("gbinet-accumulate", "dense-linear"), BUDGET, tmp_path, silent, repeat=1)
    costs = json.loads((tmp_path / "costs.json").read_text())
    assert set(costs["gbinet-accumulate"]) == {"training", "device"}  # its depth maps are gbinet's
    assert costs["dense-linear"]["network"]["milliseconds"] > 0
    monkeypatch.setattr("gbinet_research.cost.PARTS", {})
    measure_costs(("gbinet-accumulate", "dense-linear"), BUDGET, tmp_path, silent)


def test_a_cost_that_cannot_be_measured_does_not_lose_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("gbinet_research.cost.PARTS", dict.fromkeys(("network", "engine", "training"), fail))
    measure_costs(("gbinet",), BUDGET, tmp_path, silent)
    results = tables.Results.read(tmp_path)
    assert results.costs["gbinet"]["network"] == {"error": "not enough memory"}
    assert results.memory("gbinet", "network") is None


def test_only_geometry_filters_clouds() -> None:
    confidence, white = torch.zeros(8, 8), torch.full((8, 8, 3), 255, dtype=torch.uint8)
    how = clouds.FUSION
    kept = trusted(confidence, white, how.min_confidence, how.blank_confidence, how.keep_burnt_out)
    assert kept.all()


@pytest.mark.slow
def test_clouds_come_from_the_weights_that_are_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    DenseNet(VARIANTS["dense-linear"].config).save(tmp_path / "dense-linear.safetensors")
    clouds.score_clouds(("dense-linear", "binet"), BUDGET, tmp_path, tmp_path / "work", silent)
    content = json.loads((tmp_path / "clouds.json").read_text())
    assert set(content) == {"dense-linear"} and set(content["dense-linear"]["stages"]) == {"1"}


# ---- tables ------------------------------------------------------------------------------------------------


def fake(out: Path, name: str, share: float) -> None:
    """A result as run_variant writes it."""
    stages = range(1, 10) if "gbinet" in name or name == "binet" else range(1, 4)
    errors = {"within": {str(t): share for t in paper.THRESHOLDS}}
    write_json(
        out / f"{name}.json",
        {
            "label": VARIANTS[name].label,
            "budget": BUDGET.to_dict(),
            "finished": name != "binet",
            "trained": {"samples": 2, "steps": 2, "seconds": 1.0},
            "stages": VARIANTS[name].config.stages,
            "device": "some GPU",
            "validation": {
                "centres": dict.fromkeys(stages, errors),
                "expectations": dict.fromkeys(stages, errors),
                "valid_share": {k: 1 / k for k in stages},
            },
            "made_by": {
                "weights": "00",
                "weights_file": f"{name}.safetensors",
                "gbinet": "0",
                "commit": "c0",
            },
        },
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for index, name in enumerate(VARIANTS):
        fake(tmp_path, name, 0.1 + 0.1 * index)  # gbinet ahead of binet
    cost = {
        name: {
            part: {"peak_mib": 100.0 - i, "milliseconds": 5.0} for part in ("network", "engine", "training")
        }
        for i, name in enumerate(VARIANTS)
    }
    write_json(tmp_path / "costs.json", cost)
    score = {"accuracy": 0.5, "completeness": 0.25, "overall": 0.375, "points": 9}
    write_json(tmp_path / "clouds.json", {"gbinet": {"stages": dict.fromkeys((6, 7, 8, 9), score)}})
    return tmp_path


PAGE = "# Results\nMine.\n" + "".join(
    f"<!-- results: {name} -->\nold\n<!-- end -->\nkept {name}\n"
    for name in ("budget", "strategies", "bins", "stages", "updates", "order")
)


def test_docs_are_filled_between_the_marks_only(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    page.write_text(PAGE)
    fill_docs(results, page)
    text = page.read_text()
    assert "old" not in text and text.startswith("# Results\nMine.\n")
    assert all(f"kept {name}" in text for name in ("budget", "order"))
    for figure in ("*9384*", "*61.0*", "*12137*", "*0.289*"):  # the paper's, in italics
        assert figure in text
    assert "| GBi-Net " in text and "40.0" in text and "0.375" in text  # ours
    assert "GBi-Net ahead of Bi-Net within 1 mm: shows (40.0 against 30.0" in text
    assert "stopped early after 2 samples" in text and "commit c0" in text
    for picture in ("stages-depth", "stages-cloud", "bins-valid", "bins-within"):
        assert f"pictures/results-{picture}.png" in text
        assert (page.parent / "pictures" / f"results-{picture}.png").is_file()
    assert fill_docs(results, page).read_text() == text  # filling again changes nothing


def test_what_is_not_measured_is_a_dash(tmp_path: Path) -> None:
    fake(tmp_path, "gbinet", 0.4)
    assert len(write_pages(tmp_path)) == 4
    line = next(x for x in (tmp_path / "strategies.md").read_text().splitlines() if "Bi-Net " in x)
    assert line.split("|")[2].strip() == "-" and line.split("|")[3].strip() == "*5.6*"


def test_pages_that_cannot_be_filled_and_unknown_names_are_refused(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(FormatError, match="no marks"):
        fill_docs(results, page)
    page.write_text("<!-- results: other -->\n<!-- end -->")
    with pytest.raises(FormatError, match="unknown marks"):
        fill_docs(results, page)
    assert main(["docs", "--out", str(results), "--page", str(page)]) == 2
    assert capsys.readouterr().err.count("unknown marks") == 1
    with pytest.raises(InputError, match="no comparison"):
        compare("looks", tmp_path, BUDGET, tell=silent)
    with pytest.raises(InputError, match="has no variants"):
        compare("bins", tmp_path, BUDGET, variants=("dense-linear",), tell=silent)


def test_results_beside_the_clone_can_still_be_read() -> None:
    """Figures measured with earlier versions."""
    stored = Path(__file__).parents[3] / "shared" / "comparisons"
    if not stored.is_dir():
        pytest.skip("there is no ../shared beside this clone")
    results = tables.Results.read(stored)
    assert results.variants and all(results.within(name) for name in results.variants)


def test_the_command_line_takes_a_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: dict[str, Any] = {}

    def remember(comparison: str, out: Path, budget: Budget, **how: Any) -> list[Path]:
        given.update(comparison=comparison, out=out, budget=budget, **how)
        return []

    monkeypatch.setattr("gbinet_research.__main__.compare", remember)
    words = f"all --parts train --variants binet gbinet --minutes 2.5 --out {tmp_path} --samples 9"
    assert main([*words.split(), "--batch-size", "3"]) == 0
    assert (given["comparison"], given["parts"], given["minutes"]) == ("all", ("train",), 2.5)
    assert given["variants"] == ("binet", "gbinet") and given["budget"] == Budget(samples=9, batch_size=3)
