"""The skeleton of report.html: only layout and escaping; what stands in it is decided in report.py."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gbinet.names import shown

_HERE = Path(__file__).parent


def escape(text: object) -> str:
    return html.escape(shown(text))


def number(label: str, value: str) -> str:
    return f'<div class="number"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def figure(source: str, caption: str) -> str:
    picture = f'<img loading="lazy" alt="{escape(caption)}" src="{source}">'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def warnings(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="warnings">{items}</ul>' if texts else ""


def table(title: str, values: Mapping[str, object]) -> str:
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in values.items())
    return f"<div><h3>{escape(title)}</h3><table>{rows}</table></div>"


def view(name: str, facts: str, pictures: Sequence[str]) -> str:
    shown = "".join(pictures)
    head = f"<header><b>{escape(name)}</b><span>{escape(facts)}</span></header>"
    return f'<article class="view">{head}<div class="four">{shown}</div></article>'


def controls(max_views: int) -> str:
    return f"""
<div class="controls">
  <label>colour <select id="colour-mode"><option value="0">photo</option>
    <option value="1">number of views</option><option value="2">confidence</option></select></label>
  <label>point size <input id="point-size" type="range" min="0.3" max="4" step="0.1" value="1.8"></label>
  <label>views at least
    <input id="min-views" type="range" min="1" max="{max_views}" step="1" value="1"></label>
  <label>confidence at least
    <input id="min-confidence" type="range" min="0" max="1" step="0.01" value="0"></label>
  <label><input id="show-cameras" type="checkbox" checked> cameras</label>
  <button id="reset-view" type="button">reset view</button>
</div>"""


def whole(title: str, subtitle: str, body: str, cloud: Mapping[str, object] | None) -> str:
    """The page; `cloud` is the data of the interactive view, if there is one."""
    style = (_HERE / "report.css").read_text()
    script = ""
    if cloud is not None:
        # "<" cannot end the script element early.
        data = json.dumps(cloud, separators=(",", ":")).replace("<", "\\u003c")
        code = (_HERE / "report.js").read_text()
        script = f'<script type="application/json" id="cloud-data">{data}</script><script>{code}</script>'
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{style}</style></head>
<body><main><h1>{escape(title)}</h1><div class="sub">{escape(subtitle)}</div>
{body}
</main>{script}</body></html>
"""
