"""Cameras of samples: a reference view and its neighbours; and the depth range to search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.render.scenery import Layout, look_at
from gbinet.render.seeding import Generator, log_uniform

# Half the samples of a table look like DTU: a narrow view from 0.5 to 0.9 m.
DTU_FOCAL = 2892 / 1600  # focal length over image width
_FARTHEST = 1.6  # the largest angle to a neighbour, as a multiple of the usual one


@dataclass(frozen=True)
class Rig:
    """Cameras of one sample, on the CPU. The reference view is the first."""

    cameras: Camera  # [V] float64
    distance: float  # from the reference camera to what it looks at
    dtu_like: bool


@dataclass(frozen=True)
class Style:
    """How the cameras of a sample are arranged."""

    angle: float  # between neighbours, radians, seen from the target
    focal: float  # over image width
    parallel: float  # 0: all look at one point, 1: all look the same way
    forward: float  # part of the baseline along the line of sight
    line: bool  # neighbours to both sides on a line, otherwise around
    ahead: float = 0.0  # part of the step straight ahead or back, 0 to 1


@dataclass(frozen=True)
class Habits:
    """Unusual ways to take photos: other than walking around an object with an upright camera."""

    wide: float = 0.0  # angle between reference and sources at the target, degrees at most
    forward: float = 0.0  # sources lie ahead or behind, by up to this share of the distance
    above: float = 0.0  # highest elevation of the reference over the target, degrees
    roll: float = 0.0  # chance of a view to be turned by 90 degrees

    @staticmethod
    def of(amounts: Mapping[str, float]) -> Habits:
        """The habits of a sample with these difficulties."""
        return Habits(**{f.name: amounts.get(f.name, 0.0) for f in fields(Habits)})


USUAL = Habits()


def draw_rig(
    rng: Generator,
    kind: str,
    layout: Layout,
    views: int,
    width: int,
    height: int,
    dtu_like: bool | None = None,
    habits: Habits = USUAL,
) -> Rig:
    """Reference view first, then views - 1 neighbours."""
    if dtu_like is None:
        dtu_like = kind == "table" and rng.random() < 0.5
    elif dtu_like and kind != "table":
        dtu_like = False
    style = _with_habits(rng, _style(rng, kind, dtu_like), habits)
    position, target = _reference(rng, kind, layout, dtu_like, habits.above)
    distance = float(np.linalg.norm(target - position))
    roll = _roll(rng)
    base_K = _intrinsics(rng, style.focal, width, height)
    same_lens = rng.random() < 0.6
    poses, lenses = [look_at(position, target, roll)], [base_K]
    turns = _turns(rng, views - 1, style.line)
    for turn in turns:
        neighbour, aim = _neighbour(rng, layout, style, position, target, turn)
        tilt = roll + rng.normal(0, 0.03) + (np.pi / 2 * rng.integers(-1, 2) if rng.random() < 0.02 else 0)
        poses.append(look_at(neighbour, aim, tilt))
        zoom = 1.0 if same_lens else float(np.exp(rng.normal(0, 0.08)))
        lens = base_K.copy()
        lens[:2, :2] *= zoom
        lenses.append(lens)
    poses = _rolled(rng, poses, habits.roll)
    K, pose = torch.from_numpy(np.stack(lenses)), torch.from_numpy(np.stack(poses))
    return Rig(Camera(K, pose, width, height), distance, dtu_like)


def in_unit(cameras: Camera, scale: float) -> Camera:
    """Cameras whose unit of length is 1 / scale of the present one."""
    pose = cameras.cam_from_world.clone()
    pose[..., :3, 3] *= scale
    return replace(cameras, cam_from_world=pose)


def draw_windows(rng: Generator, rig: Rig, largest: float, least: float = 1.0, sizes: float = 1.0) -> Rig:
    """The rig's cameras as windows of images that are `least` to `largest` times as wide and high.

    Networks are trained on small images and used on large ones, where surfaces are smoother and disparities
    larger, both in pixels. The sources' windows show what the reference's shows, assuming a plane at the
    distance of the target.

    sizes: the sources' images are up to so many times as large or small. In use, photos may have sizes of
    their own; a batch holds one size, so that a source's window shows less or more instead.
    """
    factor = log_uniform(rng, least, largest)
    cameras = rig.cameras
    size = torch.tensor([cameras.width, cameras.height], dtype=torch.float64)
    # centre of the reference's window in its large image, and that point of the plane in all of them
    margin = (factor - 1) / (2 * factor)
    share = torch.from_numpy(0.5 + rng.uniform(-margin, margin, 2))
    wander = torch.from_numpy(rng.normal(0, 0.04, (len(cameras.K), 2))) * size
    wander[0] = 0  # the reference's window is where it was drawn
    K = cameras.K.clone()  # [V, 3, 3]
    K[:, :2] *= factor
    if sizes > 1:
        others = sizes ** rng.uniform(-1, 1, len(K) - 1)
        K[1:, :2] *= torch.from_numpy(others)[:, None, None]
    pixel = torch.cat([share * size * factor, torch.ones(1, dtype=torch.float64)])
    rotation, shift = cameras.cam_from_world[:, :3, :3], cameras.cam_from_world[:, :3, 3]
    point = rotation[0].T @ (torch.linalg.inv(K[0]) @ pixel * rig.distance - shift[0])
    seen = (K @ (rotation @ point + shift)[..., None])[..., 0]  # [V, 3]
    middle = seen[:, :2] / seen[:, 2:].clamp_min(1e-3 * rig.distance)
    K[:, :2, 2] -= middle + wander - size / 2
    return Rig(Camera(K, cameras.cam_from_world, cameras.width, cameras.height), rig.distance, rig.dtu_like)


def draw_path(
    rng: Generator, kind: str, layout: Layout, views: int, width: int, height: int, habits: Habits = USUAL
) -> Camera:
    """Cameras [V] of one walk around the content, float64: each is a neighbour of the one before."""
    dtu_like = kind == "table" and rng.random() < 0.5
    style = _with_habits(rng, _style(rng, kind, dtu_like), habits)
    position, target = _reference(rng, kind, layout, dtu_like, habits.above)
    K = torch.from_numpy(_intrinsics(rng, style.focal, width, height))
    poses = [look_at(position, target, rng.normal(0, 0.03))]
    heading = rng.choice([0.0, np.pi])  # to the right or to the left
    while len(poses) < views:
        turn = heading + rng.normal(0, 0.3)
        position, aim = _neighbour(rng, layout, style, position, target, turn)
        target = aim if style.parallel >= 0.3 else target
        poses.append(look_at(position, aim, rng.normal(0, 0.03)))
    poses = _rolled(rng, poses, habits.roll)
    pose = torch.from_numpy(np.stack(poses))
    return Camera(K.expand(views, 3, 3).clone(), pose, width, height)


def _style(rng: Generator, kind: str, dtu_like: bool) -> Style:
    if dtu_like:
        return Style(
            np.radians(rng.uniform(5, 15)),
            DTU_FOCAL * rng.uniform(0.9, 1.35),
            rng.uniform(0, 0.2),
            0.05,
            False,
        )
    angle = np.radians(log_uniform(rng, 2.5, 18))
    focal = {"table": log_uniform(rng, 0.8, 2.4), "room": log_uniform(rng, 0.55, 1.2)}.get(
        kind, log_uniform(rng, 0.65, 1.8)
    )
    # parallel views drift apart: the shift in the image stays below a fifth of its width
    parallel = min(rng.uniform(0, 1), 0.2 / max(focal * 1.6 * angle, 1e-6))
    forward = rng.uniform(0, 0.8) if kind == "room" else rng.uniform(0, 0.3)
    return Style(angle, focal, parallel, forward, bool(rng.random() < 0.5))


def _with_habits(rng: Generator, style: Style, habits: Habits) -> Style:
    """The style with sources ahead of or behind the reference, or far aside, if that is a habit."""
    if habits.forward:
        step = rng.uniform(0.3, 1.0) * habits.forward  # of the distance
        return replace(style, angle=step / _FARTHEST, parallel=1.0, forward=0.0, ahead=rng.uniform(0.9, 1.0))
    if habits.wide:
        # neighbours step aside, then turn back to the orbit: by the angle whose tangent is the step
        step = np.tan(np.radians(rng.uniform(0.6, 1.0) * min(habits.wide, 60.0)))
        angle = 2 * np.arcsin(step / 2) / _FARTHEST
        return replace(style, angle=angle, parallel=0.0, forward=0.0)
    return style


def _rolled(rng: Generator, poses: list[np.ndarray], share: float) -> list[np.ndarray]:
    """Poses of which a share is turned by 90 degrees about the line of sight, all to one side."""
    if not share:
        return poses
    side = rng.choice([-1.0, 1.0])
    turn = np.eye(4)
    turn[:2, :2] = [[0, -side], [side, 0]]
    return [turn @ pose if rng.random() < share else pose for pose in poses]


def _reference(
    rng: Generator, kind: str, layout: Layout, dtu_like: bool, above: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the reference camera and of its target; the last of 60 tries, if none is free."""
    position = target = layout.focus
    for _ in range(60):
        if above:
            position, target = _from_above(rng, kind, layout, above)
        elif kind == "room":
            position = rng.uniform(layout.low, layout.high)
            position[2] = np.clip(rng.normal(1.4, 0.3), layout.low[2], layout.high[2])
            target = rng.uniform(layout.low, layout.high) * [1, 1, 0.7]
            if not np.linalg.norm(target - position) > 0.35 * np.linalg.norm(layout.high - layout.low):
                continue
        else:
            target = layout.focus + rng.normal(0, 0.35, 3) * layout.radius * [1, 1, 0.3]
            position = target + _camera_offset(rng, kind, layout, dtu_like)
        if _is_free(position, layout):
            break
    return position, target


