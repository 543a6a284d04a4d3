"""`gbinet view`: a reconstruction in the browser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import tyro

from gbinet.cli.options import Images, otherwise
from gbinet.cli.say import say
from gbinet.errors import GBiNetError
from gbinet.scene import Scene


def run(
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RESULT")],
    scene: Annotated[Path | None, otherwise("the scene of the result", "FOLDER")] = None,
    images: Images = None,
    port: int = 8080,
) -> None:
    """Look at a reconstruction: cloud, cameras with photos and depth, sliders. Only this machine can connect.

    Args:
        out: Output folder of `gbinet reconstruct`, or a .ply file.
        scene: Folder of the scene (for cameras and photos), if it has moved.
        images: Folder of the photos, if they are not beside the cameras of the scene. Files outside the scene
            and this folder are not read.
        port: Port on localhost. If it is in use, the next free port is used.
    """
    from gbinet.scenes.depth_folder import DepthFolder
    from gbinet.viewer.server import open_output, serve

    cloud, name = open_output(out)
    found = _scene(out, scene, images)
    depths = DepthFolder(found, out / "depth") if found is not None and (out / "depth").is_dir() else None
    server = serve(cloud, found, depths, port, name)
    say(f"{len(cloud):,} points at http://localhost:{server.get_port()} (Ctrl-C ends)")
    while True:
        time.sleep(3600)


def _scene(out: Path, given: Path | None, images: Path | None) -> Scene | None:
    """The scene that the output folder was made from, as far as it can be found again."""
    from gbinet.formats.reading import read_json
    from gbinet.scenes.load import load_scene

    if given is not None:
        return load_scene(given, images=images, cache=out / "undistorted")
    try:
        return load_scene(out, images=images)  # what a run leaves is a scene
    except GBiNetError:
        pass  # an older one, or a cloud alone
    try:
        record = read_json(out / "run.json")
        images = images or record["settings"].get("images")
        return load_scene(record["scene"]["root"], images=images, cache=out / "undistorted")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, GBiNetError):
        say("note: the photos were not found again, so there are no cameras; --scene FOLDER helps")
        return None
