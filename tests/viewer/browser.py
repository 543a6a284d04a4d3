"""A headless Chromium that opens a page, takes its picture and listens to its console."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)


# axe-core judges how well a page can be used without sight or mouse. It comes as one file in a small package.
_PACKAGE = find_spec("axe_core_python")
AXE = None if _PACKAGE is None or _PACKAGE.origin is None else Path(_PACKAGE.origin).with_name("axe.min.js")


def hindrances(page: Path, folder: Path) -> list[str]:
    """What axe-core finds serious or critical in a page, as "rule: elements"."""
    assert AXE is not None
    run = (
        "axe.run().then(r => console.log('AXE' + r.violations.filter(v => ['serious', 'critical']"
        ".includes(v.impact))"
        ".map(v => v.id + ': ' + v.nodes.map(n => n.target.join(' ')).join(', ')).join('; ')"
        " + ' of ' + r.passes.length));"
    )
    judged = page.with_name("judged.html")  # beside what it needs
    scripts = f"<script>{AXE.read_text()}</script><script>{run}</script>"
    judged.write_text(page.read_text().replace("</body>", f"{scripts}</body>"))
    _, console = photograph(judged.as_uri(), folder, 10)
    (said,) = [line.removeprefix("AXE") for line in console if line.startswith("AXE")]
    found, _, passed = said.rpartition(" of ")
    assert int(passed) > 5, "axe-core looked at nothing"
    return [one for one in found.split("; ") if one]


def photograph(url: str, folder: Path, patience: int = 15) -> tuple[np.ndarray, list[str]]:
    """The page after so many seconds of its own time, [H, W, 3], and what it wrote to its console."""
    assert CHROMIUM is not None
    picture = folder / "page.png"
    command = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--window-size=1000,700"),
        *("--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"),
        *(f"--virtual-time-budget={1000 * patience}", f"--screenshot={picture}", url),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert picture.exists(), done.stderr[-2000:]
    console = re.findall(r'CONSOLE[^\]]*\] "(.*?)", source', done.stderr, flags=re.DOTALL)
    with Image.open(picture) as image:
        return np.asarray(image.convert("RGB")), console
