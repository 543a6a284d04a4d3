"""One depth map against all its neighbours, and its points, without a tensor per neighbour.

Twins of fusion/consistency.py (carry, sample, compare, decide) and of the points and normals of
fusion/points.py. A tile holds some pixels times all sources; the maps of the sources and the masks of their
used pixels are reached through a table of addresses, because they are tensors of their own, of any size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.fusion.consistency import TRUST, most_doubt

NUMBERS = 26  # of a source: A and b to it, A and b back, width, height (fusion.consistency.transfer)
_FEWEST = 16  # sources that a tile has room for at least: one kernel serves every usual number
_TILE = 1024  # pixels times sources
_BLOCK = 256
# Fused multiply-adds would round otherwise than the plain code.
_LAUNCH = {"enable_fp_fusion": False}


@triton.jit
def _known(depth):
    return (depth > 0) & (depth < float("inf"))


@triton.jit
def _carry(u, v, depth, numbers):
    """Pixel (x, y) and depth in the other camera; `numbers` point at its A and b."""
    a0 = tl.load(numbers + 0)[None, :]
    a1 = tl.load(numbers + 1)[None, :]
    a2 = tl.load(numbers + 2)[None, :]
    x = depth * (u * a0 + (v * a1 + a2)) + tl.load(numbers + 9)[None, :]
    a0 = tl.load(numbers + 3)[None, :]
    a1 = tl.load(numbers + 4)[None, :]
    a2 = tl.load(numbers + 5)[None, :]
    y = depth * (u * a0 + (v * a1 + a2)) + tl.load(numbers + 10)[None, :]
    a0 = tl.load(numbers + 6)[None, :]
    a1 = tl.load(numbers + 7)[None, :]
    a2 = tl.load(numbers + 8)[None, :]
    z = depth * (u * a0 + (v * a1 + a2)) + tl.load(numbers + 11)[None, :]
    return tl.div_rn(x, z), tl.div_rn(y, z), z


@triton.jit
def _at(maps, row, column, height, width, keep):
    """Depth of a pixel, 0 where unknown or outside, and 1 where known."""
    inside = keep & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    value = tl.load(maps + row * width + column, mask=inside, other=0.0)
    known = _known(value)
    return tl.where(known, value, 0.0), known.to(tl.float32)


@triton.jit
def _sample(maps, x, y, height, width, keep):
    """Bilinear over the known neighbours."""
    left = tl.floor(x - 0.5)
    top = tl.floor(y - 0.5)
    across = x - 0.5 - left
    down = y - 0.5 - top
    column = left.to(tl.int32)
    row = top.to(tl.int32)
    value, known = _at(maps, row, column, height, width, keep)
    share = (1 - across) * (1 - down)
    total = share * value
    weight = share * known
    value, known = _at(maps, row, column + 1, height, width, keep)
    share = across * (1 - down)
    total += share * value
    weight += share * known
    value, known = _at(maps, row + 1, column, height, width, keep)
    share = (1 - across) * down
    total += share * value
    weight += share * known
    value, known = _at(maps, row + 1, column + 1, height, width, keep)
    share = across * down
    total += share * value
    weight += share * known
    return tl.div_rn(total, tl.maximum(weight, 1e-6))


@triton.jit(do_not_specialize=["height", "width", "sources"])
def _sight(
    depth,  # [H, W] float32
    numbers,  # [SOURCES, 26] float32
    counts,  # [2 * SOURCES] int32: pixels that so many sources have in their image
    height,
    width,
    sources,
    BLOCK: tl.constexpr,
    SOURCES: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.arange(0, SOURCES)
    own = tl.load(depth + pixel, mask=pixel < height * width, other=0.0)
    valid = _known(own)
    u = (pixel % width).to(tl.float32) + 0.5
    v = (pixel // width).to(tl.float32) + 0.5
    row = numbers + source * 26
    x, y, z = _carry(u[:, None], v[:, None], own[:, None], row)
    limit_x = tl.load(row + 24)[None, :]
    limit_y = tl.load(row + 25)[None, :]
    seen = (z > 0) & (x >= 0) & (x < limit_x) & (y >= 0) & (y < limit_y) & (source < sources)[None, :]
    number = tl.sum(seen.to(tl.int32), 1)
    bins = tl.arange(0, 2 * SOURCES)
    found = tl.sum(((number[:, None] == bins[None, :]) & valid[:, None]).to(tl.int32), 0)
    tl.atomic_add(counts + bins, found, mask=found > 0)


@triton.jit
def _levels(seen, ratio, wanted, sources, DYNAMIC: tl.constexpr, BLOCK: tl.constexpr):
    """At which level each source agrees, up to which level sources count, and whether enough of them do."""
    # Level n: the source agrees as soon as the thresholds are taken n times; 255: never.
    level = tl.where(seen & (ratio <= 1), 1, 255)
    limit = tl.full((BLOCK,), 1, tl.int32)
    if DYNAMIC:
        level = tl.where(seen, tl.minimum(tl.maximum(tl.ceil(ratio), 1.0), 255.0).to(tl.int32), 255)
        enough = tl.zeros((BLOCK,), tl.int1)
        for n in range(1, sources + 1):
            passes = (tl.sum((level <= n).to(tl.int32), 1) >= n) & (n >= wanted) & (enough == 0)
            limit = tl.where(passes, n, limit)
            enough = enough | passes
    else:
        enough = tl.sum((level <= 1).to(tl.int32), 1) >= tl.maximum(wanted, 1)
    return level, limit, enough


@triton.jit
def _doubt(sure, ratio, through):
    """What sources add to the logarithm of the probability that a point is wrong."""
    against = through & (ratio > 1)
    share = tl.where(against, 1.0, tl.maximum(1 - ratio, 0.0))
    doubt = tl.log(1 - sure * share)
    return tl.where(against, -doubt, doubt)


@triton.jit(do_not_specialize=["height", "width", "sources"])
def _agree(
    depth,  # [H, W] float32
    confidence,  # [H, W] float32
    used,  # [H, W] uint8: pixels that went into a point of an earlier view
    numbers,  # [SOURCES, 26] float32
    addresses,  # [SOURCES, 3] int64: the source's depth map, confidence and used pixels; or 0
    needed,  # int64: how many sources must agree
    mean,  # [H, W] float32, out: depth of the reference and the sources that agree
    confirmed,  # [H, W] float32, out: the same where enough agree, else 0
    views,  # [H, W] uint8, out: how many agree, the reference included
    fresh,  # [H, W] uint8, out: enough agree, and no earlier view has the point
    hits,  # [sources, H, W] int32, out if RECORD: the pixel of each source that agrees, flat; -1 = none
    height,
    width,
    sources,
    max_distance,
    max_relative,
    trust,  # of a view's confidence
    most_doubt,  # logarithm of the largest probability of being wrong
    DYNAMIC: tl.constexpr,
    RECORD: tl.constexpr,
    BLOCK: tl.constexpr,
    SOURCES: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < height * width
    source = tl.arange(0, SOURCES)
    own = tl.load(depth + pixel, mask=inside, other=0.0)
    valid = _known(own)
    u = ((pixel % width).to(tl.float32) + 0.5)[:, None]
    v = ((pixel // width).to(tl.float32) + 0.5)[:, None]
    row = numbers + source * 26
    limit_x = tl.load(row + 24)[None, :]
    limit_y = tl.load(row + 25)[None, :]
    source_width = limit_x.to(tl.int32)
    source_height = limit_y.to(tl.int32)
    maps = tl.load(addresses + 3 * source).to(tl.pointer_type(tl.float32))[None, :]

    x, y, z = _carry(u, v, own[:, None], row)
    seen = (z > 0) & (x >= 0) & (x < limit_x) & (y >= 0) & (y < limit_y)
    seen = seen & valid[:, None] & (source < sources)[None, :]
    x = tl.where(seen, x, -1.0)
    y = tl.where(seen, y, -1.0)
    column = tl.floor(x).to(tl.int32)
    line = tl.floor(y).to(tl.int32)
    _, hit = _at(maps, line, column, source_height, source_width, seen)
    seen = seen & (hit > 0)
    there = tl.where(seen, _sample(maps, x, y, source_height, source_width, seen), 0.0)
    back_x, back_y, back = _carry(x, y, there, row + 12)
    distance = tl.sqrt_rn((back_x - u) * (back_x - u) + (back_y - v) * (back_y - v))
    seen = seen & (back > 0) & (distance < float("inf"))
    relative = tl.div_rn(tl.abs(back - own[:, None]), tl.maximum(own, 1e-12)[:, None])
    ratio = tl.maximum(tl.div_rn(distance, max_distance), tl.div_rn(relative, max_relative))
    level, limit, enough = _levels(seen, ratio, tl.load(needed).to(tl.int32), sources, DYNAMIC, BLOCK)
    agrees = level <= limit[:, None]
    count = tl.sum(agrees.to(tl.int32), 1)
    total = tl.sum(tl.where(agrees, back, 0.0), 1) + own
    average = tl.div_rn(total, (count + 1).to(tl.float32))
    address = tl.load(addresses + 3 * source + 1)
    there_sure = address.to(tl.pointer_type(tl.float32))[None, :] + line * source_width + column
    sure = tl.load(there_sure, mask=seen & (address != 0)[None, :], other=1.0)
    through = seen & (tl.div_rn(there, z) - 1 > max_relative)
    doubt = tl.sum(_doubt(trust * sure, tl.where(seen, ratio, float("inf")), through), 1)
    doubt += tl.log(1 - trust * tl.load(confidence + pixel, mask=inside, other=0.0))
    enough = enough & valid & (doubt <= most_doubt)
    new = enough & (tl.load(used + pixel, mask=inside, other=0) == 0)
    tl.store(mean + pixel, average, mask=inside)
    tl.store(confirmed + pixel, tl.where(enough, average, 0.0), mask=inside)
    tl.store(views + pixel, tl.minimum(count + 1, 255).to(tl.uint8), mask=inside)
    tl.store(fresh + pixel, new.to(tl.uint8), mask=inside)
    mark = tl.load(addresses + 3 * source + 2)
    marked = mark.to(tl.pointer_type(tl.uint8))[None, :] + line * source_width + column
    marking = agrees & new[:, None] & (mark != 0)[None, :]
    tl.store(marked, tl.full((BLOCK, SOURCES), 1, tl.uint8), mask=marking)
    if RECORD:
        at = source.to(tl.int64)[None, :] * (height * width) + pixel[:, None]
        there = tl.where(agrees, line * source_width + column, -1)
        tl.store(hits + at, there, mask=inside[:, None] & (source < sources)[None, :])


@triton.jit
def _plane(depth, own, row, column, keep, height, width, max_jump, RADIUS: tl.constexpr, BLOCK: tl.constexpr):
    """DepthMap.normals: a plane fitted to inverse depth in the window. Its slopes, its value at the pixel (in
    shares of the pixel's own), and whether there were enough neighbours."""
    s1 = tl.zeros((BLOCK,), tl.float32)
    su, sv, suu, suv, svv, sq, squ, sqv = s1, s1, s1, s1, s1, s1, s1, s1
    for dv in range(-RADIUS, RADIUS + 1):
        for du in range(-RADIUS, RADIUS + 1):
            near, _ = _at(depth, row + dv, column + du, height, width, keep)
            w = (tl.abs(near - own) < max_jump * own).to(tl.float32)
            q = tl.div_rn(w * own, tl.maximum(near, 1e-30))
            s1 += w
            su += w * du
            sv += w * dv
            suu += w * du * du
            suv += w * du * dv
            svv += w * dv * dv
            sq += q
            squ += q * du
            sqv += q * dv
    count = tl.maximum(s1, 1.0)
    cuu = suu - tl.div_rn(su * su, count)
    cuv = suv - tl.div_rn(su * sv, count)
    cvv = svv - tl.div_rn(sv * sv, count)
    cqu = squ - tl.div_rn(sq * su, count)
    cqv = sqv - tl.div_rn(sq * sv, count)
    determinant = cuu * cvv - cuv * cuv
    fitted = determinant > 0.1
    safe = tl.where(fitted, determinant, 1.0)
    a = tl.where(fitted, tl.div_rn(cqu * cvv - cqv * cuv, safe), 0.0)
    b = tl.where(fitted, tl.div_rn(cqv * cuu - cqu * cuv, safe), 0.0)
    at_pixel = tl.div_rn(sq - a * su - b * sv, count)
    return a, b, at_pixel, fitted


@triton.jit(do_not_specialize=["height", "width"])
def _points(
    depth,  # [H, W] float32: means
    fresh,  # [H, W] uint8
    place,  # [H, W] int32: which point a fresh pixel becomes, counted from 1
    photo,  # [H, W, 3] uint8
    confidence,  # [H, W] float32
    views,  # [H, W] uint8
    camera,  # [30] float64: inverse of K, rotation, translation, K
    xyz,  # [H * W, 3] float32 or float64, out; of this and all below, the first rows are filled
    normals,  # [H * W, 3] float32
    rgb,  # [H * W, 3] uint8
    sure,  # [H * W] float32
    seen_by,  # [H * W] uint8
    height,
    width,
    max_jump,
    RADIUS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.load(fresh + pixel, mask=pixel < height * width, other=0) != 0
    if tl.sum(keep.to(tl.int32), 0) > 0:
        point = tl.load(place + pixel, mask=keep, other=1) - 1
        own = tl.load(depth + pixel, mask=keep, other=0.0)
        column = pixel % width
        row = pixel // width
        u = column.to(tl.float64) + 0.5
        v = row.to(tl.float64) + 0.5
        deep = own.to(tl.float64)
        # Into the camera's frame, then R^T (p - t).
        px = (u * tl.load(camera + 0) + v * tl.load(camera + 1) + tl.load(camera + 2)) * deep
        py = (u * tl.load(camera + 3) + v * tl.load(camera + 4) + tl.load(camera + 5)) * deep
        pz = (u * tl.load(camera + 6) + v * tl.load(camera + 7) + tl.load(camera + 8)) * deep
        px -= tl.load(camera + 18)
        py -= tl.load(camera + 19)
        pz -= tl.load(camera + 20)
        for axis in tl.static_range(3):
            value = px * tl.load(camera + 9 + axis)
            value += py * tl.load(camera + 12 + axis)
            value += pz * tl.load(camera + 15 + axis)
            tl.store(xyz + 3 * point + axis, value.to(xyz.dtype.element_ty), mask=keep)
            tl.store(rgb + 3 * point + axis, tl.load(photo + 3 * pixel + axis, mask=keep, other=0), mask=keep)
        tl.store(sure + point, tl.load(confidence + pixel, mask=keep, other=0.0), mask=keep)
        tl.store(seen_by + point, tl.load(views + pixel, mask=keep, other=0), mask=keep)

        a, b, at_pixel, fitted = _plane(depth, own, row, column, keep, height, width, max_jump, RADIUS, BLOCK)
        c = at_pixel - a * u.to(tl.float32) - b * v.to(tl.float32)
        nx = -(a * _single(camera + 21) + b * _single(camera + 24) + c * _single(camera + 27))
        ny = -(a * _single(camera + 22) + b * _single(camera + 25) + c * _single(camera + 28))
        nz = -(a * _single(camera + 23) + b * _single(camera + 26) + c * _single(camera + 29))
        wx = nx * _single(camera + 9) + ny * _single(camera + 12) + nz * _single(camera + 15)
        wy = nx * _single(camera + 10) + ny * _single(camera + 13) + nz * _single(camera + 16)
        wz = nx * _single(camera + 11) + ny * _single(camera + 14) + nz * _single(camera + 17)
        length = tl.maximum(tl.sqrt_rn(wx * wx + wy * wy + wz * wz), 1e-12)
        tl.store(normals + 3 * point, tl.where(fitted, tl.div_rn(wx, length), 0.0), mask=keep)
        tl.store(normals + 3 * point + 1, tl.where(fitted, tl.div_rn(wy, length), 0.0), mask=keep)
        tl.store(normals + 3 * point + 2, tl.where(fitted, tl.div_rn(wz, length), 0.0), mask=keep)


@triton.jit
def _single(number):
    return tl.load(number).to(tl.float32)


def room(sources: int) -> int:
    """Rows that the tables of so many sources need."""
    return max(_FEWEST, int(triton.next_power_of_2(sources)))


def in_sight(depth: Tensor, numbers: Tensor, sources: int) -> Tensor:
    """Pixels with a depth that 0, 1, 2, ... sources have in their image, [2 * rows] int32.

    depth [H, W] float32, numbers [rows, 26] float32, where rows = room(sources).
    """
    height, width = depth.shape
    rows = len(numbers)
    counts = torch.zeros(2 * rows, dtype=torch.int32, device=depth.device)
    block = max(16, _TILE // rows)
    _sight[(triton.cdiv(height * width, block),)](
        depth, numbers, counts, height, width, sources, BLOCK=block, SOURCES=rows, **_LAUNCH
    )
    return counts


def agree(
    depth: Tensor,  # [H, W] float32
    confidence: Tensor,  # [H, W] float32
    used: Tensor,  # [H, W] bool
    numbers: Tensor,  # [rows, 26] float32
    addresses: Tensor,  # [rows, 3] int64
    sources: int,
    needed: Tensor,  # one int64
    max_distance: float,
    max_relative_depth: float,
    dynamic: bool,
    certainty: float,
    hits: Tensor | None = None,  # [sources, H, W] int32, filled with the agreeing pixel of each source or -1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean depth, mean depth where enough sources agree, number of views (uint8), fresh (uint8), [H, W] each.

    Marks the pixels of the sources that agree with fresh ones as used.
    """
    height, width = depth.shape
    rows = len(numbers)
    mean, confirmed = torch.empty_like(depth), torch.empty_like(depth)
    views, fresh = (torch.empty_like(depth, dtype=torch.uint8) for _ in range(2))
    block = max(16, _TILE // rows)
    _agree[(triton.cdiv(height * width, block),)](
        depth, confidence, used.view(torch.uint8), numbers, addresses, needed, mean, confirmed, views, fresh,
        addresses.view(torch.int32) if hits is None else hits,  # without RECORD nothing is written there
        height, width, sources, float(max_distance), float(max_relative_depth), TRUST, most_doubt(certainty),
        DYNAMIC=dynamic, RECORD=hits is not None, BLOCK=block, SOURCES=rows, **_LAUNCH,
    )  # fmt: skip
    return mean, confirmed, views, fresh


def points(
    depth: Tensor,  # [H, W] float32
    fresh: Tensor,  # [H, W] uint8
    photo: Tensor,  # [H, W, 3] uint8
    confidence: Tensor,  # [H, W] float32
    views: Tensor,  # [H, W] uint8
    camera: Tensor,  # [30] float64: inverse of K, rotation, translation, K
    position_type: torch.dtype,
    radius: int = 2,
    max_jump: float = 0.03,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """How many pixels are fresh (one int64), and xyz, rgb, normals, confidence, number of views of these.

    The columns have H * W rows, of which so many are filled: nobody waits for the number.
    """
    height, width = depth.shape
    pixels = height * width
    place = fresh.flatten().cumsum(0, dtype=torch.int32)
    xyz = depth.new_empty(pixels, 3, dtype=position_type)
    normals = depth.new_empty(pixels, 3)
    rgb = photo.new_empty(pixels, 3)
    sure, seen_by = depth.new_empty(pixels), views.new_empty(pixels)
    _points[(triton.cdiv(pixels, _BLOCK),)](
        depth, fresh, place, photo, confidence, views, camera, xyz, normals, rgb, sure, seen_by,
        height, width, max_jump, RADIUS=radius, BLOCK=_BLOCK, **_LAUNCH,
    )  # fmt: skip
    return place[-1].long(), (xyz, rgb, normals, sure, seen_by)
