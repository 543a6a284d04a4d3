"""Multi-view stereo by generalized binary search: photos in, depth maps and a dense point cloud out.

From photos to a cloud:
    reconstruct      a folder of photos, with or without cameras, to a PointCloud
    load_scene       a folder of posed photos (COLMAP, nerfstudio, MVSNet, RGB-D, ...) to a Scene
    estimate_depths  a depth map for every view of a Scene, as files

The network:
    GBiNet           the network; `from_pretrained` loads the bundled weights, `predict` gives a DepthMap
    GBiNetConfig     what it is made of

What goes in and comes out:
    Camera           pinhole camera, or a batch of cameras
    DepthMap         depth and confidence of every pixel of a view
    PointCloud       points with colour, normal, confidence and number of views
    Scene, View      posed photos of one place; DepthRange, SourceView and SparsePoints belong to them
    MVSDataset       samples for training, made as SampleConfig says

Whatever goes wrong on purpose is a GBiNetError: FormatError, SceneError, InputError or WeightsError.

Example:
    >>> import gbinet
    >>> scene = gbinet.load_scene("my-scene")
    >>> cloud = gbinet.reconstruct(scene, config="fast")
    >>> cloud.xyz.shape[1]
    3

Names are imported when first used, so that `import gbinet` and `gbinet --help` are instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers and editors; keep in step with _HOME
    from gbinet.camera import Camera as Camera
    from gbinet.depthmap import DepthMap as DepthMap
    from gbinet.errors import FormatError as FormatError
    from gbinet.errors import GBiNetError as GBiNetError
    from gbinet.errors import InputError as InputError
    from gbinet.errors import SceneError as SceneError
    from gbinet.errors import WeightsError as WeightsError
    from gbinet.inference.predictor import estimate_depths as estimate_depths
    from gbinet.model.config import GBiNetConfig as GBiNetConfig
    from gbinet.model.gbinet import GBiNet as GBiNet
    from gbinet.pipeline.reconstruct import reconstruct as reconstruct
    from gbinet.pointcloud import PointCloud as PointCloud
    from gbinet.scene import DepthRange as DepthRange
    from gbinet.scene import Scene as Scene
    from gbinet.scene import SourceView as SourceView
    from gbinet.scene import SparsePoints as SparsePoints
    from gbinet.scene import View as View
    from gbinet.scenes.dataset import MVSDataset as MVSDataset
    from gbinet.scenes.dataset import SampleConfig as SampleConfig
    from gbinet.scenes.load import load_scene as load_scene

__version__ = "0.1.0"

# Public name -> the module that it lives in.
_HOME = {
    "Camera": "camera",
    "DepthMap": "depthmap",
    "DepthRange": "scene",
    "FormatError": "errors",
    "GBiNet": "model.gbinet",
    "GBiNetConfig": "model.config",
    "GBiNetError": "errors",
    "InputError": "errors",
    "MVSDataset": "scenes.dataset",
    "PointCloud": "pointcloud",
    "SampleConfig": "scenes.dataset",
    "Scene": "scene",
    "SceneError": "errors",
    "SourceView": "scene",
    "SparsePoints": "scene",
    "View": "scene",
    "WeightsError": "errors",
    "estimate_depths": "inference.predictor",
    "load_scene": "scenes.load",
    "reconstruct": "pipeline.reconstruct",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gbinet' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"gbinet.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