def _from_above(rng: Generator, kind: str, layout: Layout, highest: float) -> tuple[np.ndarray, np.ndarray]:
    """A camera that looks down, and its target."""
    up = np.radians(rng.uniform(0.75, 1.0) * highest)
    if kind == "room":  # from below the ceiling to the floor
        position = rng.uniform(layout.low, layout.high)
        position[2] = layout.high[2] - rng.uniform(0, 0.4)
        reach = position[2] / max(np.tan(up), 1e-6)
        around = rng.uniform(0, 2 * np.pi)
        return position, np.array([np.cos(around), np.sin(around), 0.0]) * reach + position * [1, 1, 0]
    target = layout.focus + rng.normal(0, 0.35, 3) * layout.radius * [1, 1, 0.3]
    distance = float(np.linalg.norm(_camera_offset(rng, kind, layout, False)))
    around = rng.uniform(0, 2 * np.pi)
    if kind == "facade":  # from the air, before the house
        up, around = 0.6 * up, np.radians(-90 + rng.normal(0, 25))
        target = target * [1, 0, 0] + [0, -2, 0]
        distance = min(distance, 12.0)
    direction = np.array([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)])
    return target + direction * distance, target


def _camera_offset(rng: Generator, kind: str, layout: Layout, dtu_like: bool) -> np.ndarray:
    """From the target to the camera."""
    around = rng.uniform(0, 2 * np.pi)
    if kind == "table":
        distance = rng.uniform(0.52, 0.85) if dtu_like else log_uniform(rng, 0.3, 1.6)
        up = np.radians(rng.uniform(15, 75))
    elif kind == "facade":
        distance = log_uniform(rng, 4, 18)
        around = np.radians(-90 + rng.normal(0, 25))
        up = np.radians(rng.normal(-4, 10))
    else:
        distance = layout.radius * log_uniform(rng, 0.4, 2.0)
        up = np.radians(rng.uniform(20, 88))
    direction = np.array([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)])
    away: np.ndarray = direction * distance
    return away


