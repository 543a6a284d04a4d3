"""Weights on disk: bit for bit, strict, and readable when they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gbinet.errors import GBiNetError, WeightsError
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.model.weights import find, our_name

SMALL = GBiNetConfig(encoder_width=4, regulariser_width=2)


@pytest.fixture(scope="module")
def model() -> GBiNet:
    torch.manual_seed(0)
    return GBiNet(SMALL).eval()


@pytest.fixture(scope="module")
def ours(model: GBiNet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("weights") / "small.safetensors")


def rewrite(source: Path, target: Path, metadata: dict[str, str | None]) -> Path:
    """A copy of a weights file with other entries in its header; None removes one."""
    with safe_open(source, framework="pt") as file:
        header = {**file.metadata(), **metadata}
    save_file(load_file(source), target, {k: v for k, v in header.items() if v is not None})
    return target


# ---- ours --------------------------------------------------------------------------------------------------


def test_saving_and_loading_is_exact(model: GBiNet, ours: Path, tmp_path: Path) -> None:
    again = GBiNet.from_pretrained(ours)
    assert again.config == SMALL and not again.training
    assert list(again.state_dict()) == list(model.state_dict())
    assert all(torch.equal(again.state_dict()[k], v) for k, v in model.state_dict().items())
    copy = again.save(tmp_path / "again.safetensors")
    with safe_open(ours, framework="pt") as one, safe_open(copy, framework="pt") as other:
        assert one.metadata() == other.metadata()
        assert list(one.keys()) == list(other.keys())
        assert all(torch.equal(one.get_tensor(k), other.get_tensor(k)) for k in one.keys())  # noqa: SIM118


@pytest.mark.parametrize(
    "config",
    [
        replace(SMALL, bins=2),
        replace(SMALL, bins=6, first_bins=32, inverse_depth=True, readout="expectation"),
        replace(SMALL, groups=(4, 4, 2, 1), scale_of_stage=(0, 1, 2, 3), stages=5),
    ],
    ids=["binet", "gbinet-6", "stages"],
)
def test_the_configuration_comes_back(config: GBiNetConfig, tmp_path: Path) -> None:
    assert GBiNet.from_pretrained(GBiNet(config).save(tmp_path / "w.safetensors")).config == config
    assert GBiNetConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


# What an earlier version wrote beside the fields of today, in every file.
EARLIER = {"strategy": "binary", "hypotheses": [], "windows": [], "encoder": "deformable"}


def test_files_of_earlier_versions_load(model: GBiNet, ours: Path, tmp_path: Path) -> None:
    config = {k: v for k, v in SMALL.to_dict().items() if k != "smoothing"}
    config |= {**EARLIER, "smooth_radii": [0, 1, 2, 5], "smooth_cells": [6, 6, 12, 32]}
    old = rewrite(ours, tmp_path / "old.safetensors", {"config": json.dumps(config)})
    again = GBiNet.from_pretrained(old)
    assert again.config == replace(SMALL, smoothing=((0, 6), (1, 6), (2, 12), (5, 32)))
    assert all(torch.equal(again.state_dict()[k], v) for k, v in model.state_dict().items())
    none = GBiNetConfig.from_dict({**EARLIER, "smooth_radii": [], "smooth_cells": []})
    assert none == GBiNetConfig()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "dense", "hypotheses": [192], "windows": [1.0]}, "strategy is 'dense'.*research/"),
        ({"hypotheses": [8]}, "hypotheses"),
        ({"encoder": "plain"}, "encoder is 'plain'"),
        ({"smooth_radii": [1, 1, 1, 1]}, "smooth_radii and smooth_cells"),
        ({"quantum": True}, "please update"),
    ],
    ids=str,
)
def test_networks_that_are_no_longer_supported_are_refused(
    ours: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    config = {**SMALL.to_dict(), **EARLIER, **change}
    old = rewrite(ours, tmp_path / "old.safetensors", {"config": json.dumps(config)})
    with pytest.raises(WeightsError, match=rf"old\.safetensors.*{message}"):
        GBiNet.from_pretrained(old)


def test_half_weights_lose_nothing(model: GBiNet, tmp_path: Path) -> None:
    half = GBiNet.from_pretrained(model.save(tmp_path / "w.safetensors")).half()
    again = GBiNet.from_pretrained(half.save(tmp_path / "half.safetensors"))
    assert (tmp_path / "half.safetensors").stat().st_size < 0.7 * (tmp_path / "w.safetensors").stat().st_size
    assert all(torch.equal(v.float(), again.state_dict()[k].float()) for k, v in half.state_dict().items())


def test_half_files_are_half_the_size_and_load_as_float32(model: GBiNet, ours: Path, tmp_path: Path) -> None:
    path = model.save(tmp_path / "half.safetensors", half=True)
    assert path.stat().st_size < 0.8 * ours.stat().st_size  # this network is small: names and biases count
    loaded = GBiNet.from_pretrained(path).state_dict()
    for name, value in model.state_dict().items():
        assert loaded[name].dtype == value.dtype
        torch.testing.assert_close(loaded[name], value, rtol=1e-3, atol=1e-6)


def test_weights_are_readable_for_everybody(ours: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("any file")
    assert ours.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_save_leaves_the_old_file(model: GBiNet, ours: Path, tmp_path: Path) -> None:
    target = tmp_path / "w.safetensors"
    target.write_bytes(ours.read_bytes())
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(GBiNetError):
        model.save(tmp_path / "file" / "w.safetensors")
    assert target.read_bytes() == ours.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "w.safetensors"]


def test_a_name_that_could_not_be_loaded_again_is_refused(model: GBiNet, tmp_path: Path) -> None:
    with pytest.raises(GBiNetError, match=r"w\.pt: weights are saved as \.safetensors"):
        model.save(tmp_path / "w.pt")
    assert not list(tmp_path.iterdir())


def test_a_newer_file_says_so(ours: Path, tmp_path: Path) -> None:
    newer = json.dumps({**SMALL.to_dict(), "attention_heads": 4})
    with pytest.raises(WeightsError, match=r"w.safetensors.*attention_heads.*update"):
        GBiNet.from_pretrained(rewrite(ours, tmp_path / "w.safetensors", {"config": newer}))
    with pytest.raises(WeightsError, match=r"layout version 2"):
        GBiNet.from_pretrained(rewrite(ours, tmp_path / "v.safetensors", {"format": "2"}))


@pytest.mark.parametrize(
    "config",
    [
        "not json",
        "[1, 2]",
        "7",
        "null",
        json.dumps({**SMALL.to_dict(), "bins": "four"}),
        json.dumps({**SMALL.to_dict(), "bins": 3}),
        json.dumps({**SMALL.to_dict(), "encoder_width": 10**9}),
        json.dumps({**SMALL.to_dict(), "regulariser_width": 10**6}),
        json.dumps({**SMALL.to_dict(), "groups": 8}),
        json.dumps({**SMALL.to_dict(), "encoder_width": 4.5}),
        json.dumps({**SMALL.to_dict(), "stages": 10**12}),
        json.dumps({**SMALL.to_dict(), "encoder": "magic"}),
    ],
)
def test_a_broken_configuration_is_named_with_its_file(ours: Path, tmp_path: Path, config: str) -> None:
    path = rewrite(ours, tmp_path / "w.safetensors", {"config": config})
    with pytest.raises(WeightsError, match=r"w\.safetensors"):
        GBiNet.from_pretrained(path)


def test_a_foreign_safetensors_file(ours: Path, tmp_path: Path) -> None:
    path = rewrite(ours, tmp_path / "w.safetensors", {"config": None})
    with pytest.raises(WeightsError, match="not written by gbinet"):
        GBiNet.from_pretrained(path)


def test_what_does_not_fit_is_named_in_one_error(ours: Path, tmp_path: Path) -> None:
    tensors = load_file(ours)
    del tensors["regularisers.0.logit.weight"]
    tensors["extra.weight"] = torch.zeros(3)
    tensors["encoder.lateral.0.bias"] = torch.zeros(5)
    with safe_open(ours, framework="pt") as file:
        save_file(tensors, tmp_path / "w.safetensors", file.metadata())
    with pytest.raises(WeightsError) as caught:
        GBiNet.from_pretrained(tmp_path / "w.safetensors")
    message = str(caught.value)
    assert "w.safetensors does not fit the network" in message
    assert "missing: regularisers.0.logit.weight" in message
    assert "unexpected: extra.weight" in message
    assert "shape of encoder.lateral.0.bias: [5] in the file, [32] in the network" in message
    assert "\n" not in message


# ---- published ---------------------------------------------------------------------------------------------

PUBLISHED = {  # theirs -> ours, one of each kind
    "module.img_feature.conv0.0.conv.weight": "encoder.bottom_up.0.0.conv.weight",
    "module.img_feature.conv3.2.norm_layer.running_mean": "encoder.bottom_up.3.2.norm.running_mean",
    "module.img_feature.conv_out.2.weight": "encoder.output.2.weight",
    "module.img_feature.conv_out.0.conv_offset.bias": "encoder.output.0.offset.bias",
    "module.img_feature.conv_inner.1.weight": "encoder.lateral.0.weight",
    "module.img_feature.conv_inner.3.bias": "encoder.lateral.2.bias",
    "module.cost_network.1.conv0.conv.weight": "regularisers.1.entry.conv.weight",
    "module.cost_network.2.conv1.conv.weight": "regularisers.2.down.0.0.conv.weight",
    "module.cost_network.2.conv6.norm_layer.weight": "regularisers.2.down.2.1.norm.weight",
    "module.cost_network.3.deconv7.conv.weight": "regularisers.3.up.0.conv.weight",
    "module.cost_network.3.deconv9.norm_layer.bias": "regularisers.3.up.2.norm.bias",
    "module.cost_network.0.prob.weight": "regularisers.0.logit.weight",
    "module.view_weight_nets.1.conv1.norm_layer.num_batches_tracked": (
        "view_weights.1.hidden.1.norm.num_batches_tracked"
    ),
    "module.view_weight_nets.1.conv2.bias": "view_weights.1.output.bias",
}


@pytest.mark.parametrize(("theirs", "ours"), PUBLISHED.items())
def test_published_names(theirs: str, ours: str) -> None:
    assert our_name(theirs) == ours
    assert our_name(theirs.removeprefix("module.")) == ours


def published_name(name: str) -> str:
    """The inverse of our_name, written down on its own from the published network's attribute names."""
    parts = name.replace("norm.", "norm_layer.").split(".")
    match parts:
        case ["encoder", "bottom_up", scale, *rest]:
            return ".".join(["img_feature", f"conv{scale}", *rest])
        case ["encoder", "lateral", i, *rest]:
            return ".".join(["img_feature.conv_inner", str(int(i) + 1), *rest])
        case ["encoder", "output", i, "offset", *rest]:
            return ".".join(["img_feature.conv_out", i, "conv_offset", *rest])
        case ["encoder", "output", i, *rest]:
            return ".".join(["img_feature.conv_out", i, *rest])
        case ["regularisers", s, "entry", *rest]:
            return ".".join(["cost_network", s, "conv0", *rest])
        case ["regularisers", s, "down", level, half, *rest]:
            return ".".join(["cost_network", s, f"conv{2 * int(level) + int(half) + 1}", *rest])
        case ["regularisers", s, "up", i, *rest]:
            return ".".join(["cost_network", s, f"deconv{int(i) + 7}", *rest])
        case ["regularisers", s, "logit", *rest]:
            return ".".join(["cost_network", s, "prob", *rest])
        case ["view_weights", s, "hidden", i, *rest]:
            return ".".join(["view_weight_nets", s, f"conv{i}", *rest])
        case ["view_weights", s, "output", *rest]:
            return ".".join(["view_weight_nets", s, "conv2", *rest])
    raise AssertionError(name)


