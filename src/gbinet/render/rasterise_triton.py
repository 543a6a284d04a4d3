"""Fast twin of gbinet.render.rasterise for CUDA: the same keys from three Triton kernels.

The first looks at every triangle of every view, a lane each, and lists those that may cover a pixel (few do:
most lie outside the image or between pixels). The second takes the listed ones, a warp each, fills the small
ones and puts the tiles of the big ones into a queue; the third works the queue off. The host waits for none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.camera import Camera, pixel_centres
from gbinet.render.rasterise import EMPTY, NEAR, TILE, ray_terms

QUEUE_PER_VIEW = 1 << 16  # tiles; what does not fit is filled at once, slowly but rightly
SCANNERS = 8192  # programs that take the listed triangles
WORKERS = 2048  # programs that work the queue off

_SIZES = ["count", "width", "height", "capacity"]  # they change with every scene: compile once for all


def visible_keys(vertices: Tensor, faces: Tensor, cameras: Camera) -> Tensor:
    """Key of the nearest triangle at every pixel centre, [V, H, W] int64."""
    views, height, width = cameras.K.shape[0], cameras.height, cameras.width
    device = vertices.device
    keys = torch.full((views, height, width), EMPTY, dtype=torch.int64, device=device)
    if len(faces) == 0:
        return keys
    lens = torch.stack([cameras.K[:, 0, 0], cameras.K[:, 1, 1]], dim=1).float()
    pose = cameras.cam_from_world[:, :3].reshape(views, 12).float()
    table = torch.cat([pose, ray_terms(cameras), lens], dim=1).contiguous()  # [V, 19]
    capacity = QUEUE_PER_VIEW * views
    queue = torch.full((capacity,), -1, dtype=torch.int64, device=device)
    listed = torch.empty(len(faces) * views, dtype=torch.int64, device=device)
    counters = torch.zeros(2, dtype=torch.int32, device=device)  # of the queue, of the list
    faces, vertices = faces.to(torch.int32).contiguous(), vertices.float().contiguous()
    scene = (vertices, faces, table, len(faces), width, height)
    shared = (*scene[:3], keys, queue, counters, *scene[3:], capacity)
    first = float(pixel_centres(1, 1)[0, 0, 0])
    # no fused multiply-add: the edge values of neighbours must stay exact negatives of each other
    exact = {"enable_fp_fusion": False}
    grid = (triton.cdiv(len(faces), 128), views)
    _cull[grid](*scene, listed, counters, first, NEAR, BLOCK=128, num_warps=4, **exact)
    scanners = (min(SCANNERS, len(listed)),)
    _scan[scanners](*shared, listed, first, NEAR, TILE=TILE, BLOCK=64, num_warps=1, **exact)
    _work[(WORKERS,)](*shared, first, NEAR, TILE=TILE, num_warps=4, **exact)
    return keys


@triton.jit
def _corner(vertices, faces, table, view, face, number):
    """Corner of a triangle in the camera's frame."""
    index = tl.load(faces + face.to(tl.int64) * 3 + number).to(tl.int64)
    wx = tl.load(vertices + index * 3)
    wy = tl.load(vertices + index * 3 + 1)
    wz = tl.load(vertices + index * 3 + 2)
    row = table + view * 19
    x = wx * tl.load(row) + wy * tl.load(row + 1) + wz * tl.load(row + 2) + tl.load(row + 3)
    y = wx * tl.load(row + 4) + wy * tl.load(row + 5) + wz * tl.load(row + 6) + tl.load(row + 7)
    z = wx * tl.load(row + 8) + wy * tl.load(row + 9) + wz * tl.load(row + 10) + tl.load(row + 11)
    return x, y, z


@triton.jit
def _three(a, b, c):
    """Least and largest of three numbers."""
    return tl.minimum(tl.minimum(a, b), c), tl.maximum(tl.maximum(a, b), c)


