"""Bundle adjustment with a prior on every camera, around its given rotation and centre.

Without priors, and where photos share few points, as those of a headset do, an adjustment moves cameras by a
tenth of a metre to explain these, and depth gets worse. pycolmap has priors for centres only. The priors also
hold the frame and the scale of the scene.

Levenberg-Marquardt with a Cauchy loss. Points are eliminated (Schur complement); the poses that remain are
found by preconditioned conjugate gradients. Letters of shapes: V views, P points, T observations, N pairs of
observations of one point, B pairs of views that share a point. A pose has 6 parameters: a rotation vector
and a shift of the camera's centre.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gbinet.scenes.refine.guided import Array, CameraArrays, poses_of
from gbinet.scenes.refine.tracks import Tracks, reprojected

_MAX_STEPS = 20
_MIN_GAIN = 1e-5  # of the cost in a step, relative: less ends the search
_MAX_DAMPING = 1e6  # ends the search too
_MAX_GRADIENT_STEPS = 500  # of conjugate gradients in a step
_GRADIENT_TOLERANCE = 1e-4  # relative residual of the conjugate gradients: steps need not be exact
_LOSS = 4.0  # squared deviations (in sigmas) from which on an observation counts less and less (Cauchy)
_PAIRS_AT_ONCE = 1 << 17  # pairs of observations


@dataclass(frozen=True)
class Sigmas:
    """Standard deviations of the observations and of the given cameras."""

    pixel: float  # px of an observation
    rotation: float  # radians of a given rotation
    centre: float  # of a given centre, scene units


@dataclass(frozen=True)
class _State:
    rotation: Array  # [V, 3, 3]
    centre: Array  # [V, 3]
    points: Array  # [P, 3]


def adjust(
    given: CameraArrays, start: CameraArrays, tracks: Tracks, points: Array, sigmas: Sigmas
) -> tuple[CameraArrays, Array]:
    """Cameras and points [P, 3] that explain the tracks best and are near the given cameras.

    The search begins at `start`. Cameras that see nothing stay as they are given.
    """
    problem = _Problem(given, tracks, sigmas)
    state = _State(start.cam_from_world[:, :3, :3], start.centres, points)
    cost, damping = problem.cost(state), 1e-4
    for _ in range(_MAX_STEPS):
        gain, equations = 0.0, _NormalEquations(problem, state)
        while damping < _MAX_DAMPING:
            candidate = equations.solve(damping)
            new_cost = problem.cost(candidate)
            if new_cost < cost:
                gain, state, cost = (cost - new_cost) / cost, candidate, new_cost
                damping /= 10
                break
            damping *= 10
        if gain < _MIN_GAIN:
            break
    return problem.cameras(state), state.points


class _Problem:
    """The cost of a state: reprojection errors under a Cauchy loss, and deviations from the given cameras."""

    def __init__(self, given: CameraArrays, tracks: Tracks, sigmas: Sigmas) -> None:
        self.given, self.tracks, self.sigmas = given, tracks, sigmas
        self.prior_weights = np.repeat([1 / sigmas.rotation**2, 1 / sigmas.centre**2], 3)  # [6]
        self.starts = np.searchsorted(tracks.point, np.arange(tracks.count))  # [P] first observation of each
        # All pairs (first, second) of observations of one point, sorted by their pair of views.
        lengths = np.diff(np.append(self.starts, len(tracks.point)))[tracks.point]  # [T]
        first = np.repeat(np.arange(len(tracks.point)), lengths)  # [N]
        number = np.arange(len(first)) - np.repeat(lengths.cumsum() - lengths, lengths)
        second = self.starts[tracks.point[first]] + number
        keys = tracks.view[first] * len(given.K) + tracks.view[second]
        order = keys.argsort(kind="stable")
        self.first, self.second = first[order], second[order]
        # [B] view * V + other view; [N] index of each pair of observations into them.
        self.view_pairs, self.view_pair_of = np.unique(keys[order], return_inverse=True)

    def cameras(self, state: _State) -> CameraArrays:
        poses = poses_of(state.rotation, state.centre)
        unseen = np.bincount(self.tracks.view, minlength=len(poses)) == 0
        poses[unseen] = self.given.cam_from_world[unseen]
        return replace(self.given, cam_from_world=poses)

    def deviations(self, state: _State) -> Array:
        """[V, 6] pose parameters that lead from the given cameras to those of a state."""
        turn = np.einsum("vij,vkj->vik", state.rotation, self.given.cam_from_world[:, :3, :3])
        return np.concatenate([rotation_vectors(turn), state.centre - self.given.centres], 1)

    def cost(self, state: _State) -> float:
        errors, depth = reprojected(self.tracks, self.cameras(state), state.points)
        if (depth <= 0).any():
            return np.inf
        losses = _LOSS * np.log1p((errors / self.sigmas.pixel) ** 2 / _LOSS)
        return float(losses.sum() + (self.deviations(state) ** 2 * self.prior_weights).sum())


class _NormalEquations:
    """The problem linearised around a state: blocks of J^T W J, and right-hand sides -J^T W r."""

    def __init__(self, problem: _Problem, state: _State) -> None:
        self.problem, self.state = problem, state
        tracks, sigma, views = problem.tracks, problem.sigmas.pixel, len(state.centre)
        view, point = tracks.view, tracks.point
        in_camera = np.einsum("tij,tj->ti", state.rotation[view], state.points[point] - state.centre[view])
        K = problem.given.K[view, :2]  # [T, 2, 3]
        x, y, z = in_camera.T
        residual = np.einsum("tij,tj->ti", K, in_camera / z[:, None]) - tracks.pixels  # [T, 2]
        weight = 1 / (1 + (residual**2).sum(1) / sigma**2 / _LOSS) / sigma**2  # [T]
        projection = np.zeros((len(z), 3, 3))  # derivative of (x / z, y / z, 1) by (x, y, z)
        projection[:, 0, 0] = projection[:, 1, 1] = 1 / z
        projection[:, 0, 2], projection[:, 1, 2] = -x / z**2, -y / z**2
        by_camera_point = K @ projection  # [T, 2, 3]
        by_point = by_camera_point @ state.rotation[view]  # [T, 2, 3]
        by_pose = np.concatenate([by_camera_point @ _crosses(-in_camera), -by_point], 2)  # [T, 2, 6]
        weighted = by_pose * weight[:, None, None]
        self.pose_point = weighted.transpose(0, 2, 1) @ by_point  # [T, 6, 3]
        self.pose_pose = _sums(view, weighted.transpose(0, 2, 1) @ by_pose, views)  # [V, 6, 6]
        self.pose_pose[:, range(6), range(6)] += problem.prior_weights
        prior = problem.deviations(state) * problem.prior_weights
        self.pose_right = -_sums(view, np.einsum("tij,ti->tj", weighted, residual), views) - prior  # [V, 6]
        weighted = by_point * weight[:, None, None]
        starts = problem.starts
        self.point_point = np.add.reduceat(weighted.transpose(0, 2, 1) @ by_point, starts)  # [P, 3, 3]
        self.point_right = -np.add.reduceat(np.einsum("tij,ti->tj", weighted, residual), starts)  # [P, 3]

    def solve(self, damping: float) -> _State:
        """The state after a damped step."""
        problem, state = self.problem, self.state
        view, point, views = problem.tracks.view, problem.tracks.point, len(self.pose_right)
        inverse = np.linalg.inv(_damped(self.point_point, damping))  # [P, 3, 3]
        lifted = self.pose_point @ inverse[point]  # [T, 6, 3]
        damped = _damped(self.pose_pose, damping)
        # The Schur complement: a block for each pair of views. Views without observations have none.
        schur = -self._products_by_view_pair(lifted)  # [B, 6, 6]
        own = np.arange(views) * (views + 1)  # key of the pair of a view and itself
        diagonal = np.searchsorted(problem.view_pairs, own).clip(0, len(schur) - 1)
        seen = problem.view_pairs[diagonal] == own  # [V]
        schur[diagonal[seen]] += damped[seen]
        right = self.pose_right - _sums(view, np.einsum("tij,tj->ti", lifted, self.point_right[point]), views)
        right[~seen] = 0
        blocks = np.where(seen[:, None, None], schur[diagonal], damped)
        poses = self._conjugate_gradients(schur, blocks, right)
        point_right = self.point_right - np.add.reduceat(
            np.einsum("tij,ti->tj", self.pose_point, poses[view]), problem.starts
        )
        return _State(
            rotations(poses[:, :3]) @ state.rotation,
            state.centre + poses[:, 3:],
            state.points + np.einsum("pij,pj->pi", inverse, point_right),
        )

    def _products_by_view_pair(self, lifted: Array) -> Array:
        """[B, 6, 6] sums over the points that two views share, for all pairs of views that share any."""
        problem = self.problem
        sums = np.zeros((len(problem.view_pairs), 6, 6))
        for start in range(0, len(problem.first), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            products = lifted[problem.first[part]] @ self.pose_point[problem.second[part]].transpose(0, 2, 1)
            view_pairs, begins = np.unique(problem.view_pair_of[part], return_index=True)
            sums[view_pairs] += np.add.reduceat(products, begins)
        return sums

    def _conjugate_gradients(self, schur: Array, diagonal: Array, right: Array) -> Array:
        """[V, 6] solution of the reduced equations; their diagonal blocks [V, 6, 6] precondition them."""
        rows, columns = np.divmod(self.problem.view_pairs, len(right))
        filled_rows = np.unique(rows)
        begins = np.searchsorted(rows, filled_rows)

        def product(x: Array) -> Array:
            total = np.zeros_like(x)
            total[filled_rows] = np.add.reduceat(np.einsum("bij,bj->bi", schur, x[columns]), begins)
            return total

        preconditioner = np.linalg.inv(diagonal)
        x, residual = np.zeros_like(right), right
        direction = preconditioned = np.einsum("vij,vj->vi", preconditioner, residual)
        norm = first_norm = float((residual * preconditioned).sum())
        for _ in range(_MAX_GRADIENT_STEPS):
            if norm <= _GRADIENT_TOLERANCE**2 * first_norm:
                break
            image = product(direction)
            step = norm / float((direction * image).sum())
            x, residual = x + step * direction, residual - step * image
            preconditioned = np.einsum("vij,vj->vi", preconditioner, residual)
            last_norm, norm = norm, float((residual * preconditioned).sum())
            direction = preconditioned + norm / last_norm * direction
        return x


def _damped(blocks: Array, damping: float) -> Array:
    """[N, M, M] with a larger diagonal."""
    diagonal = np.einsum("nii->ni", blocks)
    least = 1e-12 * diagonal.sum(1, keepdims=True)
    damped: Array = blocks + (damping * diagonal + least)[:, :, None] * np.eye(blocks.shape[1])
    return damped


def _sums(index: NDArray[np.int64], values: Array, count: int) -> Array:
    """[count, ...] sums of the values [T, ...] of each index."""
    columns = values.reshape(len(values), -1).T
    flat = [np.bincount(index, column, minlength=count) for column in columns]
    sums: Array = np.stack(flat, 1).astype(np.float64).reshape(count, *values.shape[1:])
    return sums


def _crosses(vectors: Array) -> Array:
    """[N, 3, 3] such that _crosses(a) @ b is the cross product of a and b."""
    x, y, z = vectors.T
    zero = np.zeros_like(x)
    return np.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).reshape(-1, 3, 3)


def rotations(vectors: Array) -> Array:
    """[V, 3, 3] of rotation vectors [V, 3] (Rodrigues)."""
    angle = np.linalg.norm(vectors, axis=1)[:, None, None]
    cross = _crosses(vectors)
    sine = np.sinc(angle / np.pi)
    cosine = 0.5 * np.sinc(angle / (2 * np.pi)) ** 2  # (1 - cos) / angle^2
    matrices: Array = np.eye(3) + sine * cross + cosine * (cross @ cross)
    return matrices


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
    vectors: Array = skew / 2 / np.sinc(angle / np.pi)[:, None]
    return vectors
