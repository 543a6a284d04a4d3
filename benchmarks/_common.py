"""Shared by all benchmarks: a report as JSON with the machine, the versions and the commit."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import torch

from gbinet.inference.device import peak_memory_mib as peak_memory_mib
from gbinet.provenance import commit


def report(name: str, figures: Mapping[str, object], out: Path | str | None = None) -> dict[str, object]:
    """Print what was measured as JSON, and write it to `out` where a path is given."""
    content: dict[str, object] = {
        "benchmark": name,
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "versions": _versions(),
        "commit": commit() or "unknown",
        "figures": dict(figures),
    }
    text = json.dumps(content, indent=2, default=str)
    print(text)
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(text + "\n")
    return content


def _machine() -> dict[str, object]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("gbinet", "torch", "triton", "numpy"):
        try:
            found[package] = importlib.import_module(package).__version__
        except ImportError:
            found[package] = "not installed"
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found