def _neighbour(
    rng: Generator, layout: Layout, style: Style, position: np.ndarray, target: np.ndarray, turn: float
) -> tuple[np.ndarray, np.ndarray]:
    """Position of a neighbour of a camera, and the point that it looks at. turn: direction of the step."""
    sight = target - position
    distance = float(np.linalg.norm(sight))
    sight = sight / distance
    side = np.cross(sight, [0, 0, 1.0])
    side = side / max(float(np.linalg.norm(side)), 1e-9)
    lift = np.cross(side, sight)
    neighbour, aim = position, target
    for _ in range(12):
        baseline = 2 * np.sin(style.angle * rng.uniform(0.6, _FARTHEST) / 2) * distance
        step = (np.cos(turn) * side + np.sin(turn) * lift) * baseline
        if style.ahead:
            step = step * np.sqrt(1 - style.ahead**2) + sight * (rng.choice([-1, 1]) * style.ahead * baseline)
        step = step + sight * (rng.normal(0, 0.5) * style.forward * baseline)
        neighbour = position + step
        if style.parallel < 0.3:  # keep the distance to the target: an orbit
            away = neighbour - target
            neighbour = target + away * (distance / np.linalg.norm(away)) * rng.normal(1, 0.03)
        aim = target + step * style.parallel + rng.normal(0, 0.03, 3) * distance
        if _is_free(neighbour, layout):
            break
        turn += rng.uniform(0.5, 2)
    return neighbour, aim


def _turns(rng: Generator, count: int, line: bool) -> np.ndarray:
    """Directions of the neighbours around the line of sight."""
    if line:
        axis = rng.normal(0, 0.25)
        sides = np.where(np.arange(count) % 2 == 0, 0.0, np.pi) if rng.random() < 0.7 else np.zeros(count)
        turns = axis + sides + rng.normal(0, 0.1, count)
    else:
        turns = (
            rng.uniform(0, 2 * np.pi)
            + np.arange(count) * (2 * np.pi / max(count, 1))
            + rng.normal(0, 0.4, count)
        )
    return np.asarray(turns)


