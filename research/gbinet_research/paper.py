"""Figures of the paper (arXiv 2112.02338), all on DTU: shown beside ours, never mixed with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One row of a table of the paper. None = not given there."""

    accuracy: float | None = None  # mm, of the cloud
    completeness: float | None = None  # mm, of the cloud
    overall: float | None = None  # mm, of the cloud
    memory: float | None = None  # MB
    within: tuple[float, ...] = ()  # % of pixels off by less than 0.125, 0.25, 0.5, 1 mm


THRESHOLDS = (0.125, 0.25, 0.5, 1.0)  # mm

STRATEGIES = {  # table 4: memory of inference; shares of the first two from table 2 (MVSNet, CasMVSNet)
    "dense-linear": Published(0.396, 0.527, 0.462, 9384, (8.539, 16.85, 32.02, 53.61)),
    "coarse-to-fine": Published(0.325, 0.385, 0.355, 4591, (10.13, 19.88, 37.04, 59.4)),
    "binet": Published(0.360, 0.360, 0.360, 2108, (5.622, 11.19, 21.91, 39.14)),
    "gbinet-per-stage": Published(0.327, 0.268, 0.298, 2108, (11.75, 22.92, 41.62, 60.99)),
}
BINS = {  # table 5
    "binet": Published(overall=0.360, memory=2108, within=(5.622, 11.19, 21.91, 39.14)),
    "gbinet": Published(overall=0.298, memory=2108, within=(11.75, 22.92, 41.62, 60.99)),
    "gbinet-6": Published(overall=0.300, memory=2438, within=(13.58, 26.18, 45.78, 63.92)),
}
UPDATES = {  # table 6: memory of training. Its "gradient accumulation" and "efficient gradient updating"
    "gbinet-accumulate": Published(0.320, 0.277, 0.299, 12137),
    "gbinet-per-stage": Published(0.326, 0.269, 0.298, 5208),
}
STAGES = {  # figures 5 a and b
    6: Published(0.512, 0.263, 0.388, None, (4.859, 9.714, 19.38, 38.38)),
    7: Published(0.368, 0.242, 0.305, None, (8.615, 17.16, 33.63, 59.88)),
    8: Published(0.315, 0.262, 0.289, None, (12.77, 24.89, 45.10, 65.94)),
    9: Published(0.316, 0.265, 0.291, None, (13.34, 25.86, 45.91, 65.47)),
}
