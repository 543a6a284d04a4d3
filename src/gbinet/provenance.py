"""What made a result: which weights, which version of the software, which commit."""

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
    """Written beside predictions and copied into their scores."""

    weights: str  # content hash of the tensors: the same in every file that holds them
    weights_file: str | None  # name of the file that they came from; None = made in memory
    gbinet: str  # version
    commit: str | None  # None = installed from a package
    min_confidence: float | None = None  # what fusion should ask of depth maps of these weights
    probability: bool = False  # whether their confidence is the probability that a depth is right

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def maker(model: torch.nn.Module, stages: int | None = None) -> Maker:
    """What makes the results of a network, here and now. One in a wrapper (`network`) is that network.

    stages: how many it searches; None = as many as usual.
    """
    model = getattr(model, "network", model)
    file, least = (getattr(model, name, None) for name in ("weights_file", "min_confidence"))
    return Maker(hash_of(model), file, __version__, commit(), least, _gives_probability(model, stages))


def _gives_probability(model: Any, stages: int | None) -> bool:
    """Where it is learned or calibrated, which both hold for the usual number of stages only."""
    config = getattr(model, "config", None)
    if config is None or stages not in (None, config.stages):
        return False
    return getattr(config, "confidence", None) == "learned" or getattr(model, "calibration", None) is not None


def hash_of(model: torch.nn.Module) -> str:
    """Changes with every name and every value of a network's tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


@functools.cache
def commit() -> str | None:
    """Commit of the sources that run, '-dirty' where files differ from it; None for an installed package."""
    if not _ARCHIVED.startswith("$"):
        return _ARCHIVED[:12]
    here = Path(__file__)
    if _git("ls-files", "--error-unmatch", here.name) is None:  # not in a clone, or in another project's
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def software() -> str:
    """In words: 'gbinet 0.1.0, commit 0123456789ab'."""
    return f"gbinet {__version__}" + (f", commit {known}" if (known := commit()) else "")


def _git(*arguments: str) -> str | None:
    """What git says in the folder of this file; None if it does not."""
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
