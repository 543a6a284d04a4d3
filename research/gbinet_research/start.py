"""Weights that training starts from (`--start`): a safetensors file, of gbinet or not."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gbinet.errors import FormatError, InputError, WeightsError
from gbinet.formats.reading import open_sized
from gbinet.model.gbinet import GBiNet


def content_of(path: Path) -> str:
    """Changes with every byte of the file, and not with its name."""
    try:
        with open_sized(path) as (file, _):
            return hashlib.sha256(file.read()).hexdigest()[:16]
    except FormatError as error:
        raise InputError(f"--start {error}; give a safetensors file, or omit it") from error


def read_start(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"--start {path} is not a readable safetensors file ({error}); give another, or omit it"
        ) from error


def take_over(model: GBiNet, given: dict[str, Tensor]) -> None:
    """Tensors of other weights into a network, as far as they fit; networks that choose again begin with the
    choosers of their scale."""
    for at, scale in enumerate(model.config.scales_choosing_again):
        for again, other in (("again_choosers", "choosers"), ("again_weights", "choice_weights")):
            prefix = f"{other}.{scale - 1}."
            found = {k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)}
            given = {f"{again}.{at}.{k}": v for k, v in found.items()} | given
    own = model.state_dict()
    fits = {k: v.float() for k, v in given.items() if k in own and own[k].shape == v.shape}
    if not fits:
        raise InputError("none of the tensors of --start fits this network; give another, or omit it")
    model.load_state_dict(fits, strict=False)
