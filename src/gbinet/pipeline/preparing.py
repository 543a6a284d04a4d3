"""From what a user gives to a scene that is ready for depth: video, poses, refinement, georeference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from gbinet.formats.atomic import write_json
from gbinet.formats.optional import installed
from gbinet.formats.reading import is_file, names_in, read_record
from gbinet.formats.video import is_video_name
from gbinet.georeference.align import AlignmentError
from gbinet.georeference.on_map import FILE
from gbinet.georeference.place import Georeference, PlaceConfig, has_gps, place_scene
from gbinet.pipeline.opening import OpenSettings, open_scene, step_of
from gbinet.pipeline.video import video_photos
from gbinet.progress import StepProgress
from gbinet.scene import Scene
from gbinet.scenes.kinds import is_tracked
from gbinet.scenes.refine.cached import refine_cameras
from gbinet.scenes.refine.outcome import Refinement
from gbinet.scenes.result import write_result
from gbinet.scenes.sfm.pose import PosedPhotos
from gbinet.viewer.report import Report

_MAX_REFINED = 500  # views up to which cameras are refined unasked: this takes a second or so per view
_BESIDE_OBJ = (".mtl", ".png")  # files that belong to a mesh.obj


@dataclass(frozen=True)
class Prepared:
    """A scene that is ready for depth, and how it came about."""

    scene: Scene
    posed: PosedPhotos | None  # outcome of structure from motion, where it was needed
    place: Georeference | None  # where its frame lies on the map, where known
    notes: list[str]  # for the user
    refined: Refinement | None = None  # outcome of refining the given cameras, where that was done

    def write_to(self, out: Path) -> None:
        """Write scene and georeference to `out`, and remove results there that do not fit them.

        Call this when it is certain that the run may write to `out`.
        """
        write_result(self.scene, out)  # first: it raises if files are in the way
        self.notes.extend(remove_stale_results(out, self.place))
        write_georeference(out, self.place)


class PrepareSettings(OpenSettings, Protocol):
    """The settings that decide how a scene is prepared."""

    @property
    def frames(self) -> int: ...

    @property
    def place(self) -> PlaceConfig: ...

    @property
    def refine_cameras(self) -> bool | None: ...


def prepare(
    source: Scene | str | Path, out: Path, config: PrepareSettings, progress: StepProgress | None
) -> Prepared:
    """Take frames from a video, find the poses of bare photos, refine given ones, georeference the scene."""
    if not isinstance(source, Scene) and is_video_name(Path(source)):
        source = video_photos(Path(source), out, config.frames, step_of(progress, "frames"))
    scene, notes, posed = open_scene(source, out, config, progress)
    refined = None
    if config.refine_cameras and posed is not None:
        notes.append("--refine-cameras changes nothing here: the cameras were found from these very photos")
    elif config.refine_cameras or (config.refine_cameras is None and _worth_refining(scene)):
        scene, refined = refine_cameras(scene, out, step_of(progress, "cameras"))
        notes += refined.warnings()
    scene, place, place_notes = georeferenced(scene, config.place, bare=posed is not None)
    return Prepared(scene, posed, place, [*notes, *place_notes], refined)


def _worth_refining(scene: Scene) -> bool:
    return is_tracked(scene.kind) and len(scene.views) <= _MAX_REFINED


def georeferenced(
    scene: Scene, config: PlaceConfig, *, bare: bool
) -> tuple[Scene, Georeference | None, list[str]]:
    """The scene in its frame on the map or its unit, how these were found, and notes for the user.

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
    except AlignmentError as error:
        return scene, None, [f"the result has no place on the map and no metric unit: {error}"]


def remove_stale_results(out: Path, georeference: Georeference | None) -> list[str]:
    """Remove clouds and meshes of an earlier run in another frame or unit; returns a note on its folders."""
    earlier = read_record(out / "run.json")
    if not earlier or _same_frame(earlier.get("georeference"), georeference):
        return []
    names = names_in(earlier, "files")
    for name in names:
        suffixes = _BESIDE_OBJ if name.endswith(".obj") else ()
        for file in (out / name, *((out / name).with_suffix(suffix) for suffix in suffixes)):
            if is_file(file):
                file.unlink()
    folders = [name for name in names if (out / name).is_dir()]
    if not folders:
        return []
    return [f"{', '.join(folders)} in {out} are in the frame and unit of an earlier run: export them again"]


def _same_frame(earlier: object, georeference: Georeference | None) -> bool:
    if not isinstance(earlier, dict) or georeference is None:
        return earlier is None and georeference is None
    try:
        old, new = (
            np.array(p, dtype=float) for p in (earlier["local_from_model"], georeference.local_from_model)
        )
        same = bool(np.allclose(old, new, rtol=1e-6, atol=1e-9 * abs(new).max()))
        return same and (earlier["crs"], tuple(earlier["offset"])) == (georeference.crs, georeference.offset)
    except (KeyError, TypeError, ValueError):
        return False


def write_georeference(out: Path, georeference: Georeference | None) -> None:
    """Write out/georeference.json, or remove that of an earlier run."""
    if georeference is None:
        (out / FILE).unlink(missing_ok=True)
        return
    write_json(out / FILE, georeference.to_dict())


def with_georeference(page: Report, georeference: Georeference | None, *, bare: bool) -> Report:
    """The report with the georeference, or a note that there is no unit. `bare`: see `georeferenced`."""
    if georeference is not None:
        unit = "m" if georeference.photos else ""  # a length has a unit that only its user knows
        return replace(page, tables={"Place": georeference.facts(), **page.tables}, unit=unit)
    missing = "no unit: found from photos alone; --scale gives one"
    return replace(page, subtitle=f"{page.subtitle} · {missing}") if bare else page
