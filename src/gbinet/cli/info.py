"""`gbinet info FOLDER`: what was detected in a scene, as a table and a picture."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gbinet.cli.options import RecognisedKind, SceneFlags, SceneOptions, otherwise
from gbinet.cli.say import for_programs, say, tell
from gbinet.names import printable

if TYPE_CHECKING:
    from rich.table import Table

    from gbinet.scene import Scene
    from gbinet.scenes.refine.outcome import CameraCheck

_ROWS = 12  # views in the table, unless all are asked for


def run(
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SCENE")],
    picture: Annotated[Path | None, otherwise("no picture", "FILE")] = None,
    kind: RecognisedKind = None,
    scene: SceneFlags = SceneOptions(),
    all: bool = False,
    check_cameras: bool = False,
) -> None:
    """Show what was detected in a scene: views, sizes, depth ranges, source views, coverage.

    Args:
        folder: A folder of photos, with or without known cameras.
        picture: File for a picture of cameras, points, depth ranges, source views and photos, e.g. scene.png.
        kind: Read the folder as this kind instead of the detected one.
        all: List every view.
        check_cameras: Also compare a few pairs of photos and report whether the cameras fit them. Takes some
            seconds.
    """
    from rich.console import Console
    from rich.text import Text

    from gbinet.scenes.kinds import recognise
    from gbinet.scenes.photos import list_photos

    console = Console(soft_wrap=False, stderr=for_programs())
    if kind is None and (found := recognise(folder)) is not None and not found.posed:
        console.print(_photo_table(folder, list_photos(folder)))
        console.print("These photos have no camera poses. `gbinet reconstruct` finds them first.")
        if picture is not None:
            console.print("No picture was written: it would show the cameras.")
        if check_cameras:
            console.print("No cameras were checked: there are none yet.")
        tell({"kind": found.name, "root": folder, "photos": [p.name for p in list_photos(folder)]})
        return
    loaded = scene.load(folder, kind)
    console.print(_summary(loaded))
    console.print(_views(loaded, None if all else _ROWS))
    for warning in loaded.warnings:
        console.print(Text.assemble(("warning: ", "yellow"), printable(warning)))
    if picture is not None:
        from gbinet.formats.image import write_image
        from gbinet.viewer.overview import draw_overview

        say(f"picture in {write_image(picture, draw_overview(loaded))}")
    check = _checked(loaded) if check_cameras else None
    if check is not None:
        say(check.summary())
    if for_programs():
        tell({**_content(loaded), "camera_check": None if check is None else asdict(check)})


def _checked(scene: Scene) -> CameraCheck:
    from gbinet.cli.progress import progress_bar
    from gbinet.scenes.refine import check_cameras

    with progress_bar() as progress:
        return check_cameras(scene, progress)


def _content(scene: Scene) -> dict[str, object]:
    """What a program wants to know about a scene."""
    from gbinet.scenes.neighbours import coverage

    views = [
        {
            "name": view.name,
            "photo": view.image_path,
            "width": view.camera.width,
            "height": view.camera.height,
            "K": view.camera.K.tolist(),
            "cam_from_world": view.camera.cam_from_world.tolist(),
            "depth_range": None
            if view.depth_range is None
            else [view.depth_range.near, view.depth_range.far],
            "sources": [scene.views[source.index].name for source in view.sources],
            "coverage": share,
            "mask": view.mask_path,
            "depth": view.depth_path,
        }
        for view, share in zip(scene.views, coverage(scene.views), strict=True)
    ]
    return {
        "name": scene.name,
        "kind": scene.kind,
        "root": scene.root,
        "sparse_points": 0 if scene.points is None else len(scene.points.xyz),
        "warnings": list(scene.warnings),
        "views": views,
    }


def _photo_table(folder: Path, photos: list[Path]) -> Table:
    from rich.text import Text

    from gbinet.errors import FormatError
    from gbinet.formats.image import image_size

    table = _plain(f"{folder.resolve().name}: bare photos")
    sizes: Counter[str] = Counter()
    for photo in photos:
        try:
            sizes["{}x{}".format(*image_size(photo))] += 1
        except FormatError as error:
            sizes[f"unreadable ({error.problem})"] += 1
    table.add_row("photos", str(len(photos)))
    table.add_row("image size", Text(printable(_counted(sizes))))
    return table


def _summary(scene: Scene) -> Table:
    from gbinet.scenes.kinds import title_of
    from gbinet.scenes.neighbours import coverage

    views = scene.views
    table = _plain(f"{scene.name}: {title_of(scene.kind)}")
    table.add_row("views", str(len(views)))
    table.add_row("image size", _counted(Counter(f"{v.camera.width}x{v.camera.height}" for v in views)))
    ranges = [view.depth_range for view in views if view.depth_range is not None]
    near, far = sorted(r.near for r in ranges), sorted(r.far for r in ranges)
    table.add_row("depth range", f"{_span(near)} to {_span(far)} (in the scene's own unit)")
    sources = [len(view.sources) for view in views]
    table.add_row("source views", f"{_ends(sources)} per view")
    shares = sorted(coverage(views))
    lowest = f"{shares[0]:.0%} at worst, {shares[len(shares) // 2]:.0%} in the middle"
    table.add_row("coverage", f"{lowest} (share of a view that two of its four best sources see)")
    points = scene.points
    if points is None:
        table.add_row("sparse points", "none")
    else:
        seen = (
            ""
            if points.view_index is None
            else f", seen by {len(points.view_index) / len(points.xyz):.1f} views each"
        )
        table.add_row("sparse points", f"{len(points.xyz):,}{seen}")
    masks = sum(view.mask_path is not None for view in views)
    table.add_row("masks", f"{masks} of {len(views)} views" if masks else "none")
    table.add_row("depth", _depth_maps(scene))
    return table


def _depth_maps(scene: Scene) -> str:
    """The depth maps that `gbinet fuse` and `convert` find in the scene."""
    from gbinet.scenes.depth_folder import COLMAP_MAPS, DepthFolder

    maps = DepthFolder(scene)
    found = f"{len(maps.known())} of {len(scene.views)} views"
    if not maps.known():
        return "none"
    if maps.has_unused_predictions:
        ours = len(DepthFolder.of(scene, scene.root).known())
        return f"{found} (true depth); {ours} by gbinet (--depth {printable(scene.root)})"
    if maps.folder is None:
        return found
    return f"{found} ({COLMAP_MAPS})" if maps.folder == scene.root / COLMAP_MAPS else f"{found}, by gbinet"


def _views(scene: Scene, rows: int | None) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gbinet.scenes.neighbours import coverage

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("view", "size", "near", "far", "coverage", "best sources"):
        table.add_column(column, justify="left" if column in ("view", "best sources") else "right")
    shares = coverage(scene.views)
    for view, share in list(zip(scene.views, shares, strict=True))[:rows]:
        limits = view.depth_range
        best = [scene.views[source.index].name for source in view.sources[:4]]
        table.add_row(
            Text(printable(view.name)),
            f"{view.camera.width}x{view.camera.height}",
            "-" if limits is None else f"{limits.near:.4g}",
            "-" if limits is None else f"{limits.far:.4g}",
            f"{share:.0%}",
            Text(printable(" ".join(best) or "none")),
        )
    hidden = len(scene.views) - (rows or len(scene.views))
    if hidden > 0:
        table.caption = f"and {hidden} more; --all lists every view"
    return table


def _plain(title: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=Text(printable(title)), box=box.SIMPLE, show_header=False, pad_edge=False, title_justify="left"
    )


def _counted(sizes: Counter[str]) -> str:
    if len(sizes) == 1:
        return next(iter(sizes))
    shown = ", ".join(f"{size} ({number})" for size, number in sizes.most_common(4))
    return shown + (f" and {len(sizes) - 4} others" if len(sizes) > 4 else "")


def _span(values: list[float]) -> str:
    low, high = f"{values[0]:.4g}", f"{values[-1]:.4g}"
    return low if low == high else f"{low}...{high}"


def _ends(values: list[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"
