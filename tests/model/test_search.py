"""Laws of the search: bins tile the range, labels contain the truth, descending keeps it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gbinet.errors import InputError
from gbinet.model import search
from gbinet.model.gbinet import Stage
from gbinet.model.search import SearchGrid, SearchState
from gbinet.ops.smooth import smoothed
from gbinet.training.distributed import Processes
from gbinet.training.loss import stage_loss

SIZE = (2, 4, 5)  # B, H, W of the random maps


@st.composite
def grids(draw: st.DrawFn) -> SearchGrid:
    """Any even D, the first stage with D or more bins, linear and inverse."""
    number = draw(st.sampled_from((2, 4, 6, 8)))
    return SearchGrid(number, number + draw(st.sampled_from((0, 0, 1, 5, 28))), draw(st.booleans()))


@st.composite
def ranges(draw: st.DrawFn) -> Tensor:
    """Two different ranges, [2, 2]."""
    near = [draw(st.floats(0.01, 500)) for _ in range(2)]
    ratio = [draw(st.floats(1.1, 100)) for _ in range(2)]
    return torch.tensor([[n, n * r] for n, r in zip(near, ratio, strict=True)])


def depths_inside(grid: SearchGrid, depth_range: Tensor, seed: int) -> Tensor:
    """Random true depths [B, H, W], a hair away from the ends, where float32 decides."""
    position = 1e-5 + (1 - 2e-5) * torch.rand(SIZE, generator=torch.Generator().manual_seed(seed))
    return grid.to_depth(position, depth_range)


def random_state(grid: SearchGrid, depth_range: Tensor, stages: int, seed: int) -> SearchState:
    """A state after choices that nobody steered: some run into the ends of the range."""
    generator = torch.Generator().manual_seed(seed)
    state = search.start(grid, depth_range, *SIZE[1:])
    for _ in range(stages):
        choice = torch.randint(state.num_bins, SIZE, generator=generator)
        always = torch.randint(3, SIZE, generator=generator)  # 0: always the first bin, 1: the last, 2: any
        choice = torch.where(always == 0, 0, torch.where(always == 1, state.num_bins - 1, choice))
        state = search.descend(state, choice)
    return state


def certain_classifier(state: SearchState, seed: int) -> tuple[Tensor, Tensor]:
    """A bin for every pixel, [B, H, W], and probabilities [B, D, H, W] that are 1 there."""
    choice = torch.randint(state.num_bins, SIZE, generator=torch.Generator().manual_seed(seed))
    return choice, F.one_hot(choice, state.num_bins).movedim(-1, 1).float()


def near_far(depth_range: Tensor) -> tuple[Tensor, Tensor]:
    return depth_range[:, 0, None, None], depth_range[:, 1, None, None]  # [B, 1, 1]


def contains(state: SearchState, index: Tensor, depth: Tensor) -> Tensor:
    """Whether bin `index` of the coming stage contains the depth, by its edges alone."""
    borders = search.edges(state)
    lower, upper = borders[:, :-1].gather(1, index[:, None]), borders[:, 1:].gather(1, index[:, None])
    return (lower[:, 0] <= depth) & (depth < upper[:, 0])


@given(grids(), ranges())
def test_bins_of_the_first_stage_tile_the_range(grid: SearchGrid, depth_range: Tensor) -> None:
    state = search.start(grid, depth_range, *SIZE[1:])
    borders, centres = search.edges(state), search.hypotheses(state)
    near, far = near_far(depth_range)
    assert borders.shape[1] == centres.shape[1] + 1 == grid.first_bins + 1
    torch.testing.assert_close(borders[:, 0], near.expand(SIZE))
    torch.testing.assert_close(borders[:, -1], far.expand(SIZE))
    assert (borders.diff(dim=1) > 0).all()
    assert ((borders[:, :-1] < centres) & (centres < borders[:, 1:])).all()
    widths = grid.to_position(borders.double(), depth_range.double()).diff(dim=1)
    torch.testing.assert_close(widths, torch.full_like(widths, 1 / grid.first_bins), rtol=1e-2, atol=1e-4)


@given(grids(), ranges(), st.integers(1, 6), st.integers(0, 2**31))
def test_later_bins_stay_in_the_range_and_halve(
    grid: SearchGrid, depth_range: Tensor, stages: int, seed: int
) -> None:
    state = random_state(grid, depth_range, stages, seed)
    near, far = near_far(depth_range)
    borders = search.edges(state)
    slack = 4e-7 * far[:, None]
    assert ((borders >= near[:, None] - slack) & (borders <= far[:, None] + slack)).all()
    assert (borders.diff(dim=1) >= 0).all()
    cells = grid.cells(stages + 1)
    assert cells == 2 * grid.cells(stages) == grid.first_bins * 2**stages
    inside = (state.bins.first >= 0) & (state.bins.first + state.num_bins <= cells)
    positions = grid.to_position(borders.double(), depth_range.double()) * cells
    expected = state.bins.first[:, None] + torch.arange(state.num_bins + 1)[:, None, None]
    error = (positions - expected).abs().amax(1)[inside]
    if not grid.inverse:  # 1/depth of a wide range loses digits at its far end
        assert (error < 1e-5 * cells).all()


@given(grids(), ranges(), st.integers(0, 6), st.integers(0, 2**31))
def test_the_label_of_a_depth_contains_it(
    grid: SearchGrid, depth_range: Tensor, stages: int, seed: int
) -> None:
    state = random_state(grid, depth_range, stages, seed)
    depth = depths_inside(grid, depth_range, seed + 1)
    index, inside = search.label(state, depth)
    assert index.dtype == torch.int64 and ((index >= 0) & (index < state.num_bins)).all()
    every = torch.arange(state.num_bins)[:, None, None, None].expand(-1, *SIZE)
    in_some_bin = torch.stack([contains(state, j, depth) for j in every]).any(0)
    assert torch.equal(inside, in_some_bin)
    assert torch.equal(inside, inside & contains(state, index, depth))
    if stages == 0:
        assert inside.all()


@given(ranges(), st.integers(0, 4), st.integers(0, 2**31))
def test_depths_outside_the_range_or_unknown_have_no_label(
    depth_range: Tensor, stages: int, seed: int
) -> None:
    state = random_state(SearchGrid(), depth_range, stages, seed)
    near, far = near_far(depth_range)
    for outside in (near * 0, near * 0.999, far * 1.001, -far, near * float("nan"), far * float("inf")):
        index, inside = search.label(state, outside.expand(SIZE))
        assert not inside.any() and not index.any()


@settings(max_examples=150)
@given(grids(), ranges(), st.integers(0, 2**31))
def test_a_perfect_classifier_halves_the_error_at_every_stage(
    grid: SearchGrid, depth_range: Tensor, seed: int
) -> None:
    truth = depths_inside(grid, depth_range, seed)
    near, far = near_far(depth_range)
    state = search.start(grid, depth_range, *SIZE[1:])
    for stage in range(1, 13):
        index, inside = search.label(state, truth)
        assert inside.all()  # after descending into the true bin, the truth is inside again
        state = search.descend(state, index)
        found = search.depth(state)
        half_bin = 0.5 / grid.cells(stage)  # as a share of the range
        if grid.inverse:
            error = (1 / found - 1 / truth).abs() / (1 / near - 1 / far)
            rounding = 1e-6 * (1 / near) / (1 / near - 1 / far)
        else:
            error = (found - truth).abs() / (far - near)
            rounding = 1e-6 * far / (far - near)
        assert (error <= half_bin + rounding).all()


@pytest.mark.parametrize("bins", [2, 4, 6])
def test_bin_width_after_k_stages_is_the_papers(bins: int) -> None:
    """R / (D * 2^(k-1)), and Bi-Net is D = 2."""
    depth_range = torch.tensor([[425.0, 935.0]])
    state = search.start(SearchGrid(bins, bins), depth_range, 1, 1)
    for stage in range(1, 9):
        width = search.edges(state).diff(dim=1)[0, bins // 2, 0, 0]
        assert float(width) == pytest.approx(510 / (bins * 2 ** (stage - 1)), rel=1e-3)
        state = search.descend(state, torch.full((1, 1, 1), bins // 2))


@given(st.sampled_from((2, 4, 6)), st.booleans(), st.integers(1, 5), st.integers(0, 2**31))
def test_how_far_tolerance_bins_correct_a_wrong_neighbour(
    bins: int, inverse: bool, stages: int, seed: int
) -> None:
    """D=2 has no tolerance: the truth is lost. D=4 covers the near half of the neighbour, D=6 all of it."""
    grid = SearchGrid(bins, bins, inverse)
    depth_range = torch.tensor([[1.0, 9.0], [425.0, 935.0]])
    truth = depths_inside(grid, depth_range, seed)
    state = search.start(grid, depth_range, *SIZE[1:])
    for _ in range(stages):
        before, (index, _) = state, search.label(state, truth)
        state = search.descend(state, index)
    side = torch.randint(2, SIZE, generator=torch.Generator().manual_seed(seed + 1)) * 2 - 1
    wrong = index + side
    exists = (wrong >= 0) & (wrong < before.num_bins)  # where the classifier could have said so
    exists &= (state.cell + side >= 0) & (state.cell + side < grid.cells(stages))
    lost = search.descend(before, wrong.clamp(0, before.num_bins - 1))
    right = search.descend(state, search.label(state, truth)[0])  # where the truth is, one stage on
    next_index, inside = search.label(lost, truth)
    corrected = search.descend(lost, next_index)
    half = right.cell - 2 * state.cell  # 0: the lower half of the true cell, 1: the upper
    adjacent = torch.where(side > 0, half == 1, half == 0)
    tolerated = {2: torch.zeros_like(exists), 4: adjacent, 6: torch.ones_like(exists)}[bins]
    assert torch.equal(inside[exists], tolerated[exists])
    assert torch.equal(corrected.cell[exists & tolerated], right.cell[exists & tolerated])


def test_a_pixel_once_outside_stays_masked() -> None:
    """Tolerance bins may reach a lost depth again; in training it stays masked all the same."""
    truth = torch.full((1, 1, 1), 2.68)
    state = search.start(SearchGrid(), torch.tensor([[1.0, 5.0]]), 1, 1)
    mask = torch.ones(1, 1, 1, dtype=torch.bool)
    inside, valid = [], []
    for choice in (1, 3, 0, 0, 1):  # at stage 2 too far by more than the tolerance, then back towards it
        stage = Stage(state, torch.zeros(1, 4, 1, 1), state)
        inside.append(bool(search.label(state, truth)[1]))
        mask = stage_loss(stage, truth, mask, Processes()).valid
        valid.append(bool(mask))
        state = search.descend(state, torch.full((1, 1, 1), choice))
    assert inside == [True, True, False, True, True]
    assert valid == [True, True, False, False, False]


@given(ranges(), st.integers(0, 2**31))
def test_four_bins_are_the_published_dyadic_grid(depth_range: Tensor, seed: int) -> None:
    """An independent count in Python integers, clamped at both ends: 0 <= key < 2^(k+1) after stage k."""
    generator = torch.Generator().manual_seed(seed)
    state = search.start(SearchGrid(), depth_range[:1], 1, 6)
    near, far = depth_range[0].tolist()
    keys = [0] * 6
    for stage in range(1, 9):
        choices = torch.randint(4, (6,), generator=generator).tolist()
        choices[0], choices[1] = 0, 3  # two pixels run straight into the ends
        first = [0 if stage == 1 else 2 * key - 1 for key in keys]
        top = 2 ** (stage + 1)
        borders = [[near + (far - near) * min(max(f + j, 0), top) / top for j in range(5)] for f in first]
        torch.testing.assert_close(search.edges(state)[0, :, 0].T, torch.tensor(borders))
        centres = [[(a + b) / 2 for a, b in pairwise(row)] for row in borders]
        torch.testing.assert_close(search.hypotheses(state)[0, :, 0].T, torch.tensor(centres))
        keys = [min(max(f + c, 0), top - 1) for f, c in zip(first, choices, strict=True)]
        state = search.descend(state, torch.tensor(choices)[None, None])
        assert state.cell.flatten().tolist() == keys
        expected = torch.tensor([near + (far - near) * (key + 0.5) / top for key in keys])
        torch.testing.assert_close(search.depth(state)[0, 0], expected)
    assert keys[0] == 0 and keys[1] == 2**9 - 1


@given(st.integers(1, 7), st.integers(0, 2**31))
def test_upsampling_is_bilinear_in_depth_and_back_on_the_grid(stages: int, seed: int) -> None:
    depth_range = torch.tensor([[1.0, 3.0], [2.0, 10.0]])  # powers of two apart: float64 is exact
    state = random_state(SearchGrid(), depth_range, stages, seed)
    finer = search.upsample(state, 2 * SIZE[1], 2 * SIZE[2])
    near, far = near_far(depth_range.double())
    depth = near + (far - near) * (state.cell + 0.5).double() / state.grid.cells(stages)
    depth = F.interpolate(depth[:, None], scale_factor=2, mode="bilinear", align_corners=False)[:, 0]
    key = ((depth - near) / (far - near) * state.grid.cells(stages)).floor()
    assert torch.equal(finer.cell.double(), key.clamp(0, state.grid.cells(stages) - 1))
    assert finer.stage == state.stage
    assert search.upsample(finer, 2 * SIZE[1], 2 * SIZE[2]) is finer


@given(st.integers(1, 5), st.integers(0, 2**31), st.sampled_from([2, 4]))
def test_upsampling_that_keeps_edges_is_bilinear_where_there_are_none(
    stages: int, seed: int, factor: int
) -> None:
    depth_range = torch.tensor([[1.0, 3.0], [2.0, 10.0]])
    state = random_state(SearchGrid(), depth_range, stages, seed)
    keeping = replace(state, grid=replace(state.grid, edge=state.grid.cells(stages)))  # no step is an edge
    size = (factor * SIZE[1], factor * SIZE[2])
    expected = state
    while expected.cell.shape[1] < size[0]:
        expected = search.upsample(expected, 2 * expected.cell.shape[1], 2 * expected.cell.shape[2])
    assert torch.equal(search.upsample(keeping, *size).cell, expected.cell)


@given(st.integers(1, 6), st.integers(0, 2**31), st.integers(1, 20))
def test_upsampling_never_leaves_the_own_side_of_an_edge(stages: int, seed: int, edge: int) -> None:
    state = random_state(SearchGrid(edge=edge), torch.tensor([[1.0, 3.0], [2.0, 10.0]]), stages, seed)
    finer = search.upsample(state, 2 * SIZE[1], 2 * SIZE[2])
    own = state.cell.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert int((finer.cell - own).abs().max()) <= edge
    assert int(finer.cell.min()) >= 0 and int(finer.cell.max()) < state.grid.cells(stages)


def test_upsampling_keeps_a_step() -> None:
    cell = torch.tensor([[[3, 3, 40, 41], [3, 4, 40, 40]]], dtype=torch.int32)
    state = SearchState(SearchGrid(edge=6), torch.tensor([[1.0, 2.0]]), 6, cell)
    finer = search.upsample(state, 4, 8).cell
    assert set(finer[..., :4].unique().tolist()) <= {3, 4}
    assert set(finer[..., 4:].unique().tolist()) <= {40, 41}
    mixed = search.upsample(replace(state, grid=SearchGrid()), 4, 8).cell
    assert 10 < int(mixed[0, 0, 3]) < 33  # the paper's way: neither the one side nor the other


def test_upsampling_before_the_first_stage_starts_anew() -> None:
    state = search.start(SearchGrid(), torch.tensor([[1.0, 2.0]]), 3, 4)
    finer = search.upsample(state, 6, 8)
    assert finer.stage == 0 and finer.cell.shape == (1, 6, 8)


@given(grids(), ranges(), st.integers(0, 5), st.integers(0, 2**31))
def test_expected_depth_of_a_certain_classifier_is_the_centre(
    grid: SearchGrid, depth_range: Tensor, stages: int, seed: int
) -> None:
    state = random_state(grid, depth_range, stages, seed)
    choice, probabilities = certain_classifier(state, seed)
    inside = (state.bins.first + choice >= 0) & (state.bins.first + choice < grid.cells(stages + 1))
    expected = search.expected_depth(state, probabilities)
    centre = search.depth(search.descend(state, choice))
    torch.testing.assert_close(expected[inside], centre[inside], rtol=1e-5, atol=0)


@given(grids(), ranges(), st.integers(0, 5), st.integers(0, 2**31))
def test_expected_depth_stays_next_to_the_chosen_bin(
    grid: SearchGrid, depth_range: Tensor, stages: int, seed: int
) -> None:
    state = random_state(grid, depth_range, stages, seed)
    logits = torch.randn(SIZE[0], state.num_bins, *SIZE[1:], generator=torch.Generator().manual_seed(seed))
    probabilities = (4 * logits).softmax(1)
    expected = search.expected_depth(state, probabilities)
    near, far = near_far(depth_range)
    assert ((expected >= near * (1 - 1e-5)) & (expected <= far * (1 + 1e-5))).all()
    choice = probabilities.argmax(1)
    cells = grid.cells(stages + 1)
    position = (state.bins.first + choice + 0.5) / cells
    lower = grid.to_depth((position - 1 / cells).clamp(0, 1), depth_range)
    upper = grid.to_depth((position + 1 / cells).clamp(0, 1), depth_range)
    assert ((expected >= lower * (1 - 1e-5)) & (expected <= upper * (1 + 1e-5))).all()


@given(ranges(), st.booleans(), st.integers(0, 2**31))
def test_position_and_depth_are_inverse_to_each_other(depth_range: Tensor, inverse: bool, seed: int) -> None:
    grid = SearchGrid(inverse=inverse)
    position = torch.rand(SIZE, generator=torch.Generator().manual_seed(seed))
    depth = grid.to_depth(position, depth_range)
    again = grid.to_depth(grid.to_position(depth, depth_range), depth_range)
    torch.testing.assert_close(again, depth, rtol=1e-4, atol=0)
    near, far = near_far(depth_range)
    torch.testing.assert_close(grid.to_depth(torch.zeros(SIZE), depth_range), near.expand(SIZE))
    torch.testing.assert_close(grid.to_depth(torch.ones(SIZE), depth_range), far.expand(SIZE))


@pytest.mark.parametrize(("bins", "first"), [(3, 4), (0, 4), (-2, 4), (4, 3), (5, 5)])
def test_impossible_bins_are_refused(bins: int, first: int) -> None:
    with pytest.raises(InputError, match="bins"):
        SearchGrid(bins, first)


def test_a_search_beyond_the_precision_of_float32_is_refused() -> None:
    state = search.start(SearchGrid(), torch.tensor([[1.0, 2.0]]), 1, 1)
    with pytest.raises(InputError, match="stage"):
        for _ in range(60):
            state = search.descend(state, torch.ones(1, 1, 1, dtype=torch.int64))
    assert state.stage >= 20


def test_depth_before_the_first_stage_is_refused() -> None:
    with pytest.raises(InputError, match="no stage"):
        search.depth(search.start(SearchGrid(), torch.tensor([[1.0, 2.0]]), 1, 1))


@given(st.integers(2, 12), st.integers(0, 10_000))
def test_nearby_probability_is_that_of_three_bins(bins: int, seed: int) -> None:
    logits = torch.randn(1, bins, 3, 4, generator=torch.Generator().manual_seed(seed))
    probabilities = logits.softmax(1)
    found = search.nearby(probabilities)
    assert found.shape == (1, 1, 3, 4)
    for row in range(3):
        for column in range(4):
            p = probabilities[0, :, row, column].tolist()
            best = p.index(max(p))
            expected = sum(p[max(best - 1, 0) : best + 2])
            assert float(found[0, 0, row, column]) == pytest.approx(expected, abs=1e-6)


@given(grids(), ranges(), st.integers(0, 5), st.integers(0, 2**31))
def test_descending_to_the_expected_cell_of_a_certain_classifier_is_descending(
    grid: SearchGrid, depth_range: Tensor, stages: int, seed: int
) -> None:
    state = random_state(grid, depth_range, stages, seed)
    choice, probabilities = certain_classifier(state, seed)
    settled = search.descend_to(state, search.expected_cell(state, probabilities))
    descended = search.descend(state, choice)
    assert torch.equal(settled.cell, descended.cell) and settled.stage == descended.stage
    torch.testing.assert_close(
        search.continuous_depth(settled), search.expected_depth(state, probabilities), rtol=0, atol=0
    )
    assert search.upsample(settled, 2 * SIZE[1], 2 * SIZE[2]).fractional_cell is None


def test_a_search_without_smoothing_has_no_continuous_depth() -> None:
    state = search.start(SearchGrid(), torch.tensor([[1.0, 2.0]]), 3, 4)
    with pytest.raises(InputError, match="without smoothing"):
        search.continuous_depth(search.descend(state, torch.zeros(1, 3, 4, dtype=torch.int64)))


@pytest.mark.parametrize("bins", [2, 4, 6])
def test_a_stage_leads_to_the_best_bin_or_the_smoothed_expected_cell(bins: int) -> None:
    state = search.start(SearchGrid(bins, bins), torch.tensor([[425.0, 935.0]]), 9, 11)
    for _ in range(3):
        logits = torch.randn(1, bins, 9, 11, generator=torch.Generator().manual_seed(bins)).requires_grad_()
        low, high = search.window(state)
        tested = search.hypotheses(state)
        assert (tested >= low[:, None]).all() and (tested <= high[:, None]).all()
        best, largest = search.follow(state, logits, None)
        assert (
            torch.equal(best.cell, search.descend(state, logits.argmax(1)).cell)
            and best.fractional_cell is None
        )
        expected = smoothed(search.expected_cell(state, logits.detach().softmax(1)), 2, 6.0)
        settled, nearby = search.follow(state, logits, (2, 6), nearby=True)
        probabilities = logits.detach().softmax(1)
        assert torch.equal(largest, probabilities.amax(1, keepdim=True)) and not largest.requires_grad
        assert torch.equal(nearby, search.nearby(probabilities))
        assert settled.fractional_cell is not None and not settled.fractional_cell.requires_grad
        assert torch.equal(settled.fractional_cell, expected) and settled.stage == best.stage
        state = best