def _is_free(position: np.ndarray, layout: Layout) -> bool:
    if (position < layout.low).any() or (position > layout.high).any():
        return False
    if len(layout.obstacles) == 0:
        return True
    gaps = np.linalg.norm(layout.obstacles[:, :3] - position, axis=1) - layout.obstacles[:, 3]
    return bool(gaps.min() > layout.clearance)


def _roll(rng: Generator) -> float:
    if rng.random() < 0.08:
        return float(
            rng.choice([np.pi / 2, -np.pi / 2, np.pi]) if rng.random() < 0.5 else rng.uniform(-np.pi, np.pi)
        )
    return float(rng.normal(0, 0.06))


def _intrinsics(rng: Generator, focal: float, width: int, height: int) -> np.ndarray:
    fx = focal * width
    fy = fx * float(np.exp(rng.normal(0, 0.01)))
    spread = 0.12 if rng.random() < 0.15 else 0.02  # some images are crops
    cx, cy = (0.5 + rng.normal(0, spread, 2).clip(-0.25, 0.25)) * [width, height]
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])


def depth_range(rng: Generator, depth: Tensor, rig: Rig) -> Tensor:
    """A range [near, far] to search, [2] float32 on the device of the true depth [H, W].

    Wide or tight, with a random phase, so that the true depth stands in no fixed relation to the range.
    """
    tight = rng.random() < 0.25
    shares = (0.05, 0.5, rng.uniform(0.8, 0.95)) if tight else (0.005, 0.5, rng.uniform(0.95, 0.998))
    nearest, middle, farthest = _quantiles(depth, shares, rig)
    span = (farthest - nearest).clamp_min(0.02 * rig.distance)
    before, beyond = rng.exponential(0.3, 2).clip(0, 1.5)
    near = torch.maximum(nearest - span * (0.03 + before), nearest * rng.uniform(0.3, 0.9))
    far = farthest + span * (0.03 + beyond)
    # not more than some ratio, as a user would choose, but never without the middle of the content
    ratio = log_uniform(rng, 4, 16)
    near = torch.maximum(near, torch.minimum(far / ratio, middle * rng.uniform(0.5, 0.8)))
    far = torch.minimum(far, torch.maximum(near * ratio, middle * 1.3))
    around = torch.stack([near, torch.maximum(far, near * 1.05)])
    if not rig.dtu_like or rng.random() < 0.3:
        return around
    # a fixed range, as data sets have it, unless it would miss most of what is seen
    low, high = 0.425, 0.935
    if rng.random() < 0.5:
        low = rng.uniform(0.25, 0.5) * rig.distance / 0.65
        high = low + rng.uniform(0.4, 0.9) * rig.distance / 0.65
    inside = ((depth > low) & (depth < high)).float().mean()
    return torch.where(inside > 0.4, around.new_tensor([low, high]), around)


def widened(rng: Generator, limits: Tensor, largest: float) -> Tensor:
    """The range [2] extended at both ends, so that far / near is up to `largest`."""
    near, far = limits.log().unbind()
    ratio = float(np.log(log_uniform(rng, min(8.0, largest), largest)))
    more = (ratio - (far - near)).clamp_min(0)
    before = rng.uniform(0.2, 0.8)
    return torch.stack([near - before * more, far + (1 - before) * more]).exp()


def _quantiles(depth: Tensor, shares: tuple[float, ...], rig: Rig) -> Tensor:
    """Quantiles of the depth where there is one, without waiting for the device."""
    values = depth[::4, ::4].reshape(-1)
    count = (values > 0).sum()
    ordered = torch.where(values > 0, values, torch.inf).sort().values
    last = (count - 1).clamp_min(0)
    quantiles = ordered[torch.stack([(last * share).long() for share in shares])]
    fallback = torch.linspace(0.5 * rig.distance, 1.5 * rig.distance, len(shares), device=depth.device)
    return torch.where(count > 0, quantiles, fallback)


def content_range(depth: Tensor) -> tuple[float, float]:
    """A range that contains nearly all of the depth [H, W], with a margin."""
    known = depth[depth > 0]
    if known.numel() == 0:
        return 1.0, 2.0
    ordered = known.sort().values
    low = float(ordered[int(0.005 * (len(ordered) - 1))])
    high = float(ordered[int(0.995 * (len(ordered) - 1))])
    margin = 0.05 * (high - low) + 0.02 * low
    return max(low - margin, 0.5 * low), high + margin
