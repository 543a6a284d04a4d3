"""A network whose weights and input are formulas, and what it answers: the project's own fixture.

    python tests/model/formula_network.py      writes formula_network.safetensors beside this file

It was written when the network agreed with the published one (test_parity.py, ../shared), and it keeps that
agreement tested where ../shared is absent. Write it anew only after the same agreement was seen.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.model.gbinet import GBiNet, SearchResult

FILE = Path(__file__).with_suffix(".safetensors")
HEIGHT, WIDTH, VIEWS = 40, 64, 3
NEAR, FAR = 2.5, 6.5


def wave(shape: torch.Size, phase: float) -> Tensor:
    """Numbers in [-1, 1] that look random, equal on every machine: float64 sines, rounded to float32."""
    index = torch.arange(shape.numel(), dtype=torch.float64)
    return torch.sin(index * 12.9898 + torch.sin(index * 0.7 + phase) * 43.7 + phase).reshape(shape).float()


def formula_network() -> GBiNet:
    """The preset `gbinet`, in eval mode, with every weight and statistic a formula of its place."""
    model = GBiNet("gbinet").eval()
    weights = {}
    for number, (name, old) in enumerate(model.state_dict().items()):
        value = wave(old.shape, 0.37 * number)
        if name.endswith("num_batches_tracked"):
            value = old
        elif name.endswith("running_var") or (name.endswith("weight") and old.dim() == 1):
            value = 1 + 0.4 * value
        elif name.endswith(("running_mean", "bias")):
            value = 0.2 * value
        else:  # a convolution: the size of its input decides
            value = value * math.sqrt(5 / old[0].numel()) * (0.5 if "offset" in name else 1.0)
        weights[name] = value
    model.load_state_dict(weights)
    return model


def formula_input() -> tuple[Tensor, Camera, Tensor]:
    """Images [1, V, 3, H, W], cameras [1, V], depth range [1, 2]."""
    images = 0.5 + 0.5 * wave(torch.Size((1, VIEWS, 3, HEIGHT // 4, WIDTH // 4)), 1.0)
    images = images.repeat_interleave(4, -1).repeat_interleave(4, -2)
    K = torch.tensor([[1.1 * WIDTH, 0, WIDTH / 2], [0, 1.2 * WIDTH, HEIGHT / 2], [0, 0, 1]])
    pose = torch.eye(4).repeat(VIEWS, 1, 1)
    for view in range(VIEWS):
        angle = 0.05 * view
        pose[view, 0, 0] = pose[view, 2, 2] = math.cos(angle)
        pose[view, 0, 2], pose[view, 2, 0] = math.sin(angle), -math.sin(angle)
        pose[view, :3, 3] = torch.tensor([0.3, -0.1, 0.05]) * view * (-1) ** view
    cameras = Camera(K.repeat(VIEWS, 1, 1), pose, WIDTH, HEIGHT)
    return images, cameras[None], torch.tensor([[NEAR, FAR]])


@torch.inference_mode()
def answer(model: GBiNet) -> SearchResult:
    result: SearchResult = model(*formula_input(), keep_stages=True)
    return result


def write(path: Path = FILE) -> Path:
    from safetensors.torch import save_file

    result = answer(formula_network())
    tensors = {"depth": result.depth[0], "confidence": result.confidence[0]}
    for number, stage in enumerate(result.stages, start=1):
        tensors[f"stage{number}.cell"] = stage.state.cell[0].short()
        tensors[f"stage{number}.logits"] = stage.logits[0]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


if __name__ == "__main__":
    written = write()
    print(f"{written}: {written.stat().st_size} bytes")
