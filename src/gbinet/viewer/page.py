"""The skeleton of report.html: only layout and escaping; what stands in it is decided in report.py."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gbinet.names import printable
from gbinet.viewer.colour import MapName
from gbinet.viewer.colour import table as colours

_HERE = Path(__file__).parent


def escape(text: object) -> str:
    return html.escape(printable(text))


def number(label: str, value: str) -> str:
    return f'<div class="number"><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>'


def figure(source: str, caption: str) -> str:
    picture = f'<img loading="lazy" alt="The cloud {escape(caption)}" src="{source}">'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def warnings(texts: Sequence[str]) -> str:
    """The yellow box: what went badly, and what to do about it."""
    if not texts:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return (
        '<section class="warnings" aria-labelledby="look-at"><h2 id="look-at">What to look at</h2>'
        f"<ul>{items}</ul></section>"
    )


def table(title: str, values: Mapping[str, object]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(k)}</th><td>{escape(_formatted(v))}</td></tr>'
        for k, v in values.items()
    )
    return f"<div><h3>{escape(title)}</h3><table>{rows}</table></div>"


def _formatted(value: object) -> object:
    return ("yes" if value else "no") if isinstance(value, bool) else value


def picture(source: str, kind: str, name: str) -> str:
    """One of a view's pictures: a button that enlarges it."""
    image = f'<img loading="lazy" alt="{escape(kind)} of {escape(name)}" src="{source}">'
    return f'<button type="button" class="picture">{image}<span>{escape(kind)}</span></button>'


def view(
    identity: str,
    name: str,
    facts: str,
    pictures: Sequence[str],
    depths: tuple[float, float] | None,
    unit: str,
    camera: int | None,
) -> str:
    head = f"<header><h3>{escape(name)}</h3>"
    head += f'<span class="facts">{escape(facts)}</span>'
    if camera is not None:
        head += f'<button type="button" class="small" data-camera="{camera}">show in the cloud</button>'
    legend = ""
    if depths is not None:
        near, far = (f"{depth:.3g} {unit}".rstrip() for depth in depths)
        legend = bar("depth", f"far {far}", f"near {near}", "depth:")
    return (
        f'<article class="view" id="{identity}">{head}</header><div class="four">{"".join(pictures)}</div>'
        f'<div class="legend">{legend}{bar("confidence", "0", "1", "confidence:")}</div></article>'
    )


def bar(name: MapName, low: str, high: str, label: str) -> str:
    """A legend: the colours from low to high, with the numbers at both ends."""
    return f"<span>{escape(label)} {escape(low)} {_colours(name)} {escape(high)}</span>"


def _colours(name: MapName) -> str:
    stops = ", ".join(f"rgb({r},{g},{b})" for r, g, b in colours(name, 9))
    return f'<i style="background:linear-gradient(90deg,{stops})"></i>'


def views(cards: Sequence[str], some: str, kinds: Sequence[str], unit: str) -> str:
    """All cards, and the window in which two pictures of a view are compared."""
    measured = "" if unit else "Depth is in the unit of the scene's cameras."
    options = "".join(f'<option value="{i}">{escape(kind)}</option>' for i, kind in enumerate(kinds))
    return f"""
<h2>Views</h2><p class="note">Click a picture to enlarge it and to compare it with another. <i>Kept</i> is the
depth that other views confirmed; grey is unknown or dropped. <i>Confidence</i> is the network's
own estimate, from 0 to 1, of how likely a depth is right. {measured}{escape(some)}</p>
{"".join(cards)}
<dialog id="compare" aria-label="Compare two pictures of a view">
  <div class="bar"><b class="name"></b><span class="facts"></span>
    <button type="button" class="previous">previous</button><button type="button" class="next">next</button>
    <button type="button" class="close">close</button></div>
  <div class="pair"><img class="under" alt=""><img class="over" alt=""></div>
  <div class="legend"></div>
  <div class="bar"><label>left <select class="left">{options}</select></label>
    <input class="slider" type="range" min="0" max="100" value="50"
      aria-label="border between the two pictures">
    <label>right <select class="right">{options}</select></label></div>
</dialog>"""


def cloud(count: int, views: tuple[int, int]) -> str:
    """The interactive view with its controls; `views`: least and most that agree on a point."""
    least, most = views
    label = "The cloud. Arrow keys turn it, plus and minus zoom, n and p go from camera to camera."
    return f"""
<h2>Cloud</h2><p class="note">Drag to turn, scroll or pinch to zoom, shift-drag to move. Click a camera to go
where its photo was taken; zoom out if you see none. {count:,} points are drawn here; cloud.ply has them
all.</p>
<div class="viewport">
  <canvas id="cloud" tabindex="0" role="application" aria-label="{label}"></canvas>
  <div class="message" id="cloud-message" role="status" hidden></div>
  <div id="camera-photo" hidden><img alt="photo of the chosen camera" src="data:,"><b></b>
    <a href="#cloud">its pictures</a></div>
  <div id="cloud-legend" hidden><span id="legend-low"></span>
    {_colours("confidence")}<span id="legend-high"></span></div>
  <div class="controls">
    <label>colour <select id="colour-mode"><option value="0">photo</option>
      <option value="1">number of views</option><option value="2">confidence</option></select></label>
    <label>camera <select id="camera"><option value="-1">overview</option></select></label>
    {_range("point-size", "point size", 0.3, 4, 0.1, 1)}
    {_range("min-views", "views at least", least, most, 1, least)}
    {_range("min-confidence", "confidence at least", 0, 1, 0.05, 0)}
    <label><input id="show-cameras" type="checkbox" checked> cameras</label>
    <button id="reset-view" type="button">reset</button>
  </div>
</div>"""


def _range(identity: str, label: str, low: float, high: float, step: float, value: float) -> str:
    return (
        f'<label>{label} <input id="{identity}" type="range" min="{low}" max="{high}" step="{step}" '
        f'value="{value}"><output id="{identity}-value" for="{identity}">{value}</output></label>'
    )


def whole(title: str, subtitle: str, body: str, cloud: Mapping[str, object] | None) -> str:
    """The page; `cloud` is the data of the interactive view, if there is one."""
    style = (_HERE / "report.css").read_text()
    script = f"<script>{(_HERE / 'compare.js').read_text()}</script>"
    if cloud is not None:
        # "<" cannot end the script element early.
        data = json.dumps(cloud, separators=(",", ":")).replace("<", "\\u003c")
        code = (_HERE / "report.js").read_text()
        script += f'<script type="application/json" id="cloud-data">{data}</script><script>{code}</script>'
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{style}</style></head>
<body><main><h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p>
{body}
</main>{script}</body></html>
"""
