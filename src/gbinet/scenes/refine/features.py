"""SIFT features of photos, found in the pixels that the cameras belong to."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbinet.cores import usable_cores
from gbinet.errors import FormatError
from gbinet.formats.image import read_image, read_mask, shrunk
from gbinet.progress import Progress
from gbinet.scene import View

_MAX_SIZE = 2000  # px, longer side: more costs time and adds little
_MAX_FEATURES = 2048  # of a photo
_MAX_THREADS = 8  # each needs memory for a photo and its scales
# A third of the usual least contrast: nearly right cameras tell false matches from true ones.
_MIN_CONTRAST = 0.002


@dataclass(frozen=True)
class Features:
    """The features of one photo."""

    pixels: NDArray[np.float64]  # [F, 2]
    descriptors: NDArray[np.float16]  # [F, 128] of length 1
    unit: float  # pixels of the photo per pixel of the copy that they were found in

    def select(self, chosen: NDArray[np.bool_]) -> Features:
        return Features(self.pixels[chosen], self.descriptors[chosen], self.unit)


NONE = Features(np.zeros((0, 2)), np.zeros((0, 128), np.float16), 1.0)


def find_features(pycolmap: Any, views: Sequence[View], progress: Progress | None) -> list[Features]:
    """Features of every photo; a photo that cannot be read, or is not of its camera's size, has none."""
    options = pycolmap.FeatureExtractionOptions()
    options.use_gpu, options.num_threads = False, 1
    options.sift.max_num_features, options.sift.peak_threshold = _MAX_FEATURES, _MIN_CONTRAST

    def extract(view: View) -> Features:
        extractor = pycolmap.FeatureExtractor.create(options, pycolmap.Device.cpu)
        return _features_of(pycolmap, extractor, view)

    found: list[Features] = []
    with ThreadPoolExecutor(min(_MAX_THREADS, usable_cores()), "features") as pool:
        for features in pool.map(extract, views):
            found.append(features)
            if progress:
                progress(len(found), len(views), "finding features")
    return found


def _features_of(pycolmap: Any, extractor: Any, view: View) -> Features:
    size = (view.camera.width, view.camera.height)
    try:
        photo = read_image(view.image_path)  # [H, W, 3]
        mask = None if view.mask_path is None else read_mask(view.mask_path, size)
    except FormatError:
        return NONE  # estimating its depth will report the error
    if (photo.shape[1], photo.shape[0]) != size:
        return NONE
    unit = max(1.0, max(size) / _MAX_SIZE)
    small = (max(1, round(size[0] / unit)), max(1, round(size[1] / unit)))
    grey = _grey(photo if unit == 1 else shrunk(photo, small))
    keypoints, descriptors = extractor.extract_from_uint8_array(grey)
    small_pixels = np.asarray(pycolmap.keypoints_to_matrix(keypoints), np.float64)[:, :2]  # [F, 2]
    pixels = small_pixels * (np.array(size) / small)
    values = np.asarray(descriptors.data, np.float32)  # [F, 128]
    values /= np.linalg.norm(values, axis=1, keepdims=True).clip(1e-6)
    features = Features(pixels, values.astype(np.float16), unit)
    if mask is None or not len(pixels):
        return features
    column, row = np.floor(pixels).astype(int).clip(0, np.array(size) - 1).T
    return features.select(mask[row, column])


def _grey(photo: NDArray[np.uint8]) -> NDArray[np.uint8]:
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    grey: NDArray[np.uint8] = (photo.astype(np.float32) @ weights).round().astype(np.uint8)
    return np.ascontiguousarray(grey)
