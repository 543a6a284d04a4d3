"""Draws report.jpg: run `gbinet demo`, then `python docs/pictures/draw_report.py`. Needs Chromium."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
SIZE = (1280, 1330)  # px: down to the end of the cloud and its sides


def main(report: Path = Path("gbinet-demo/report.html")) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        command = [
            *("chromium", "--headless=new", "--no-sandbox", "--hide-scrollbars", "--use-angle=swiftshader"),
            *("--enable-unsafe-swiftshader", f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={shot}"),
            *(f"--user-data-dir={folder}/profile", "--virtual-time-budget=15000", report.resolve().as_uri()),
        ]
        subprocess.run(command, check=True, capture_output=True)
        Image.open(shot).convert("RGB").save(HERE / "report.jpg", quality=82)


if __name__ == "__main__":
    main()
