"""The project around the code: versions agree, pins exist, documents point to things that are there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import gbinet

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("research/*.md"),
        *ROOT.glob("src/gbinet/**/*.md"),
    ]
)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_versions_agree(project: dict[str, Any]) -> None:
    version = project["project"]["version"]
    assert gbinet.__version__ == version
    assert re.search(rf"^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert re.search(rf"^## \[(Unreleased|{re.escape(version)})\]", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_research_is_a_package_of_its_own(project: dict[str, Any]) -> None:
    research = tomllib.loads((ROOT / "research" / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/gbinet"]
    assert research["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["gbinet_research"]
    assert research["project"]["version"] == project["project"]["version"]
    assert research["project"]["dependencies"] == ["gbinet"]


def requirement_name(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0]


def test_what_set_up_installs_is_pinned(project: dict[str, Any]) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {requirement_name(line) for line in lines if line and not line.startswith("#")}
    assert all("==" in line for line in lines if line and not line.startswith("#"))
    extras = project["project"]["optional-dependencies"]
    used = re.search(r"gbinet\[(.*)\]", extras["dev"][0])
    assert used is not None
    wanted = [*project["project"]["dependencies"], *extras["dev"]]
    wanted += [requirement for extra in used[1].split(",") for requirement in extras[extra]]
    assert {requirement_name(w) for w in wanted} - {"gbinet"} <= pins


def test_the_package_ships_its_types_and_licence(project: dict[str, Any]) -> None:
    assert (ROOT / "src" / "gbinet" / "py.typed").exists()
    assert "MIT" in (ROOT / "LICENSE").read_text()
    assert project["project"]["license"] == "MIT"
    assert project["project"]["scripts"]["gbinet"] == "gbinet.cli.main:main"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_in_documents_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        link = (target[0] or target[1]).split("#")[0]
        if link and not link.startswith(("http://", "https://", "mailto:")):
            assert (document.parent / link).exists(), f"{document.name} points to {link}"


def test_documents_and_code_name_no_machine() -> None:
    """Nothing of the machine it was written on."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git clone")
    suffixes = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cff", ".json"}
    wrong = []
    for name in tracked.stdout.split():
        path = ROOT / name
        if path.suffix in suffixes and path.is_file() and path != Path(__file__):
            text = path.read_text(errors="ignore")
            wrong += [name for place in ("/work/", "/home/", "/Users/", "/root/") if place in text]
    assert wrong == []


def test_files_are_small() -> None:
    """Sources that can be read in one sitting; binary files that a clone does not feel."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git clone")
    names = [n for n in tracked.stdout.split() if (ROOT / n).is_file()]
    long = [
        n
        for n in names
        if n.startswith(("src/", "research/")) and n.endswith(".py") and lines_of(ROOT / n) > 400
    ]
    assert long == []
    large = [n for n in names if (ROOT / n).stat().st_size > 8_000_000]
    assert large == []


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_the_module_runs_as_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gbinet.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"gbinet {gbinet.__version__}"
