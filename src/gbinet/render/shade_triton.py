"""Fast twin of shade.shade for CUDA: rays, textures, lights and shadows of all samples of a
pixel in one Triton kernel that writes their mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.camera import Camera, pixel_centres
from gbinet.render.rasterise import ray_terms

if TYPE_CHECKING:
    from gbinet.render.scenery import RenderScene

_EMPTY = tl.constexpr(torch.iinfo(torch.int64).max)
# They change with every scene: compile once for all.
_SIZES = ["pixels", "height", "width", "last_texture", "light_count", "shadow_size"]


def averaged_colour(scene: RenderScene, fine: Camera, keys: Tensor, supersampling: int) -> Tensor:
    """Linear colour [V, 3, H, W] from the keys [V, H * s, W * s] of the fine cameras."""
    views, fine_height, fine_width = keys.shape
    height, width = fine_height // supersampling, fine_width // supersampling
    axes = fine.cam_from_world[:, :3, :3]
    centres = -(axes * fine.cam_from_world[:, :3, 3:]).sum(1)  # [V, 3]
    table = torch.cat([axes.reshape(views, 9), centres, ray_terms(fine)], dim=1).contiguous()  # [V, 17]
    lamps = scene.light_cameras
    lens = torch.stack([lamps.K[:, 0, 0], lamps.K[:, 0, 2], lamps.K[:, 1, 2]], dim=1)
    lights = torch.cat([scene.lights, lamps.cam_from_world[:, :3].reshape(-1, 12), lens], dim=1)  # [L, 23]
    image = torch.empty(views, 3, height, width, dtype=torch.float32, device=keys.device)
    pixels = views * height * width
    block = 128
    _shade[(triton.cdiv(pixels, block),)](
        keys,
        image,
        table,
        scene.table,
        scene.materials,
        scene.textures.texels.view(torch.int32),
        scene.textures.base,
        scene.textures.log_size,
        lights.contiguous(),
        scene.shadows,
        scene.ambient,
        pixels,
        height,
        width,
        len(scene.textures.base) - 1,
        scene.lights.shape[0],
        scene.shadows.shape[-1],
        float(pixel_centres(1, 1)[0, 0, 0]),
        SAMPLES=supersampling,
        BLOCK=block,
        num_warps=4,
    )
    return image


@triton.jit
def _dot(ax, ay, az, bx, by, bz):
    return ax * bx + ay * by + az * bz


@triton.jit
def _unit(x, y, z):
    scale = 1.0 / tl.maximum(tl.sqrt(x * x + y * y + z * z), 1e-12)
    return x * scale, y * scale, z * scale


@triton.jit
def _power(x, exponent):
    """x ** exponent for x >= 0."""
    return tl.where(x > 0, tl.exp2(exponent * tl.log2(tl.maximum(x, 1e-30))), 0.0)


@triton.jit
def _texel(texels, place, mask, weight, r, g, b):
    """Add a weighted texel."""
    packed = tl.load(texels + place, mask=mask, other=0)
    r += weight * (packed & 255).to(tl.float32)
    g += weight * ((packed >> 8) & 255).to(tl.float32)
    b += weight * ((packed >> 16) & 255).to(tl.float32)
    return r, g, b


@triton.jit
def _level(texels, base, log_size, level, u, v, weight, mask, r, g, b):
    """Add the bilinear colour of one mip level."""
    remaining = log_size - level
    one = tl.full(remaining.shape, 1, tl.int32)
    start = base + ((one << (2 * log_size + 2)) - (one << (2 * remaining + 2))) // 3
    size = one << remaining
    x, y = u * size.to(tl.float32) - 0.5, v * size.to(tl.float32) - 0.5
    fx0, fy0 = tl.floor(x), tl.floor(y)
    fx, fy = x - fx0, y - fy0
    x0, y0 = fx0.to(tl.int32), fy0.to(tl.int32)
    left, right = x0 & (size - 1), (x0 + 1) & (size - 1)
    top, bottom = start + ((y0 & (size - 1)) << remaining), start + (((y0 + 1) & (size - 1)) << remaining)
    r, g, b = _texel(texels, top + left, mask, weight * (1 - fx) * (1 - fy), r, g, b)
    r, g, b = _texel(texels, top + right, mask, weight * fx * (1 - fy), r, g, b)
    r, g, b = _texel(texels, bottom + left, mask, weight * (1 - fx) * fy, r, g, b)
    r, g, b = _texel(texels, bottom + right, mask, weight * fx * fy, r, g, b)
    return r, g, b


@triton.jit
def _sample(texels, bases, log_sizes, texture, u, v, density, mask):
    """Trilinear colour in [0, 1]."""
    base = tl.load(bases + texture, mask=mask, other=0)
    log_size = tl.load(log_sizes + texture, mask=mask, other=0)
    lod = tl.minimum(tl.log2(tl.maximum(density, 1.0)), log_size.to(tl.float32))
    lower = tl.floor(lod)
    blend = lod - lower
    level = lower.to(tl.int32)
    u = u - tl.floor(u)
    v = 1.0 - v
    v = v - tl.floor(v)
    r, g, b = u * 0.0, u * 0.0, u * 0.0
    scale = 1.0 / 255
    r, g, b = _level(texels, base, log_size, level, u, v, (1 - blend) * scale, mask, r, g, b)
    above = tl.minimum(level + 1, log_size)
    r, g, b = _level(texels, base, log_size, above, u, v, blend * scale, mask & (blend > 0), r, g, b)
    return r, g, b


@triton.jit
def _around(texels, bases, log_sizes, texture, x, y, z, density, mask):
    """Linear colour of the far surroundings in a unit direction."""
    ax, ay = tl.abs(x), tl.abs(y)
    ratio = tl.minimum(ax, ay) / tl.maximum(tl.maximum(ax, ay), 1e-20)
    s = ratio * ratio  # arc tangent, to 1e-5
    poly = 0.9998660 + s * (-0.3302995 + s * (0.1801410 + s * (-0.0851330 + s * 0.0208351)))
    angle = ratio * poly
    angle = tl.where(ay > ax, 1.5707963 - angle, angle)
    angle = tl.where(x < 0, 3.1415927 - angle, angle)
    angle = tl.where(y < 0, -angle, angle)
    u = angle * 0.15915494
    v = (tl.minimum(tl.maximum(z, -1.0), 1.0) * 0.5 + 0.5) * 0.96 + 0.02
    r, g, b = _sample(texels, bases, log_sizes, texture, u, v, density, mask)
    return _power(r, 2.2), _power(g, 2.2), _power(b, 2.2)


@triton.jit
def _is_lit(shadows, place, limit, mask):
    return (tl.load(shadows + place, mask=mask, other=0.0) > limit).to(tl.float32)


@triton.jit
def _shadow(light, shadows, index, size, px, py, pz, nx, ny, nz, distance, mask):
    """Share of a light that arrives at a point."""
    focal = tl.load(light + 20)
    texel = distance / focal
    qx, qy, qz = px + nx * 2.0 * texel, py + ny * 2.0 * texel, pz + nz * 2.0 * texel
    lx = _dot(qx, qy, qz, tl.load(light + 8), tl.load(light + 9), tl.load(light + 10)) + tl.load(light + 11)
    ly = _dot(qx, qy, qz, tl.load(light + 12), tl.load(light + 13), tl.load(light + 14)) + tl.load(light + 15)
    lz = _dot(qx, qy, qz, tl.load(light + 16), tl.load(light + 17), tl.load(light + 18)) + tl.load(light + 19)
    z = tl.maximum(lz, 1e-6)
    x = lx / z * focal + tl.load(light + 21) - 0.5
    y = ly / z * focal + tl.load(light + 22) - 0.5
    inside = (x > 0) & (y > 0) & (x < size - 1) & (y < size - 1) & (lz > 0) & mask
    x = tl.where(inside, x, 0.0)
    y = tl.where(inside, y, 0.0)
    x0, y0 = tl.floor(x), tl.floor(y)
    fx, fy = x - x0, y - y0
    place = (index * size + y0.to(tl.int32)) * size + x0.to(tl.int32)
    limit = lz - 1.5 * texel
    a, b = _is_lit(shadows, place, limit, inside), _is_lit(shadows, place + 1, limit, inside)
    c, d = _is_lit(shadows, place + size, limit, inside), _is_lit(shadows, place + size + 1, limit, inside)
    top, bottom = a + (b - a) * fx, c + (d - c) * fx
    return tl.where(inside, top + (bottom - top) * fy, 1.0)


@triton.jit
def _ray(row, x, y, first):
    """The ray of a sample, of unit depth, in the world."""
    dv = (y + first - tl.load(row + 15)) * tl.load(row + 13)
    du = (x + first - tl.load(row + 14) - tl.load(row + 16) * dv) * tl.load(row + 12)
    rx = du * tl.load(row) + dv * tl.load(row + 3) + tl.load(row + 6)
    ry = du * tl.load(row + 1) + dv * tl.load(row + 4) + tl.load(row + 7)
    rz = du * tl.load(row + 2) + dv * tl.load(row + 5) + tl.load(row + 8)
    return rx, ry, rz


@triton.jit
def _three(place, mask, last):
    """Three numbers in a row; 0, 0, last where masked."""
    x = tl.load(place, mask=mask, other=0.0)
    y = tl.load(place + 1, mask=mask, other=0.0)
    return x, y, tl.load(place + 2, mask=mask, other=last)


@triton.jit
def _meet(face, seen, ox, oy, oz, rx, ry, rz):
    """Where rays meet their triangles' planes: the points, their depths, how the planes face rays, and the
    weights of the second and third corner."""
    nx, ny, nz = _three(face + 3, seen, 1.0)
    vx, vy, vz = _three(face, seen, 0.0)
    facing = _dot(nx, ny, nz, rx, ry, rz)
    facing = tl.where(tl.abs(facing) < 1e-6, 1e-6, facing)
    depth = _dot(vx - ox, vy - oy, vz - oz, nx, ny, nz) / facing
    px, py, pz = ox + depth * rx, oy + depth * ry, oz + depth * rz
    ix, iy, iz = px - vx, py - vy, pz - vz
    ax, ay, az = _three(face + 6, seen, 0.0)
    bx, by, bz = _three(face + 9, seen, 0.0)
    w1 = tl.minimum(tl.maximum(_dot(ix, iy, iz, ax, ay, az), 0.0), 1.0)
    w2 = tl.minimum(tl.maximum(_dot(ix, iy, iz, bx, by, bz), 0.0), 1.0)
    return px, py, pz, depth, facing, w1, w2


@triton.jit
def _smooth_normal(face, seen, w1, w2, tx, ty, tz):
    """The interpolated normal, towards the camera."""
    sx, sy, sz = _three(face + 18, seen, 1.0)
    ax, ay, az = _three(face + 21, seen, 0.0)
    bx, by, bz = _three(face + 24, seen, 0.0)
    sx, sy, sz = _unit(sx + (w1 * ax + w2 * bx), sy + (w1 * ay + w2 * by), sz + (w1 * az + w2 * bz))
    flip = tl.where(_dot(sx, sy, sz, tx, ty, tz) < 0, -1.0, 1.0)
    return sx * flip, sy * flip, sz * flip


@triton.jit
def _albedo(face, material, seen, w1, w2, density, texels, bases, log_sizes):
    """Linear colour of a surface: its texture times its tint."""
    u = tl.load(face + 12, mask=seen, other=0.0)
    v = tl.load(face + 13, mask=seen, other=0.0)
    u += w1 * tl.load(face + 14, mask=seen, other=0.0) + w2 * tl.load(face + 16, mask=seen, other=0.0)
    v += w1 * tl.load(face + 15, mask=seen, other=0.0) + w2 * tl.load(face + 17, mask=seen, other=0.0)
    texture = tl.load(material + 6, mask=seen, other=0.0).to(tl.int32)
    r, g, b = _sample(texels, bases, log_sizes, texture, u, v, density, seen)
    tr, tg, tb = _three(material, seen, 0.0)
    r, g, b = tl.minimum(r * tr, 1.0), tl.minimum(g * tg, 1.0), tl.minimum(b * tb, 1.0)
    return _power(r, 2.2), _power(g, 2.2), _power(b, 2.2)


@triton.jit
def _lighting(
    lights, shadows, ambient, light_count, shadow_size, shininess, seen,
    px, py, pz, sx, sy, sz, tx, ty, tz,
):  # fmt: skip
    """Light that reaches a matt surface, and highlights."""
    upward = 0.5 + 0.5 * sz
    dr = tl.load(ambient + 3) + (tl.load(ambient) - tl.load(ambient + 3)) * upward
    dg = tl.load(ambient + 4) + (tl.load(ambient + 1) - tl.load(ambient + 4)) * upward
    db = tl.load(ambient + 5) + (tl.load(ambient + 2) - tl.load(ambient + 5)) * upward
    hr, hg, hb = dr * 0.0, dg * 0.0, db * 0.0
    for lamp in range(light_count):
        light = lights + lamp * 23
        lx, ly, lz = tl.load(light) - px, tl.load(light + 1) - py, tl.load(light + 2) - pz
        distance = tl.sqrt(lx * lx + ly * ly + lz * lz)
        lx, ly, lz = lx / distance, ly / distance, lz / distance
        cosine = tl.maximum(_dot(sx, sy, sz, lx, ly, lz), 0.0)
        relative = tl.load(light + 7) / distance
        lit = 1 + tl.load(light + 3) * (tl.minimum(relative * relative, 6.0) - 1)
        lit *= _shadow(light, shadows, lamp, shadow_size, px, py, pz, sx, sy, sz, distance, seen)
        mx, my, mz = _unit(lx + tx, ly + ty, lz + tz)
        gleam = _power(tl.maximum(_dot(sx, sy, sz, mx, my, mz), 1e-4), shininess)
        gleam = tl.where(cosine > 0, gleam * lit, 0.0)
        cosine = cosine * lit
        cr, cg, cb = tl.load(light + 4), tl.load(light + 5), tl.load(light + 6)
        dr, dg, db = dr + cr * cosine, dg + cg * cosine, db + cb * cosine
        hr, hg, hb = hr + cr * gleam, hg + cg * gleam, hb + cb * gleam
    return dr, dg, db, hr, hg, hb


@triton.jit
def _colour(
    key, mask, row, rx, ry, rz, ox, oy, oz, face_table, materials, texels, bases, log_sizes,
    lights, shadows, ambient, around, light_count, shadow_size,
):  # fmt: skip
    """Linear colour of one sample: of the triangle in its key, or of the surroundings."""
    length = tl.sqrt(rx * rx + ry * ry + rz * rz)
    tx, ty, tz = -rx / length, -ry / length, -rz / length
    seen = mask & (key != _EMPTY)
    face = face_table + tl.where(seen, key & 0xFFFFFFFF, 0) * 32
    px, py, pz, depth, facing, w1, w2 = _meet(face, seen, ox, oy, oz, rx, ry, rz)
    sx, sy, sz = _smooth_normal(face, seen, w1, w2, tx, ty, tz)
    slant = tl.rsqrt(tl.maximum(tl.abs(facing) / length, 0.05))
    density = tl.load(face + 27, mask=seen, other=0.0) * depth * slant * tl.load(row + 12)
    material = materials + tl.load(face + 28, mask=seen, other=0.0).to(tl.int32) * 8
    r, g, b = _albedo(face, material, seen, w1, w2, density, texels, bases, log_sizes)
    gloss = tl.load(material + 3, mask=seen, other=0.0)
    shininess = tl.load(material + 4, mask=seen, other=1.0)
    mirror = tl.load(material + 5, mask=seen, other=0.0)
    dr, dg, db, hr, hg, hb = _lighting(
        lights, shadows, ambient, light_count, shadow_size, shininess, seen,
        px, py, pz, sx, sy, sz, tx, ty, tz,
    )  # fmt: skip
    # what is mirrored, or seen where there is no triangle
    twice = 2 * _dot(sx, sy, sz, tx, ty, tz)
    ex, ey, ez = twice * sx - tx, twice * sy - ty, twice * sz - tz
    ex, ey, ez = tl.where(seen, ex, -tx), tl.where(seen, ey, -ty), tl.where(seen, ez, -tz)
    wanted = mask & ((mirror > 0) | (key == _EMPTY))
    er, eg, eb = _around(texels, bases, log_sizes, around, ex, ey, ez, tl.where(seen, 4.0, 1.0), wanted)
    red = tl.where(seen, r * dr * (1 - mirror) + mirror * er + gloss * hr, er)
    green = tl.where(seen, g * dg * (1 - mirror) + mirror * eg + gloss * hg, eg)
    blue = tl.where(seen, b * db * (1 - mirror) + mirror * eb + gloss * hb, eb)
    return red, green, blue


@triton.jit(do_not_specialize=_SIZES)
def _shade(
    keys,  # [V, H * s, W * s] int64
    image,  # [V, 3, H, W]
    table,  # [V, 17]: axes, centre, ray terms
    face_table,  # [F, 32]
    materials,  # [M, 8]
    texels,
    bases,
    log_sizes,
    lights,  # [L, 23]: light, pose, focal, centre
    shadows,  # [L, S, S]
    ambient,  # [2, 3]
    pixels,
    height,
    width,
    last_texture,
    light_count,
    shadow_size,
    first,
    SAMPLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < pixels
    view = tl.where(mask, pixel // (height * width), 0)
    rest = pixel - view * (height * width)
    column, line = rest % width, rest // width
    row = table + view * 17
    ox, oy, oz = tl.load(row + 9), tl.load(row + 10), tl.load(row + 11)
    red = tl.zeros([BLOCK], tl.float32)
    green = tl.zeros([BLOCK], tl.float32)
    blue = tl.zeros([BLOCK], tl.float32)
    around = tl.zeros([BLOCK], tl.int32) + last_texture
    for number in range(SAMPLES * SAMPLES):
        x, y = column * SAMPLES + number % SAMPLES, line * SAMPLES + number // SAMPLES
        rx, ry, rz = _ray(row, x, y, first)
        place = (view * (height * SAMPLES) + y).to(tl.int64) * (width * SAMPLES) + x
        key = tl.load(keys + place, mask=mask, other=_EMPTY)
        r, g, b = _colour(
            key, mask, row, rx, ry, rz, ox, oy, oz, face_table, materials, texels, bases, log_sizes,
            lights, shadows, ambient, around, light_count, shadow_size,
        )  # fmt: skip
        red, green, blue = red + r, green + g, blue + b
    share = 1.0 / (SAMPLES * SAMPLES)
    target = image + (view * 3).to(tl.int64) * (height * width) + rest
    tl.store(target, red * share, mask=mask)
    tl.store(target + height * width, green * share, mask=mask)
    tl.store(target + 2 * height * width, blue * share, mask=mask)
