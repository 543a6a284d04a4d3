"""The record of a run: a line of JSON per event; TensorBoard curves and pictures where it is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gbinet.errors import GBiNetError
from gbinet.formats.atomic import explain_write_error
from gbinet.training.loss import MEASURES
from gbinet.training.validate import Prediction, Validation


def stage_measures(sums: Tensor) -> list[dict[str, float]]:
    """Sums over pixels [stages, len(MEASURES)] -> means and shares, a dictionary per stage."""
    rows = []
    for values in sums.tolist():
        total = dict(zip(MEASURES, values, strict=True))
        valid, known = max(total["valid"], 1.0), max(total["known"], 1.0)
        rows.append(
            {
                "loss": total["cross_entropy"] / valid,
                "accuracy": total["right"] / valid,
                "within_1_bin": total["within_1_bin"] / valid,
                "valid_share": total["valid"] / known,
                "readout": total["readout"] / max(total["readout_pixels"], 1.0),
            }
        )
    return rows


class Tracker:
    """Writes `log.jsonl` and, if asked and possible, `tensorboard/` into the folder of the run."""

    def __init__(self, out: Path, tensorboard: bool = True) -> None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_write_error(out, error) or error from error
        self.path = out / "log.jsonl"
        self._writer: Any = _writer(out / "tensorboard") if tensorboard else None

    def event(self, kind: str, step: int, values: Mapping[str, object]) -> None:
        """One line of the log."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": kind, "step": step, **values}) + "\n")
        except OSError as error:
            raise GBiNetError(f"cannot write {self.path}: {error.strerror}") from error

    def training(self, step: int, values: Mapping[str, float], stages: Sequence[Mapping[str, float]]) -> None:
        self.event("train", step, {**values, "stages": list(stages)})
        if self._writer is None:
            return
        for name, value in values.items():
            self._writer.add_scalar(f"train/{name}", value, step)
        for number, row in enumerate(stages, start=1):
            for name, value in row.items():
                self._writer.add_scalar(f"{name}/stage {number}", value, step)

    def validation(self, step: int, result: Validation, predictions: Sequence[Prediction]) -> None:
        self.event("validation", step, result.to_dict())
        if self._writer is None:
            return
        self._writer.add_scalar("validation/score", result.score, step)
        self._writer.add_scalar("validation/median", result.final.median, step)
        for threshold, share in result.final.within.items():
            self._writer.add_scalar(f"validation within/{threshold:g}", share, step)
        for number, errors in result.centres.items():
            for threshold, share in errors.within.items():
                self._writer.add_scalar(f"validation stage {number}/within {threshold:g}", share, step)
            self._writer.add_scalar(
                f"validation valid share/stage {number}", result.valid_share[number], step
            )
        for index, prediction in enumerate(predictions[:2]):
            for name, picture in pictures(prediction).items():
                self._writer.add_image(f"sample {index}/{name}", picture, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def pictures(prediction: Prediction, width: int = 480) -> dict[str, Tensor]:
    """Small pictures [3, h, w] in [0, 1]: image, truth, depth per stage, final, mask, confidence, error."""
    stride = max(1, prediction.image.shape[-1] // width)
    near, far = prediction.depth_range.tolist()

    def small(values: Tensor) -> Tensor:
        return values[..., ::stride, ::stride].cpu()

    def grey(values: Tensor) -> Tensor:
        return small(values).float().clamp(0, 1).expand(3, -1, -1)

    def depth(values: Tensor) -> Tensor:
        shade = (far - values) / (far - near) * 0.9 + 0.1  # near is bright
        return grey(torch.where(values > 0, shade, 0.0))

    truth = prediction.truth
    last = max(prediction.centres)
    error = (prediction.depth - truth).abs() / ((far - near) / 256)
    result = {"image": small(prediction.image).float(), "true depth": depth(truth)}
    result |= {f"depth stage {k}": depth(d) for k, d in prediction.centres.items()}
    result["final depth"] = depth(prediction.depth)
    result["valid"] = grey(prediction.valid[last])
    result["confidence"] = grey(prediction.confidence)
    result["error (white = range / 256)"] = grey(torch.where(truth > 0, error, 0.0))
    return result


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
