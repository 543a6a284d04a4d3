"""Folders <-> scenes, one file a kind; and what all kinds share, up to batches for the network."""

from __future__ import annotations

from gbinet.scenes.load import load_scene as load_scene
from gbinet.scenes.photos import list_photos as list_photos
