"""Cameras that are nearly right -> cameras that fit the photos."""

from gbinet.scenes.refine.cached import refine_cameras as refine_cameras
from gbinet.scenes.refine.refine import check_cameras as check_cameras
