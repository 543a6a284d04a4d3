"""The pages of the project, and the commands and Python that stand in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("research/*.md"),
        *ROOT.glob("src/gbinet/**/*.md"),
    ]
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str  # "" where the page does not say
    text: str
    # Marked `<!-- runs -->`: it works as it stands beside the folders `photos`, `masks` and `my-scene`.
    # Marked `<!-- runs after: COMMAND -->`: when that was run before.
    runs: bool
    after: str = ""

    @property
    def name(self) -> str:
        return f"{self.page}: {self.text.strip().splitlines()[0][:50]}"

    def commands(self) -> list[list[str]]:
        """The words of every command, comments left out and continued lines joined."""
        return commands_of(self.text)


def commands_of(text: str) -> list[list[str]]:
    lines = text.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    # Variables before a command: `OMP_NUM_THREADS=1 python ...`
    return [w[next(i for i, x in enumerate(w) if not re.fullmatch(r"[A-Z_]+=\S*", x)) :] for w in words if w]


def blocks() -> list[Block]:
    pattern = re.compile(r"(<!-- runs(?: after: ([^\n]*))? -->\n)?^```(\w*)\n(.*?)^```$", re.S | re.M)
    return [
        Block(page.relative_to(ROOT).as_posix(), found[3], found[4], bool(found[1]), found[2] or "")
        for page in PAGES
        for found in pattern.finditer(page.read_text())
    ]


def inline_commands() -> list[tuple[str, list[str]]]:
    """(page, words) of `gbinet ...`, `python ...`, `pip ...` and `make ...` within a sentence or a table."""
    found = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
        for code in re.findall(r"`((?:gbinet|python|pip|make) [^`]+)`", text):
            found.append((page.relative_to(ROOT).as_posix(), shlex.split(code.replace("\n", " "))))
    return found


def inline_flags() -> set[tuple[str, str]]:
    """(page, flag) of all options that stand within a sentence or a table."""
    found = set()
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
        for code in re.findall(r"`([^`]+)`", text):
            found |= {
                (page.relative_to(ROOT).as_posix(), f) for f in re.findall(r"(?<!\S)--[a-z][a-z-]*", code)
            }
    return found
