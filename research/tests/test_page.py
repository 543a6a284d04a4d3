"""The page: tables say what is ours and what the paper's, rows of one budget only, and nothing is made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from gbinet.errors import FormatError, InputError
from gbinet.evaluation.depth import THRESHOLDS
from gbinet.formats.atomic import write_json
from gbinet_research import run
from gbinet_research.__main__ import main
from gbinet_research.claims import CLAIMS, claims
from gbinet_research.page import PARTS, fill_docs
from gbinet_research.page import budget as budget_of_rows
from gbinet_research.results import Results, cost_key
from gbinet_research.story import chance, ladder_table
from gbinet_research.variants import COMPARISONS, LADDER, VARIANTS, Budget

ROOT = Path(__file__).parents[2]


def fake(out: Path, name: str, share: float, budget: Budget) -> None:
    """A result as training writes it."""
    errors = {"within": {str(t): share for t in THRESHOLDS}}
    stages = range(1, VARIANTS[name].most_stages + 1)
    by_stage = dict.fromkeys(stages, errors)
    write_json(
        out / f"{name}.json",
        {
            "design": VARIANTS[name].design,
            "budget": budget.to_dict(),
            "trained": {"samples": 2, "steps": 2, "seconds": 1.0, "side_by_side": [name, "binet"]},
            "stages": VARIANTS[name].config.stages,
            "device": "some GPU",
            "validation": {
                "centres": by_stage,
                "expectations": by_stage,
                "smooth": by_stage,
                "final": errors,
                "edge_band": errors,
                "valid_share": {k: 1 / k for k in stages},
            },
            "made_by": {
                "weights": "00",
                "weights_file": f"{name}.safetensors",
                "gbinet": "0",
                "commit": "c0",
            },
        },
    )


@pytest.fixture
def results(tmp_path: Path, budget: Budget) -> Path:
    out = tmp_path / "results"
    for index, name in enumerate(VARIANTS):
        if not VARIANTS[name].weights_of:
            fake(out, name, 0.1 + 0.03 * index, budget)
    parts = ("network", "engine", "training")
    key = cost_key(budget.to_dict())
    cost = {
        name: {part: {"peak_mib": 900.0 - 20 * i, "milliseconds": 5.0} for part in parts}
        | {"key": key, "design": VARIANTS[name].design, "device": "some GPU"}
        for i, name in enumerate(VARIANTS)
    }
    write_json(out / "costs.json", cost)
    score = {"accuracy": 0.5, "completeness": 0.25, "overall": 0.375, "points": 9}
    write_json(out / "clouds.json", {"gbinet": {"stages": dict.fromkeys((6, 7, 8, 9), score)}})
    return out


def page_with(folder: Path, names: tuple[str, ...]) -> Path:
    page = folder / "docs" / "page.md"
    page.parent.mkdir(exist_ok=True)
    marks = "".join(f"<!-- results: {name} -->\nold\n<!-- end -->\nkept {name}\n" for name in names)
    page.write_text(f"# Results\nMine.\n{marks}")
    return page


def test_every_part_is_filled_between_its_marks_only(results: Path, tmp_path: Path) -> None:
    page = page_with(tmp_path, tuple(PARTS))
    fill_docs(results, page)
    text = page.read_text()
    assert "old" not in text and text.startswith("# Results\nMine.\n") and "kept claims" in text
    for figure in ("*9384*", "*61.0*", "*12137*", "*0.289*"):  # the paper's, in italics
        assert figure in text
    assert "0.375" in text and "commit c0" in text and "side by side with `binet`" in text  # ours
    for _, part in PARTS.items():
        for picture, _ in part.pictures:
            assert f"pictures/results-{picture}.png" in text
            with Image.open(page.parent / "pictures" / f"results-{picture}.png") as image:
                assert image.size[0] >= 720
    fill_docs(results, page)
    assert page.read_text() == text  # filling again changes nothing


def test_every_row_of_the_ladder_has_a_line_and_every_lever_is_named_once(results: Path) -> None:
    whole = Results.read(results)
    table = ladder_table(whole)
    assert [line.split("`")[1] for line in table.splitlines()[2:]] == list(LADDER)
    for name in LADDER[3:8]:  # not there: their levers are part of the next row's
        (results / f"{name}.json").unlink()
    shorter = ladder_table(Results.read(results))
    for name in LADDER:
        assert shorter.count(VARIANTS[name].label) == 1
        assert (f"| `{name}` " in shorter) == (name not in LADDER[3:8])
    assert "Not yet trained at this budget" in shorter and "yet" not in table


def test_a_table_of_the_paper_stays_until_all_its_rows_are_there(results: Path, tmp_path: Path) -> None:
    page = page_with(tmp_path, ("bins", "searches"))
    (results / "gbinet-6.json").unlink()
    told = fill_docs(results, page)
    text = page.read_text()
    assert "<!-- results: bins -->\nold\n<!-- end -->" in text and "GBi-Net as published" in text
    assert told[0].startswith("bins: stays as it is") and "gbinet-6" in told[0]


def test_rows_of_different_budgets_do_not_stand_in_one_table(results: Path, budget: Budget) -> None:
    fake(results, "binet", 0.5, Budget(samples=9))
    with pytest.raises(InputError, match="different budgets"):
        Results.read(results)


def test_a_row_of_what_its_name_does_not_stand_for_is_refused(results: Path) -> None:
    for field, value in (("network", {"bins": 8}), ("changes", {"recover": True}), ("seed", 3)):
        content = json.loads((results / "binet.json").read_text())
        design = content["design"]
        design[field] = {**design[field], **value} if isinstance(value, dict) else value
        write_json(results / "other" / "binet.json", content)
        with pytest.raises(InputError, match="another design than `binet`"):
            Results.read(results / "other")
    del content["design"]  # an earlier version wrote it
    write_json(results / "other" / "binet.json", content)
    with pytest.raises(InputError, match="another design"):
        Results.read(results / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": {"batch_size": 2}}, "`binet` was measured with another budget"),
        ({"design": {}}, "another design than `binet`"),
        ({"device": "another GPU"}, "another GPU, some GPU"),
    ],
)
def test_costs_that_do_not_belong_together_are_refused(
    results: Path, change: dict[str, object], message: str
) -> None:
    costs = json.loads((results / "costs.json").read_text())
    costs["binet"] |= change
    write_json(results / "costs.json", costs)
    with pytest.raises(InputError, match=message):
        Results.read(results)


def test_claims_say_what_the_figures_say(tmp_path: Path, budget: Budget) -> None:
    fake(tmp_path, "gbinet-per-stage", 0.40, budget)
    for share, verdict in ((0.30, "shown: 40.0 vs 30.0"), (0.50, "not shown: 40.0 vs 50.0")):
        fake(tmp_path, "dense-linear", share, budget)
        line = claims(Results.read(tmp_path)).splitlines()[0]
        assert f"as published: {verdict} % within 0.125 mm" in line
    lines = claims(Results.read(tmp_path)).splitlines()
    assert len(lines) == len(CLAIMS) and sum("not measured yet" in line.lower() for line in lines) == 6
    assert sum("Not testable here" in line for line in lines) == 2


def test_a_difference_smaller_than_that_of_two_seeds_shows_nothing(tmp_path: Path, budget: Budget) -> None:
    for name, share in (("gbinet-per-stage", 0.40), ("coarse-to-fine", 0.39), ("coarse-to-fine-seed1", 0.37)):
        fake(tmp_path, name, share, budget)
    results = Results.read(tmp_path)
    assert chance(results, 0.5) == pytest.approx(2.0)
    assert "as published: not shown: 40.0 vs 39.0" in claims(results)
    (tmp_path / "coarse-to-fine-seed1.json").unlink()  # then it is a tie below 0.2 points
    for share, verdict in ((0.399, "not shown: 40.0 vs 39.9"), (0.397, "shown: 40.0 vs 39.7")):
        fake(tmp_path, "coarse-to-fine", share, budget)
        assert f"as published: {verdict}" in claims(Results.read(tmp_path))


def test_the_page_says_what_was_trained_on(tmp_path: Path, budget: Budget) -> None:
    for life in (0.0, 0.5):
        fake(tmp_path, "again", 0.4, replace(budget, life=life))
        said = budget_of_rows(Results.read(tmp_path))
        assert ("50 % with the difficulties" in said) == bool(life)


def test_a_pair_of_seeds_is_shown_as_soon_as_it_is_whole(tmp_path: Path, budget: Budget) -> None:
    page, out = page_with(tmp_path, ("chance",)), tmp_path / "results"
    for name, words in (
        ("coarse-to-fine", "No design has been trained with a second seed at this budget yet."),
        ("coarse-to-fine-seed1", "| difference "),
        ("again", "Not yet trained at this budget: `again-seed1`."),
    ):
        fake(out, name, 0.4, budget)
        fill_docs(out, page)
        assert words in page.read_text() and "the current design" not in page.read_text()
    fake(out, "again-seed1", 0.4, budget)
    fill_docs(out, page)
    assert page.read_text().count("| difference ") == 2 and "yet" not in page.read_text()


def test_a_stage_that_is_not_measured_is_not_zero(tmp_path: Path, budget: Budget) -> None:
    fake(tmp_path, "gbinet", 0.4, budget)
    path = tmp_path / "gbinet.json"
    content = json.loads(path.read_text())
    del content["validation"]["centres"]["9"]
    write_json(path, content)
    (line,) = (c for c in claims(Results.read(tmp_path)).splitlines() if "to stage 8" in c)
    assert line.endswith("Not measured yet at this budget.")


def test_pages_that_cannot_be_filled_are_refused(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(FormatError, match="no marks"):
        fill_docs(results, page)
    page.write_text("<!-- results: other -->\n<!-- end -->")
    assert main(["docs", "--out", str(results), "--page", str(page)]) == 2
    assert capsys.readouterr().err.count("unknown marks") == 1
    with pytest.raises(InputError, match="no result"):
        fill_docs(tmp_path / "nowhere", page)


def test_the_page_is_what_the_stored_results_say(tmp_path: Path) -> None:
    """docs/benchmarks/paper.md is filled from research/results; both are kept together."""
    page = tmp_path / "paper.md"
    page.write_text((ROOT / "docs" / "benchmarks" / "paper.md").read_text())
    before = page.read_text()
    fill_docs(ROOT / "research" / "results", page)
    assert page.read_text() == before
    stored = Results.read(ROOT / "research" / "results")
    assert set(COMPARISONS["ladder"]) & set(stored.variants)
    assert all(content["made_by"]["commit"] for content in stored.variants.values())


def test_the_kept_rows_are_those_beside_the_clone() -> None:
    """They were trained with an earlier version; what was added to them here changes no figure."""
    folder = ROOT.parent / "shared" / "comparisons"
    if not folder.is_dir():
        pytest.skip("there is no ../shared beside this clone")
    kept = Results.read(ROOT / "research" / "results").variants
    for path in folder.glob("*.json"):
        first = json.loads(path.read_text())
        if kept[path.stem]["made_by"]["weights"] == first["made_by"]["weights"]:
            for part, figures in kept[path.stem]["validation"].items():
                assert figures == run._rounded(first["validation"][part])
            assert kept[path.stem]["budget"] == first["budget"]
