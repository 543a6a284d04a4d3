"""A mesh from the fused cloud, by Poisson reconstruction (open3d, extra `mesh`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gbinet.errors import GBiNetError
from gbinet.formats.atomic import atomic_path
from gbinet.pointcloud import PointCloud


def write_mesh(cloud_path: Path, mesh_path: Path, octree_depth: int = 10, trim: float = 0.03) -> Path:
    """Mesh the cloud; the share `trim` of vertices with the fewest points around them is cut off."""
    try:
        import open3d as o3d
    except ImportError as error:
        raise GBiNetError(
            "a mesh needs open3d: pip install 'gbinet[mesh]' (the cloud itself is finished)"
        ) from error
    cloud = PointCloud.load(cloud_path)
    if cloud.normals is not None:
        cloud = cloud[cloud.normals.norm(dim=-1) > 0.5]  # points at borders may have no normal
    if len(cloud) < 100 or cloud.normals is None:
        raise GBiNetError(f"{cloud_path}: {len(cloud)} points with normals are too few for a mesh")
    points = o3d.geometry.PointCloud()
    points.points = o3d.utility.Vector3dVector(cloud.xyz.double().numpy())
    points.normals = o3d.utility.Vector3dVector(cloud.normals.double().numpy())
    if cloud.rgb is not None:
        points.colors = o3d.utility.Vector3dVector(cloud.rgb.double().numpy() / 255)
    mesh, density = o3d.geometry.TriangleMesh.create_from_point_cloud_poisson(points, depth=octree_depth)
    mesh.remove_vertices_by_mask(np.asarray(density) < np.quantile(np.asarray(density), trim))
    with atomic_path(mesh_path) as temporary:
        if not o3d.io.write_triangle_mesh(str(temporary), mesh):
            raise GBiNetError(f"{mesh_path}: the mesh could not be written")
    return mesh_path
