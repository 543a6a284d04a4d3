"""From a posed scene to one in metres or on the map, by what the user or the photos say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError, InputError, SceneError, check_finite, check_positive
from gbinet.formats.exif import read_exif
from gbinet.formats.optional import optional
from gbinet.formats.positions import read_positions
from gbinet.georeference.align import Alignment, align
from gbinet.georeference.similarity import Points, Similarity, scaled, transformed_scene
from gbinet.scene import Scene, View

_ROUND = 100.0  # m: the origin of the local frame is a multiple of this
_WGS84 = "EPSG:4326"


@dataclass(frozen=True)
class PlaceConfig:
    """How a model gets its place on the map and its unit."""

    georeference: Literal["auto", "gps", "off"] = "auto"  # auto: by GPS where gbinet found the poses itself
    positions: Path | None = None  # table of known camera positions
    crs: str | None = None  # coordinate system of these, e.g. EPSG:32615
    # Two points and their distance.
    scale: tuple[float, float, float, float, float, float, float] | None = None

    def __post_init__(self) -> None:
        if self.positions is not None and self.scale is not None:
            raise InputError("--positions and --scale both set the unit: give one of them")
        if self.crs is not None and self.positions is None:
            raise InputError("--crs says what the numbers of --positions mean: give both")
        if self.scale is not None:
            check_finite("--scale", *self.scale)
            check_positive("the length at the end of --scale", self.scale[6])


@dataclass(frozen=True)
class Georeference:
    """Where the local frame of a result lies, and how well that is known."""

    source: str  # "GPS of the photos", "positions in cameras.csv", "--scale"
    crs: str | None  # of the map, e.g. EPSG:32615; None: the frame is on no map
    offset: tuple[float, float, float]  # local coordinates plus this are map coordinates
    local_from_model: list[list[float]]  # 4x4: from the frame of the poses as they were found
    photos: int = 0  # with a position that was used
    outliers: tuple[str, ...] = ()  # photos with outlier positions
    error_across: float | None = None  # m, root mean square of the positions used, horizontally
    error_up: float | None = None  # the same vertically

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def facts(self) -> dict[str, object]:
        """For the report."""
        facts: dict[str, object] = {"by": self.source}
        if self.crs is not None:
            east, north, up = self.offset
            facts |= {
                "coordinate system": self.crs,
                "local frame starts at": f"{east:.0f} {north:.0f} {up:.0f}",
            }
        if self.photos:
            facts["photos used"] = self.photos
            facts["outlier positions"] = ", ".join(self.outliers[:8]) or "none"
        if self.error_across is not None and self.error_up is not None:
            facts["positions off by (rms)"] = f"{self.error_across:.2f} m across, {self.error_up:.2f} m up"
        return facts

    def summary(self) -> str:
        place = f"placed by {self.source}"
        if self.error_across is None or self.error_up is None:
            return place
        where = "" if self.crs is None else f" in {self.crs}"
        wrong = f" ({len(self.outliers)} outliers left out)" if self.outliers else ""
        off = f"{self.error_across:.2f} m across and {self.error_up:.2f} m up"
        return f"{place}{where}: {self.photos} positions{wrong}, off by {off} (rms)"


def place_scene(scene: Scene, config: PlaceConfig) -> tuple[Scene, Georeference]:
    """The scene in its local frame, and the georeference; raises an AlignmentError if too little is known."""
    if config.scale is not None:
        similarity = scaled(_factor(config.scale))
        georeference = Georeference("--scale", None, (0.0, 0.0, 0.0), similarity.matrix.tolist())
        return transformed_scene(scene, similarity), georeference
    if config.positions is not None:
        known, crs = _given_positions(scene, config.positions, config.crs)
        source = f"positions in {config.positions.name}"
    else:
        known, crs = _gps_positions(scene)
        source = "GPS of the photos"
    centres = np.stack([scene.views[i].camera.centre.double().numpy() for i in known])
    targets = np.array([known[i] for i in known])  # [N, 3]
    found = align(centres, targets)
    offset = _offset(targets[found.used]) if crs is not None else np.zeros(3)
    to_map = found.target_from_model
    local_from_model = Similarity(to_map.scale, to_map.rotation, to_map.shift - offset)
    names = [scene.views[i].name for i in known]
    georeference = _georeference(found, local_from_model, source, crs, offset, names)
    return transformed_scene(scene, local_from_model), georeference


def has_gps(scene: Scene) -> bool:
    """Whether enough photos have GPS for an alignment to be worth a try."""
    return sum(_gps_of(view) is not None for view in scene.views) >= max(4, len(scene.views) // 2)


def _georeference(
    found: Alignment,
    local_from_model: Similarity,
    source: str,
    crs: str | None,
    offset: NDArray[np.float64],
    names: Sequence[str],
) -> Georeference:
    residuals = found.residuals[found.used]  # [N, 3]
    return Georeference(
        source,
        crs,
        (float(offset[0]), float(offset[1]), float(offset[2])),
        local_from_model.matrix.tolist(),
        int(found.used.sum()),
        tuple(name for name, used in zip(names, found.used, strict=True) if not used),
        float(np.sqrt((residuals[:, :2] ** 2).sum(-1).mean())),
        float(np.sqrt((residuals[:, 2] ** 2).mean())),
    )


def _factor(scale: tuple[float, ...]) -> float:
    """Metres (or whatever the length is in) per unit of the model."""
    distance = math.dist(scale[:3], scale[3:6])
    if distance <= 0:
        raise InputError("--scale: the two points are the same")
    return scale[6] / distance


def _gps_of(view: View) -> tuple[float, float, float] | None:
    try:
        return read_exif(view.original_path or view.image_path).gps
    except FormatError:
        return None


def _gps_positions(scene: Scene) -> tuple[dict[int, tuple[float, float, float]], str]:
    """Number of the view -> easting, northing, height, and the UTM zone that they are in."""
    found = {i: gps for i, view in enumerate(scene.views) if (gps := _gps_of(view)) is not None}
    if not found:
        raise SceneError(f"{scene.root}: no photo has GPS in its EXIF; give --positions instead")
    degrees = {i: (longitude, latitude, up) for i, (latitude, longitude, up) in found.items()}
    crs = utm_zone(np.array(list(degrees.values())))
    return _projected(degrees, crs), crs


def _given_positions(
    scene: Scene, table: Path, crs: str | None
) -> tuple[dict[int, tuple[float, float, float]], str | None]:
    """Number of the view -> its position in a table, and the coordinate system of these.

    Photos are found by their names, with or without ending.
    """
    positions = read_positions(table)
    by_name = {Path(name).name: position for name, position in positions.by_photo.items()}
    by_stem = {Path(name).stem: position for name, position in positions.by_photo.items()}
    known = {}
    for index, view in enumerate(scene.views):
        photo = (view.original_path or view.image_path).name
        position = by_name.get(photo) or by_stem.get(Path(photo).stem) or by_stem.get(view.name)
        if position is not None:
            known[index] = position
    if not known:
        raise SceneError(f"{table}: names no photo of {scene.name}, e.g. {scene.views[0].image_path.name}")
    if positions.degrees:
        if crs is not None:
            raise InputError(f"{table} holds latitude and longitude: omit --crs")
        crs = utm_zone(np.array(list(known.values())))
        known = _projected(known, crs)
    elif crs is not None:
        crs = _metric(crs)
    return known, crs


def utm_zone(degrees: Points) -> str:
    """The zone of the median of [N, 3] positions (longitude, latitude, height), e.g. EPSG:32615."""
    pyproj = optional("pyproj", "a place on the map", "geo")
    longitude, latitude = (float(v) for v in np.median(degrees[:, :2], axis=0))
    area = pyproj.aoi.AreaOfInterest(longitude, latitude, longitude, latitude)
    found = optional("pyproj.database", "a place on the map", "geo").query_utm_crs_info("WGS 84", area)
    if not found:
        raise InputError(f"there is no UTM zone at latitude {latitude:.4f}; give --positions in metres")
    return f"{found[0].auth_name}:{found[0].code}"


def _metric(crs: str) -> str:
    """Return the coordinate system; raise an InputError unless its axes are metres."""
    pyproj = optional("pyproj", "--crs", "geo")
    try:
        found = pyproj.CRS.from_user_input(crs)
    except pyproj.exceptions.CRSError as error:
        raise InputError(f"--crs {crs}: is not a coordinate system; give e.g. EPSG:32615") from error
    if not found.is_projected or any(axis.unit_name != "metre" for axis in found.axis_info):
        raise InputError(f"--crs {crs}: its axes are not metres; give a projected one, e.g. EPSG:32615")
    return crs


def _projected(
    degrees: dict[int, tuple[float, float, float]], crs: str
) -> dict[int, tuple[float, float, float]]:
    """Longitude, latitude and height as easting, northing and height."""
    pyproj = optional("pyproj", "a place on the map", "geo")
    to_map = pyproj.Transformer.from_crs(_WGS84, crs, always_xy=True)
    return {
        i: (*to_map.transform(longitude, latitude), up) for i, (longitude, latitude, up) in degrees.items()
    }


def _offset(targets: Points) -> NDArray[np.float64]:
    """The origin of the local frame: a round position amid the photos, at height 0."""
    middle = np.median(targets, axis=0)
    return np.array([math.floor(middle[0] / _ROUND) * _ROUND, math.floor(middle[1] / _ROUND) * _ROUND, 0.0])
