"""The live viewer: cloud, cameras with photos and depth, sliders. viser (extra `view`), on localhost only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gbinet.errors import GBiNetError
from gbinet.formats.colmap import quaternion
from gbinet.formats.image import read_image
from gbinet.fusion.sources import DepthSource
from gbinet.names import printable
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.viewer.colour import colourise_depth
from gbinet.viewer.origin import guarded
from gbinet.viewer.report_cloud import front_and_up, views_of
from gbinet.viewer.splat import centre_and_radius, orbit

_MAX_POINTS = 3_000_000  # with more, browsers become slow
_THUMBNAIL = 320  # px


def serve(
    cloud: PointCloud, scene: Scene | None, depths: DepthSource | None, port: int = 8080, name: str = ""
) -> Any:
    """Start the viewer and return viser's server; it runs until it is stopped."""
    try:
        import viser
    except ImportError as error:
        raise GBiNetError("the live viewer needs viser: pip install 'gbinet[view]'") from error
    with guarded() as guard:
        server = viser.ViserServer(host="127.0.0.1", port=port, verbose=False)
    if not guard.active:
        server.stop()
        raise GBiNetError(
            f"viser {viser.__version__} starts its server in a way that gbinet cannot guard against other "
            "pages in the browser: pip install 'gbinet[view]' installs a version that works"
        )
    step = max(1, -(-len(cloud) // _MAX_POINTS))
    _add_cloud(server, cloud[::step], name)
    if scene is not None:
        _set_initial_camera(server, cloud, scene)
        _add_cameras(server, scene, depths, centre_and_radius(cloud)[1])
    return server


def _add_cloud(server: Any, cloud: PointCloud, name: str) -> None:
    _, radius = centre_and_radius(cloud)
    xyz = cloud.xyz.double().numpy()
    rgb = np.full((len(cloud), 3), 200, np.uint8) if cloud.rgb is None else cloud.rgb.numpy()
    ones = torch.ones(len(cloud))
    confidence = (ones if cloud.confidence is None else cloud.confidence).numpy()
    views = (ones if cloud.num_views is None else cloud.num_views).numpy()
    if name:
        server.gui.add_markdown(f"**{_markdown(name)}**  {len(cloud):,} points")
    size = server.gui.add_slider("point size", 0.1, 5.0, 0.1, initial_value=1.0)
    least_confidence = server.gui.add_slider("confidence at least", 0.0, 1.0, 0.01, initial_value=0.0)
    fewest, most = views_of(cloud)
    least_views = server.gui.add_slider(
        "views at least", fewest, max(fewest + 1, most), 1, initial_value=fewest
    )
    unit = radius / 400

    def draw(_: object = None) -> None:
        keep = (confidence >= least_confidence.value) & (views >= least_views.value)
        server.scene.add_point_cloud("/cloud", xyz[keep], rgb[keep], point_size=unit * size.value)

    for control in (size, least_confidence, least_views):
        control.on_update(draw)
    draw()


def _markdown(name: str) -> str:
    """A name with the special characters of Markdown, and of HTML in it, escaped."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", printable(name))


def _set_initial_camera(server: Any, cloud: PointCloud, scene: Scene) -> None:
    """Begin behind the cameras, upright, so that none of them is in the way."""
    centre, radius = centre_and_radius(cloud)
    front, up = front_and_up(scene, centre)
    server.scene.set_up_direction(tuple(up.tolist()))
    centres = torch.stack([view.camera.centre.double() for view in scene.views])
    behind = 1.5 * float((centres - centre.double()).norm(dim=-1).median())
    distance = max(2.1 * radius, min(behind, 4 * radius))
    world_from_cam = torch.linalg.inv(orbit(centre, distance, front, up, 0, 15))
    server.initial_camera.position = tuple(world_from_cam[:3, 3].tolist())
    server.initial_camera.look_at = tuple(centre.tolist())
    server.initial_camera.up = tuple(up.tolist())


def _add_cameras(server: Any, scene: Scene, depths: DepthSource | None, radius: float) -> None:
    """A frustum per view with its photo; a click flies there, a switch shows the depth map instead."""
    what = server.gui.add_dropdown("pictures", ("photo", "depth") if depths else ("photo",))
    visible = server.gui.add_checkbox("cameras", True)
    frusta = []
    for index, view in enumerate(scene.views):
        camera = view.camera.to("cpu", torch.float64)
        pose = camera.world_from_cam
        frustum = server.scene.add_camera_frustum(
            f"/cameras/{view.name}",
            fov=2 * float(torch.atan(camera.height / 2 / camera.K[1, 1])),
            aspect=camera.width / camera.height,
            scale=0.08 * radius,
            thickness=0.0012 * radius,  # in the scene's unit, like the scale
            image=picture(scene, depths, index, "photo"),
            wxyz=quaternion(pose[:3, :3].numpy()),
            position=pose[:3, 3].numpy(),
        )
        frustum.on_click(lambda event, f=frustum: _fly(event, f))
        frusta.append(frustum)

    def show(_: object) -> None:
        for index, frustum in enumerate(frusta):
            frustum.image = picture(scene, depths, index, what.value)
            frustum.visible = visible.value

    what.on_update(show)
    visible.on_update(show)


def _fly(event: Any, frustum: Any) -> None:
    event.client.camera.wxyz = frustum.wxyz
    event.client.camera.position = frustum.position


def picture(scene: Scene, depths: DepthSource | None, index: int, kind: str) -> np.ndarray[Any, Any] | None:
    """A small photo or depth map of a view; None where there is none."""
    view = scene.views[index]
    try:
        if kind == "depth" and depths is not None:
            depth_map = depths.load(index)
            if depth_map is None:
                return None
            pixels = colourise_depth(depth_map.depth.numpy())
        else:
            pixels = read_image(view.image_path)
    except GBiNetError:
        return None
    image = Image.fromarray(pixels)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    return np.asarray(image)


def open_output(out: Path) -> tuple[PointCloud, str]:
    """The cloud of an output folder of `gbinet reconstruct`, or a .ply file."""
    path = out if out.suffix.lower() == ".ply" else out / "cloud.ply"
    if not path.exists():
        raise GBiNetError(f"{path}: there is no cloud; run `gbinet reconstruct` first")
    return PointCloud.load(path), path.parent.name if path.name == "cloud.ply" else path.stem
