"""What a folder of results holds: a JSON file per trained variant, costs, clouds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gbinet.errors import FormatError, InputError, flag
from gbinet.formats.reading import read_json
from gbinet_research.variants import VARIANTS, Budget, Variant, differing

COSTS, CLOUDS = "costs.json", "clouds.json"
Within = Mapping[str, float]  # threshold in mm -> share of pixels
_COSTS_DEPEND_ON = ("views", "validation_size", "width", "height", "batch_size", "precision")
_STAGES_OF = {"centre": "centres", "expectation": "expectations", "smooth": "smooth"}


def result_path(out: Path, name: str) -> Path:
    return out / f"{name}.json"


def weights_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.safetensors"


def read_result(path: Path) -> dict[str, Any] | None:
    """None where there is none; one that cannot be read is an error, not a reason to train for hours."""
    if not path.is_file():
        return None
    try:
        content = read_json(path)
    except FormatError as error:
        raise InputError(f"{error}; delete it to compute it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a result of a comparison; delete it to compute it again")
    return content


def check_design(path: Path, stored: Mapping[str, Any], variant: Variant) -> None:
    """Refuse what was made when the name stood for something else."""
    if not variant.has_design(stored.get("design")):
        raise InputError(
            f"{path} is of another design than `{variant.name}` stands for today: choose another folder, or "
            "delete it"
        )


def check_same(path: Path, stored: Mapping[str, Any], variant: Variant, budget: Budget) -> None:
    """Refuse to go on with what was made, or begun, in another way."""
    check_design(path, stored, variant)
    if options := differing(stored.get("budget"), budget.to_dict()):
        raise InputError(
            f"{path} was made with another budget ({', '.join(options)}): choose another folder, or delete it"
        )


def cost_key(budget: Mapping[str, Any]) -> dict[str, Any]:
    """What costs depend on, of a budget as JSON has it."""
    return {k: budget.get(k) for k in _COSTS_DEPEND_ON}


def check_costs(path: Path, costs: Mapping[str, Any], budget: Mapping[str, Any], *devices: str) -> None:
    """Refuse costs that do not belong together: those of other sizes, designs or devices."""
    key = cost_key(budget)
    for name, row in costs.items():
        known = row.get("key") if isinstance(row, dict) else None
        stored = known if isinstance(known, dict) else {}
        if options := [flag(k) for k in key if stored.get(k) != key[k]]:
            raise InputError(
                f"{path}: `{name}` was measured with another budget ({', '.join(options)}): choose another "
                "folder, or delete it"
            )
        if name in VARIANTS:
            check_design(path, row, VARIANTS[name])
    if len(found := sorted({str(row.get("device")) for row in costs.values()} | set(devices))) > 1:
        raise InputError(
            f"{path}: costs of different devices ({', '.join(found)}) cannot stand in one table: choose "
            "another folder, or delete it"
        )


@dataclass(frozen=True)
class Results:
    """Everything that is in a folder of results. Only rows of one budget stand beside each other."""

    variants: dict[str, dict[str, Any]]  # by the names of those that were trained
    costs: dict[str, Any]
    clouds: dict[str, Any]

    @staticmethod
    def read(out: Path) -> Results:
        found: dict[str, dict[str, Any]] = {}
        for name in VARIANTS:
            content = read_result(result_path(out, name))
            if content is None:
                continue
            check_design(result_path(out, name), content, VARIANTS[name])
            for other, before in found.items():
                if options := differing(before.get("budget"), content.get("budget")):
                    raise InputError(
                        f"{result_path(out, name)} and {other}.json were made with different budgets "
                        f"({', '.join(options)}), so they cannot stand in one table: keep them in different "
                        "folders"
                    )
            found[name] = content
        results = Results(found, read_result(out / COSTS) or {}, read_result(out / CLOUDS) or {})
        if found:
            check_costs(out / COSTS, results.costs, results.budget)
        return results

    @property
    def budget(self) -> Mapping[str, Any]:
        return next(iter(self.variants.values()))["budget"] if self.variants else {}

    def __contains__(self, name: str) -> bool:
        return VARIANTS[name].trained in self.variants

    def within(self, name: str, stage: int | None = None, readout: str = "") -> Within:
        """Share of pixels by threshold after a stage; usually the network's own read-out of its last one."""
        variant = VARIANTS[name]
        content = self.variants.get(variant.trained)
        if content is None:
            return {}
        readout = readout or variant.config.readout
        if readout == "refined":
            errors = content["validation"]["final"]
        else:
            stages = content["validation"][_STAGES_OF[readout]]
            errors = stages.get(str(stage or variant.config.stages))
        return errors["within"] if errors else {}

    def percent(
        self, name: str, threshold: float, stage: int | None = None, readout: str = ""
    ) -> float | None:
        share = self.within(name, stage, readout).get(str(threshold))
        return None if share is None else 100 * share

    def valid(self, name: str) -> dict[int, float]:
        """Stage -> per cent of pixels whose true depth is still in a bin, to the last that is validated."""
        variant = VARIANTS[name]
        content = self.variants.get(variant.trained, {})
        shares = content.get("validation", {}).get("valid_share", {})
        return {int(k): 100 * share for k, share in shares.items() if int(k) <= variant.most_stages}

    def edge_band(self, name: str, threshold: float) -> float | None:
        """Per cent of the pixels within 2 px of a depth edge; what the network gives."""
        variant = VARIANTS[name]
        content = {} if variant.weights_of else self.variants.get(name, {})
        share = content.get("validation", {}).get("edge_band", {}).get("within", {}).get(str(threshold))
        return None if share is None else 100 * share

    def cost(self, name: str, part: str, figure: str) -> float | None:
        """Of this variant, or of one that is the same network (trained in the same way, for 'training')."""
        own = VARIANTS[name]
        if part == "training":
            own = VARIANTS[own.trained]
        for other, figures in self.costs.items():
            twin = VARIANTS.get(other)
            if twin is None or twin.config != own.config:
                continue
            value = figures.get(part, {}).get(figure)
            if value is not None and (part != "training" or twin.changes == own.changes):
                return float(value)
        return None

    def cloud(self, name: str, stage: int | None = None) -> Mapping[str, float | None]:
        stages = self.clouds.get(name, {}).get("stages", {})
        found = stages.get(str(stage or VARIANTS[name].config.stages), {})
        return found if isinstance(found, dict) else {}
