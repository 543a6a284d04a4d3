"""The configuration of a GBi-Net, and the named presets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Literal, Self, get_args

from gbinet.errors import InputError, flag
from gbinet.model.search import SearchGrid
from gbinet.ops.smooth import MOST_RADIUS

Readout = Literal["centre", "expectation", "smooth", "refined"]
Confidence = Literal["largest", "nearby", "learned"]
PAPER_CONFIDENCE_STAGES = 6


@dataclass(frozen=True)
class GBiNetConfig:
    """Everything needed to build the network; stored with its weights.

    The fields are explained in the source, beside each of them, and in `gbinet train --help`.

    Raises:
        InputError: If a value is impossible, or values do not fit together.

    Example:
        >>> from gbinet import GBiNet, GBiNetConfig
        >>> GBiNetConfig(bins=6, stages=7).bins
        6
        >>> GBiNet(GBiNetConfig(encoder_width=4)).config.encoder_width
        4
    """

    bins: int = 4  # D, hypotheses per stage: 2 = Bi-Net, 4 = GBi-Net.
    first_bins: int = 0  # Hypotheses of stage 1; 0 = the same as bins, as in the paper.
    # > 0: stage 1 has more bins where it takes more to bring them this close, in pixels of its feature maps;
    # first_bins is then the fewest.
    first_spacing: float = 0.0
    inverse_depth: bool = False  # Bins of equal size in 1/depth instead of depth.
    edge_cells: int = 0  # > 0: maps are enlarged without mixing cells further apart than this, across edges.
    # Smoothing of the answers after a stage: (radius in pixels, largest difference in cells) per scale,
    # coarse to fine; radius 0 = no smoothing.
    smoothing: tuple[tuple[int, int], ...] = ()
    refiner: bool = False  # A small network that corrects the smoothed depth of the last stage.
    refiner_sides: bool = False  # The refiner may also take the depth of either side of an edge.
    stages: int = 8  # Stages searched by default, and trained.
    # Scale of each stage, 0 = coarsest; further stages have the last one.
    scale_of_stage: tuple[int, ...] = (0, 0, 1, 1, 2, 2, 3, 3)
    encoder_width: int | tuple[int, ...] = 8  # Channels at full size, doubled at coarser ones; or per scale.
    # Groups of the correlation per scale, coarse to fine. There are as many scales as numbers here, each
    # twice as large as the one before; the last has the size of the images.
    groups: tuple[int, ...] = (8, 8, 8, 4)
    # Channels of the 3D U-Nets at their top level; or per scale.
    regulariser_width: int | tuple[int, ...] = 8
    context: bool = False  # The 3D U-Nets see the reference's features beside the cost volume.
    # Between scales pixels choose their parents: channels of the networks that choose, one per scale but the
    # coarsest; none = pixels take their own.
    choice_widths: tuple[int, ...] = ()
    # Before the later stages at these scales pixels choose again, between their own cell and their
    # neighbours', by networks of their own.
    choice_again: bool = False
    # largest: mean of the largest probabilities, as in the paper; nearby: product of the probabilities of the
    # chosen bin with its neighbours, the chance that no stage was more than a bin off; learned: the refiner's
    # estimate of the probability that the depth is right (where it does not run: as nearby).
    confidence: Confidence = "largest"
    # K', the first stages that count for the confidence; 0 = 6 (largest), all (nearby).
    confidence_stages: int = 0
    # Depth of the last stage: centre of the bin, expectation around it, that expectation smoothed (at scales
    # without smoothing: the expectation), or that corrected by the refiner (at full size; else: smoothed).
    readout: Readout = "centre"

    def __post_init__(self) -> None:
        for name, least in (("stages", 1), ("confidence_stages", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{flag(name)} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.first_spacing < float("inf"):
            raise InputError(f"--first-spacing must not be negative, got {self.first_spacing}")
        if self.edge_cells < 0:
            raise InputError(f"--edge-cells must not be negative, got {self.edge_cells}")
        if self.readout not in get_args(Readout):
            raise InputError(f"unknown readout '{self.readout}'; there are {', '.join(get_args(Readout))}")
        if self.confidence not in get_args(Confidence):
            raise InputError(f"unknown confidence '{self.confidence}'; there are largest, nearby and learned")
        _check_scales(self)
        _check_smoothing(self)
        self.grid.cells(self.stages)  # raises on impossible bins and on more cells than the search allows

    @property
    def grid(self) -> SearchGrid:
        """How bins split, as the search takes it."""
        return SearchGrid(self.bins, self.first_bins or self.bins, self.inverse_depth, self.edge_cells)

    @property
    def scales_choosing_again(self) -> tuple[int, ...]:
        """Scales with choices that have more than one stage, 0 = coarsest."""
        scales = [self.scale_index(stage) for stage in range(1, self.stages + 1)]
        last = len(self.groups) if self.choice_again else 0
        return tuple(scale for scale in range(1, last) if scales.count(scale) > 1)

    @property
    def joint_confidence(self) -> bool:
        """Whether the confidences of the stages are multiplied; else their mean is taken."""
        return self.confidence != "largest"

    @property
    def stages_counted(self) -> int:
        """How many stages count for the confidence, from the first on."""
        return self.confidence_stages or (self.stages if self.joint_confidence else PAPER_CONFIDENCE_STAGES)

    @property
    def scales(self) -> tuple[int, ...]:
        """Image size / feature size, coarse to fine: the order of all that is per scale."""
        return tuple(2**power for power in reversed(range(len(self.groups))))

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of the features, per scale."""
        width = self.encoder_width
        return width if isinstance(width, tuple) else tuple(width * scale for scale in self.scales)

    @property
    def regulariser_widths(self) -> tuple[int, ...]:
        """Channels of the 3D U-Nets at their top level, per scale."""
        width = self.regulariser_width
        return width if isinstance(width, tuple) else (width,) * len(self.scales)

    def scale_index(self, stage: int) -> int:
        """Feature scale (0 = coarsest) of a stage, counted from 1."""
        return self.scale_of_stage[min(stage, len(self.scale_of_stage)) - 1]

    def scale_of(self, stage: int) -> int:
        """Image size / feature size of a stage, counted from 1."""
        return self.scales[self.scale_index(stage)]

    def smoothing_of(self, stage: int) -> tuple[int, int] | None:
        """Radius in pixels and reach in cells of the smoothing after a stage; None = there is none."""
        smoothing = self.smoothing[self.scale_index(stage)] if self.smoothing else (0, 1)
        return smoothing if smoothing[0] else None

    def to_dict(self) -> dict[str, object]:
        """For JSON; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """From JSON, also of earlier versions; an unknown field is an error (weights of a newer version)."""
        if not isinstance(values, dict):
            raise InputError(f"a configuration is a dictionary, got {type(values).__name__}")
        known = {f.name for f in fields(cls)}
        plain = _upgraded({k: _tuples(v) for k, v in values.items()}, known)
        if unknown := sorted(set(plain) - known):
            raise InputError(
                f"unknown configuration fields {unknown}: a newer gbinet wrote them, please update"
            )
        return cls(**plain)  # type: ignore[arg-type]  # values come from JSON


# Fields that earlier versions wrote, with the only value that is still supported.
_REMOVED: dict[str, object] = {
    "strategy": "binary",
    "hypotheses": (),
    "windows": (),
    "encoder": "deformable",
}


def _upgraded(values: dict[str, object], known: set[str]) -> dict[str, object]:
    """The fields of a file of an earlier version as this version has them."""
    for name, supported in _REMOVED.items():
        value = supported if name in known else values.pop(name, supported)
        if value != supported:
            raise InputError(
                f"{name} is {value!r}, but this version of gbinet has {supported!r} only (networks that "
                "search densely belong to the package in research/)"
            )
    radii, cells = values.pop("smooth_radii", ()), values.pop("smooth_cells", ())
    if radii or cells:
        if not isinstance(radii, tuple) or not isinstance(cells, tuple) or len(radii) != len(cells):
            raise InputError(f"smooth_radii and smooth_cells do not fit together: {radii} and {cells}")
        values["smoothing"] = tuple(zip(radii, cells, strict=True))
    return values


def _tuples(value: object) -> object:
    """Lists as tuples, nested ones too."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


