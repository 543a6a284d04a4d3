"""Features are dropped as soon as no later stage needs them."""

import torch

from gbinet.camera import Camera
from gbinet.model.gbinet import GBiNet


def test_search_releases_features_only_if_allowed() -> None:
    torch.manual_seed(0)
    model = GBiNet().eval()
    K = torch.tensor([[60.0, 0, 32], [0, 60, 32], [0, 0, 1]])
    pose = torch.eye(4).repeat(2, 1, 1)
    pose[1, 0, 3] = 0.3
    cameras = Camera(K.expand(1, 2, 3, 3), pose[None], 64, 64)
    depth_range = torch.tensor([[2.0, 5.0]])
    with torch.inference_mode():
        features = list(model.encode(torch.rand(1, 2, 3, 64, 64)))
        kept = list(features)
        expected = model.search(kept, cameras, depth_range)
        assert all(f.numel() for f in kept)
        result = model.search(features, cameras, depth_range, release=True)
    assert torch.equal(result.depth, expected.depth)
    assert [f.numel() > 0 for f in features] == [False, False, False, True]
    assert features[-1].shape[1] == 1  # of the reference alone: the refiner may look at it
