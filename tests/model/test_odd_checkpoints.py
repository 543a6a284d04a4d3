"""Checkpoints that hold something else than weights, or code that must not be executed."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from gbinet.errors import WeightsError
from gbinet.model.gbinet import GBiNet


class Trap:
    """Unpickling this writes a file, if anyone lets it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "executed"))


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_malicious_pickle_does_not_execute(tmp_path: Path, wrapped: bool) -> None:
    trap = tmp_path / "trap"
    content = {"model": {"module.x": Trap(trap)}} if wrapped else Trap(trap)
    torch.save(content, tmp_path / "zip.ckpt")
    (tmp_path / "bare.ckpt").write_bytes(pickle.dumps(content, protocol=2))
    for name in ("zip.ckpt", "bare.ckpt"):
        with pytest.raises(WeightsError, match=name):
            GBiNet.from_pretrained(tmp_path / name)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Trap(trap)))  # and it would have worked
    assert trap.exists()


def test_other_files_are_refused_without_advice_to_load_them_unsafely(tmp_path: Path) -> None:
    (tmp_path / "render.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"render\.json is neither a \.safetensors file") as failure:
        GBiNet.from_pretrained(tmp_path / "render.json")
    assert "weights_only" not in str(failure.value)


@pytest.mark.parametrize("content", [[1, 2], {"model": 3}, {"model": {"a": 1}}, {}, "text"], ids=str)
def test_checkpoints_without_weights(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "odd.ckpt")
    with pytest.raises(WeightsError, match=r"odd\.ckpt"):
        GBiNet.from_pretrained(tmp_path / "odd.ckpt")


def odd_tensors() -> dict[str, object]:
    plain = torch.ones(2, 2)
    with torch.device("meta"):
        empty = torch.ones(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some of these kinds are young, or on their way out
        quantised = torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8)
        compressed = plain.to_sparse_csr()
    return {
        "keys that are numbers": {1: plain},
        "keys of several kinds": {"a": plain, (1, 2): plain},
        "sparse": {"a": plain.to_sparse()},
        "compressed": {"a": compressed},
        "without numbers": {"a": empty},
        "quantised": {"a": quantised},
        "text": {"a": "b"},
        "a list": [plain],
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", odd_tensors())
@pytest.mark.parametrize("below", [False, True])
def test_checkpoints_of_other_things(kind: str, below: bool, tmp_path: Path) -> None:
    content = odd_tensors()[kind]
    torch.save({"model": content} if below else content, tmp_path / "a.ckpt")
    with pytest.raises(WeightsError, match=r"a\.ckpt"):
        GBiNet.from_pretrained(tmp_path / "a.ckpt")
