"""What is compared with what, and the budget that all variants share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gbinet.errors import InputError
from gbinet.model.config import PRESETS, GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.training.config import TrainConfig
from gbinet.training.loss import LossOfStage, stage_loss
from gbinet_research import dense
from gbinet_research.dense import DenseConfig, DenseNet, DenseSearch
from gbinet_research.regression import RegressionLoss

MOST_STAGES = 9  # a binary search is validated to this stage: every earlier one is measured on the way


@dataclass(frozen=True)
class Variant:
    """One network with one way to train it."""

    name: str
    label: str  # in tables
    config: GBiNetConfig = PRESETS["gbinet"]  # of the network
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of TrainConfig

    @property
    def network(self) -> type[GBiNet]:
        return DenseNet if isinstance(self.config, DenseConfig) else GBiNet

    @property
    def loss(self) -> LossOfStage:
        if isinstance(self.config, DenseConfig):
            return RegressionLoss(DenseSearch(self.config))
        return stage_loss

    @property
    def most_stages(self) -> int:
        """Stages that are validated."""
        if isinstance(self.config, DenseConfig):
            return len(self.config.hypotheses)
        return max(MOST_STAGES, self.config.stages)


VARIANTS: dict[str, Variant] = {
    v.name: v
    for v in (
        Variant("dense-linear", "dense linear search", dense.PRESETS["dense-linear"]),
        Variant(  # the weights of the stages are CasMVSNet's
            "coarse-to-fine",
            "dense coarse-to-fine",
            dense.PRESETS["coarse-to-fine"],
            {"stage_weights": (0.5, 1.0, 2.0)},
        ),
        Variant("binet", "Bi-Net", PRESETS["binet"]),
        Variant("gbinet", "GBi-Net"),
        Variant("gbinet-6", "GBi-Net, 2 tolerance bins", PRESETS["gbinet-6"]),
        Variant("gbinet-accumulate", "GBi-Net, accumulate", changes={"update": "accumulate"}),
        Variant("gbinet-per-stage", "GBi-Net, per-stage", changes={"update": "per-stage"}),
    )
}

COMPARISONS: dict[str, tuple[str, ...]] = {
    "strategies": ("dense-linear", "coarse-to-fine", "binet", "gbinet"),
    "bins": ("binet", "gbinet", "gbinet-6"),
    "stages": ("gbinet",),
    "updates": ("gbinet-per-stage", "gbinet-accumulate", "gbinet"),
}
COMPARISONS["all"] = tuple(VARIANTS)


@dataclass(frozen=True)
class Budget:
    """What every variant gets, and what it is measured on."""

    samples: int = 4000  # that each variant is trained on
    batch_size: int = 8  # samples per step
    height: int = 512  # of a training image; a multiple of 64
    width: int = 640  # of a training image; a multiple of 64
    views: int = 5  # images per sample (rendered validation always has 5)
    learning_rate: float = 1e-3  # at its highest; it falls along a cosine
    precision: Literal["float32", "bfloat16"] = "bfloat16"  # of training; validation is float32
    seed: int = 0  # of weights, samples and their order
    source: Literal["rendered", "dtu"] = "rendered"  # where samples come from, in training and in validation
    data: Path | None = None  # folder of DTU's training set (dtu)
    assets: Path | None = None  # folder of meshes and textures (rendered); none = shapes we make
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
    def zoom(self) -> float:
        """Rendered training images are windows of larger ones, up to the size that is validated."""
        return max(1.0, self.validation_size[0] / self.width) if self.source == "rendered" else 1.0

    @property
    def steps(self) -> int:
        return math.ceil(self.samples / self.batch_size)

    def to_dict(self) -> dict[str, object]:
        """For JSON: what decides the result. Where files lie does not."""
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**values, "data": self.data is not None, "assets": self.assets is not None}


def train_config(variant: Variant, budget: Budget, minutes: float = 0.0) -> TrainConfig:
    """Pure classification or regression as published, averaged weights, one schedule for all."""
    values: dict[str, Any] = {
        "network": variant.config,
        "source": budget.source,
        "data": budget.data,
        "assets": budget.assets,
        "dtu_like": budget.source == "rendered",  # as the validation set is
        "zoom": budget.zoom,
        "crops": budget.source == "dtu",
        "views": budget.views,
        "height": budget.height,
        "width": budget.width,
        "batch_size": budget.batch_size,
        "seed": budget.seed,
        "precision": budget.precision,
        "learning_rate": budget.learning_rate,
        "warmup_steps": min(100, budget.steps // 10),
        "total_steps": budget.steps,
        "minutes": minutes,
        "validation_scenes": 0,  # scored once, at the end, by us
        "validate_minutes": 0.0,
        "checkpoint_minutes": 2.0,
        "tensorboard": False,
    }
    return TrainConfig(**{**values, **variant.changes})
