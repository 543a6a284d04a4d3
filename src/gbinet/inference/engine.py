"""The network made ready for inference: batch norms folded, half precision, fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import kernels
from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.inference.fold import fold_batch_norms
from gbinet.inference.fused import FusedChooser, FusedPyramid, FusedRegulariser
from gbinet.inference.graphs import Graphs
from gbinet.model import search
from gbinet.model.choice import Choice, Chooser
from gbinet.model.config import Readout
from gbinet.model.cost_volume import Maps, ViewWeight, views_of
from gbinet.model.encoder import SCALES
from gbinet.model.gbinet import Features, GBiNet, SearchResult, Stage
from gbinet.model.layers import ConvBlock3d
from gbinet.model.regulariser import Regulariser
from gbinet.model.search import SearchState
from gbinet.model.smoothing import smoothed
from gbinet.model.warp import sources_from_reference


class Engine(GBiNet):
    """The same network and the same loop, faster and smaller. Geometry stays in float32."""

    def __init__(
        self,
        model: GBiNet,
        device: torch.device | str,
        dtype: torch.dtype | None = None,  # None: float16 on CUDA, float32 elsewhere
        graphs: int = 0,  # CUDA: kinds of depth maps (image size, views, first bins) that are recorded and
        # replayed; quicker, takes memory
    ) -> None:
        super().__init__(model.config)
        device = torch.device(device)
        dtype = dtype or (torch.float16 if device.type == "cuda" else torch.float32)
        folded = fold_batch_norms(model)
        self.encoder = FusedPyramid(folded.encoder)  # type: ignore[assignment]  # the same call
        self.regularisers = nn.ModuleList(_fuse(r) for r in folded.regularisers)
        self.view_weights = folded.view_weights
        self.choice_weights = folded.choice_weights
        self.choosers = nn.ModuleList(_fuse_chooser(c) for c in folded.choosers)
        self.refiner = folded.refiner
        self.packed_view_weights = [_pack(v, device, dtype) for v in folded.view_weights]
        self.packed_choice_weights = [_pack(v, device, dtype) for v in folded.choice_weights]
        self.graphs = Graphs(graphs)
        self._transforms: Tensor | None = None  # while a search runs, [B, V - 1, 12]: see _transforms_of
        self.to(device, dtype).eval()
        for parameter in self.parameters():  # channels last: what the fused kernels read and cuDNN likes
            layouts = {4: torch.channels_last, 5: torch.channels_last_3d} if device.type == "cuda" else {}
            if parameter.dim() in layouts:
                parameter.data = parameter.data.contiguous(memory_format=layouts[parameter.dim()])

    def save(self, path: str | Path, half: bool = False) -> Path:
        raise InputError(f"{path}: an engine has lost its batch norms; save the network it was made from")

    def encode(self, images: Tensor) -> Features:
        """One view after the other, so that the encoder's temporaries are those of one image."""
        dtype = next(self.parameters()).dtype
        batch, views, _, height, width = images.shape
        pyramid: nn.Module = self.encoder
        if isinstance(pyramid, FusedPyramid) and kernels.usable(images):
            size = (views, batch, height + -height % SCALES[0], width + -width % SCALES[0])
            maps = pyramid.room(images.new_empty(0, dtype=dtype), size)
            for view in range(views):
                pyramid.encode_into(self._normalised(images[:, view]), [m[view] for m in maps])
            return tuple(m.permute(1, 0, 4, 2, 3) for m in maps)  # [B, V, C, h, w], channels last in memory
        outputs: list[Tensor] = []
        for view in range(views):
            maps_of_one = super().encode(images[:, view : view + 1].to(dtype))  # each [B, 1, C, h, w]
            if not outputs:
                outputs = [m.new_empty(batch, views, *m.shape[2:]) for m in maps_of_one]
            for output, one in zip(outputs, maps_of_one, strict=True):
                output[:, view] = one[:, 0]
        return tuple(outputs)

    def _normalised(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> the same in [-1, 1], padded to a multiple of 8, in the engine's type."""
        height, width = images.shape[-2:]
        dtype = next(self.parameters()).dtype
        ready = torch.empty_like(images, dtype=dtype, memory_format=torch.channels_last).copy_(images)
        if height % SCALES[0] or width % SCALES[0]:
            ready = F.pad(ready, (0, -width % SCALES[0], 0, -height % SCALES[0]), mode="replicate")
        return ready.sub_(0.5).mul_(2)

    def step(self, features: Sequence[Maps], cameras: Camera, state: SearchState) -> Stage:
        """One stage; the volume is gone when the regulariser has read it, and float32 volumes never exist."""
        scale = self.config.scale_index(state.stage + 1)
        maps = views_of(features[scale])
        if not kernels.usable(*maps):
            return super().step(features, cameras, state)
        from gbinet.kernels.choose import choose, expected_place

        height, width = maps[0].shape[-2:]
        state, choice = self.enlarge(maps, cameras, state, scale)
        regulariser = self.regularisers[scale]
        assert isinstance(regulariser, FusedRegulariser)
        entered = regulariser.enter(self.cost_volume(maps, cameras, state, scale), maps[0])
        logits = regulariser.leave(entered, height, width)
        del entered
        nearby, smoothing = self.config.joint_confidence, self.config.smoothing_of(state.stage + 1)
        if smoothing is None:
            return Stage(state, logits, *choose(state, logits, nearby), choice)
        place, sure = expected_place(state, logits, nearby)
        return Stage(state, logits, search.settle(state, smoothed(place, *smoothing)), sure, choice)

    def enlarge(
        self, maps: Maps, cameras: Camera, state: SearchState, scale: int
    ) -> tuple[SearchState, Choice | None]:
        reference, *sources = views_of(maps)
        height, width = reference.shape[-2:]
        chooser = self.choosers[scale - 1] if self.choosers and scale else None
        packed = self.packed_choice_weights[scale - 1] if chooser is not None else None
        if (
            packed is None
            or not isinstance(chooser, FusedChooser)
            or not kernels.usable(reference, *sources)
            or not state.stage
            or state.cell.shape[-2:] == (height, width)
        ):
            return super().enlarge(maps, cameras, state, scale)
        from gbinet.kernels.cost_volume import fused_cost_volume

        cells = search.parents(state, height, width)
        inputs = chooser.room(cells)
        groups, transforms = self.config.groups[scale], self._transforms_for(cameras)
        fused_cost_volume(reference, sources, transforms, state, packed, groups, SCALES[scale], cells, inputs)
        choice = Choice(cells, chooser.leave(inputs, reference, cells))
        return search.adopt(state, cells, choice.best), choice

    def expected_depth(self, stage: Stage) -> Tensor:
        if not kernels.usable(stage.logits):
            return super().expected_depth(stage)
        from gbinet.kernels.choose import expected_depth

        return expected_depth(stage.state, stage.logits)

    def expected_place(self, stage: Stage) -> Tensor:
        if not kernels.usable(stage.logits):
            return super().expected_place(stage)
        from gbinet.kernels.choose import expected_place

        return expected_place(stage.state, stage.logits)[0]

    def cost_volume(self, maps: Maps, cameras: Camera, state: SearchState, scale: int) -> Tensor:
        reference, *sources = views_of(maps)
        packed = self.packed_view_weights[scale]
        if packed is None or not kernels.usable(reference, *sources):
            return super().cost_volume(maps, cameras, state, scale)
        from gbinet.kernels.cost_volume import fused_cost_volume

        groups, transforms = self.config.groups[scale], self._transforms_for(cameras)
        return fused_cost_volume(reference, sources, transforms, state, packed, groups, SCALES[scale])

    def _transforms_for(self, cameras: Camera) -> Tensor:
        return _transforms_of(cameras) if self._transforms is None else self._transforms

    # ---- CUDA graphs ---------------------------------------------------------------------------------------

    def forward(
        self,
        images: Tensor,  # [B, V, 3, H, W]
        cameras: Camera,  # [B, V]
        depth_range: Tensor,  # [B, 2]
        *,
        stages: int | None = None,
        readout: Readout | None = None,
        keep_stages: bool = False,
        first_bins: int | None = None,
    ) -> SearchResult:
        first_bins = first_bins or self.first_bins(cameras, depth_range)
        if keep_stages or not self._recordable(images):
            return super().forward(
                images,
                cameras,
                depth_range,
                stages=stages,
                readout=readout,
                keep_stages=keep_stages,
                first_bins=first_bins,
            )

        def compute(depth_range: Tensor, cameras: Camera, images: Tensor) -> SearchResult:
            options = {"stages": stages, "readout": readout, "first_bins": first_bins}
            return GBiNet.forward(self, images, cameras, depth_range, **options)  # type: ignore[arg-type]

        return self._replayed(compute, (stages, readout, first_bins), depth_range, cameras, [images])

    def search(
        self,
        features: Sequence[Maps],
        cameras: Camera,
        depth_range: Tensor,
        *,
        stages: int | None = None,
        readout: Readout | None = None,
        keep_stages: bool = False,
        resume: SearchResult | None = None,
        release: bool = False,
        first_bins: int | None = None,
    ) -> SearchResult:
        if resume is None:
            first_bins = first_bins or self.first_bins(cameras, depth_range)
        options: dict[str, Any] = {"stages": stages, "readout": readout, "first_bins": first_bins}
        # Who releases features is forward, which is recorded as a whole.
        alone = not keep_stages and not release and resume is None
        if not alone or not self._recordable(*views_of(features[0])):
            options |= {"keep_stages": keep_stages, "resume": resume, "release": release}
            return self._search(features, cameras, depth_range, **options)
        maps = [m for of_scale in features for m in views_of(of_scale)]
        views = len(maps) // len(features)

        def compute(depth_range: Tensor, cameras: Camera, *maps: Tensor) -> SearchResult:
            by_scale = [maps[i : i + views] for i in range(0, len(maps), views)]
            return self._search(by_scale, cameras, depth_range, **options)

        return self._replayed(compute, (stages, readout, first_bins), depth_range, cameras, maps)

    def _search(
        self, features: Sequence[Maps], cameras: Camera, depth_range: Tensor, **options: Any
    ) -> SearchResult:
        """The loop, with the geometry that all its stages share computed once."""
        self._transforms = _transforms_of(cameras) if kernels.usable(depth_range) else None
        try:
            return super().search(features, cameras, depth_range, **options)
        finally:
            self._transforms = None

    def _recordable(self, *tensors: Tensor) -> bool:
        return self.graphs.limit > 0 and kernels.usable(*tensors)

    def _replayed(
        self,
        compute: Callable[..., SearchResult],  # of depth_range, cameras and the maps
        options: tuple[int | None, Readout | None, int | None],  # stages, read-out, bins of stage 1
        depth_range: Tensor,
        cameras: Camera,
        maps: Sequence[Tensor],  # images or features
    ) -> SearchResult:
        """The result of `compute`, from a CUDA graph if there is one for this size."""
        size = (cameras.width, cameras.height)

        def run(ends: Tensor, K: Tensor, pose: Tensor, *maps: Tensor) -> tuple[Tensor, ...]:
            result = compute(ends, Camera(K, pose, *size), *maps)
            assert result.state is not None
            return result.depth, result.confidence, result.state.cell

        inputs = (depth_range, cameras.K, cameras.cam_from_world, *maps)
        key = (*options, *size, *((tuple(t.shape), t.stride()) for t in inputs))
        dtype = next(self.parameters()).dtype
        kinds = [t.dtype for t in inputs[:3]] + [dtype] * len(maps)
        depth, confidence, cell = self.graphs(key, run, inputs, kinds)
        stages, _, first_bins = options
        grid = self.config.grid if first_bins is None else replace(self.config.grid, first_bins=first_bins)
        state = SearchState(grid, depth_range.float(), stages or self.config.stages, cell)
        return SearchResult(depth, confidence, (), state)


def _transforms_of(cameras: Camera) -> Tensor:
    """Geometry as the fused kernel reads it, [B, V - 1, 12]: M row by row, then t."""
    matrices, offsets = sources_from_reference(cameras)
    return torch.cat([matrices.flatten(2), offsets], dim=2)


def _fuse(regulariser: nn.Module) -> FusedRegulariser:
    assert isinstance(regulariser, Regulariser)
    return FusedRegulariser(regulariser)


def _fuse_chooser(chooser: nn.Module) -> FusedChooser:
    assert isinstance(chooser, Chooser)
    return FusedChooser(chooser)


@torch.no_grad()
def _pack(net: nn.Module, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """A folded view-weight network as the fused kernel reads it: layers [2, 16, 16] and vectors [4, 16].

    None where it has more groups than the kernel takes.
    """
    assert isinstance(net, ViewWeight)
    first = net.hidden[0]
    assert isinstance(first, ConvBlock3d)
    if first.conv.in_channels > 16:
        return None
    matrices = torch.zeros(2, 16, 16)
    vectors = torch.zeros(4, 16)
    for i, block in enumerate(net.hidden):
        assert isinstance(block, ConvBlock3d) and block.conv.bias is not None
        outputs, inputs = block.conv.weight.shape[:2]
        matrices[i, :inputs, :outputs] = block.conv.weight[:, :, 0, 0, 0].T
        vectors[i, :outputs] = block.conv.bias
    assert net.output.bias is not None
    vectors[2, : net.output.weight.shape[1]] = net.output.weight[0, :, 0, 0, 0]
    vectors[3, 0] = net.output.bias[0]
    return matrices.to(device, dtype), vectors.to(device)
