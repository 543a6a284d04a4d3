"""GBi-Net: encode the images once, then one loop of search stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import InputError
from gbinet.model import search
from gbinet.model.calibration import Calibration
from gbinet.model.checks import check_choices, check_ranges, check_shapes, check_values, evaluating
from gbinet.model.choice import Choice, Chooser
from gbinet.model.config import GBiNetConfig, Readout, preset
from gbinet.model.cost_volume import ViewWeight
from gbinet.model.encoder import FeaturePyramid
from gbinet.model.geometry import disparity_span, sources_from_reference
from gbinet.model.refiner import Refiner, make_candidates
from gbinet.model.regulariser import Regulariser
from gbinet.model.result import SearchResult as SearchResult
from gbinet.model.result import Stage as Stage
from gbinet.model.result import combined, padded_to, release_maps, upsampled
from gbinet.model.search import SearchState
from gbinet.ops import choose, deform
from gbinet.ops.bins import Bins
from gbinet.ops.cost_volume import Maps, reference_size, views_of, with_reference
from gbinet.ops.normalise import normalised
from gbinet.scene import DepthRange

Features = tuple[Tensor, ...]  # per scale, coarse to fine: [B, V, C_s, H / s, W / s]

MOST_FIRST_BINS = 64  # of stage 1, however many first_spacing asks for


class GBiNet(nn.Module):
    """Generalized binary search network. Images are RGB in [0, 1]; view 0 is the reference.

    Args:
        config: Its configuration, or the name of a preset: "gbinet", "binet", "gbinet-6", "bundled". Weights
            are random; `from_pretrained` loads trained ones.
    """

    config_type: ClassVar[type[GBiNetConfig]] = GBiNetConfig  # stored in its weights files
    ready: bool = False  # made ready for inference by inference/prepare.py; cannot be undone

    def __init__(self, config: GBiNetConfig | str = "gbinet") -> None:
        super().__init__()
        self.config = config = preset(config) if isinstance(config, str) else config
        self.weights_file: str | None = None  # name of the file that the weights were read from
        self.min_confidence: float | None = None  # recommended for fusion by the weights file, if it has one
        self.calibration: Calibration | None = None  # of the confidence of all stages, configured read-out
        channels = config.channels
        self.encoder = FeaturePyramid(channels)
        self.view_weights = nn.ModuleList(ViewWeight(g) for g in config.groups)
        self.regularisers = nn.ModuleList(
            Regulariser(g, width, c * config.context)
            for g, width, c in zip(config.groups, config.regulariser_widths, channels, strict=True)
        )
        # For the choices of parents: at all scales but the coarsest, which has none.
        choosing = list(zip(channels[1:], config.groups[1:], config.choice_widths, strict=False))
        self.choice_weights = nn.ModuleList(ViewWeight(g) for _, g, _ in choosing)
        self.choosers = nn.ModuleList(Chooser(*sizes) for sizes in choosing)
        again = config.scales_choosing_again
        self.again_weights = nn.ModuleList(ViewWeight(config.groups[scale]) for scale in again)
        self.again_choosers = nn.ModuleList(Chooser(*choosing[scale - 1]) for scale in again)
        learned = config.confidence == "learned"
        sides = config.refiner_sides
        self.refiner = Refiner(channels[-1], sides=sides, confidence=learned) if config.refiner else None

    @classmethod
    def from_pretrained(cls, weights: str | Path | None = None) -> Self:
        """Load trained weights with the network that they belong to, on the CPU.

        Args:
            weights: None = the bundled weights; or their name, a weights file of gbinet, a published .ckpt.

        Raises:
            WeightsError: If there is no such file, or it does not fit the network.
        """
        from gbinet.model.weights import load

        return load(weights, cls)

    def save(self, path: str | Path, half: bool = False) -> Path:
        """Weights, configuration and version in one safetensors file; half: float16 kernels."""
        from gbinet.model.weights import save

        if self.ready:
            raise InputError(f"{path}: this network has lost its batch norms; save the one it was made from")
        return save(self, Path(path), half)

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """As of every module, except of a network made ready, which holds packed copies of its weights."""
        if self.ready:
            raise InputError("this network is made ready: load the weights into the one it was made from")
        return super().load_state_dict(*args, **options)

    # ---- the network ---------------------------------------------------------------------------------------

    def encode(self, images: Tensor) -> Features:
        """Images [B, V, 3, H, W] -> features per scale. Views are independent of each other.

        Sizes that are not a multiple of the coarsest scale are padded on the right and at the bottom by
        repeating the border. A network made ready encodes one view after the other into the same tensors, so
        that the encoder's intermediate results are those of one image.
        """
        batch, views, _, height, width = images.shape
        if not self.ready:
            return tuple(f.unflatten(0, (batch, views)) for f in self.encoder(self.normalised(images)))
        like, coarsest = next(self.parameters()), self.config.scales[0]
        height, width = height + -height % coarsest, width + -width % coarsest
        sizes = zip(self.config.scales, self.config.channels, strict=True)
        maps = [deform.empty_output(like, views, batch, c, height // s, width // s) for s, c in sizes]
        for view in range(views):
            contracted = self.encoder.contract(self.normalised(images[:, view : view + 1]))
            self.encoder.expand(contracted, out=[m[view] for m in maps], release=True)
        return tuple(m.transpose(0, 1) for m in maps)

    def normalised(self, images: Tensor) -> Tensor:
        """Images [B, V, 3, H, W] as the encoder takes them: [B * V, 3 or 4, H', W'] in [-1, 1], padded."""
        dtype = next(self.parameters()).dtype
        return normalised(images.flatten(0, 1), dtype, self.config.scales[0], packed=self.ready)

    def start(
        self, features: Sequence[Maps], depth_range: Tensor, first_bins: int | None = None
    ) -> SearchState:
        """The state before the first stage, at the first stage's scale. depth_range [B, 2]."""
        grid = self.config.grid if first_bins is None else replace(self.config.grid, first_bins=first_bins)
        return search.start(grid, depth_range, *reference_size(features[self.config.scale_index(1)]))

    def first_bins(self, cameras: Camera, depth_range: Tensor) -> int | None:
        """Bins of stage 1 for these views [B, V] and ranges [B, 2]; None = the configured number.

        If bins are much further apart than a pixel of the feature maps, none may match the true depth; much
        closer ones match alike. A multiple of 8, so that few sizes of volumes occur. Waits for the device.
        """
        spacing = self.config.first_spacing
        if not spacing:
            return None
        distance = float(disparity_span(cameras, depth_range, 1 / self.config.scale_of(1)).amax())
        if not math.isfinite(distance):
            return None
        wanted = 8 * math.ceil(distance / spacing / 8)
        return max(self.config.grid.first_bins, min(wanted, MOST_FIRST_BINS))

    def step(
        self,
        features: Sequence[Maps],
        cameras: Camera,
        state: SearchState,
        transforms: Tensor | None = None,
        last: bool = False,
    ) -> Stage:
        """One stage of the search. cameras [B, V] are those of the images.

        transforms [B, V - 1, 12]: `sources_from_reference(cameras)`, if it is known already. last: drop the
        sources' maps from the list of features as soon as the volume is made.
        """
        transforms = sources_from_reference(cameras) if transforms is None else transforms
        scale = self.config.scale_index(state.stage + 1)
        maps, reference = with_reference(features[scale])
        state, choice = self.upsample(maps, reference, transforms, state, scale)
        regulariser = self.regularisers[scale]
        assert isinstance(regulariser, Regulariser)
        size, volume = reference_size(maps), self.cost_volume(maps, transforms, state, scale)
        if last and isinstance(features, list):
            reference = reference.clone()
            features[scale] = maps = reference[:, None]
        hidden = regulariser.first_layer(volume, reference)
        del volume  # before the other layers need memory
        logits = regulariser.other_layers(hidden, *size)
        del hidden
        return Stage(state, logits, *self.follow(state, logits), choice)

    def upsample(
        self, maps: Maps, reference: Tensor, transforms: Tensor, state: SearchState, scale: int
    ) -> tuple[SearchState, Choice | None]:
        """The state at the size of the maps of a scale, and the choice of parents, if there was one."""
        size = reference_size(maps)
        if not self.choosers or not state.stage:
            return search.upsample(state, *size), None
        weights, choosers, index = self.choice_weights, self.choosers, scale - 1
        if state.cell.shape[-2:] == size:
            if scale not in self.config.scales_choosing_again:
                return state, None
            weights, choosers = self.again_weights, self.again_choosers
            index = self.config.scales_choosing_again.index(scale)
        cells = search.parents(state, *size)
        weight = weights[index]
        assert isinstance(weight, ViewWeight)
        bins = search.bins_at(state, cells)
        volume = weight.cost_volume(maps, transforms, bins, self.config.scales[scale])
        choice = Choice(cells, choosers[index](volume, reference, cells))
        return search.with_cells(state, choice.cell), choice

    def cost_volume(self, maps: Maps, transforms: Tensor, state: SearchState, scale: int) -> Tensor:
        """The volume [B, G, D, h, w] of a stage at one of the scales (0 = coarsest)."""
        weight = self.view_weights[scale]
        assert isinstance(weight, ViewWeight)
        return weight.cost_volume(maps, transforms, self.hypotheses(state), self.config.scales[scale])

    def confidence(self, stage: Stage) -> Tensor:
        """Confidence of a stage, [B, 1, h, w], its choice of parents included."""
        confidence = stage.confidence
        if confidence is None or (stage.logits.requires_grad and torch.is_grad_enabled()):
            confidence = choose.confidence_of(stage.probabilities, self.config.joint_confidence)
        return self._with_choice(confidence, stage)

    def _with_choice(self, confidence: Tensor, stage: Stage) -> Tensor:
        choice = stage.choice if self.config.joint_confidence else None
        return confidence if choice is None else confidence * choice.confidence

    def expected_depth(self, stage: Stage) -> Tensor:
        """Continuous depth after a stage, [B, h, w]."""
        expected, _ = choose.choose(stage.state.bins, stage.logits, fractional=True)
        return search.continuous_depth(replace(stage.next_state, fractional_cell=expected))

    # A network that searches in another way overrides these, and start, upsample, expected_depth.
    upsample_mode: ClassVar[Literal["nearest", "bilinear"]] = "nearest"  # from coarse depth maps to full size

    def hypotheses(self, state: SearchState) -> Bins | Tensor:
        """Depths to test at the coming stage, [B, D, h, w], nearest first; or bins, for their centres."""
        return state.bins

    def window(self, state: SearchState) -> tuple[Tensor, Tensor]:
        """Smallest and largest depth in the bins of the coming stage, [B, h, w] each."""
        return search.window(state)

    def follow(self, state: SearchState, logits: Tensor) -> tuple[SearchState, Tensor]:
        """The state after a stage and the stage's confidence, [B, 1, h, w], both without gradient."""
        smoothing = self.config.smoothing_of(state.stage + 1)
        return search.follow(state, logits, smoothing, self.config.joint_confidence)

    def centre_depth(self, stage: Stage) -> Tensor:
        """Depth of the centres of the cells that a stage chose, [B, h, w]."""
        return search.depth(stage.next_state)

    def refined(
        self, stage: Stage, reference: Tensor, confidence: Tensor
    ) -> tuple[SearchState, Tensor | None]:
        """The state after a stage at full size with refined fractional cells, and the logit of the refiner's
        confidence [B, 1, h, w], if it has one.

        reference [B, C, h, w]: the reference's features; confidence [B, 1, h, w]: of all stages.
        """
        after, smoothing = stage.next_state, self.config.smoothing_of(stage.next_state.stage)
        assert after.fractional_cell is not None and smoothing is not None  # checked by the configuration
        assert self.refiner is not None
        # Computed again, because those of the stage have no gradient.
        joint, sides = self.config.joint_confidence, self.config.refiner_sides
        cells, of_stage = choose.choose(stage.state.bins, stage.logits, joint, fractional=True)
        candidates = make_candidates(cells, after.fractional_cell, *smoothing, sides=sides)
        confidences = torch.cat([self._with_choice(of_stage, stage), confidence], dim=1)
        refined, logit = self.refiner(candidates, confidences, reference)
        return replace(after, fractional_cell=refined), logit

    def _read_out(
        self, stage: Stage, readout: Readout, features: Sequence[Maps], confidence: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Depth after a stage, [B, h, w], and its confidence. confidence [B, 1, H, W] of all stages."""
        if readout == "centre":
            return self.centre_depth(stage), confidence
        number = stage.next_state.stage
        if readout == "refined" and self.refiner is not None and self.config.scale_of(number) == 1:
            refined, logit = self.refined(stage, views_of(features[-1])[0], confidence)
            return search.continuous_depth(refined), confidence if logit is None else logit.sigmoid()
        if readout in ("smooth", "refined") and self.config.smoothing_of(number):
            return search.continuous_depth(stage.next_state), confidence
        return self.expected_depth(stage), confidence

    def search(
        self,
        features: Sequence[Maps],  # per scale, coarse to fine
        cameras: Camera,  # [B, V]; height and width are the reference's
        depth_range: Tensor,  # [B, 2]
        *,
        stages: int | None = None,
        readout: Readout | None = None,
        keep_stages: bool = False,
        resume: SearchResult | None = None,
        release: bool = False,
        first_bins: int | None = None,
    ) -> SearchResult:
        """The loop: all stages on given features. The result has the cameras' height and width.

        Args:
            resume: Result of a search with fewer stages (or of a tile of one), to continue from.
            release: Free the maps in the caller's list of features as soon as no later stage needs them; of
                the last scale, the reference's map stays.
            first_bins: Bins of stage 1; None = as the method of that name computes.
        """
        stages = self.config.stages if stages is None else stages
        readout = readout or self.config.readout
        done = resume.state.stage if resume and resume.state else 0
        check_choices(stages, done, readout)
        if readout != self.config.readout:
            replace(self.config, readout=readout)  # raises if this network does not have it
        full = reference_size(features[-1])
        counted = min(stages, self.config.stages_counted)
        joint = self.config.joint_confidence
        earlier: Tensor | None = None  # confidence of the stages of the resumed search, [B, 1, H, W]
        confidence: Tensor | None = None  # of the stages of this one, [B, 1, h, w] at the last one's size
        if resume is None or resume.state is None:
            first_bins = first_bins or self.first_bins(cameras, depth_range)
            state = self.start(features, depth_range, first_bins)
        else:
            state = resume.state
            share = 1 if joint else min(state.stage, self.config.stages_counted) / counted
            earlier = padded_to(resume.confidence[:, None] * share, full)
        transforms = sources_from_reference(cameras)
        kept = []
        stage: Stage | None = None
        for number in range(state.stage + 1, stages + 1):
            if release and isinstance(features, list):
                release_maps(features, {self.config.scale_index(n) for n in range(number, stages + 1)})
            stage = None  # free its logits before the next stage's volume is built
            stage = self.step(features, cameras, state, transforms, last=release and number == stages)
            if number <= counted:
                of_stage = self.confidence(stage)
                confidence = combined(of_stage if joint else of_stage / counted, confidence, joint)
            if keep_stages:
                kept.append(stage)
            state = stage.next_state
        total = confidence if earlier is None else combined(earlier, confidence, joint)
        assert stage is not None and total is not None  # check_choices: there was one stage or more
        depth, total = self._read_out(stage, readout, features, upsampled(total, full))
        if self.calibration is not None and (stages, readout) == (self.config.stages, self.config.readout):
            total = self.calibration(total)
        if depth.shape[-2:] != full:  # there was no stage at full size
            depth = F.interpolate(depth[:, None], size=full, mode=self.upsample_mode)[:, 0]
        size = (..., slice(cameras.height), slice(cameras.width))
        return SearchResult(depth[size].contiguous(), total[:, 0][size].contiguous(), tuple(kept), state)

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
        """Depth and confidence of view 0 of every sample, [B, H, W]. Options as of `search`."""
        check_shapes(images, cameras, "[B, V, 3, H, W]")
        check_ranges(depth_range, len(images))
        return self.search(
            list(self.encode(images)), cameras, depth_range, stages=stages, readout=readout,
            keep_stages=keep_stages, release=True, first_bins=first_bins,
        )  # fmt: skip

    @torch.inference_mode()
    def predict(
        self,
        images: Tensor,  # [V, 3, H, W] in [0, 1]
        cameras: Camera,  # [V]
        depth_range: DepthRange,
        *,
        stages: int | None = None,
        readout: Readout | None = None,
    ) -> DepthMap:
        """Compute the depth map of view 0, on the device that the model is on.

        Args:
            images: RGB in [0, 1], [V, 3, H, W], V >= 2.
            cameras: Of the images, batch axis [V].
            depth_range: Where to look for surfaces, in the unit of the cameras.
            stages: How many stages to search; None = what the weights were trained for.
            readout: "centre", "expectation", "smooth" or "refined"; None = the configured one.

        Returns:
            Depth and confidence of view 0, [H, W].

        Raises:
            InputError: If images, cameras and range do not fit together, or a value is impossible.
        """
        check_shapes(images, cameras, "[V, 3, H, W]")
        check_values(images, cameras, depth_range)
        parameter = next(self.parameters())
        device = parameter.device
        with evaluating(self):
            result = self(
                images[None].to(device, parameter.dtype),
                cameras[None].to(device),
                torch.tensor([[depth_range.near, depth_range.far]], device=device),
                stages=stages,
                readout=readout,
            )
        return DepthMap(result.depth[0], cameras[0].to(device), result.confidence[0])
