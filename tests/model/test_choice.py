"""Between scales pixels choose their parents."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbinet.errors import InputError
from gbinet.model import search
from gbinet.model.choice import Choice, Chooser
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet, Stage
from gbinet.model.search import PARENTS, SearchGrid, SearchState
from gbinet.training.distributed import Processes
from gbinet.training.loss import choice_loss

GRID = SearchGrid(bins=6, first_bins=32, inverse=True, edge=6)
RANGE = torch.tensor([[1.0, 4.0]])


def state(cell: torch.Tensor, stage: int = 2) -> SearchState:
    return SearchState(GRID, RANGE, stage, cell.to(torch.int32)[None])


def two_sides(size: int = 6) -> torch.Tensor:
    """Coarse cells [size, size]: a near left part and a far right part."""
    cell = torch.full((size, size), 50)
    cell[:, : size // 2] = 10
    return cell


@given(st.integers(0, 10_000))
def test_own_parent_lies_between_the_nearest_and_the_farthest(seed: int) -> None:
    cells = torch.randint(0, GRID.cells(2), (5, 7), generator=torch.Generator().manual_seed(seed))
    own, nearest, farthest = search.parents(state(cells), 10, 14)[0]
    assert torch.equal(own, search.upsample(state(cells), 10, 14).cell[0])
    assert bool(((nearest <= own) & (own <= farthest)).all())
    assert bool(torch.isin(nearest, cells).all()) and bool(torch.isin(farthest, cells).all())


def test_both_sides_of_an_edge_are_among_the_parents() -> None:
    parents = search.parents(state(two_sides()), 12, 12)[0]
    beside = parents[:, :, 4:8]  # two finer pixels on each side
    assert bool((beside[1] == 10).all()) and bool((beside[2] == 50).all())
    away = parents[:, :, [0, 1, 10, 11]]
    assert bool((away[0] == away[1]).all()) and bool((away[0] == away[2]).all())


def test_a_pixel_takes_the_parent_that_it_chose() -> None:
    before = state(two_sides())
    cells = search.parents(before, 12, 12)
    choice = Choice(cells, torch.randn(1, PARENTS, 12, 12))
    after = search.with_cells(before, choice.cell)
    assert torch.equal(after.cell, cells.gather(1, choice.logits.argmax(1, keepdim=True))[:, 0])
    assert after.stage == before.stage and after.fractional_cell is None


def test_the_chosen_parent_brings_the_truth_into_the_bins() -> None:
    """At an edge, the finer truth lies on either side of the coarse map's edge; the best parent has it."""
    before = state(two_sides())
    truth_cell = torch.full((1, 12, 12), 50)
    truth_cell[..., :7] = 10  # one pixel further than the coarse edge
    truth = search.cell_depth(before, truth_cell)
    cells = search.parents(before, 12, 12)
    best = cells.gather(1, (cells - truth_cell[:, None]).abs().argmin(1, keepdim=True))[:, 0]
    assert bool(search.label(search.with_cells(before, best), truth)[1].all())
    assert not bool(search.label(search.upsample(before, 12, 12), truth)[1].all())


def test_confidence_is_one_where_all_parents_are_one() -> None:
    cells = search.parents(state(torch.full((4, 4), 30)), 8, 8)
    flat = Choice(cells, torch.randn(1, PARENTS, 8, 8))
    torch.testing.assert_close(flat.confidence, torch.ones(1, 1, 8, 8))
    disputed = Choice(search.parents(state(two_sides()), 12, 12), torch.zeros(1, PARENTS, 12, 12))
    assert float(disputed.confidence.amin()) < 0.7


def stage_with(logits: torch.Tensor) -> Stage:
    before = state(two_sides())
    choice = Choice(search.parents(before, 12, 12), logits)
    after = search.with_cells(before, choice.cell)
    return Stage(
        after, torch.zeros(1, 6, 12, 12), search.descend(after, torch.zeros(1, 12, 12)), None, choice
    )


def test_loss_asks_for_the_good_parents_only_where_there_are_bad_ones() -> None:
    truth = search.cell_depth(state(two_sides()), torch.full((1, 12, 12), 10))  # near everywhere
    logits = torch.zeros(1, PARENTS, 12, 12, requires_grad=True)
    loss = choice_loss(stage_with(logits), truth, Processes())
    (gradient,) = torch.autograd.grad(loss, logits)
    assert bool((gradient[:, 1, :, 6:8] < 0).all())  # the nearest parent should be chosen beyond the edge
    assert bool((gradient[..., :4] == 0).all())  # nothing to choose on the near side
    assert bool((gradient[..., 9:] == 0).all())  # no parent is good on the far side
    better = torch.zeros(1, PARENTS, 12, 12)
    better[:, 1] = 3.0
    assert float(choice_loss(stage_with(better), truth, Processes())) < float(loss.detach())
    unknown = torch.zeros_like(truth)
    assert float(choice_loss(stage_with(logits.detach()), unknown, Processes())) == 0.0


def test_a_new_chooser_keeps_a_pixels_own_parent() -> None:
    torch.manual_seed(0)
    chooser = Chooser(8, 4, 8).eval()
    cells = search.parents(state(two_sides()), 12, 12)
    logits = chooser(torch.randn(1, 4, PARENTS, 12, 12), torch.randn(1, 8, 12, 12), cells)
    assert torch.equal(Choice(cells, logits).cell, cells[:, 0])


def test_pixels_choose_again_where_a_scale_has_another_stage() -> None:
    config = GBiNetConfig(choice_widths=(4, 4, 4), choice_again=True)
    assert config.scales_choosing_again == (1, 2, 3)
    assert replace(config, stages=7).scales_choosing_again == (1, 2)
    assert replace(config, choice_again=False).scales_choosing_again == ()


def test_a_pixel_that_chooses_again_can_take_a_neighbours_cell() -> None:
    before = state(two_sides())
    height, width = before.cell.shape[-2:]
    cells = search.parents(before, height, width)
    assert bool((cells[:, 0] == before.cell).all())
    nearest = search.with_cells(before, cells[:, 1])
    changed = nearest.cell != before.cell
    assert bool(changed.any()) and bool((nearest.cell[changed] == before.cell.min()).all())
    assert int(changed.sum()) == height  # the edge has moved by one pixel


def test_impossible_choices_are_refused() -> None:
    for changes in (
        {"choice_widths": (8, 8)},
        {"choice_widths": (8, 8, 0)},
        {"regulariser_width": (8, 8)},
        {"choice_again": True},
    ):
        with pytest.raises(InputError):
            replace(GBiNetConfig(), **changes)  # type: ignore[arg-type]


def test_the_published_network_has_no_new_parts() -> None:
    names = {name.split(".")[0] for name, _ in GBiNet().named_parameters()}
    assert names == {"encoder", "view_weights", "regularisers"}


def test_confidence_has_a_gradient() -> None:
    before = state(two_sides())
    logits = torch.randn(1, 6, 6, 6, requires_grad=True)
    model = GBiNet(GBiNetConfig(bins=6, stages=2, confidence="nearby"))
    stage = Stage(before, logits, *model.follow(before, logits))
    confidence = model.confidence(stage)
    assert confidence.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(model.confidence(stage), confidence.detach())
