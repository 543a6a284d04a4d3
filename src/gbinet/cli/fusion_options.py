"""The options of fusion that `reconstruct` and `fuse` share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import tyro

from gbinet.fusion.fuse import FusionConfig


@dataclass(frozen=True)
class FusionOptions:
    """What was asked for on the command line; None leaves it as it is."""

    min_confidence: float | None = None
    """Drop pixels whose confidence is lower (0 to 1; usually 0.1). Maps without confidence keep all."""
    blank_confidence: float | None = None
    """The same where the photo has no texture, such as sky and blank walls (usually 0.6)."""
    keep_burnt_out: bool = False
    """Keep pixels that are white in all channels."""
    min_views: int | None = None
    """Other views that must agree with a point (usually 3; 2 with --quality fast)."""
    strict_views: bool = False
    """Insist on --min-views even where few photos see the same; otherwise half of those are enough."""
    max_reprojection: float | None = None
    """Pixels that a point may be off between two views (usually 1; 0.75 with --quality best)."""
    max_relative_depth: float | None = None
    """Share of its depth that a point may be off between two views (usually 0.01)."""
    dynamic: bool = False
    """Also accept n views within n times these two thresholds."""
    duplicates: Literal["used-pixel", "voxel", "none"] | None = None
    """How a surface that many views see is kept once (usually used-pixel)."""
    voxel_size: float | None = None
    """Cell of --duplicates voxel, in the scene's unit."""
    box: tuple[float, float, float, float, float, float] | None = None
    """Keep only x0 y0 z0 x1 y1 z1."""

    def applied(self, base: FusionConfig) -> FusionConfig:
        """The base with what was asked for."""
        return replace(base, **{key: value for key, value in vars(self).items() if value is not None})


# As parameters of a verb: the flags carry no prefix.
FusionFlags = Annotated[FusionOptions, tyro.conf.arg(name="")]
AS_IS = FusionOptions()