@triton.jit
def _span(low, high, size, first):
    """Pixels whose centres lie between low and high: first and one past the last."""
    start = tl.ceil(tl.minimum(tl.maximum(low - first - 1e-3, 0.0), size * 1.0)).to(tl.int32)
    stop = tl.floor(tl.minimum(tl.maximum(high - first + 1e-3, -1.0), size - 1.0)).to(tl.int32) + 1
    return start, stop


@triton.jit
def _box(ax, ay, az, bx, by, bz, cx, cy, cz, row, width, height, first, near):
    """Pixels that a triangle may cover: x0, y0, x1, y1, all zero for none."""
    fx, fy = tl.load(row + 17), tl.load(row + 18)
    px, py, skew = tl.load(row + 14), tl.load(row + 15), tl.load(row + 16)
    sa, sb, sc = tl.maximum(az, near), tl.maximum(bz, near), tl.maximum(cz, near)
    left, right = _three(
        (fx * ax + skew * ay) / sa + px, (fx * bx + skew * by) / sb + px, (fx * cx + skew * cy) / sc + px
    )
    top, bottom = _three(fy * ay / sa + py, fy * by / sb + py, fy * cy / sc + py)
    x0, x1 = _span(left, right, width, first)
    y0, y1 = _span(top, bottom, height, first)
    least, most = _three(az, bz, cz)
    whole = least > near
    x0, x1 = tl.where(whole, x0, 0), tl.where(whole, x1, width)
    y0, y1 = tl.where(whole, y0, 0), tl.where(whole, y1, height)
    seen = most > near  # false also where the depth is not a number
    return x0, y0, tl.where(seen, x1, x0), tl.where(seen, y1, y0)


@triton.jit
def _fill(x, y, mask, ax, ay, az, bx, by, bz, cx, cy, cz, row, keys, view, face, width, height, first, near):
    """Test pixels (x, y) against a triangle and lower their keys."""
    dy = (y + first - tl.load(row + 15)) * tl.load(row + 13)
    dx = (x + first - tl.load(row + 14) - tl.load(row + 16) * dy) * tl.load(row + 12)
    ea = dx * (by * cz - bz * cy) + dy * (bz * cx - bx * cz) + (bx * cy - by * cx)
    eb = dx * (cy * az - cz * ay) + dy * (cz * ax - cx * az) + (cx * ay - cy * ax)
    ec = dx * (ay * bz - az * by) + dy * (az * bx - ax * bz) + (ax * by - ay * bx)
    lowest, highest = _three(ea, eb, ec)
    ux, uy, uz = bx - ax, by - ay, bz - az
    vx, vy, vz = cx - ax, cy - ay, cz - az
    nx, ny, nz = uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx
    depth = (nx * ax + ny * ay + nz * az) / (dx * nx + dy * ny + nz)
    inside = mask & ((lowest >= 0) | (highest <= 0)) & (depth > near)
    least, most = _three(az, bz, cz)
    depth = tl.minimum(tl.maximum(depth, tl.maximum(least, near)), most)
    key = (depth.to(tl.int32, bitcast=True).to(tl.int64) << 32) | face.to(tl.int64)
    place = keys + (view.to(tl.int64) * height + y) * width + x
    inside = inside & (key < tl.load(place, mask=inside, other=0))
    tl.atomic_min(place, key, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=_SIZES)
def _cull(
    vertices, faces, table, count, width, height, listed, counters, first, near, BLOCK: tl.constexpr
):  # fmt: skip
    """List the triangles that may cover a pixel, as view * count + face."""
    number, view = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    face = tl.minimum(number, count - 1)
    row = table + view * 19
    ax, ay, az = _corner(vertices, faces, table, view, face, 0)
    bx, by, bz = _corner(vertices, faces, table, view, face, 1)
    cx, cy, cz = _corner(vertices, faces, table, view, face, 2)
    x0, y0, x1, y1 = _box(ax, ay, az, bx, by, bz, cx, cy, cz, row, width, height, first, near)
    seen = ((number < count) & (x1 > x0) & (y1 > y0)).to(tl.int32)
    rank = tl.cumsum(seen, 0)
    base = tl.atomic_add(counters + 1, tl.sum(seen, 0), sem="relaxed")
    entry = view.to(tl.int64) * count + face
    tl.store(listed + base + rank - 1, entry, mask=seen != 0)


