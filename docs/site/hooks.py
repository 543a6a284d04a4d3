"""Adds content from the project to the site when it is built: the command line and the model card.

A page asks for it with a comment: `<!-- commands -->` or `<!-- file: PATH -->`. A paragraph that begins with
`<!-- not on the site -->` is only for readers of the file itself.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHIM = "https://unpkg.com/iframe-worker/shim"
SEARCH = 'data-md-component="search" role="dialog"'


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    if page.parent is None:  # alone under its tab: there is nothing to list beside it
        page.meta["hide"] = ["navigation"]
    markdown = re.sub(r"<!-- not on the site -->\n(.+\n)*", "", markdown)
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", commands())
    return re.sub(r"<!-- file: (\S+) -->", lambda found: included(found[1]), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The one script that the theme would fetch (search in pages opened as files) lies beside the pages.

    And the window of the search gets a name, for those who cannot see it.
    """
    output = output.replace(SEARCH, f'{SEARCH} aria-label="Search"')
    return output.replace(SHIM, "../" * page.url.count("/") + "iframe-worker.js")


def on_post_template(output: str, **_: Any) -> str:
    """The same for the page that says that there is no such page."""
    return output.replace(SHIM, "iframe-worker.js")


def included(path: str) -> str:
    """A file of the project without its first heading."""
    heading, _, text = (ROOT / path).read_text().partition("\n")
    assert heading.startswith("# "), path
    return text


def commands() -> str:
    """`--help` of every verb, from the parser itself."""
    sys.path.insert(0, str(ROOT / "src"))  # here: mkdocs takes back what a hook changes while it is loaded
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    from gbinet.cli.completion import below, help_of
    from gbinet.cli.main import VERBS

    parts = []
    for verb, text in VERBS.items():
        parts += [f"## gbinet {verb}", f"{text[0].upper()}{text[1:]}.", f"```text\n{help_of(verb)}\n```"]
        for name in below(verb):
            parts += [f"### gbinet {verb} {name}", f"```text\n{help_of(verb, name)}\n```"]
    return "\n\n".join(parts)
