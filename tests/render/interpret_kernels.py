"""Run by test_render_rasterise in a process of its own: fast twins against plain code, in the interpreter."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from gbinet.render import make_scene, seeding_triton, shapes
from gbinet.render import rasterise_triton as fast_rasterise
from gbinet.render import shade_triton as fast_shade
from gbinet.render.mesh import join
from gbinet.render.rasterise import EMPTY, face_index, visible_keys
from gbinet.render.rig import draw_rig
from gbinet.render.scenery import Layout
from gbinet.render.seeding import generator, hash_uniform_plain
from gbinet.render.shade import shade


def rasterise_like_the_plain_code() -> None:
    """Small triangles, big ones in tiles, some that reach behind the camera, and a queue that overflows."""
    fast_rasterise.WORKERS = 8  # each costs time here
    ground = shapes.box((4, 4, 0.1), z=-0.1)
    mesh = join([shapes.sphere(0.1, 8), ground])
    layout = Layout(np.zeros(3), 0.1, np.zeros((0, 4)), -np.ones(3), np.ones(3), 0.1)
    cameras = draw_rig(generator(2), "table", layout, 2, 80, 64).cameras.to(dtype=torch.float32)
    plain = visible_keys(mesh.positions, mesh.faces, cameras)
    assert bool((face_index(plain) >= 0).any())
    assert torch.equal(fast_rasterise.visible_keys(mesh.positions, mesh.faces, cameras), plain)
    fast_rasterise.QUEUE_PER_VIEW = 2
    plain = visible_keys(ground.positions, ground.faces, cameras)
    assert torch.equal(fast_rasterise.visible_keys(ground.positions, ground.faces, cameras), plain)


def shade_like_the_plain_code() -> None:
    scene = make_scene(3, kind="facade")
    cameras = draw_rig(generator(1), "facade", scene.layout, 1, 24, 20).cameras.to(dtype=torch.float32)
    fine = cameras.resized(48, 40)
    keys = visible_keys(scene.vertices, scene.faces, fine)
    keys[:, :12] = EMPTY  # the surroundings
    plain = F.avg_pool2d(shade(scene, fine, face_index(keys)).permute(0, 3, 1, 2), 2)
    fast = fast_shade.averaged_colour(scene, fine, keys, 2)
    assert float((plain - fast).abs().max()) < 1e-3
    assert float((plain - fast).abs().mean()) < 1e-5


def draw_like_the_plain_code() -> None:
    for offset in (0, 5, (1 << 31) - 1, 1 << 31, (1 << 32) - 1):
        assert torch.equal(
            seeding_triton.hash_uniform(3000, offset, "cpu"), hash_uniform_plain(3000, offset, "cpu")
        )


if __name__ == "__main__":
    draw_like_the_plain_code()
    rasterise_like_the_plain_code()
    shade_like_the_plain_code()
