"""The cloud in the report: a random sample of all points, packed for report.js, and the cameras."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gbinet.camera import Camera
from gbinet.cores import usable_cores
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.viewer.colour import table
from gbinet.viewer.packed import pack
from gbinet.viewer.splat import centre_and_radius, orbit, splat

MOST_POINTS = 2_000_000
_IN_PICTURES = 300_000  # points drawn from the sides: enough for small pictures
_MOST_CAMERAS = 500
_SIDES = (("front", 0.0, 12.0), ("left", -50.0, 15.0), ("right", 50.0, 15.0), ("above", 0.0, 70.0))


class CloudSample:
    """A random sample of a stream of points, at most `limit`; every point has the same chance.

    Points get random keys, and those with the smallest keys stay. A bound on the keys falls as points come,
    so that most points are dropped at once. Normals are dropped: they are not drawn.
    """

    def __init__(self, limit: int = MOST_POINTS) -> None:
        self.limit = limit
        self._random = torch.Generator().manual_seed(0)
        self._bound = 1.0
        self._parts: list[PointCloud] = []
        self._keys: list[Tensor] = []  # of the points of each part

    def add(self, cloud: PointCloud) -> None:
        keys = torch.rand(len(cloud), generator=self._random)
        chosen = (keys <= self._bound).nonzero()[:, 0]  # copied below: the cloud may be in pinned memory
        self._parts.append(replace(cloud, normals=None)[chosen])
        self._keys.append(keys[chosen])
        if sum(map(len, self._keys)) > 1.5 * self.limit:
            self._thin()

    def _thin(self) -> None:
        """Drop all but `limit` points, part by part, which takes less memory than all at once."""
        all_keys = torch.cat(self._keys)
        if len(all_keys) <= self.limit:
            return
        self._bound = float(np.partition(all_keys.numpy(), self.limit - 1)[self.limit - 1])
        left = self.limit  # of several points at the bound, the first ones stay
        for number, keys in enumerate(self._keys):
            chosen = (keys <= self._bound).nonzero()[:left, 0]
            self._keys[number], self._parts[number] = keys[chosen], self._parts[number][chosen]
            left -= len(chosen)

    @property
    def cloud(self) -> PointCloud:
        if not self._parts:
            return PointCloud(torch.zeros(0, 3))
        self._thin()
        self._keys, self._parts = [torch.cat(self._keys)], [PointCloud.cat(self._parts)]
        return self._parts[0]


def views_of(cloud: PointCloud) -> tuple[int, int]:
    """How many views agree on a point, its own included: least and most in the cloud."""
    if cloud.num_views is None or len(cloud) == 0:
        return 1, 1
    return max(1, int(cloud.num_views.min())), max(1, int(cloud.num_views.max()))


def cloud_data(
    cloud: PointCloud,
    scene: Scene,
    cards: Mapping[str, str] | None = None,
    max_bytes: Callable[[], int] = lambda: 12_000_000,
) -> dict[str, Any]:
    """The data that report.js draws: points in a cube around the bulk of the cloud, and the cameras.

    `cards`: name of a view -> id of the element with its pictures. `max_bytes` is called late: it may depend
    on what is drawn meanwhile.
    """
    centre, radius = centre_and_radius(cloud)
    reach = 3 * radius  # far outliers are left out: they would take the precision from the rest
    most_views = views_of(cloud)[1]
    near = torch.ones(len(cloud), dtype=torch.bool)
    for axis in range(3):  # one after the other: all of them would be much memory
        near &= _local(cloud.xyz[:, axis], centre[axis], reach).abs() <= 1
    if not near.all():
        cloud = cloud[near.nonzero()[:, 0]]
    packed = pack(cloud, _local(cloud.xyz, centre, reach), max_bytes)
    front, up = front_and_up(scene, centre)
    pose = orbit(torch.zeros(3, dtype=torch.float64), 1.0, front, up, 0, 0)
    right, down, forward = pose[:3, :3]
    return {
        "points": packed.data,
        "lengths": packed.lengths,
        "counts": packed.counts,
        "spacing": packed.spacing,
        "maxViews": most_views,
        "axes": [right.tolist(), (-forward).tolist(), (-down).tolist()],  # side, front, up
        "distance": 2.1 * radius / reach,
        "ramp": table("confidence", 9).tolist(),
        "cameras": _frusta(scene, centre, reach, 0.12 * radius, cards or {}),
    }


def _local(positions: Tensor, centre: Tensor, reach: float) -> Tensor:
    """In the cube's units, float64."""
    return positions.to(torch.float64, copy=True).sub_(centre).div_(reach)


def _frusta(
    scene: Scene, centre: Tensor, reach: float, length: float, cards: Mapping[str, str]
) -> list[dict[str, object]]:
    """Each camera's name, and its centre and four corners in the cube's units, xyz after xyz."""
    cameras: list[dict[str, object]] = []
    for view in scene.views[:_MOST_CAMERAS]:
        camera = view.camera.to("cpu", torch.float64)
        w, h = camera.width, camera.height
        pixels = torch.tensor([[0, 0], [w, 0], [w, h], [0, h]], dtype=torch.float64)
        corners = camera.unproject(pixels, torch.full((4,), length, dtype=torch.float64))
        points = (torch.cat([camera.centre[None], corners]) - centre) / reach  # [5, 3]
        numbers = [round(x, 5) for x in points.flatten().tolist()]
        cameras.append({"name": view.name, "points": numbers, "card": cards.get(view.name)})
    return cameras


def side_views(
    cloud: PointCloud, scene: Scene, width: int = 560, height: int = 420
) -> list[tuple[str, NDArray[np.uint8]]]:
    """The cloud from where the photos were taken, from both sides and from above."""
    centre, radius = centre_and_radius(cloud)
    front, up = front_and_up(scene, centre)
    focal = 0.9 * height
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float64)
    some = cloud
    if len(cloud) > _IN_PICTURES:
        random = torch.Generator().manual_seed(0)
        some = cloud[torch.randperm(len(cloud), generator=random)[:_IN_PICTURES]]

    def seen(side: tuple[str, float, float]) -> tuple[str, NDArray[np.uint8]]:
        caption, turn, lift = side
        camera = Camera(K, orbit(centre, 2.1 * radius, front, up, turn, lift), width, height)
        return caption, splat(some, camera, size=3)

    with ThreadPoolExecutor(min(len(_SIDES), usable_cores()), "sides") as pool:
        return list(pool.map(seen, _SIDES))


def front_and_up(scene: Scene, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Directions from the cloud to the cameras, and up: against the mean down of the cameras."""
    cameras = [view.camera for view in scene.views]
    front = torch.stack([c.centre.double() for c in cameras]).mean(0) - centre
    downs = torch.stack([c.cam_from_world[1, :3].double() for c in cameras])
    down = downs.mean(0)
    if down.norm() < 0.1:  # photos from above in opposite directions: take that of the first one
        down = downs[0]
    return front, -down
