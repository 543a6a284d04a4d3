"""The depth maps of a scene, found in the same way by all verbs, whichever program wrote them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, SceneError
from gbinet.formats.depth_files import depth_files_in, read_depth_camera, read_depth_map
from gbinet.formats.reading import is_file
from gbinet.scene import Scene
from gbinet.scenes.depth_scales import StatedScales
from gbinet.scenes.result import KIND as RESULT

COLMAP_MAPS = Path("stereo") / "depth_maps"  # in a dense workspace of COLMAP
# Two cameras are the same if exchanging them moves points by less than this share of their depth. The rounded
# numbers of other programs move them less, refined cameras (by some tenths of a degree) more. In a photo of
# 1000 px it is about 0.2 px.
_SAME_CAMERA = 2e-4
_ROUNDING = 2  # px that programs may round each side of a smaller map by
RUN_SETTINGS = Path("depth") / "settings.json"  # written by `gbinet` beside its depth maps


def maps_folder(folder: str | Path) -> Path:
    """The folder of depth maps in an output of `gbinet` or in a COLMAP workspace; else the folder itself."""
    folder = Path(folder)
    if not folder.is_dir():
        raise SceneError(f"{folder}: there is no such folder of depth maps")
    return next((p for p in (folder / "depth", folder / COLMAP_MAPS) if p.is_dir()), folder)


def _displacement(depth_map: DepthMap, other: Camera) -> float:
    """How far another camera would move the points of a depth map, as a share of the median depth."""
    known = depth_map.depth[depth_map.valid]
    if not known.numel():
        return 0.0
    depth = known.median().double().expand(2)
    corners = torch.tensor([[0.0, 0.0], [other.width, other.height]], dtype=torch.float64)
    cameras = (camera.to("cpu", torch.float64) for camera in (depth_map.camera, other))
    points, moved = (camera.unproject(corners, depth) for camera in cameras)  # [2, 3] each
    return float((points - moved).norm(dim=-1).max() / depth[0])


def _check_shape(path: Path, depth_map: DepthMap, photo: Camera) -> None:
    """Raise a FormatError if a map is not the whole photo at another size: stretching it moves its points."""
    w, h, W, H = depth_map.camera.width, depth_map.camera.height, photo.width, photo.height
    if abs(w / W - h / H) > _ROUNDING / W + _ROUNDING / H:
        raise FormatError(
            path, f"is {w}x{h} but its photo is {W}x{H}, of another shape; was one of them cropped?"
        )


class DepthFolder:
    """The depth maps of a scene's views in a folder: `<view name>.npz`, or as depth_files_in finds them.

    Without a folder, those that belong to the scene: of an output folder, those that its run computed; else
    true depth, or those that `gbinet` or COLMAP computed for it.

    A stored value times `scale` is the depth; None = what the scene or the folder states, else 1.
    """

    def __init__(self, scene: Scene, folder: Path | None = None, scale: float | None = None) -> None:
        self.scene = scene
        self.folder = folder
        computed = is_file(scene.root / RUN_SETTINGS)
        has_truth = any(view.depth_path is not None for view in scene.views)
        if folder is None and (not has_truth or (computed and scene.kind == RESULT.name)):
            self.folder = (scene.root / RUN_SETTINGS).parent if computed else scene.root / COLMAP_MAPS
        self.scale = scale

    @classmethod
    def of(cls, scene: Scene, given: Path | None, scale: float | None = None) -> DepthFolder:
        """The maps in what a user gives: a folder of them, an output of `gbinet` or a COLMAP workspace."""
        return cls(scene, None if given is None else maps_folder(given), scale)

    @property
    def has_unused_predictions(self) -> bool:
        """Whether `gbinet` computed maps in the scene's folder, but the true depth is used instead."""
        return self.folder is None and is_file(self.scene.root / RUN_SETTINGS)

    def path(self, index: int) -> Path:
        """Where `gbinet` writes the depth map of a view."""
        assert self.folder is not None
        return self.folder / f"{self.scene.views[index].name}.npz"

    def find(self, index: int) -> tuple[Path, float] | None:
        """The file of a view's depth map and its scale; None where there is none."""
        view = self.scene.views[index]
        if self.folder is None:
            scale = view.depth_scale if self.scale is None else self.scale
            return None if view.depth_path is None else (view.depth_path, scale)
        found = self.path(index) if is_file(self.path(index)) else self._others.get(view.name)
        return None if found is None else (found, self._scale_of(found))

    def load(self, index: int) -> DepthMap | None:
        """Read the depth map of a view; None where there is none."""
        found = self.find(index)
        if found is None:
            return None
        path, scale = found
        depth_map = read_depth_map(path, self.scene.views[index].camera, scale)
        stored_camera = read_depth_camera(path)
        if stored_camera is None:
            _check_shape(path, depth_map, self.scene.views[index].camera)
        elif scale == 1.0 and _displacement(depth_map, stored_camera) > _SAME_CAMERA:
            raise SceneError(
                f"{path}: this depth map has another camera (place, direction, unit or focal length) "
                f"than the photo has in {self.scene.root}; give the scene that the depth maps were made from "
                "(where cameras were refined, the output folder)"
            )
        return depth_map

    def known(self) -> list[int]:
        """Views that have a depth map."""
        return [index for index in range(len(self.scene.views)) if self.find(index) is not None]

    def _scale_of(self, path: Path) -> float:
        if self.scale is not None:
            return self.scale
        return 1.0 if path.suffix.lower() == ".npz" else self._stated.of(path)  # ours hold depth itself

    @cached_property
    def _stated(self) -> StatedScales:
        assert self.folder is not None
        return StatedScales(self.folder)

    @cached_property
    def _others(self) -> dict[str, Path]:
        assert self.folder is not None
        return depth_files_in(self.folder) if self.folder.is_dir() else {}