@triton.jit(do_not_specialize=_SIZES)
def _scan(
    vertices, faces, table, keys, queue, counters, count, width, height, capacity, listed, first, near,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    for number in range(tl.program_id(0), tl.load(counters + 1), tl.num_programs(0)):
        owner = tl.load(listed + number)
        view, face = (owner // count).to(tl.int32), (owner % count).to(tl.int32)
        _triangle(
            vertices, faces, table, keys, queue, counters, count, width, height, capacity, view, face,
            first, near, TILE, BLOCK,
        )  # fmt: skip


@triton.jit
def _triangle(
    vertices, faces, table, keys, queue, counters, count, width, height, capacity, view, face, first, near,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill a small triangle; queue the tiles of a big one."""
    row = table + view * 19
    ax, ay, az = _corner(vertices, faces, table, view, face, 0)
    bx, by, bz = _corner(vertices, faces, table, view, face, 1)
    cx, cy, cz = _corner(vertices, faces, table, view, face, 2)
    x0, y0, x1, y1 = _box(ax, ay, az, bx, by, bz, cx, cy, cz, row, width, height, first, near)
    area = tl.maximum(x1 - x0, 0) * tl.maximum(y1 - y0, 0)
    lanes = tl.arange(0, BLOCK)
    if area > TILE * TILE:
        left, top = x0 // TILE, y0 // TILE
        across = (x1 + TILE - 1) // TILE - left
        tiles = across * ((y1 + TILE - 1) // TILE - top)
        base = tl.atomic_add(counters, tiles, sem="relaxed")
        if base + tiles <= capacity:
            area = area * 0  # left to the workers
            entry = (view.to(tl.int64) * count + face) << 24
            for start in range(0, tiles, BLOCK):
                tile = start + lanes
                tl.store(queue + base + tile, entry | tile.to(tl.int64), mask=tile < tiles)
    for start in range(0, area, BLOCK):
        rank = start + lanes
        x, y = x0 + rank % (x1 - x0), y0 + rank // (x1 - x0)
        _fill(
            x, y, rank < area, ax, ay, az, bx, by, bz, cx, cy, cz, row, keys, view, face,
            width, height, first, near,
        )  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def _work(
    vertices, faces, table, keys, queue, counters, count, width, height, capacity, first, near,
    TILE: tl.constexpr,
):  # fmt: skip
    lanes = tl.arange(0, TILE * TILE)
    entries = tl.minimum(tl.load(counters), capacity)
    for number in range(tl.program_id(0), entries, tl.num_programs(0)):
        entry = tl.load(queue + number)
        if entry >= 0:
            owner, tile = entry >> 24, (entry & 0xFFFFFF).to(tl.int32)
            view, face = (owner // count).to(tl.int32), (owner % count).to(tl.int32)
            row = table + view * 19
            ax, ay, az = _corner(vertices, faces, table, view, face, 0)
            bx, by, bz = _corner(vertices, faces, table, view, face, 1)
            cx, cy, cz = _corner(vertices, faces, table, view, face, 2)
            x0, y0, x1, y1 = _box(ax, ay, az, bx, by, bz, cx, cy, cz, row, width, height, first, near)
            left, top = x0 // TILE, y0 // TILE
            across = (x1 + TILE - 1) // TILE - left
            x = (left + tile % across) * TILE + lanes % TILE
            y = (top + tile // across) * TILE + lanes // TILE
            mask = (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
            _fill(
                x, y, mask, ax, ay, az, bx, by, bz, cx, cy, cz, row, keys, view, face,
                width, height, first, near,
            )  # fmt: skip
