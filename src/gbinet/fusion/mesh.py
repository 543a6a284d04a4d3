"""A mesh from the confirmed depth maps (TSDF) or from the fused cloud (Poisson); open3d, extra `mesh`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.errors import GBiNetError, check_positive
from gbinet.formats.atomic import atomic_path
from gbinet.formats.optional import optional
from gbinet.fusion.fuse import FusedView, FusionConfig
from gbinet.fusion.points import colours
from gbinet.fusion.sources import DepthSource
from gbinet.pointcloud import PointCloud
from gbinet.progress import Progress
from gbinet.scene import Scene

Vertices = NDArray[np.float64]  # [N, 3]
Faces = NDArray[np.int64]  # [F, 3]
MeshKind = Literal["tsdf", "poisson", "textured"]

_VOXEL_PIXELS = 2.0  # default edge of a voxel, in pixels at the median depth
_TRUNCATION = 4.0  # voxels in front of and behind a surface that store its distance
_MIN_WEIGHT = 0.5  # views per voxel, one or more: each pixel has been confirmed by others already
_BLOCK, _INITIAL_BLOCKS = 8, 4000  # voxels along the edge of a block of the grid; blocks at the beginning
_SPECK = 0.001  # pieces with less than this share of all triangles are dropped
_SAMPLED_VIEWS = 20  # depth maps that decide the default voxel size


def open3d() -> Any:
    """The module open3d; raises an error that says how to install it if it is missing."""
    return optional("open3d", "a mesh", "mesh")


def check_libraries(kind: MeshKind) -> None:
    """Raise an error now, before the work, if a library for this kind of mesh is missing."""
    open3d()
    if kind == "textured":
        optional("xatlas", "a textured mesh", "mesh")


class Mesher:
    """Makes a mesh of any kind: `add` every fused view, then `write`."""

    def __init__(
        self,
        scene: Scene,
        depths: DepthSource,
        kind: MeshKind,
        config: FusionConfig,
        voxel: float | None,
        faces: int = 100_000,
    ) -> None:
        check_libraries(kind)
        self.scene, self.depths, self.kind, self.config, self.faces = scene, depths, kind, config, faces
        self.up: Vertices | None = None  # [3], where it is known
        self.progress: Progress | None = None  # of painting
        self.tsdf: TsdfMesh | None = None
        if kind != "poisson":
            voxel = default_voxel(scene, depths, config) if voxel is None else voxel
            self.tsdf = TsdfMesh(scene, voxel, config.box)

    def add(self, fused: FusedView) -> None:
        if self.tsdf is not None:
            self.tsdf.add(fused)

    def write(self, cloud: Path, mesh: Path) -> tuple[Path, ...]:
        """Write the mesh; returns its files: `mesh`, or that with .glb and .obj for a textured one."""
        if self.tsdf is None:
            return (write_poisson(cloud, mesh),)
        if self.kind == "tsdf":
            return (self.tsdf.write(mesh),)
        from gbinet.fusion.textured import write_textured

        vertices, faces = simplified(self.tsdf.surface(mesh), self.faces)
        return write_textured(
            self.scene, self.depths, vertices, faces, mesh, self.config, self.up, self.progress
        )


class TsdfMesh:
    """Averages signed distances to the surfaces of all views in a sparse grid of voxels.

    What no view confirmed stays open: no surface is invented. Memory grows with the surface.
    """

    def __init__(
        self,
        scene: Scene,
        voxel: float,
        box: tuple[float, float, float, float, float, float] | None = None,
    ) -> None:
        check_positive("mesh: the edge of a voxel", voxel)
        self.o3d, self.voxel, self.box = open3d(), voxel, box
        # open3d computes in float32, which is too coarse far from the origin: the grid's is at a camera.
        self.origin = scene.views[0].camera.centre.double()
        float32 = self.o3d.core.float32
        self.grid = self.o3d.t.geometry.VoxelBlockGrid(
            ("tsdf", "weight", "color"),
            (float32, float32, float32),
            ((1), (1), (3)),
            voxel_size=voxel,
            block_resolution=_BLOCK,
            block_count=_INITIAL_BLOCKS,  # the grid grows by itself
        )

    def add(self, fused: FusedView) -> None:
        """Integrate one view's confirmed pixels."""
        if not bool(fused.consistent.any()):
            return
        o3d, camera = self.o3d, fused.confirmed.camera.to("cpu", torch.float64)
        pose = camera.cam_from_world.clone()
        pose[:3, 3] += pose[:3, :3] @ self.origin
        intrinsics, extrinsics = o3d.core.Tensor(camera.K.numpy()), o3d.core.Tensor(pose.numpy())
        depth = fused.confirmed.depth.float().contiguous()
        farthest = 1.01 * float(depth.max())
        image = o3d.t.geometry.Image(o3d.core.Tensor(depth.numpy()))
        shades = o3d.t.geometry.Image(o3d.core.Tensor((colours(fused.photo, depth).float() / 255).numpy()))
        blocks = self.grid.compute_unique_block_coordinates(
            image, intrinsics, extrinsics, 1.0, farthest, _TRUNCATION
        )
        self.grid.integrate(
            blocks, image, shades, intrinsics, intrinsics, extrinsics, 1.0, farthest, _TRUNCATION
        )

    def write(self, path: Path) -> Path:
        return _write(self.o3d, self.surface(path), path)

    def surface(self, path: Path) -> Any:
        """The surface, without specks, cropped to the box; an error names `path` if there is none."""
        mesh = self.grid.extract_triangle_mesh(weight_threshold=_MIN_WEIGHT).to_legacy()
        labels, counts, _ = mesh.cluster_connected_triangles()
        sizes = np.asarray(counts)
        if len(sizes):
            mesh.remove_triangles_by_mask((sizes < _SPECK * sizes.sum())[np.asarray(labels)])
            mesh.remove_unreferenced_vertices()
        mesh.translate(self.origin.numpy())
        if self.box is not None:
            mesh = mesh.crop(self.o3d.geometry.AxisAlignedBoundingBox(self.box[:3], self.box[3:]))
        return _checked(mesh, path, f"no surface for a mesh at voxels of {self.voxel:g}")


