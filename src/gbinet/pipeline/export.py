"""Export of a finished reconstruction to the formats of other programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gbinet.depthmap import DepthMap
from gbinet.formats.optional import optional
from gbinet.fusion.sources import DepthSource
from gbinet.georeference.on_map import MapFrame, copy_cloud
from gbinet.georeference.place import Georeference
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene, View
from gbinet.scenes.kinds import write_scene, writers

ExportKind = Literal["colmap", "openmvs", "nerfstudio", "depth-png", "depth-exr", "las", "laz", "xyz"]
_LIBRARIES = {"depth-exr": ("OpenEXR", "exr"), "las": ("laspy", "geo"), "laz": ("lazrs", "geo")}


def check_exports(kinds: tuple[ExportKind, ...]) -> None:
    """Raise an error now, not after hours, if a library for these exports is missing."""
    for kind in kinds:
        if kind in _LIBRARIES:
            module, extra = _LIBRARIES[kind]
            optional(module, f"--export {kind}", extra)


def export(
    scene: Scene, depths: DepthSource, out: Path, kind: ExportKind, georeference: Georeference | None = None
) -> Path:
    """The cloud as out/cloud.<kind>, on the map where known, or scene and depth maps in out/export/<kind>."""
    if kind == "las" or kind == "laz" or kind == "xyz":
        target = out / f"cloud.{kind}"
        frame = None if georeference is None else MapFrame(georeference.offset, georeference.crs)
        copy_cloud(out / "cloud.ply", target, frame)
        return target

    def maps() -> Iterator[tuple[View, DepthMap]]:
        for index, view in enumerate(scene.views):
            found = depths.load(index)
            if found is not None:
                yield view, found

    to = "colmap-dense" if kind == "colmap" else kind
    cloud = PointCloud.load(out / "cloud.ply") if writers()[to].cloud else None
    return write_scene(scene, out / "export" / kind, to, maps(), cloud)