MOST_SCALES = 8


def _check_scales(config: GBiNetConfig) -> None:
    count = len(config.groups)
    if not 1 <= count <= MOST_SCALES:
        raise InputError(f"--groups needs one number per scale, 1 to {MOST_SCALES}, got {config.groups}")
    for name, per_scale in (
        ("encoder_width", config.channels),
        ("regulariser_width", config.regulariser_widths),
    ):
        if len(per_scale) != count or min(per_scale) < 1:
            raise InputError(
                f"{flag(name)} must be at least 1, one number or one per scale ({count}, like --groups), "
                f"got {getattr(config, name)}"
            )
    widths = config.choice_widths
    if widths and (len(widths) != count - 1 or min(widths) < 1):
        raise InputError(f"--choice-widths needs {count - 1} numbers or none, got {widths}")
    if config.choice_again and not widths:
        raise InputError("--choice-again needs --choice-widths: pixels that never choose cannot choose again")
    plan = config.scale_of_stage
    never_falls = all(a <= b for a, b in pairwise(plan))
    if not plan or not never_falls or plan[0] < 0 or plan[-1] >= count:
        raise InputError(
            f"--scale-of-stage must rise within 0..{count - 1} (--groups has one number per scale, {count}), "
            f"got {plan}"
        )
    channels = config.channels
    if any(g < 1 or c % g for c, g in zip(channels, config.groups, strict=True)):
        raise InputError(f"--groups {config.groups} must divide the channels {channels} of their scales")


