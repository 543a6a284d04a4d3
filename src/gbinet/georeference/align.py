"""The similarity that brings camera centres to known positions, some of which are wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import GBiNetError, InputError
from gbinet.evaluation.align import align_matches, fit_similarity
from gbinet.georeference.similarity import Points, Similarity

_TRIES = (0.05, 0.15, 0.4)  # largest error in the first fit, as a share of the spread of the positions
_TRIALS = 5000  # of RANSAC, at most
_ROUNDING = 1e-4  # share of the spread by which the best positions may be off too
_MOST_WRONG = 0.4  # share of positions that may be wrong
_OUTLIER = 4.5  # standard deviations along one axis
_MEDIAN = 1.54  # of the distance in space, in such deviations
_COARSE = 0.3  # error over spread beyond which positions say too little about scale and direction
_MAX_TILT = math.radians(5)  # largest uncertainty of a rotation
_LEAST = 4  # positions: three fix a similarity, one more tells whether they are right


class AlignmentError(GBiNetError):
    """Positions that do not say where the model is."""


@dataclass(frozen=True)
class Alignment:
    """What came of a fit."""

    target_from_model: Similarity
    residuals: NDArray[np.float64]  # [N, 3] target minus moved centre
    used: NDArray[np.bool_]  # [N] False: an outlier
    tilt: float  # radians: uncertainty of the least certain rotation

    @property
    def error(self) -> float:
        """Root mean square distance of the positions that were used."""
        return float(np.sqrt((self.residuals[self.used] ** 2).sum(-1).mean()))


def align(centres: Points, targets: Points) -> Alignment:
    """Robustly: RANSAC first, then least squares over all that fit as well as most do.

    Not pycolmap's alignment: it refuses positions that lie exactly in one plane, as flight plans have them.
    """
    if len(centres) < _LEAST:
        raise AlignmentError(
            f"{len(centres)} photos with a position are too few to place the model: 4 are needed"
        )
    origin = np.median(targets, axis=0)  # map coordinates have millions of metres: first to small numbers
    near = targets - origin
    spread = float(np.median(np.linalg.norm(near - np.median(near, axis=0), axis=1)))
    if spread <= 0:
        raise AlignmentError("the positions of the photos are all the same, so they do not place the model")
    first = _first_fit(centres, near, spread)
    if first is None:
        raise AlignmentError("the positions of the photos do not fit the model: most of them would be wrong")
    move, used = _refined(centres, near, first, spread)
    residuals = near - move.applied(centres)
    error = float(np.sqrt((residuals[used] ** 2).sum(-1).mean()))
    if error > _COARSE * spread:
        raise AlignmentError(
            f"the positions of the photos are off by {error:.3g} m and spread over {spread:.3g} m only: "
            "too coarse to place the model"
        )
    tilt = _tilt(near[used], error)
    if tilt > _MAX_TILT:
        raise AlignmentError(
            "the photos were taken along one line, which leaves open how the model is tilted around it: "
            "it is not placed"
        )
    shift = move.shift + origin
    return Alignment(Similarity(move.scale, move.rotation, shift), residuals, used, tilt)


def _first_fit(centres: Points, targets: Points, spread: float) -> Similarity | None:
    for share in _TRIES:
        try:
            matrix = align_matches(centres, targets, max_error=share * spread, sample=3, max_trials=_TRIALS)
        except InputError:
            continue
        move = _as_similarity(matrix)
        errors = np.linalg.norm(targets - move.applied(centres), axis=1)
        if (errors <= share * spread).mean() >= 1 - _MOST_WRONG:
            return move
    return None


def _refined(
    centres: Points, targets: Points, move: Similarity, spread: float
) -> tuple[Similarity, NDArray[np.bool_]]:
    """Least squares over what lies within some robust deviations, until that no longer changes."""
    used = np.zeros(len(centres), bool)
    for _ in range(20):
        errors = np.linalg.norm(targets - move.applied(centres), axis=1)
        deviation = float(np.median(errors)) / _MEDIAN
        fits = errors <= max(_OUTLIER * deviation, _ROUNDING * spread, np.sort(errors)[_LEAST - 1])
        if (fits == used).all():
            break
        move, used = _as_similarity(fit_similarity(centres[fits], targets[fits])), fits
    return move, used


def _as_similarity(matrix: NDArray[np.float64]) -> Similarity:
    scale = float(np.cbrt(np.linalg.det(matrix[:3, :3])))
    return Similarity(scale, matrix[:3, :3] / scale, matrix[:3, 3])


def _tilt(positions: Points, error: float) -> float:
    """Uncertainty of the rotation around the line that the positions are nearest to, in radians."""
    centred = positions - positions.mean(axis=0)
    across = float(np.linalg.svd(centred, compute_uv=False)[1])  # root of the sum of squares off that line
    return error / across if across > 0 else math.inf
