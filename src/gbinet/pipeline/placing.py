"""From what a user gives to a scene in its place: video, poses, GPS; what is said and written about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from gbinet.formats.atomic import write_json
from gbinet.formats.optional import installed
from gbinet.formats.reading import is_file, names_in, read_record
from gbinet.formats.video import is_video_name
from gbinet.georeference.align import PlacesError
from gbinet.georeference.place import Georeference, PlaceConfig, has_gps, place_scene
from gbinet.pipeline.opening import Opening, open_scene, step_of
from gbinet.pipeline.video import video_photos
from gbinet.progress import StepProgress
from gbinet.scene import Scene
from gbinet.scenes.kinds import is_tracked
from gbinet.scenes.refine.keep import refine_cameras
from gbinet.scenes.refine.outcome import Refinement
from gbinet.scenes.result import write_result
from gbinet.scenes.sfm.pose import PosedPhotos
from gbinet.viewer.report import Report

FILE = "georeference.json"
_UNASKED = 500  # views whose cameras are refined without being asked for: this takes a second or so a view
_WITH_OBJ = (".mtl", ".png")  # what belongs to a mesh.obj


@dataclass(frozen=True)
class Prepared:
    """A scene that is ready for depth, and how it came about."""

    scene: Scene
    posed: PosedPhotos | None  # what structure from motion came to, where it was needed
    place: Georeference | None  # where its frame lies on the map, where known
    notes: list[str]
    refined: Refinement | None = None  # of refining the given cameras, where that was done

    def leave_in(self, out: Path) -> None:
        """`out/scene.json` and the place. To be called when nothing in `out` stands in the way of a run: what
        an earlier run left there would not fit them."""
        write_result(self.scene, out)  # first: it refuses what is in the way
        self.notes.extend(leave_behind(out, self.place))
        write_place(out, self.place)


class Preparing(Opening, Protocol):
    """The settings that decide how a scene is prepared."""

    @property
    def frames(self) -> int: ...

    @property
    def place(self) -> PlaceConfig: ...

    @property
    def refine_cameras(self) -> bool | None: ...


def prepare(
    source: Scene | str | Path, out: Path, config: Preparing, progress: StepProgress | None
) -> Prepared:
    """Frames of a video, poses of bare photos, better ones, place and unit."""
    if not isinstance(source, Scene) and is_video_name(Path(source)):
        source = video_photos(Path(source), out, config.frames, step_of(progress, "frames"))
    scene, notes, posed = open_scene(source, out, config, progress)
    refined = None
    if config.refine_cameras and posed is not None:
        notes.append("--refine-cameras changes nothing here: the cameras were found from these very photos")
    elif config.refine_cameras or (config.refine_cameras is None and _worth_refining(scene)):
        scene, refined = refine_cameras(scene, out, step_of(progress, "cameras"))
        notes += refined.warnings()
    scene, place, doubts = placed(scene, config.place, bare=posed is not None)
    return Prepared(scene, posed, place, [*notes, *doubts], refined)


def _worth_refining(scene: Scene) -> bool:
    return is_tracked(scene.kind) and len(scene.views) <= _UNASKED


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


def leave_behind(out: Path, located: Georeference | None) -> list[str]:
    """Clouds and meshes of an earlier run in another frame or unit are removed, folders named in a note."""
    earlier = read_record(out / "run.json")
    if not earlier or _same_frame(earlier.get("georeference"), located):
        return []
    found = names_in(earlier, "files")
    for name in found:
        with_it = _WITH_OBJ if name.endswith(".obj") else ()
        for file in (out / name, *((out / name).with_suffix(suffix) for suffix in with_it)):
            if is_file(file):
                file.unlink()
    folders = [name for name in found if (out / name).is_dir()]
    if not folders:
        return []
    return [f"{', '.join(folders)} in {out} are in the frame and unit of an earlier run: export them again"]


def _same_frame(earlier: object, located: Georeference | None) -> bool:
    if not isinstance(earlier, dict) or located is None:
        return earlier is None and located is None
    try:
        old, new = (np.array(p, dtype=float) for p in (earlier["local_from_model"], located.local_from_model))
        same = bool(np.allclose(old, new, rtol=1e-6, atol=1e-9 * abs(new).max()))
        return same and (earlier["crs"], tuple(earlier["offset"])) == (located.crs, located.offset)
    except (KeyError, TypeError, ValueError):
        return False


def write_place(out: Path, located: Georeference | None) -> None:
    """out/georeference.json, or none: that of an earlier run would be wrong."""
    if located is None:
        (out / FILE).unlink(missing_ok=True)
        return
    write_json(out / FILE, located.to_dict())


def with_place(page: Report, located: Georeference | None, *, bare: bool) -> Report:
    """The report with where the result lies, or that it has no unit. `bare`: see `placed`."""
    if located is not None:
        unit = "m" if located.photos else ""  # a length has a unit that only its user knows
        return replace(page, tables={"Place": located.facts(), **page.tables}, unit=unit)
    missing = "no unit: found from photos alone; --scale gives one"
    return replace(page, subtitle=f"{page.subtitle} · {missing}") if bare else page
