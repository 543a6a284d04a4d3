"""What a GBi-Net is made of, and the named presets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from gbinet.errors import InputError
from gbinet.model.encoder import SCALES
from gbinet.model.search import SearchGrid
from gbinet.model.smoothing import MOST_RADIUS
from gbinet.model.strategies import STRATEGIES, strategy_of

Encoder = Literal["deformable", "plain"]
Readout = Literal["centre", "expectation", "smooth", "refined"]
Confidence = Literal["largest", "nearby", "learned"]


@dataclass(frozen=True)
class GBiNetConfig:
    """Everything needed to build the network again; stored with its weights."""

    strategy: str = "binary"  # how depth is searched: binary (the paper's) or dense (see strategies.py)
    bins: int = 4  # D, hypotheses per stage: 2 = Bi-Net, 4 = GBi-Net
    first_bins: int = 0  # hypotheses of stage 1; 0 = the same as bins, as in the paper
    first_spacing: float = 0.0  # > 0: stage 1 has more bins where it takes more to bring them this close,
    # in pixels of its feature maps; first_bins is then the fewest
    hypotheses: tuple[int, ...] = ()  # dense: hypotheses of each stage
    windows: tuple[float, ...] = ()  # dense: width of each stage's window, as a share of the range
    inverse_depth: bool = False  # bins (hypotheses) equal in 1/depth instead of depth
    edge_cells: int = 0  # > 0: maps are enlarged without mixing cells further apart than this, across edges
    # Per scale, coarse to fine: after a stage, answers are averaged over so many pixels around (0 = none), as
    # far as they are less than so many cells away from the pixel's own: see smoothing.py.
    smooth_radii: tuple[int, ...] = ()
    smooth_cells: tuple[int, ...] = ()
    refiner: bool = False  # a small network that corrects the smoothed depth of the last stage: refiner.py
    refiner_sides: bool = False  # it may take the depth of either side of an edge, too
    stages: int = 8  # stages searched by default
    scale_of_stage: tuple[int, ...] = (0, 0, 1, 1, 2, 2, 3, 3)  # 0 = 1/8 .. 3 = full; later stages: the last
    encoder: Encoder = "deformable"  # output convolutions of the encoder
    encoder_width: int = 8  # channels at full size; doubled at each coarser scale
    groups: tuple[int, ...] = (8, 8, 8, 4)  # groups of the correlation per scale, coarse to fine
    regulariser_width: int | tuple[int, ...] = 8  # channels of the 3D U-Nets at their top level; or per scale
    context: bool = False  # the 3D U-Nets see the reference's features beside the cost volume
    # Between scales pixels choose their parents, by networks so wide, one per scale but the coarsest; none =
    # they take their own: see choice.py
    choice_widths: tuple[int, ...] = ()
    confidence_stages: int = 6  # K': the first K' stages count for the confidence
    # "largest": mean of the largest probabilities, as in the paper. "nearby": product of the probabilities of
    # the chosen bin with its neighbours, the chance that no stage was more than a bin off. "learned": the
    # refiner's, the chance that the depth is right to one pixel of reprojection (without it: as nearby).
    confidence: Confidence = "largest"
    # Depth of the last stage: centre of the bin, expectation around it, that expectation smoothed (at scales
    # without smoothing: the expectation), or that corrected by the refiner (at full size; else: smoothed).
    readout: Readout = "centre"

    def __post_init__(self) -> None:
        for name in ("stages", "confidence_stages", "encoder_width"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if len(self.regulariser_widths) != len(SCALES) or min(self.regulariser_widths) < 1:
            raise InputError(
                f"regulariser_width must be at least 1, one number or one per scale ({len(SCALES)}), "
                f"got {self.regulariser_width}"
            )
        widths = self.choice_widths
        if widths and (len(widths) != len(SCALES) - 1 or min(widths) < 1 or self.strategy != "binary"):
            raise InputError(
                f"choice_widths (binary search only) needs {len(SCALES) - 1} numbers or none, got {widths}"
            )
        if not 0 <= self.first_spacing < float("inf"):
            raise InputError(f"first_spacing must not be negative, got {self.first_spacing}")
        if self.edge_cells < 0:
            raise InputError(f"edge_cells must not be negative, got {self.edge_cells}")
        if self.encoder not in get_args(Encoder) or self.readout not in get_args(Readout):
            raise InputError(f"unknown encoder '{self.encoder}' or readout '{self.readout}'")
        _check_smoothing(self)
        if self.confidence not in get_args(Confidence):
            raise InputError(f"unknown confidence '{self.confidence}'; there are largest, nearby and learned")
        if self.strategy not in STRATEGIES:
            raise InputError(f"unknown strategy '{self.strategy}'; there are {', '.join(STRATEGIES)}")
        self.grid.cells(self.stages)  # raises on impossible bins and on more stages than numbers can tell
        strategy_of(self)
        steps = [b - a for a, b in zip(self.scale_of_stage, self.scale_of_stage[1:], strict=False)]
        in_range = all(0 <= s < len(SCALES) for s in self.scale_of_stage)
        if not self.scale_of_stage or not in_range or any(s < 0 for s in steps):
            raise InputError(f"scale_of_stage must rise within 0..3, got {self.scale_of_stage}")
        if len(self.groups) != len(SCALES):
            raise InputError(f"groups needs one number per scale ({len(SCALES)}), got {self.groups}")
        channels = [self.encoder_width * s for s in SCALES]
        if any(g < 1 or c % g for c, g in zip(channels, self.groups, strict=True)):
            raise InputError(f"groups {self.groups} must divide the channels {channels} of their scales")

    @property
    def grid(self) -> SearchGrid:
        return SearchGrid(self.bins, self.first_bins or self.bins, self.inverse_depth, self.edge_cells)

    @property
    def joint_confidence(self) -> bool:
        """Whether the confidences of the stages are multiplied; else their mean is taken."""
        return self.confidence != "largest"

    @property
    def regulariser_widths(self) -> tuple[int, ...]:
        """Per scale, coarse to fine."""
        width = self.regulariser_width
        return width if isinstance(width, tuple) else (width,) * len(SCALES)

    def scale_index(self, stage: int) -> int:
        """Feature scale (0 = coarsest) of a stage, counted from 1."""
        return self.scale_of_stage[min(stage, len(self.scale_of_stage)) - 1]

    def smoothing_of(self, stage: int) -> tuple[int, int] | None:
        """Radius in pixels and reach in cells of the smoothing after a stage; None = there is none."""
        scale = self.scale_index(stage)
        if not self.smooth_radii or not self.smooth_radii[scale]:
            return None
        return self.smooth_radii[scale], self.smooth_cells[scale]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_dict(values: object) -> GBiNetConfig:
        """From JSON: lists become tuples; an unknown field is an error (weights of a newer version)."""
        if not isinstance(values, dict):
            raise InputError(f"a configuration is a dictionary, got {type(values).__name__}")
        known = {f.name for f in fields(GBiNetConfig)}
        if unknown := sorted(set(values) - known):
            raise InputError(
                f"unknown configuration fields {unknown}: a newer gbinet wrote them, please update"
            )
        plain = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return GBiNetConfig(**plain)  # type: ignore[arg-type]  # values come from JSON


def _check_smoothing(config: GBiNetConfig) -> None:
    radii, cells = config.smooth_radii, config.smooth_cells
    if len(radii) not in (0, len(SCALES)) or len(cells) != len(radii):
        raise InputError(
            f"smooth_radii and smooth_cells need one number per scale ({len(SCALES)}) or none, "
            f"got {radii} and {cells}"
        )
    if any(not 0 <= r <= MOST_RADIUS for r in radii) or any(c < 1 for c in cells):
        raise InputError(
            f"smooth_radii must lie in 0..{MOST_RADIUS} and smooth_cells be at least 1, "
            f"got {radii} and {cells}"
        )
    if config.readout == "smooth" and not any(radii):
        raise InputError("the read-out 'smooth' needs smooth_radii")
    if config.refiner and not (radii and radii[-1]):
        raise InputError("a refiner needs smooth_radii at full size")
    if config.confidence == "learned" and not config.refiner:
        raise InputError("the confidence 'learned' needs a network with a refiner")
    if config.readout == "refined" and not config.refiner:
        raise InputError("the read-out 'refined' needs a network with a refiner")


PRESETS: dict[str, GBiNetConfig] = {
    "gbinet": GBiNetConfig(),
    "binet": GBiNetConfig(bins=2),
    "gbinet-6": GBiNetConfig(bins=6),
    # The searches that the paper compares with, at their published sizes. MVSNet: 192 hypotheses over the
    # range, at 1/4 of the image's size. CasMVSNet: 48, 32, 8 hypotheses at 1/4, 1/2 and full size; 4, 2 and
    # 1 of MVSNet's steps apart.
    "dense-linear": GBiNetConfig(
        strategy="dense",
        hypotheses=(192,),
        windows=(1.0,),
        stages=1,
        scale_of_stage=(1,),
        confidence_stages=1,
    ),
    "coarse-to-fine": GBiNetConfig(
        strategy="dense",
        hypotheses=(48, 32, 8),
        windows=(1.0, 64 / 192, 8 / 192),
        stages=3,
        scale_of_stage=(1, 2, 3),
        confidence_stages=3,
    ),
}