@pytest.fixture(scope="module")
def full_model() -> GBiNet:
    torch.manual_seed(1)
    return GBiNet("gbinet")


@pytest.mark.parametrize("prefix", ["module.", ""])
@pytest.mark.parametrize("under", ["model", None])
def test_published_checkpoints_load(
    full_model: GBiNet, prefix: str, under: str | None, tmp_path: Path
) -> None:
    weights = {prefix + published_name(k): v for k, v in full_model.state_dict().items()}
    assert len(weights) == 384
    torch.save({under: weights, "epoch": 15} if under else weights, tmp_path / "model.ckpt")
    loaded = GBiNet.from_pretrained(tmp_path / "model.ckpt")
    assert loaded.config == GBiNetConfig() and not loaded.training
    assert all(torch.equal(loaded.state_dict()[k], v) for k, v in full_model.state_dict().items())


def test_a_published_checkpoint_that_does_not_fit(full_model: GBiNet, tmp_path: Path) -> None:
    weights = {"module." + published_name(k): v for k, v in full_model.state_dict().items()}
    del weights["module.cost_network.0.prob.weight"]
    weights["module.cost_network.0.probe.weight"] = torch.zeros(2)
    torch.save({"model": weights}, tmp_path / "model.ckpt")
    with pytest.raises(WeightsError, match=r"missing: regularisers\.0\.logit\.weight"):
        GBiNet.from_pretrained(tmp_path / "model.ckpt")


