"""Bundle adjustment that stays near given cameras.

Without priors, and where photos share few points, as those of a headset do, an adjustment moves cameras by a
tenth of a metre to explain these, and depth gets worse. pycolmap's has priors for centres only. Here every
camera has one around its given rotation and centre, which also holds frame and scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gbinet.scenes.refine.guided import Array, CameraArrays, poses_of
from gbinet.scenes.refine.tracks import Tracks, reprojected

_STEPS = 20
_ENOUGH = 1e-5  # relative gain of a step that ends the search
_HARDEST = 1e6  # damping that ends it too
_GRADIENTS = 500  # conjugate ones a step, at most
_EXACT = 1e-4  # relative residual of these: steps need not be exact
_LOSS = 4.0  # squared deviations from where on an observation counts less and less (Cauchy)
_AT_ONCE = 1 << 17  # pairs of observations


@dataclass(frozen=True)
class Trust:
    """Standard deviations: how far what is given, and what is seen, may be off."""

    pixel: float  # px of an observation
    turn: float  # radians of a given rotation
    shift: float  # of a given centre, scene units


@dataclass(frozen=True)
class _State:
    rotation: Array  # [V, 3, 3]
    centre: Array  # [V, 3]
    points: Array  # [P, 3]


def adjusted(
    given: CameraArrays, start: CameraArrays, tracks: Tracks, points: Array, trust: Trust
) -> tuple[CameraArrays, Array]:
    """Cameras and points [P, 3] that explain the tracks best and are near the given cameras.

    The search begins at `start`. Cameras that see nothing stay as they are given.
    """
    problem = _Problem(given, tracks, trust)
    state = _State(start.cam_from_world[:, :3, :3], start.centres, points)
    cost, damping = problem.cost(state), 1e-4
    for _ in range(_STEPS):
        gain, step = 0.0, _Quadratic(problem, state)
        while damping < _HARDEST:
            tried = step.taken(damping)
            new = problem.cost(tried)
            if new < cost:
                gain, state, cost, damping = (cost - new) / cost, tried, new, damping / 10
                break
            damping *= 10
        if gain < _ENOUGH:
            break
    return problem.cameras(state), state.points


class _Problem:
    """Sum of squares: pixels off, damped where they are many, and poses off the given ones."""

    def __init__(self, given: CameraArrays, tracks: Tracks, trust: Trust) -> None:
        self.given, self.tracks, self.trust = given, tracks, trust
        self.weights = np.repeat([1 / trust.turn**2, 1 / trust.shift**2], 3)  # [6] of a pose
        self.starts = np.searchsorted(tracks.point, np.arange(tracks.count))
        lengths = np.diff(np.append(self.starts, len(tracks.point)))[tracks.point]  # [T]
        first = np.repeat(np.arange(len(tracks.point)), lengths)  # [N] of each pair that sees one point
        inside = np.arange(len(first)) - np.repeat(lengths.cumsum() - lengths, lengths)
        second = self.starts[tracks.point[first]] + inside
        keys = tracks.view[first] * len(given.K) + tracks.view[second]
        order = keys.argsort(kind="stable")
        self.first, self.second = first[order], second[order]
        self.keys, self.block = np.unique(keys[order], return_inverse=True)

    def cameras(self, state: _State) -> CameraArrays:
        poses = poses_of(state.rotation, state.centre)
        unseen = np.bincount(self.tracks.view, minlength=len(poses)) == 0
        poses[unseen] = self.given.cam_from_world[unseen]
        return replace(self.given, cam_from_world=poses)

    def from_given(self, state: _State) -> Array:
        """[V, 6] rotation vector and shift of the centre since the given cameras."""
        turn = np.einsum("vij,vkj->vik", state.rotation, self.given.cam_from_world[:, :3, :3])
        return np.concatenate([rotation_vectors(turn), state.centre - self.given.centres], 1)

    def cost(self, state: _State) -> float:
        off, depth = reprojected(self.tracks, self.cameras(state), state.points)
        if (depth <= 0).any():
            return np.inf
        seen = _LOSS * np.log1p((off / self.trust.pixel) ** 2 / _LOSS)
        return float(seen.sum() + (self.from_given(state) ** 2 * self.weights).sum())


class _Quadratic:
    """The problem around one state: a quadratic, whose minimum is the next state."""

    def __init__(self, problem: _Problem, state: _State) -> None:
        self.problem, self.state = problem, state
        view, point = problem.tracks.view, problem.tracks.point
        local = np.einsum("tij,tj->ti", state.rotation[view], state.points[point] - state.centre[view])
        K = problem.given.K[view, :2]
        x, y, z = local.T
        seen = np.einsum("tij,tj->ti", K, local / z[:, None])
        off = seen - problem.tracks.pixels  # [T, 2]
        weight = 1 / (1 + (off**2).sum(1) / problem.trust.pixel**2 / _LOSS) / problem.trust.pixel**2  # [T]
        flat = np.zeros((len(z), 3, 3))  # of (x / z, y / z, 1) by the point in the camera's frame
        flat[:, 0, 0] = flat[:, 1, 1] = 1 / z
        flat[:, 0, 2], flat[:, 1, 2] = -x / z**2, -y / z**2
        by_local = K @ flat  # [T, 2, 3]
        by_point = by_local @ state.rotation[view]
        by_pose = np.concatenate([by_local @ _crosses(-local), -by_point], 2)  # [T, 2, 6]
        weighted = by_pose * weight[:, None, None]
        self.mixed = weighted.transpose(0, 2, 1) @ by_point  # [T, 6, 3]
        own = weighted.transpose(0, 2, 1) @ by_pose  # [T, 6, 6]
        self.poses = _sums(view, own, len(state.centre))  # [V, 6, 6]
        self.poses[:, range(6), range(6)] += problem.weights
        prior = problem.from_given(state) * problem.weights
        self.right = -_sums(view, np.einsum("tij,ti->tj", weighted, off), len(state.centre)) - prior  # [V, 6]
        by_weighted = by_point * weight[:, None, None]
        self.points = np.add.reduceat(by_weighted.transpose(0, 2, 1) @ by_point, problem.starts)  # [P, 3, 3]
        self.right_points = -np.add.reduceat(np.einsum("tij,ti->tj", by_weighted, off), problem.starts)

    def taken(self, damping: float) -> _State:
        """The state after the step. Points are eliminated, so that only poses are searched."""
        view, point = self.problem.tracks.view, self.problem.tracks.point
        inverse = np.linalg.inv(_damped(self.points, damping))  # [P, 3, 3]
        lifted = self.mixed @ inverse[point]  # [T, 6, 3]
        blocks = -self._by_pairs(lifted)
        views = len(self.right)
        diagonal = np.searchsorted(self.problem.keys, np.arange(views) * (views + 1)).clip(0, len(blocks) - 1)
        seen = self.problem.keys[diagonal] == np.arange(views) * (views + 1)
        damped = _damped(self.poses, damping)
        blocks[diagonal[seen]] += damped[seen]
        right = self.right - _sums(view, np.einsum("tij,tj->ti", lifted, self.right_points[point]), views)
        right[~seen] = 0
        poses = self._solved(blocks, np.where(seen[:, None, None], blocks[diagonal], damped), right)
        left = self.right_points - np.add.reduceat(
            np.einsum("tij,ti->tj", self.mixed, poses[view]), self.problem.starts
        )
        state = self.state
        turned = rotations(poses[:, :3]) @ state.rotation
        return _State(
            turned, state.centre + poses[:, 3:], state.points + np.einsum("pij,pj->pi", inverse, left)
        )

    def _by_pairs(self, lifted: Array) -> Array:
        """[B, 6, 6] sums over the points that two views share, for all pairs of views that share any."""
        problem = self.problem
        sums = np.zeros((len(problem.keys), 6, 6))
        for start in range(0, len(problem.first), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            products = lifted[problem.first[part]] @ self.mixed[problem.second[part]].transpose(0, 2, 1)
            blocks, begins = np.unique(problem.block[part], return_index=True)
            sums[blocks] += np.add.reduceat(products, begins)
        return sums

    def _solved(self, blocks: Array, diagonal: Array, right: Array) -> Array:
        """[V, 6] by conjugate gradients."""
        rows, columns = np.divmod(self.problem.keys, len(right))
        begins = np.searchsorted(rows, np.unique(rows))
        with_any = np.unique(rows)

        def product(x: Array) -> Array:
            total = np.zeros_like(x)
            total[with_any] = np.add.reduceat(np.einsum("bij,bj->bi", blocks, x[columns]), begins)
            return total

        ready = np.linalg.inv(diagonal)
        x, left = np.zeros_like(right), right
        way = scaled = np.einsum("vij,vj->vi", ready, left)
        now = first = float((left * scaled).sum())
        for _ in range(_GRADIENTS):
            if now <= _EXACT**2 * first:
                break
            along = product(way)
            share = now / float((way * along).sum())
            x, left = x + share * way, left - share * along
            scaled = np.einsum("vij,vj->vi", ready, left)
            before, now = now, float((left * scaled).sum())
            way = scaled + now / before * way
        return x


def _damped(blocks: Array, damping: float) -> Array:
    """[N, M, M] with a larger diagonal."""
    own = np.einsum("nii->ni", blocks)
    least = 1e-12 * own.sum(1, keepdims=True)
    found: Array = blocks + (damping * own + least)[:, :, None] * np.eye(blocks.shape[1])
    return found


def _sums(index: NDArray[np.int64], values: Array, count: int) -> Array:
    """[count, ...] sums of the values [T, ...] of each index."""
    flat = [np.bincount(index, one, minlength=count) for one in values.reshape(len(values), -1).T]
    sums: Array = np.stack(flat, 1).astype(np.float64).reshape(count, *values.shape[1:])
    return sums


def _crosses(vectors: Array) -> Array:
    """[N, 3, 3] such that _crosses(a) @ b is the cross product of a and b."""
    x, y, z = vectors.T
    none = np.zeros_like(x)
    return np.stack([none, -z, y, z, none, -x, -y, x, none], 1).reshape(-1, 3, 3)


def rotations(vectors: Array) -> Array:
    """[V, 3, 3] of rotation vectors [V, 3] (Rodrigues)."""
    angle = np.linalg.norm(vectors, axis=1)[:, None, None]
    cross = _crosses(vectors)
    sine = np.sinc(angle / np.pi)
    cosine = 0.5 * np.sinc(angle / (2 * np.pi)) ** 2  # (1 - cos) / angle^2
    found: Array = np.eye(3) + sine * cross + cosine * (cross @ cross)
    return found


def rotation_vectors(rotation: Array) -> Array:
    """[V, 3] of rotations [V, 3, 3], by less than half a turn."""
    skew = np.stack(
        [
            rotation[:, 2, 1] - rotation[:, 1, 2],
            rotation[:, 0, 2] - rotation[:, 2, 0],
            rotation[:, 1, 0] - rotation[:, 0, 1],
        ],
        1,
    )
    sine = np.linalg.norm(skew, axis=1) / 2
    angle = np.arctan2(sine, (np.trace(rotation, axis1=1, axis2=2) - 1) / 2)
    found: Array = skew / 2 / np.sinc(angle / np.pi)[:, None]
    return found
