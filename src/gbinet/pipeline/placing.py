"""Where a run's scene lies: asked for, or known to its photos; what is said about it, and what is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gbinet.formats.atomic import write_json
from gbinet.formats.optional import installed
from gbinet.georeference.align import PlacesError
from gbinet.georeference.place import Georeference, PlaceConfig, has_gps, place_scene
from gbinet.scene import Scene
from gbinet.viewer.report import Report

FILE = "georeference.json"


def placed(scene: Scene, config: PlaceConfig, *, bare: bool) -> tuple[Scene, Georeference | None, list[str]]:
    """The scene in its place, how that was found, and notes.

    bare  the poses were found by structure from motion: their frame and unit mean nothing, so that GPS may
          replace them unasked
    """
    if config.scale is not None or config.positions is not None or config.georeference == "gps":
        return *place_scene(scene, config), []
    if config.georeference == "off" or not bare or not has_gps(scene):
        return scene, None, []
    if not installed("pyproj"):
        return scene, None, ["the photos have GPS: `pip install 'gbinet[geo]'` puts the result on the map"]
    try:
        return *place_scene(scene, config), []
    except PlacesError as error:
        return scene, None, [f"the result has no place on the map and no metric unit: {error}"]


def write_place(out: Path, located: Georeference | None) -> None:
    """out/georeference.json, or none: that of an earlier run would be wrong."""
    if located is None:
        (out / FILE).unlink(missing_ok=True)
        return
    write_json(out / FILE, located.to_dict())


def with_place(page: Report, located: Georeference | None) -> Report:
    """The report with where the result lies."""
    return page if located is None else replace(page, tables={"Place": located.facts(), **page.tables})
