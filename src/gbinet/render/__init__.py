"""Random textured scenes -> views with exact depth: training without a download, demo, tests."""

from gbinet.render.assets import AssetLibrary
from gbinet.render.compose import KINDS, make_scene
from gbinet.render.difficulties import Difficulties, Difficulty
from gbinet.render.rig import content_range
from gbinet.render.scenery import RenderScene
from gbinet.render.shade import Rendering, render, render_colour, render_depth
from gbinet.render.source import RenderConfig, RenderedSource, Sample, render_sample
from gbinet.render.validation import LIFE, life_samples, validation_samples

__all__ = [
    "KINDS",
    "LIFE",
    "AssetLibrary",
    "Difficulties",
    "Difficulty",
    "RenderConfig",
    "RenderScene",
    "RenderedSource",
    "Rendering",
    "Sample",
    "content_range",
    "life_samples",
    "make_scene",
    "render",
    "render_colour",
    "render_depth",
    "render_sample",
    "validation_samples",
]
