"""Robust alignment of camera centres with known positions, some of which are wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import GBiNetError, InputError
from gbinet.evaluation.align import align_matches, fit_similarity
from gbinet.georeference.similarity import Points, Similarity

_MAX_ERRORS = (0.05, 0.15, 0.4)  # of an inlier of RANSAC, in turn: shares of the spread of the positions
_MAX_TRIALS = 5000  # of RANSAC
_ROUNDING = 1e-4  # share of the spread by which even the best positions may be off
_MAX_OUTLIERS = 0.4  # share of positions that may be wrong
_OUTLIER = 4.5  # standard deviations along one axis
_MEDIAN = 1.54  # median of the distance in space, in such deviations
_MAX_RELATIVE_ERROR = 0.3  # error over spread: with more, scale and direction are too uncertain
_MAX_TILT = math.radians(5)  # largest uncertainty of a rotation
_MIN_POSITIONS = 4  # three fix a similarity, one more shows whether they are right


class AlignmentError(GBiNetError):
    """The known positions do not determine where the model is."""


@dataclass(frozen=True)
class Alignment:
    """The result of a fit."""

    target_from_model: Similarity
    residuals: NDArray[np.float64]  # [N, 3] target minus transformed centre
    used: NDArray[np.bool_]  # [N] False: an outlier
    tilt: float  # radians: uncertainty of the least certain rotation

    @property
    def error(self) -> float:
        """Root mean square distance of the positions that were used."""
        return float(np.sqrt((self.residuals[self.used] ** 2).sum(-1).mean()))


def align(centres: Points, targets: Points) -> Alignment:
    """Align by RANSAC, then least squares over all that fit as well as most do.

    pycolmap's alignment refuses positions that lie exactly in one plane, as those of flight plans do.
    """
    if len(centres) < _MIN_POSITIONS:
        raise AlignmentError(
            f"{len(centres)} photos with a position are too few to place the model: 4 are needed"
        )
    origin = np.median(targets, axis=0)  # map coordinates are millions of metres: subtract before computing
    local = targets - origin
    spread = float(np.median(np.linalg.norm(local - np.median(local, axis=0), axis=1)))
    if spread <= 0:
        raise AlignmentError("the positions of the photos are all the same, so they do not place the model")
    first = _first_fit(centres, local, spread)
    if first is None:
        raise AlignmentError("the positions of the photos do not fit the model: most of them would be wrong")
    similarity, used = _refined(centres, local, first, spread)
    residuals = local - similarity.applied(centres)
    error = float(np.sqrt((residuals[used] ** 2).sum(-1).mean()))
    if error > _MAX_RELATIVE_ERROR * spread:
        raise AlignmentError(
            f"the positions of the photos are off by {error:.3g} m and spread over {spread:.3g} m only: "
            "too coarse to place the model"
        )
    tilt = _tilt(local[used], error)
    if tilt > _MAX_TILT:
        raise AlignmentError(
            "the photos were taken along one line, which leaves open how the model is tilted around it: "
            "it is not placed"
        )
    shift = similarity.shift + origin
    return Alignment(Similarity(similarity.scale, similarity.rotation, shift), residuals, used, tilt)


def _first_fit(centres: Points, targets: Points, spread: float) -> Similarity | None:
    for max_error in (share * spread for share in _MAX_ERRORS):
        try:
            matrix = align_matches(centres, targets, max_error=max_error, sample=3, max_trials=_MAX_TRIALS)
        except InputError:
            continue
        similarity = _as_similarity(matrix)
        errors = np.linalg.norm(targets - similarity.applied(centres), axis=1)
        if (errors <= max_error).mean() >= 1 - _MAX_OUTLIERS:
            return similarity
    return None


def _refined(
    centres: Points, targets: Points, similarity: Similarity, spread: float
) -> tuple[Similarity, NDArray[np.bool_]]:
    """Repeat least squares over the inliers until these no longer change; returns them [N] too."""
    used = np.zeros(len(centres), bool)
    for _ in range(20):
        errors = np.linalg.norm(targets - similarity.applied(centres), axis=1)
        deviation = float(np.median(errors)) / _MEDIAN
        limit = max(_OUTLIER * deviation, _ROUNDING * spread, np.sort(errors)[_MIN_POSITIONS - 1])
        inliers = errors <= limit
        if (inliers == used).all():
            break
        similarity, used = _as_similarity(fit_similarity(centres[inliers], targets[inliers])), inliers
    return similarity, used


def _as_similarity(matrix: NDArray[np.float64]) -> Similarity:
    scale = float(np.cbrt(np.linalg.det(matrix[:3, :3])))
    return Similarity(scale, matrix[:3, :3] / scale, matrix[:3, 3])


def _tilt(positions: Points, error: float) -> float:
    """Uncertainty of the rotation around the line that the positions are nearest to, in radians."""
    centred = positions - positions.mean(axis=0)
    across = float(np.linalg.svd(centred, compute_uv=False)[1])  # root of the sum of squares off that line
    return error / across if across > 0 else math.inf
