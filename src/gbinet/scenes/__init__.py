"""Scenes and batches: where data sets keep their files, and what the network is fed."""

from __future__ import annotations

from gbinet.scenes.load import list_photos as list_photos
from gbinet.scenes.load import load_scene as load_scene
