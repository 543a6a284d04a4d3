"""A folder of depth maps, whoever wrote it: the one way in which all verbs find them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import SceneError
from gbinet.formats.depth_files import depth_files_in, read_depth_camera, read_depth_map
from gbinet.formats.reading import is_file
from gbinet.scene import Scene

WORKSPACE = Path("stereo") / "depth_maps"  # in a dense workspace of COLMAP
# Share of its depth by which cameras that are the same may move a point: rounded numbers of other programs do
# less, refined cameras (some tenths of a degree) more. Of a photo with 1000 px it is about 0.2 px.
_SAME = 2e-4
OURS = Path("depth") / "settings.json"  # what a run of ours leaves beside its depth maps


def maps_folder(folder: str | Path) -> Path:
    """Where the depth maps of a folder lie: in an output of ours, in a workspace of COLMAP, or in itself."""
    folder = Path(folder)
    if not folder.is_dir():
        raise SceneError(f"{folder}: there is no such folder of depth maps")
    return next((p for p in (folder / "depth", folder / WORKSPACE) if p.is_dir()), folder)


def _apart(depth_map: DepthMap, own: Camera) -> float:
    """How far points of a map are moved if its own camera is replaced by the scene's, as a share of depth."""
    known = depth_map.depth[depth_map.valid]
    if not known.numel():
        return 0.0
    depth = known.median().double().expand(2)
    pixels = torch.tensor([[0.0, 0.0], [own.width, own.height]], dtype=torch.float64)
    one, other = (c.to("cpu", torch.float64).unproject(pixels, depth) for c in (depth_map.camera, own))
    return float((one - other).norm(dim=-1).max() / depth[0])


class DepthFolder:
    """The depth maps of a scene's views: ours are `<folder>/<view name>.npz`, others as depth_files_in says.

    Without a folder: those that the scene has. True depth, or else those of our run that the scene is the
    result of, or of a dense workspace.
    """

    def __init__(self, scene: Scene, folder: Path | None = None, scale: float = 1.0) -> None:
        own = any(view.depth_path is not None for view in scene.views)
        self.scene = scene
        found = (scene.root / OURS).parent if is_file(scene.root / OURS) else scene.root / WORKSPACE
        self.folder = folder if folder is not None or own else found
        self.scale = scale  # a stored value times this is the depth

    @classmethod
    def of(cls, scene: Scene, given: Path | None, scale: float = 1.0) -> DepthFolder:
        """The maps in what a user gives: a folder of them, an output of ours or a workspace of COLMAP."""
        return cls(scene, None if given is None else maps_folder(given), scale)

    @property
    def passed_over(self) -> bool:
        """Whether maps of a run of ours lie in the scene too, and its true depth is taken instead of them."""
        return self.folder is None and is_file(self.scene.root / OURS)

    def path(self, index: int) -> Path:
        """Where our own depth map of a view belongs."""
        assert self.folder is not None
        return self.folder / f"{self.scene.views[index].name}.npz"

    def find(self, index: int) -> tuple[Path, float] | None:
        """The file of a view's depth map and its scale; None where there is none."""
        view = self.scene.views[index]
        if self.folder is None:
            return None if view.depth_path is None else (view.depth_path, view.depth_scale)
        found = self.path(index) if is_file(self.path(index)) else self._others.get(view.name)
        return None if found is None else (found, self.scale)

    def load(self, index: int) -> DepthMap | None:
        found = self.find(index)
        if found is None:
            return None
        depth_map = read_depth_map(found[0], self.scene.views[index].camera, found[1])
        own = read_depth_camera(found[0])
        if own is not None and found[1] == 1.0 and _apart(depth_map, own) > _SAME:
            raise SceneError(
                f"{found[0]}: this depth map has another camera (place, direction, unit or focal length) "
                f"than the photo has in {self.scene.root}; give the scene that the depth maps were made from "
                "(where cameras were refined, the output folder)"
            )
        return depth_map

    def known(self) -> list[int]:
        """Views that have a depth map."""
        return [index for index in range(len(self.scene.views)) if self.find(index) is not None]

    @cached_property
    def _others(self) -> dict[str, Path]:
        assert self.folder is not None
        return depth_files_in(self.folder) if self.folder.is_dir() else {}
