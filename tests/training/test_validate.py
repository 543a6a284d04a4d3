"""Validation measures what the search says, stage by stage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plane_scenes import PlaneSource

from gbinet.errors import InputError
from gbinet.model.config import Confidence, GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.training.tracking import Tracker, pictures
from gbinet.training.validate import (
    PERCENTS,
    Prediction,
    _full_size,
    measure,
    predict,
    table,
    table_by_name,
    validate,
    validate_by_name,
)


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    torch.manual_seed(0)
    return predict(GBiNet(), PlaneSource().batch(0, 1), stages=8)


def test_maps_are_those_of_the_network(prediction: Prediction):
    torch.manual_seed(0)
    model, batch = GBiNet().eval(), PlaneSource().batch(0, 1)
    with torch.no_grad():
        result = model(batch.images, batch.cameras, batch.depth_range, stages=8, readout="expectation")
    assert torch.equal(prediction.expectations[8], result.depth[0])
    assert torch.equal(prediction.confidence, result.confidence[0])
    assert set(prediction.centres) == set(range(1, 9))
    assert all(m.shape == (64, 64) for m in prediction.centres.values())


@pytest.mark.parametrize("confidence", ["largest", "nearby"])
def test_confidence_after_k_stages_is_that_of_a_search_with_k(confidence: Confidence):
    torch.manual_seed(0)
    model, batch = GBiNet(GBiNetConfig(confidence=confidence)), PlaneSource().batch(0, 1)
    found = predict(model, batch, stages=3, keep_confidences=True).confidences
    for stages, map_ in found.items():
        torch.testing.assert_close(map_, predict(model, batch, stages).confidence)


@pytest.mark.parametrize("size", [(20, 36), (76, 100)])
def test_coarse_maps_are_upsampled_in_place(size: tuple[int, int]):
    height, width = size
    for scale in (8, 4, 2, 1):
        rows, columns = (-(-side // 8) * 8 // scale for side in size)
        index = torch.arange(rows * columns, dtype=torch.float32).reshape(1, rows, columns)
        shown = _full_size(index, size, scale)
        y, x = torch.arange(height) // scale, torch.arange(width) // scale
        assert torch.equal(shown, index[:, y][:, :, x])


def test_valid_pixels_only_get_fewer(prediction: Prediction):
    shares = list(measure([prediction]).valid_share.values())
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0  # stage 1 covers the range, and only depths inside it count


def test_a_network_that_finds_the_truth_scores_one(prediction: Prediction):
    truth = prediction.truth
    perfect = replace(
        prediction,
        centres={1: truth},
        expectations={1: truth},
        smooth={},
        valid={1: truth > 0},
        depth=truth,
        confidence=truth > 0,
    )
    result = measure([perfect, perfect])
    assert result.score == 1.0
    assert result.all_pixels.within[0.125] == 1.0
    assert result.confidence.share == 1.0


def test_depths_outside_the_range_do_not_count():
    batch = PlaneSource().batch(0, 1)
    depth = batch.depth.clone()
    depth[:, :, 32:] = 2000.0
    result = validate(GBiNet(), [replace(batch, depth=depth)], stages=2)
    assert result.all_pixels.pixels == 64 * 32
    assert result.centre.pixels < 64 * 32  # the jump is an edge


def test_a_model_in_training_stays_in_training(prediction: Prediction):
    model = GBiNet().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    validate(model, [PlaneSource().batch(0, 1)], stages=1)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_no_samples_and_whole_batches_are_refused():
    with pytest.raises(InputError, match="no sample"):
        measure([])
    with pytest.raises(InputError, match="one sample at a time"):
        predict(GBiNet(), PlaneSource().batch(0, 2))


def test_table_and_log_hold_every_stage(prediction: Prediction, tmp_path: Path):
    result = measure([prediction])
    assert len(table(result, first_stage=6).splitlines()) == 1 + 3 * 2 + 5
    tracker = Tracker(tmp_path, tensorboard=True)
    tracker.validation(7, result, [prediction])
    tracker.close()
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert line["step"] == 7
    assert set(line["expectations"]) == {str(k) for k in range(1, 9)}


def test_pictures_show_every_stage(prediction: Prediction):
    shown = pictures(prediction)
    assert {f"depth stage {k}" for k in range(1, 9)} <= set(shown)
    for picture in shown.values():
        assert picture.shape == (3, 64, 64)
        assert float(picture.min()) >= 0 and float(picture.max()) <= 1


@pytest.mark.parametrize("refiner", [False, True])
def test_a_network_that_smooths_is_measured_by_its_own_depth(refiner: bool) -> None:
    torch.manual_seed(0)
    config = GBiNetConfig(
        stages=7,
        smoothing=((0, 6), (1, 6), (1, 6), (2, 24)),
        refiner=refiner,
        readout="refined" if refiner else "smooth",
    )
    found = predict(GBiNet(config), PlaneSource().batch(0, 1))
    assert set(found.smooth) == {3, 4, 5, 6, 7}  # the coarsest scale is not smoothed
    assert torch.equal(found.depth, found.smooth[7]) != refiner
    result = measure([found])
    assert set(result.smooth) == set(found.smooth)
    assert refiner or result.final == result.smooth[7]
    lines = table(result, first_stage=7).splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["centre", "expectation", "smooth"]
    assert lines[4].startswith("final")


def test_errors_by_name_are_percents_of_the_depth_whatever_the_unit():
    torch.manual_seed(0)
    model, source = GBiNet(), PlaneSource()
    batches = [
        replace(source.batch(i, 1), names=(name,)) for i, name in enumerate(["dim/00", "dim/01", "sky/00"])
    ]
    results = validate_by_name(model, batches, stages=2)
    assert list(results) == ["dim", "sky"]
    assert results["dim"].pixels > results["sky"].pixels > 0
    assert list(results["dim"].within) == list(PERCENTS)
    found = predict(model, batches[2], stages=2)
    off = 100 * (found.depth - found.truth).abs()[found.counted] / found.truth[found.counted]
    assert results["sky"].median == pytest.approx(float(off.median()), rel=1e-3)
    lines = table_by_name(results).splitlines()
    assert lines[1].startswith("dim") and f"{100 * results['dim'].within[5.0]:.1f}" in lines[1]