def simplified(mesh: Any, faces: int) -> tuple[Vertices, Faces]:
    """Vertices and triangles of a mesh with so many triangles at most."""
    if len(mesh.triangles) > faces:
        mesh = mesh.simplify_quadric_decimation(faces)
        mesh.remove_degenerate_triangles()
        mesh.remove_unreferenced_vertices()
    return np.asarray(mesh.vertices), np.asarray(mesh.triangles).astype(np.int64)


def default_voxel(scene: Scene, depths: DepthSource, config: FusionConfig) -> float:
    """Two pixels at the median depth of a typical view, in the scene's unit."""
    sizes = []
    for index in range(0, len(scene.views), max(1, len(scene.views) // _SAMPLED_VIEWS)):
        found = depths.load(index)
        if found is None:
            continue
        confident = found.valid
        if found.confidence is not None:
            confident = confident & (found.confidence >= config.confidence_for(found.made_by))
        chosen = confident if bool(confident.any()) else found.valid
        if bool(chosen.any()):
            sizes.append(float(found.depth[chosen].median()) / float(found.camera.K[0, 0]))
    if not sizes:
        raise GBiNetError(f"{scene.name}: there is no depth map to make a mesh from")
    return _VOXEL_PIXELS * float(np.median(sizes))


def write_poisson(cloud_path: Path, mesh_path: Path, octree_depth: int = 10, trim: float = 0.03) -> Path:
    """Write a closed surface through the cloud, without the share `trim` of vertices with fewest points."""
    o3d = open3d()
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
    return _write(o3d, _checked(mesh, mesh_path, "Poisson reconstruction found no surface"), mesh_path)


def _checked(mesh: Any, path: Path, problem: str) -> Any:
    if not len(mesh.triangles):
        raise GBiNetError(f"{path}: {problem}")
    return mesh


def _write(o3d: Any, mesh: Any, path: Path) -> Path:
    mesh.vertex_colors = o3d.utility.Vector3dVector(np.clip(np.asarray(mesh.vertex_colors), 0, 1))
    with atomic_path(path) as temporary:
        if not o3d.io.write_triangle_mesh(str(temporary), mesh):
            raise GBiNetError(f"{path}: the mesh could not be written")
    return path
