"""Multi-view stereo by generalized binary search: posed photos in, depth maps and a dense point cloud out."""

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, GBiNetError, InputError, SceneError, WeightsError
from gbinet.pointcloud import PointCloud
from gbinet.scene import DepthRange, Scene, SourceView, SparsePoints, View

__version__ = "0.1.0"

__all__ = [
    "Camera",
    "DepthMap",
    "DepthRange",
    "FormatError",
    "GBiNetError",
    "InputError",
    "PointCloud",
    "Scene",
    "SceneError",
    "SourceView",
    "SparsePoints",
    "View",
    "WeightsError",
]
