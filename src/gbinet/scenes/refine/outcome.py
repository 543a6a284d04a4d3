"""The outcome of refining or checking cameras: figures, a summary, warnings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Refinement:
    """Figures of one refinement."""

    views: int
    refined: tuple[str, ...] = ()  # views whose camera was adjusted; none: all were kept as given
    before: float | None = None  # px, median distance of matches from their epipolar lines; None: no matches
    after: float | None = None  # the same with the adjusted cameras, also where these were not used
    moved: float = 0.0  # scene units, median distance between given and refined centres
    turned: float = 0.0  # degrees, median
    pairs: int = 0  # of photos that were found to match
    points: int = 0
    kept_because: str | None = None  # why the given cameras were kept
    left: tuple[str, ...] = ()  # views that keep their given camera among refined ones
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For run.json."""
        return asdict(self)

    @staticmethod
    def from_dict(stored: dict[str, Any]) -> Refinement:
        """From what `to_dict` gave; anything else is a KeyError, TypeError, ValueError or OverflowError."""
        before, after, kept = (stored[key] for key in ("before", "after", "kept_because"))
        return Refinement(
            int(stored["views"]),
            tuple(map(str, stored["refined"])),
            None if before is None else float(before),
            None if after is None else float(after),
            float(stored["moved"]),
            float(stored["turned"]),
            int(stored["pairs"]),
            int(stored["points"]),
            None if kept is None else str(kept),
            tuple(map(str, stored["left"])),
            float(stored["seconds"]),
        )

    def summary(self) -> str:
        """One line for people."""
        if self.kept_because is not None:
            return f"the given cameras were kept: {self.kept_because}"
        return (
            f"cameras refined: {len(self.refined)} of {self.views} views, median distance of matches from "
            f"their epipolar lines {self._lines()}, moved by {self.moved:.3g} (scene's unit) and "
            f"{self.turned:.2f} degrees in the median, {self.seconds:.0f} s"
        )

    def warnings(self) -> list[str]:
        if not self.left:
            return []
        names = ", ".join(self.left[:8]) + (", ..." if len(self.left) > 8 else "")
        few = f"{len(self.left)} of {self.views} views share too few points with others"
        return [f"{few} and keep their given camera: {names}"]

    def facts(self) -> dict[str, str]:
        """A table for the report."""
        facts = {"views refined": f"{len(self.refined)} of {self.views}"}
        if self.kept_because is not None:
            facts["given cameras kept"] = self.kept_because
        if self.before is not None and self.after is not None:
            facts["matches off their epipolar lines"] = f"{self._lines()} (median)"
        if self.refined:
            facts["moved by"] = f"{self.moved:.3g} (scene's unit, median)"
            facts["turned by"] = f"{self.turned:.2f} degrees (median)"
        facts["pairs of photos"] = f"{self.pairs:,}"
        facts["points"] = f"{self.points:,}"
        return facts | {"time": f"{self.seconds:.1f} s"}

    def _lines(self) -> str:
        return f"{self.before or 0:.2f} -> {self.after or 0:.2f} px"


@dataclass(frozen=True)
class CameraCheck:
    """How well given cameras fit the photos, from a few pairs."""

    pairs: int  # that were compared and found to match
    matches: int
    off: float | None  # px, median distance of matches from their epipolar lines; None: too few matches

    def summary(self) -> str:
        if self.off is None:
            return "cameras not checked: the photos share too few features, or were taken from one place"
        found = (
            f"matches lie {self.off:.2f} px off their epipolar lines in the median ({self.matches:,} matches)"
        )
        if self.off <= OFF:
            return f"cameras fit: {found}"
        return f"cameras are off: {found}; --refine-cameras of `gbinet reconstruct` may correct them"


OFF = 0.75  # px; features themselves are uncertain by about half of this