def _check_smoothing(config: GBiNetConfig) -> None:
    pairs, count = config.smoothing, len(config.scales)
    if len(pairs) not in (0, count):
        raise InputError(f"smoothing needs two numbers per scale ({count}) or none, got {pairs}")
    if any(not 0 <= radius <= MOST_RADIUS or cells < 1 for radius, cells in pairs):
        raise InputError(
            f"smoothing: radii must lie in 0..{MOST_RADIUS} and cells be at least 1, got {pairs}"
        )
    if config.readout == "smooth" and not any(radius for radius, _ in pairs):
        raise InputError("the read-out 'smooth' needs smoothing")
    if config.refiner and not (pairs and pairs[-1][0]):
        raise InputError("a refiner needs smoothing at full size")
    if config.confidence == "learned" and not config.refiner:
        raise InputError("the confidence 'learned' needs a network with a refiner")
    if config.readout == "refined" and not config.refiner:
        raise InputError("the read-out 'refined' needs a network with a refiner")


PRESETS: dict[str, GBiNetConfig] = {
    "gbinet": GBiNetConfig(),
    "binet": GBiNetConfig(bins=2),
    "gbinet-6": GBiNetConfig(bins=6),
    "bundled": GBiNetConfig(  # of the bundled weights: see weights/README.md
        bins=6,
        first_bins=24,
        first_spacing=1.8,
        inverse_depth=True,
        edge_cells=6,
        smoothing=((1, 6), (1, 6), (2, 12), (5, 32)),
        refiner=True,
        refiner_sides=True,
        stages=7,
        regulariser_width=(16, 16, 8, 8),
        context=True,
        choice_widths=(64, 32, 16),
        choice_again=True,
        confidence="learned",
        readout="refined",
    ),
}


def preset(name: str) -> GBiNetConfig:
    if name not in PRESETS:
        raise InputError(f"unknown network '{name}'; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
