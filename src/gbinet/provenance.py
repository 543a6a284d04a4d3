"""What made a result: weights, version of the software, commit."""

from __future__ import annotations

import functools
import hashlib
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gbinet import __version__

# `git archive` (and so a downloaded archive of the sources) puts the commit here: see .gitattributes.
_ARCHIVED = "$Format:%H$"


@dataclass(frozen=True)
class Maker:
    """Weights and software that made a prediction: written beside it, and copied into its scores."""

    weights: str  # content hash of the tensors: the same in every file that holds them
    weights_file: str | None  # name of the file that they came from; None = made in memory
    gbinet: str  # version
    commit: str | None  # None = installed from a package
    min_confidence: float | None = None  # which fusion should ask of depth maps of these weights
    probability: bool = False  # whether their confidence is the probability that a depth is correct

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def maker(model: torch.nn.Module, stages: int | None = None) -> Maker:
    """The Maker of what a network predicts now. A wrapper with the network in `network` counts as that.

    stages: how many it searches; None = the usual number.
    """
    model = getattr(model, "network", model)
    weights_file, min_confidence = (getattr(model, name, None) for name in ("weights_file", "min_confidence"))
    probability = _gives_probability(model, stages)
    return Maker(hash_of(model), weights_file, __version__, commit(), min_confidence, probability)


def _gives_probability(model: Any, stages: int | None) -> bool:
    """Whether confidence is learned or calibrated; both hold for the usual number of stages only."""
    config = getattr(model, "config", None)
    if config is None or stages not in (None, config.stages):
        return False
    return getattr(config, "confidence", None) == "learned" or getattr(model, "calibration", None) is not None


def hash_of(model: torch.nn.Module) -> str:
    """Hash of the names and values of all tensors of a network."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


@functools.cache
def commit() -> str | None:
    """Commit of the running sources, with '-dirty' if files differ from it; None for an installed package."""
    if not _ARCHIVED.startswith("$"):
        return _ARCHIVED[:12]
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:  # no clone, or another project's
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def software() -> str:
    """Version and commit in words: 'gbinet 0.1.0, commit 0123456789ab'."""
    return f"gbinet {__version__}" + (f", commit {known}" if (known := commit()) else "")


def _git(*arguments: str) -> str | None:
    """Output of a git command in the folder of this file; None if it fails."""
    try:
        finished = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return finished.stdout.strip()
