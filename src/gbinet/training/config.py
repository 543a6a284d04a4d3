"""The configuration of a training run, and the named presets."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from gbinet.errors import InputError, check_not_negative, flag
from gbinet.model import config as networks
from gbinet.model.config import GBiNetConfig

UpdateMode = Literal["per-stage", "accumulate", "shared-encoder", "refiner"]
HOUR = 60.0  # minutes
_NOT_NEGATIVE = (
    *("workers", "seed", "readout_weight", "choice_weight", "refiner_weight", "warmup_steps", "clip"),
    *("total_steps", "total_minutes", "epochs", "minutes"),
    *("checkpoint_minutes", "validate_minutes", "validation_scenes"),
)


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what the weights become; stored with every checkpoint."""

    # ---- data

    source: Literal["rendered", "dtu", "blendedmvs", "scenes"] = "rendered"  # Where samples come from.
    data: Path | None = None  # Folder of the data set (dtu, blendedmvs), or of scenes with true depth.
    assets: Path | None = None  # Folder of meshes and textures for rendered scenes; none = generated ones.
    kinds: tuple[str, ...] = ()  # Kinds of rendered scenes (table, room, facade, terrain); none = all.
    dtu_like: bool = False  # Rendered scenes: only narrow views of tables from 0.5 to 0.9 m, in millimetres.
    samples_per_scene: int = 8  # How often a rendered scene is used before it is replaced.
    zoom: float = 1.0  # Rendered scenes: samples are windows of images up to this many times as large.
    least_zoom: float = 1.0  # The same, at least this many times as large.
    life: float = 0.0  # Share of rendered scenes with the difficulties of real photos.
    views: int = 5  # Images per sample, the reference included.
    height: int = 512  # of a training image; a multiple of 64
    width: int = 640  # of a training image; a multiple of 64
    crops: bool = False  # Random windows of --size instead of whole images (dtu).
    batch_size: int = 4  # Samples per step and process.
    workers: int = 4  # Processes that read a data set from disk.
    seed: int = 0  # Seed of weights, samples and their order.

    network: GBiNetConfig = networks.PRESETS["gbinet"]  # The network that is trained.
    init: Path | None = None  # Weights to start from (ours or a published .ckpt); nothing else is taken over.

    # ---- loss

    stage_weights: tuple[float, ...] = ()  # Weight of each stage's loss; the last is repeated; none = all 1.
    readout_weight: float = 0.0  # Weight of the loss of the continuous depth at the last stage; 0 = off.
    choice_weight: float = 0.5  # Loss weight of the parent choice (networks with choice_widths only).
    refiner_weight: float = 0.3  # Weight of the refiner's loss, where it is trained with the network.
    # Train again on pixels that left their bins once a later stage's bins contain their depth.
    recover: bool = False
    grow_stages: bool = False  # 2 stages in the first epoch, one more in each later one, as published.

    # ---- update

    # After which part of a step weights are updated; refiner trains the refiner only.
    update: UpdateMode = "shared-encoder"
    # Encode again for the backward pass: 12 % slower (per-stage 22 %), much less memory; ignored with
    # accumulate.
    encode_twice: bool = True
    # Precision of the network; geometry and loss stay float32.
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    cuda_graph: bool = True  # Launch a whole step at once where that is possible; the numbers stay the same.
    learning_rate: float = 1e-3  # Largest learning rate.
    schedule: Literal["cosine", "steps"] = "cosine"  # How the learning rate falls.
    warmup_steps: int = 100  # Linear rise at the start (again after --init, never after --resume).
    clip: float = 100.0  # Largest norm of the gradient; larger ones are scaled down; 0 = off.
    ema: float = 0.999  # Memory of the averaged weights, which are what is saved and validated; 0 = off.

    # ---- length: the schedule follows the first of these that is not 0; if all are, it is an hour

    total_steps: int = 0  # Length of the whole run in steps, resumed runs included; 0 = no limit.
    total_minutes: float = 0.0  # Length of the whole run in minutes, resumed runs included; 0 = no limit.
    epochs: int = 0  # Passes over the data set, resumed runs included; 0 = no limit.
    minutes: float = 0.0  # This command stops in time for this many minutes; if all four are 0: an hour.

    # ---- record

    log_every: int = 20  # Steps between two lines of the log (each waits for the GPU once).
    checkpoint_minutes: float = 5.0  # Minutes between two checkpoints.
    # Minutes between two validations; 0 = at the end and, on a GPU, at the start.
    validate_minutes: float = 5.0
    validation_scenes: int = 4  # Samples of the validation set; 0 = no validation, no best.safetensors.
    tensorboard: bool = True  # Curves and pictures, where tensorboard is installed.

    def __post_init__(self) -> None:
        if self.height % 64 or self.width % 64 or min(self.height, self.width) < 64:
            raise InputError(f"--size must be multiples of 64, got {self.width}x{self.height}")
        if self.views < 2:
            raise InputError(f"--views must be 2 or more: a reference and a source, got {self.views}")
        for name in ("batch_size", "samples_per_scene", "log_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{flag(name)} must be at least 1, got {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            check_not_negative(flag(name), getattr(self, name))
        if not 0 <= self.life <= 1:
            raise InputError(f"--life is a share of the samples, from 0 to 1, got {self.life}")
        if not self.learning_rate > 0:
            raise InputError(f"--learning-rate must be positive, got {self.learning_rate}")
        if not 0 <= self.ema < 1:
            raise InputError(f"--ema must lie in [0, 1), got {self.ema}")
        check_not_negative("--stage-weights", *self.stage_weights)
        if self.update == "refiner":
            self._check_refiner()

    def _check_refiner(self) -> None:
        if not self.network.refiner:
            raise InputError("the network has no refiner to train: give --refiner --readout refined")
        if self.grow_stages:
            raise InputError("a refiner looks at the last stage only: give --no-grow-stages")
        stages = self.network.stages
        if self.network.scale_of(stages) != 1:
            raise InputError(f"a refiner looks at full size, which {stages} stages do not reach: give more")

    def with_network(self, **changes: Any) -> TrainConfig:
        """The same run with some fields of the network changed."""
        return replace(self, network=replace(self.network, **changes))

    def with_length(self) -> TrainConfig:
        """The same run, an hour long if no option sets its length."""
        has_length = self.total_steps or self.total_minutes or self.epochs or self.minutes
        return self if has_length else replace(self, total_minutes=HOUR)

    def stage_weight(self, stage: int) -> float:
        """Weight of the loss of a stage, counted from 1."""
        weights = self.stage_weights or (1.0,)
        return weights[min(stage, len(weights)) - 1]

    def stages_in_epoch(self, epoch: int) -> int:
        return min(2 + epoch, self.network.stages) if self.grow_stages else self.network.stages

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        values = {k: str(v) if isinstance(v, Path) else v for k, v in vars(self).items()}
        return {**values, "network": self.network.to_dict()}

    @staticmethod
    def from_dict(values: dict[str, object]) -> TrainConfig:
        """From JSON; an unknown field is an error (a checkpoint of a newer version)."""
        types = {f.name: str(f.type) for f in fields(TrainConfig)}
        if unknown := sorted(set(values) - set(types)):
            raise InputError(f"unknown training options {unknown}: a newer gbinet wrote them, please update")
        plain: dict[str, object] = {}
        for key, value in values.items():
            is_path = types[key].startswith("Path") and value is not None
            plain[key] = Path(str(value)) if is_path else tuple(value) if isinstance(value, list) else value
        if "network" in plain:
            plain["network"] = GBiNetConfig.from_dict(plain["network"])
        return TrainConfig(**plain)  # type: ignore[arg-type]  # values come from JSON


# Options that may change when a run is resumed: how long a command runs, what it reads from, what it writes.
FREE_ON_RESUME = (
    "minutes",
    "init",
    "data",
    "assets",
    "workers",
    "cuda_graph",
    "encode_twice",
    "log_every",
    "checkpoint_minutes",
    "validate_minutes",
    "validation_scenes",
    "tensorboard",
)

_PAPER = TrainConfig(
    learning_rate=1e-4,
    schedule="steps",
    warmup_steps=0,
    epochs=16,
    grow_stages=True,
    update="per-stage",
    precision="float32",
    clip=0.0,
    ema=0.0,
    batch_size=2,
)

_OURS = TrainConfig(network=GBiNetConfig(readout="expectation"), readout_weight=0.1)

PRESETS: dict[str, TrainConfig] = {
    "rendered": replace(_OURS, source="rendered", zoom=2.6, life=0.5),
    "scenes": replace(_OURS, source="scenes"),
    "dtu": replace(_PAPER, source="dtu", height=1024, width=1280),
    "dtu-crops": replace(_PAPER, source="dtu", crops=True, height=512, width=640),
    "blendedmvs": replace(_PAPER, source="blendedmvs", height=576, width=768, views=7),
}


def preset(name: str, model: str = "gbinet", **changes: Any) -> TrainConfig:
    """A named preset with some fields changed; `model` names the preset of its network."""
    if name not in PRESETS:
        raise InputError(f"there is no training preset '{name}'; choose one of {', '.join(PRESETS)}")
    config = PRESETS[name]
    network = networks.preset(model)
    if network.readout == GBiNetConfig.readout:  # a network with a read-out of its own keeps it
        network = replace(network, readout=config.network.readout)
    return replace(config, **{"network": network, **changes})
