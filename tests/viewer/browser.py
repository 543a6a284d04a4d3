"""A headless Chromium that opens a page, takes its picture and listens to its console."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)


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
