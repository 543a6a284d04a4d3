"""A score says which weights, settings and commit made it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ball_scene import SceneMaker
from oracle import Oracle

from gbinet import __version__, provenance
from gbinet.evaluation.scores import ScoreSheet, Table, describe_maker, makers, write_scores
from gbinet.evaluation.scores import provenance as recorded
from gbinet.inference import finished
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.model.gbinet import GBiNet
from gbinet.provenance import Maker, hash_of, maker


def test_the_hash_is_of_the_content_not_of_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GBiNet()
    first, second = model.save(tmp_path / "a.safetensors"), model.save(tmp_path / "b.safetensors")
    a, b = maker(GBiNet.from_pretrained(first)), maker(GBiNet.from_pretrained(second))
    assert (a.weights_file, b.weights_file) == ("a.safetensors", "b.safetensors")
    assert a.weights == b.weights == hash_of(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-6
    assert hash_of(model) != a.weights
    assert maker(model).weights_file is None


def test_sources_of_an_archive_know_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    provenance.commit.cache_clear()
    monkeypatch.setattr(provenance, "_ARCHIVED", "0123456789abcdef0123456789abcdef01234567")
    assert provenance.software() == f"gbinet {__version__}, commit 0123456789ab"
    provenance.commit.cache_clear()
    monkeypatch.setattr(provenance, "_ARCHIVED", "$Format:%H$")
    monkeypatch.setattr(provenance, "_git", lambda *_: None)
    assert provenance.software() == f"gbinet {__version__}"
    provenance.commit.cache_clear()


def test_scores_name_all_who_made_the_depth_maps(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ball_scene()
    oracle, config = Oracle(scene), DepthConfig(views=3)
    first = maker(oracle)
    estimate_depths(scene, oracle, tmp_path / "depth", config)  # type: ignore[arg-type]
    second = replace(first, commit="later")
    monkeypatch.setattr(finished, "maker", lambda *_: second)
    score, _ = write_scores(
        tmp_path / "first", ScoreSheet("t", Table(["a"], [[1]]), prediction=recorded(tmp_path))
    )
    assert json.loads(score.read_text())["made_by"] == [first.to_dict()]
    for left in (0, 2, 1):  # a newer version goes on where the first one stopped, and is named once
        for path in sorted((tmp_path / "depth").glob("*.npz"))[:left]:
            path.unlink()
        assert len(estimate_depths(scene, oracle, tmp_path / "depth", config).computed) == left  # type: ignore[arg-type]
        count = len(makers(recorded(tmp_path)))
        assert count == (1 if left == 0 else 2)  # who computes nothing has made nothing
    report = ScoreSheet("t", Table(["a"], [[1]]), prediction=recorded(tmp_path))
    written, markdown = write_scores(tmp_path / "evaluation", report)
    score = json.loads(written.read_text())
    assert score["made_by"] == [first.to_dict(), second.to_dict()]
    assert score["prediction"]["settings"]["views"] == 3
    assert f"content {first.weights}" in markdown.read_text() and "commit later" in markdown.read_text()
    assert __version__ in score["scored_by"]


def test_makers_are_found_at_any_depth_and_once() -> None:
    one = Maker("00", "x.safetensors", "0.1.0", None).to_dict()
    assert makers({"scenes": {"a": {"made_by": one}, "b": {"made_by": [one]}}, "made_by": "?"}) == [one]
    assert describe_maker(one) == "weights x.safetensors (content 00), gbinet 0.1.0"
    assert makers("nothing") == []
