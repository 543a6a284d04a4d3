"""Which triangle does each pixel's ray meet first? The plain torch rasteriser, for any device.

A triangle covers a pixel when the ray through the pixel's centre passes on one side of its three edges, seen
from the camera. The edge values of a shared edge are exact negatives of each other in the two triangles that
share it, so meshes have no cracks, and triangles that reach behind the camera need no clipping.

The z-buffer holds one 64-bit key per pixel: the bits of the (positive) float32 depth above, the number of the
triangle below. The smallest key wins, whatever the order of the fragments, so the result never depends on
scheduling. `gbinet.render.rasterise_triton` has the kernels for CUDA.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from gbinet import ops
from gbinet.camera import Camera, pixel_centres
from gbinet.ops.threads_cpu import in_threads

EMPTY = torch.iinfo(torch.int64).max  # key of a pixel that sees nothing
NEAR = 1e-3  # in world units: nothing nearer to the camera is seen
TILE = 32  # big triangles are cut into tiles of this many pixels a side
MAX_FRAGMENTS = 1 << 22  # bounds the memory of one round of fragments on a GPU
CACHED_FRAGMENTS = 1 << 16  # on a CPU rounds are faster when they stay in its cache


def visible_keys(
    vertices: Tensor,  # [N, 3] float32, world
    faces: Tensor,  # [F, 3] int32 or int64
    cameras: Camera,  # [V]
    *,
    plain: bool = False,
) -> Tensor:
    """Key of the nearest triangle at every pixel centre, [V, H, W] int64; EMPTY where there is none."""
    if ops.usable(vertices) and not plain:
        from gbinet.render import rasterise_triton as fast

        return fast.visible_keys(vertices, faces, cameras)
    views = [cameras[v] for v in range(cameras.K.shape[0])]
    return torch.stack(in_threads(lambda view: _one_view(vertices, faces, view), views, vertices.device))


def face_index(keys: Tensor) -> Tensor:
    """Triangle number of each key, int64; -1 where the pixel sees nothing."""
    return torch.where(keys == EMPTY, -1, keys & 0xFFFFFFFF)


def key_depth(keys: Tensor) -> Tensor:
    """Depth in the key, float32; infinite where the pixel sees nothing. See render_depth for exact depth."""
    depth = (keys >> 32).to(torch.int32).view(torch.float32)
    return depth.masked_fill(keys == EMPTY, torch.inf)


def ray_terms(cameras: Camera, dtype: torch.dtype = torch.float32) -> Tensor:
    """(1/fx, 1/fy, cx, cy, skew) of each view, [..., 5]: the ray of pixel (x, y) is ((x-cx-skew*v)/fx, v, 1)
    with v = (y-cy)/fy."""
    K = cameras.K.to(dtype)
    terms = [1 / K[..., 0, 0], 1 / K[..., 1, 1], K[..., 0, 2], K[..., 1, 2], K[..., 0, 1]]
    return torch.stack(terms, dim=-1)


def transform(matrix: Tensor, points: Tensor) -> Tensor:
    """Rigid or affine 3x4 (or 4x4) matrix applied to points [..., 3], without a matrix product: those may be
    rounded to ten bits on a GPU (TF32)."""
    x, y, z = points[..., 0:1], points[..., 1:2], points[..., 2:3]
    return x * matrix[:3, 0] + y * matrix[:3, 1] + z * matrix[:3, 2] + matrix[:3, 3]


def _one_view(vertices: Tensor, faces: Tensor, camera: Camera) -> Tensor:
    width, height = camera.width, camera.height
    terms = ray_terms(camera)
    corners = transform(camera.cam_from_world.to(vertices), vertices)[faces.long()]  # [F, 3, 3]
    keys = torch.full((height * width,), EMPTY, dtype=torch.int64, device=vertices.device)
    chosen, boxes = _boxes(corners, camera)
    setup = _setup(corners[chosen])
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    big = area > TILE * TILE
    small = (~big).nonzero()[:, 0]
    owner, tiles = _tiles(setup, boxes, big.nonzero()[:, 0], terms)
    owner, tiles = torch.cat([small, owner]), torch.cat([boxes[small], tiles])
    counts = (tiles[:, 2] - tiles[:, 0]) * (tiles[:, 3] - tiles[:, 1])
    for start, stop in _rounds(counts, MAX_FRAGMENTS if counts.is_cuda else CACHED_FRAGMENTS):
        local, x, y = _cells(tiles[start:stop])
        owners = owner[start:stop][local]
        inside, depth = _hit(setup, owners, x, y, terms)
        key = depth[inside].view(torch.int32).long() << 32 | chosen[owners[inside]]
        keys.scatter_reduce_(0, (y * width + x)[inside], key, "amin")
    return keys.view(height, width)


def _boxes(corners: Tensor, camera: Camera) -> tuple[Tensor, Tensor]:
    """Triangles that may be seen [M] and the pixels whose centres they may cover: x0, y0, x1, y1 [M, 4]."""
    K = camera.K.to(corners)
    x, y, z = corners.unbind(-1)  # [F, 3 corners] each
    front = z > NEAR
    safe = z.clamp_min(NEAR)
    px = (K[0, 0] * x + K[0, 1] * y) / safe + K[0, 2]
    py = K[1, 1] * y / safe + K[1, 2]
    whole = front.all(-1)
    first = float(pixel_centres(1, 1)[0, 0, 0])  # pixels whose centre lies in [lo, hi]
    limits = []
    for lo, hi, size in ((px.amin(-1), px.amax(-1), camera.width), (py.amin(-1), py.amax(-1), camera.height)):
        start = (lo - first - 1e-3).clamp(0, size).ceil()
        stop = (hi - first + 1e-3).clamp(-1, size - 1).floor() + 1
        limits.append((torch.where(whole, start, 0.0), torch.where(whole, stop, float(size))))
    box = torch.stack([limits[0][0], limits[1][0], limits[0][1], limits[1][1]], dim=-1).long()
    seen = front.any(-1) & (box[:, 2] > box[:, 0]) & (box[:, 3] > box[:, 1])
    seen &= torch.isfinite(corners).all(-1).all(-1)
    chosen = seen.nonzero()[:, 0]
    return chosen, box[chosen]


def _setup(corners: Tensor) -> Tensor:
    """Data of triangles for fragments, [M, 15]: three edge planes, the plane, least and largest depth."""
    a, b, c = corners.unbind(1)  # [M, 3] each
    normal = _cross(b - a, c - a)
    offset = (normal * a).sum(-1, keepdim=True)
    depth = corners[..., 2]
    least = depth.amin(-1, keepdim=True).clamp_min(NEAR)
    edges = [_cross(b, c), _cross(c, a), _cross(a, b)]
    return torch.cat([*edges, normal, offset, least, depth.amax(-1, keepdim=True)], dim=-1)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    """Cross product as separate products and differences: cross(a, b) == -cross(b, a), bit for bit."""
    ax, ay, az = a.unbind(-1)
    bx, by, bz = b.unbind(-1)
    return torch.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], dim=-1)


def _tiles(setup: Tensor, boxes: Tensor, big: Tensor, terms: Tensor) -> tuple[Tensor, Tensor]:
    """Cut the boxes of big triangles into tiles and drop those that lie outside one edge."""
    box = boxes[big]
    grid = torch.cat([box[:, :2] // TILE, (box[:, 2:] + TILE - 1) // TILE], dim=-1)
    local, tx, ty = _cells(grid)
    owner, box = big[local], box[local]
    x0, y0 = torch.maximum(tx * TILE, box[:, 0]), torch.maximum(ty * TILE, box[:, 1])
    x1, y1 = torch.minimum((tx + 1) * TILE, box[:, 2]), torch.minimum((ty + 1) * TILE, box[:, 3])
    lowest = torch.full((owner.numel(), 3), torch.inf, device=owner.device)
    highest = -lowest
    for x, y in ((x0, y0), (x1, y0), (x0, y1), (x1, y1)):  # the tile's outer corners: values are linear
        values = _edge_values(setup, owner, x.float(), y.float(), terms)
        lowest, highest = torch.minimum(lowest, values), torch.maximum(highest, values)
    keep = (highest >= 0).all(-1) | (lowest <= 0).all(-1)
    return owner[keep], torch.stack([x0, y0, x1, y1], dim=-1)[keep]


def _cells(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All integer cells of all boxes: number of the box, x, y, [sum of areas] each."""
    widths = boxes[:, 2] - boxes[:, 0]
    counts = widths * (boxes[:, 3] - boxes[:, 1])
    box = torch.repeat_interleave(torch.arange(len(boxes), device=boxes.device), counts)
    rank = torch.arange(box.numel(), device=boxes.device) - (counts.cumsum(0) - counts)[box]
    return box, boxes[box, 0] + rank % widths[box], boxes[box, 1] + rank // widths[box]


