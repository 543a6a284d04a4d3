"""The text of a progress line."""

from __future__ import annotations

import math

from gbinet.training.trainer import TrainStatus


def line(report: TrainStatus) -> str:
    """`step 1200  37 %  21.3 samples/s  6:05 left  loss 0.4123  valid 93.1 %`."""
    parts = [f"step {report.step}", f"{100 * report.fraction:.0f} %"]
    if report.samples_per_second:
        parts.append(f"{report.samples_per_second:.1f} samples/s")
    parts.append(f"{duration(report.seconds_left)} left")
    if report.samples_per_second:
        parts += [f"loss {report.loss:.4f}", f"valid {100 * report.valid_share:.1f} %"]
    if report.text:
        parts.append(report.text)
    return "  ".join(parts)


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    hours, rest = divmod(int(seconds), 3600)
    minutes, seconds_left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}" if hours else f"{minutes}:{seconds_left:02d}"
