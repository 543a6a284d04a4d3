"""Multi-view stereo by generalized binary search: posed photos in, depth maps and a dense point cloud out.

The names below are imported when first used, so that `import gbinet` and `gbinet --help` are instant.
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


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gbinet' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"gbinet.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
