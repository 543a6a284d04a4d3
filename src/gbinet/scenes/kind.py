"""What a kind of scene is: how its folders are recognised, read and written.

Each kind is a file beside this one, with a `KIND` in it, and a line in the list of `kinds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from gbinet.depthmap import DepthMap
from gbinet.errors import InputError
from gbinet.pointcloud import PointCloud
from gbinet.progress import Progress
from gbinet.scene import Scene, View

T = TypeVar("T")
DepthMaps = Iterable[tuple[View, DepthMap]]  # one at a time: all depth maps of a scene need not fit in memory


@dataclass(frozen=True)
class ReadOptions:
    """How to read a folder: those arguments of load_scene that its kind needs."""

    images: Path | None = None
    masks: Path | None = None
    interval_scale: float | None = None
    cache: Path | None = None
    progress: Progress | None = None


def split_named(of: str, splits: Mapping[str, tuple[T, ...]], name: str) -> tuple[T, ...]:
    """The scenes of a published split; raise an InputError if the data set `of` has no such split."""
    if name not in splits:
        raise InputError(f"'{name}' is not a split of {of}; there are {', '.join(splits)}")
    return splits[name]


class Write(Protocol):
    def __call__(
        self, scene: Scene, folder: Path, depth_maps: DepthMaps = (), cloud: PointCloud | None = None
    ) -> Path: ...


@dataclass(frozen=True)
class Writer:
    """One way of writing a kind; most kinds have one at most."""

    name: str  # for `gbinet convert --to`
    write: Write
    depth: Literal["kept", "needed", "dropped"] = "kept"  # what becomes of depth maps
    cloud: bool = False  # whether it takes a point cloud


@dataclass(frozen=True)
class Kind:
    """A kind of scene: its names, and functions that recognise, read and write its folders."""

    name: str  # as in Scene.kind and `--kind`
    title: str  # as people call it
    signs: str  # what it is recognised by, for messages
    recognise: Callable[[Path], bool] = lambda folder: False
    read: Callable[[Path, ReadOptions], Scene] | None = None
    writers: tuple[Writer, ...] = ()
    posed: bool = True  # its folders hold camera poses
    tracked: bool = False  # these come from a device that tracked itself, and are often a pixel or more off
    folders: tuple[str, ...] = ()  # patterns of the names of its subfolders that are read
