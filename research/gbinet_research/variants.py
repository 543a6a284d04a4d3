"""The rows of the comparison as data: what is trained, one lever after the other, and the budget of all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from gbinet.errors import InputError, flag
from gbinet.model.config import PRESETS, GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.training.config import TrainConfig
from gbinet.training.loss import LossOfStage, stage_loss
from gbinet_research import dense
from gbinet_research.dense import DenseConfig, DenseNet, DenseSearch
from gbinet_research.regression import RegressionLoss
from gbinet_research.start import content_of

MOST_STAGES = (
    9  # the published networks are validated to this stage: every earlier one is measured on the way
)


@dataclass(frozen=True)
class Variant:
    """One network with one way to train it."""

    name: str
    label: str  # in tables
    config: GBiNetConfig = PRESETS["gbinet"]  # of the network
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of TrainConfig
    seed: int = 0  # of the initial weights; samples and their order are the same for all
    weights_of: str = ""  # not trained: another variant's weights, read out in another way

    @property
    def network(self) -> type[GBiNet]:
        return DenseNet if isinstance(self.config, DenseConfig) else GBiNet

    @property
    def loss(self) -> LossOfStage:
        if isinstance(self.config, DenseConfig):
            return RegressionLoss(DenseSearch(self.config))
        return stage_loss

    @property
    def design(self) -> dict[str, Any]:
        """For JSON: all that its name stands for."""
        return {"network": self.config.to_dict(), "changes": dict(self.changes), "seed": self.seed}

    def has_design(self, stored: object) -> bool:
        """Whether a design, as JSON has it, is this one. What networks have got since is at its default."""
        if not isinstance(stored, dict) or not isinstance(stored.get("network"), dict):
            return False
        usual = {f.name: f.default for f in fields(self.config)}
        found = {**stored, "network": {**usual, **stored["network"]}}
        return json.dumps(found, sort_keys=True) == json.dumps(self.design, sort_keys=True)

    @property
    def trained(self) -> str:
        """Name of the variant whose training gives the weights."""
        return self.weights_of or self.name

    @property
    def most_stages(self) -> int:
        """Stages that are validated."""
        published = self.config.readout == "centre" and not isinstance(self.config, DenseConfig)
        return max(MOST_STAGES if published else 0, self.config.stages)


@dataclass(frozen=True)
class Rung:
    """One change on the way from the published design to the current one."""

    name: str  # of the variant that has this lever and all before it
    lever: str  # in words
    network: Mapping[str, Any] = field(default_factory=dict)  # fields of its configuration that change
    training: Mapping[str, Any] = field(default_factory=dict)  # fields of TrainConfig that change
    weights_of: str = ""  # see Variant


_SHIPS = PRESETS["bundled"]
RUNGS = (
    Rung("gbinet-per-stage", "GBi-Net as published", {}, {"update": "per-stage"}),
    Rung("gbinet", "weights updated once per batch, not after every stage", {}, {"update": "shared-encoder"}),
    Rung("continuous", "continuous read-out", {"readout": "expectation"}, weights_of="gbinet"),
    Rung(
        "first-bins",
        "24 or more bins in the first stage, depending on their spacing; seven stages",
        {"first_bins": _SHIPS.first_bins, "first_spacing": _SHIPS.first_spacing, "stages": _SHIPS.stages},
    ),
    Rung("inverse-depth", "bins of equal size in inverse depth", {"inverse_depth": True}),
    Rung("edges", "upsampling that preserves depth edges", {"edge_cells": _SHIPS.edge_cells}),
    Rung("second-bin", "a second tolerance bin on each side", {"bins": _SHIPS.bins}),
    Rung("smoothing", "smoothing between stages", {"smoothing": _SHIPS.smoothing, "readout": "smooth"}),
    Rung("shipped", "recovered pixels count again in training (`--recover`)", {}, {"recover": True}),
    Rung("refiner", "a refiner", {"refiner": True, "readout": "refined", "confidence": "nearby"}),
    Rung("refiner-choice", "pixels choose their parents", {"choice_widths": _SHIPS.choice_widths}),
    Rung(
        "refiner-context",
        "wider 3D U-Nets that see the reference view's features",
        {"regulariser_width": _SHIPS.regulariser_width, "context": True},
    ),
    Rung(
        "refiner-sides",
        "the refiner can switch sides at edges, and confidence is learned",
        {"refiner_sides": True, "confidence": "learned"},
    ),
    Rung("again", "pixels choose again (the current design)", {"choice_again": True}),
)
LADDER = tuple(rung.name for rung in RUNGS)


def _ladder() -> list[Variant]:
    config, changes, found = PRESETS["gbinet"], dict[str, Any](), []
    for number, rung in enumerate(RUNGS):
        config, changes = replace(config, **rung.network), {**changes, **rung.training}
        label = f"+ {rung.lever}" if number else rung.lever
        found.append(Variant(rung.name, label, config, dict(changes), weights_of=rung.weights_of))
    return found


_STEPS = {v.name: v for v in _ladder()}
_CASCADE = {"stage_weights": (0.5, 1.0, 2.0)}  # of the loss: CasMVSNet's
_RECOVER = _STEPS["shipped"].changes
# In the order in which the present network was found (docs/benchmarks/designs.md): its refiner came last.
_CHOICE = replace(_STEPS["shipped"].config, choice_widths=_SHIPS.choice_widths)
_CONTEXT = replace(_CHOICE, regulariser_width=_SHIPS.regulariser_width, context=True)

VARIANTS: dict[str, Variant] = {
    v.name: v
    for v in (
        Variant("dense-linear", "dense linear search", dense.PRESETS["dense-linear"]),
        Variant("coarse-to-fine", "dense coarse-to-fine", dense.PRESETS["coarse-to-fine"], _CASCADE),
        Variant(
            "coarse-to-fine-helped",
            "dense coarse-to-fine, inverse depth, smoothed",
            dense.PRESETS["coarse-to-fine-helped"],
            _CASCADE,
        ),
        Variant("binet", "Bi-Net", PRESETS["binet"], {"update": "shared-encoder"}),
        Variant("gbinet-6", "GBi-Net, 2 tolerance bins", PRESETS["gbinet-6"], {"update": "shared-encoder"}),
        Variant("gbinet-accumulate", "GBi-Net, accumulate", changes={"update": "accumulate"}),
        *_STEPS.values(),
        Variant(
            "coarse-to-fine-seed1",
            "dense coarse-to-fine, seed 1",
            dense.PRESETS["coarse-to-fine"],
            _CASCADE,
            seed=1,
        ),
        replace(_STEPS["again"], name="again-seed1", label="the current design, seed 1", seed=1),
        Variant("choice", "`shipped`, pixels choose their parents", _CHOICE, _RECOVER),
        Variant("context", "`choice`, wider 3D U-Nets with context", _CONTEXT, _RECOVER),
        Variant(
            "learned",
            "`context`, refiner and learned confidence",
            replace(_SHIPS, choice_again=False),
            _RECOVER,
        ),
    )
}
# What a row is called where it does not stand below the row that it builds on.
ALONE = {
    "gbinet-per-stage": "GBi-Net as published (updated per stage)",
    "gbinet": "GBi-Net",
    "shipped": "the first bundled design (no refiner)",
    "again": "the current design",
}

COMPARISONS: dict[str, tuple[str, ...]] = {
    "strategies": ("dense-linear", "coarse-to-fine", "binet", "gbinet-per-stage", "gbinet"),
    "bins": ("binet", "gbinet", "gbinet-6"),
    "stages": ("gbinet",),
    "updates": ("gbinet-per-stage", "gbinet-accumulate", "gbinet"),
    "searches": (
        *("dense-linear", "coarse-to-fine", "coarse-to-fine-helped", "binet", "gbinet-per-stage", "gbinet"),
        *("gbinet-6", "shipped", "again"),
    ),
    "ladder": LADDER,
    "chance": ("coarse-to-fine", "coarse-to-fine-seed1", "again", "again-seed1"),
}


def label_of(name: str) -> str:
    return ALONE.get(name, VARIANTS[name].label)


def variant_of(name: str) -> Variant:
    if name not in VARIANTS:
        known = ", ".join((*COMPARISONS, *VARIANTS))
        raise InputError(f"there is no comparison or variant '{name}'; choose from {known}")
    return VARIANTS[name]


def chosen(names: Sequence[str]) -> tuple[Variant, ...]:
    """Variants by their names or those of comparisons, each once."""
    if not names:
        raise InputError(f"name what to work on: {', '.join((*COMPARISONS, *VARIANTS))}")
    single = [one for name in names for one in COMPARISONS.get(name, (name,))]
    return tuple(variant_of(name) for name in dict.fromkeys(single))


@dataclass(frozen=True)
class Budget:
    """What every variant gets, and what it is measured on."""

    samples: int = 24_000  # that each variant is trained on
    batch_size: int = 8  # samples per step
    height: int = 256  # of a training image; a multiple of 64
    width: int = 320  # of a training image; a multiple of 64
    views: int = 5  # images per sample (rendered validation always has 5)
    learning_rate: float = 1e-3  # at its highest; it falls along a cosine
    precision: Literal["float32", "bfloat16"] = "bfloat16"  # of training; validation is float32
    seed: int = 0  # of samples and their order, and (plus the variant's own) of the initial weights
    source: Literal["rendered", "dtu"] = "rendered"  # where samples come from, in training and in validation
    data: Path | None = None  # folder of DTU's training set (dtu)
    assets: Path | None = None  # folder of meshes and textures (rendered); none = shapes we make
    life: float = 0.0  # share of the training scenes with the difficulties of real photos (rendered)
    zoom: tuple[float, float] | None = None  # least and most (rendered); none = 1 to the validation's size
    start: Path | None = None  # weights whose tensors are taken as far as they fit; none = from scratch
    validation_scenes: int = 8  # samples that every variant is scored on
    validation_size: tuple[int, int] = (1600, 1152)  # of rendered ones, and of what costs are for
    cloud_scenes: int = 2  # rendered scenes that are reconstructed by every variant; 0 = none
    cloud_size: tuple[int, int] = (640, 480)  # of their photos

    def __post_init__(self) -> None:
        if min(self.samples, self.batch_size, self.validation_scenes) < 1 or self.cloud_scenes < 0:
            raise InputError(
                "samples, batch_size and validation_scenes must be at least 1, cloud_scenes at least 0"
            )

    @property
    def zooms(self) -> tuple[float, float]:
        """Rendered training images are windows of images so many times as large."""
        if self.zoom is not None:
            return self.zoom
        return 1.0, max(1.0, self.validation_size[0] / self.width) if self.source == "rendered" else 1.0

    @property
    def steps(self) -> int:
        return math.ceil(self.samples / self.batch_size)

    def to_dict(self) -> dict[str, object]:
        """For JSON: what decides the result. Where files lie does not."""
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        start = None if self.start is None else content_of(self.start)
        return {**values, "data": self.data is not None, "assets": self.assets is not None, "start": start}


def differing(one: object, other: object) -> list[str]:
    """Options of two budgets, as JSON has them, by which they do not train and score alike. Fields that are
    not there: as usual."""
    left, right = ({**Budget().to_dict(), **b} if isinstance(b, dict) else {} for b in (one, other))
    free = ("cloud_scenes", "cloud_size")  # of what is done with the weights afterwards
    return [flag(k) for k in {**left, **right} if left.get(k) != right.get(k) and k not in free]


def train_config(variant: Variant, budget: Budget, device: torch.device) -> TrainConfig:
    """Pure classification or regression as published, averaged weights, one schedule for all.

    Training and the measurement of what it costs both take it from here.
    """
    least, most = budget.zooms
    values: dict[str, Any] = {
        "network": variant.config,
        "source": budget.source,
        "data": budget.data,
        "assets": budget.assets,
        "dtu_like": budget.source == "rendered",  # as the validation set is
        "least_zoom": least,
        "zoom": most,
        "life": budget.life,
        "crops": budget.source == "dtu",
        "views": budget.views,
        "height": budget.height,
        "width": budget.width,
        "batch_size": budget.batch_size,
        "seed": budget.seed + variant.seed,
        "precision": budget.precision,
        "encode_twice": device.type != "cuda",  # a GPU has memory for it once; the numbers are the same
        "learning_rate": budget.learning_rate,
        "warmup_steps": min(100, budget.steps // 10),
        "total_steps": budget.steps,
        "validation_scenes": 0,  # scored once, at the end, by us
        "tensorboard": False,
    }
    return TrainConfig(**{**values, **variant.changes})