def _rounds(counts: Tensor, limit: int) -> list[tuple[int, int]]:
    """Consecutive runs whose sums stay under the limit (a single entry may exceed it)."""
    if counts.numel() == 0:
        return []
    total = counts.cumsum(0)
    runs = int(total[-1]) // limit + 1
    targets = torch.arange(1, runs, device=counts.device) * limit
    cuts = [0, *torch.searchsorted(total, targets).tolist(), counts.numel()]
    return [(a, b) for a, b in itertools.pairwise(cuts) if b > a]


def _edge_values(setup: Tensor, owner: Tensor, x: Tensor, y: Tensor, terms: Tensor) -> Tensor:
    dy = ((y - terms[3]) * terms[1])[:, None]
    dx = (x[:, None] - terms[2] - terms[4] * dy) * terms[0]
    edges = setup[owner, :9].view(-1, 3, 3)
    return dx * edges[..., 0] + dy * edges[..., 1] + edges[..., 2]


def _hit(setup: Tensor, owner: Tensor, x: Tensor, y: Tensor, terms: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the centre of pixel (x, y) is inside the triangle, bool [P], and the depth, float32 [P]."""
    centre = float(pixel_centres(1, 1)[0, 0, 0])
    dy = (y + centre - terms[3]) * terms[1]
    dx = (x + centre - terms[2] - terms[4] * dy) * terms[0]
    rows = setup[owner]  # [P, 15]
    edges = [dx * rows[:, 3 * i] + dy * rows[:, 3 * i + 1] + rows[:, 3 * i + 2] for i in range(3)]
    lowest = torch.minimum(torch.minimum(edges[0], edges[1]), edges[2])
    highest = torch.maximum(torch.maximum(edges[0], edges[1]), edges[2])
    depth = rows[:, 12] / (dx * rows[:, 9] + dy * rows[:, 10] + rows[:, 11])
    inside = ((lowest >= 0) | (highest <= 0)) & (depth > NEAR)  # depth > 0 rules out the ray's other half
    return inside, torch.minimum(torch.maximum(depth, rows[:, 13]), rows[:, 14])