# ---- damaged -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.9, 0.999])
def test_truncated_files(full_model: GBiNet, ours: Path, tmp_path: Path, share: float) -> None:
    torch.save({"model": full_model.state_dict()}, tmp_path / "whole.ckpt")
    for whole, name in ((ours, "cut.safetensors"), (tmp_path / "whole.ckpt", "cut.ckpt")):
        content = whole.read_bytes()
        (tmp_path / name).write_bytes(content[: int(share * len(content))])
        with pytest.raises(WeightsError, match=name):
            GBiNet.from_pretrained(tmp_path / name)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("noise")


@given(st.binary(max_size=200), st.sampled_from(["ckpt", "safetensors", "pth"]))
def test_random_bytes_are_not_a_weights_file(scratch: Path, content: bytes, suffix: str) -> None:
    path = scratch / f"noise.{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"noise\."):
        GBiNet.from_pretrained(path)


@given(st.integers(0, 2**31), st.integers(0, 255))
def test_one_flipped_byte_never_crashes(ours: Path, scratch: Path, position: int, value: int) -> None:
    """The header may become unreadable, or a weight another number; nothing else happens."""
    content = bytearray(ours.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    content[position % (header + 100)] = value
    path = scratch / "flipped.safetensors"
    path.write_bytes(content)
    try:
        GBiNet.from_pretrained(path)
    except GBiNetError as error:
        assert "flipped.safetensors" in str(error)


# ---- names -------------------------------------------------------------------------------------------------


def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no weights 'nothing': neither a file nor a name"):
        find("nothing")
    with pytest.raises(WeightsError, match="no weights"):
        find(tmp_path)  # a folder
    with pytest.raises(WeightsError, match="no weights"):
        find(tmp_path / "absent.ckpt")


@pytest.mark.parametrize(
    "config", ["[" * 100_000, '{"bins": ' + "1" * 5000 + "}", '{"bins": 1e400}', "", "7"]
)
def test_a_header_of_nonsense(config: str, ours: Path, tmp_path: Path) -> None:
    save_file(load_file(ours), tmp_path / "w.safetensors", {"format": "1", "config": config})
    with pytest.raises(WeightsError, match="configuration"):
        GBiNet.from_pretrained(tmp_path / "w.safetensors")
