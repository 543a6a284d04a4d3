"""The options that say where a model lies and how large it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gbinet.georeference.place import PlaceConfig


@dataclass(frozen=True)
class PlaceOptions:
    """What was asked for on the command line."""

    # auto places photos without known cameras on the map, in metres, if the GPS in their EXIF is good enough;
    # gps does so with any scene, or stops with the reason why it cannot.
    georeference: Literal["auto", "gps", "off"] = "auto"
    positions: Path | None = None
    """Table of known camera positions instead of GPS: name,x,y,z or name,lat,lon,alt (CSV)."""
    crs: str | None = None
    """Coordinate system of --positions, e.g. EPSG:32615; without it, metres in your own frame."""
    # Two points of an earlier cloud and their true distance. The result is in the unit of LENGTH. The earlier
    # cloud must not be georeferenced: if the photos have GPS, add --georeference off to that run.
    scale: Annotated[
        tuple[float, float, float, float, float, float, float] | None,
        tyro.conf.arg(metavar="X0 Y0 Z0 X1 Y1 Z1 LENGTH"),
    ] = None

    def config(self) -> PlaceConfig:
        return PlaceConfig(self.georeference, self.positions, self.crs, self.scale)


# As parameters of a verb: the flags carry no prefix.
PlaceFlags = Annotated[PlaceOptions, tyro.conf.arg(name="")]
UNPLACED = PlaceOptions()
