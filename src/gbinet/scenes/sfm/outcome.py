"""The outcome of structure from motion: figures, and warnings that say what to do where it went badly."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ADVICE = (
    "Photos must overlap by two thirds or more, be sharp, show texture, and be taken from different places "
    "(walking around, not turning on the spot)"
)

# Focal length over the longer side of the photo: a fisheye lens has 0.3, a 400 mm lens 11.
SHORTEST, LONGEST = 0.2, 15.0
_MAX_ERROR = 2.0  # px, reprojection error: more means a model that does not fit
_PAIRING = {
    "all": "every pair of photos",
    "space": "neighbours by GPS",
    "sequence": "neighbours by number, and photos that look alike",
    "looks": "photos that look alike",
}


@dataclass(frozen=True)
class CameraFacts:
    """One camera of the model."""

    model: str  # COLMAP's name
    width: int
    height: int
    focal: float  # px
    photos: int
    params: tuple[float, ...]

    @staticmethod
    def from_dict(stored: dict[str, Any]) -> CameraFacts:
        width, height, photos = (int(stored[key]) for key in ("width", "height", "photos"))
        params = tuple(map(float, stored["params"]))
        return CameraFacts(str(stored["model"]), width, height, float(stored["focal"]), photos, params)

    @property
    def is_impossible(self) -> bool:
        return not SHORTEST <= self.focal / max(self.width, self.height) <= LONGEST


@dataclass(frozen=True)
class Outcome:
    """Figures of one structure from motion."""

    points: int
    error: float  # px, mean reprojection error
    cameras: tuple[CameraFacts, ...]
    compared: str  # how pairs were chosen: 'all', 'space', 'sequence', 'looks'
    pairs: int
    others: tuple[tuple[str, ...], ...]  # photos of further models, which fit together but not with the first
    unsound: tuple[str, ...]  # photos left out because their camera came out as an impossible one
    fixed_focal: bool  # focal lengths were kept as EXIF says (or guessed), since they could not be found
    seconds: dict[str, float]  # features, matching, mapping

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(stored: dict[str, Any]) -> Outcome:
        """The inverse of `to_dict`. A damaged record is an error of `int`, `float`, tuples or dicts."""
        if stored["compared"] not in _PAIRING:
            raise ValueError(f"pairs were not chosen by {stored['compared']!r}")
        return Outcome(
            int(stored["points"]),
            float(stored["error"]),
            tuple(CameraFacts.from_dict(one) for one in stored["cameras"]),
            stored["compared"],
            int(stored["pairs"]),
            tuple(tuple(map(str, names)) for names in stored["others"]),
            tuple(map(str, stored["unsound"])),
            bool(stored["fixed_focal"]),
            {str(step): float(seconds) for step, seconds in stored["seconds"].items()},
        )

    def facts(self) -> dict[str, str]:
        """A table for the report."""
        focal = ", ".join(f"{c.focal:.0f} px ({c.photos} photos)" for c in self.cameras[:6])
        return {
            "points": f"{self.points:,}",
            "reprojection error": f"{self.error:.2f} px",
            "cameras": str(len(self.cameras)),
            "focal lengths": focal + (", ..." if len(self.cameras) > 6 else ""),
            "compared": f"{_PAIRING[self.compared]} ({self.pairs:,} pairs)",
            **{key: f"{value:.1f} s" for key, value in self.seconds.items()},
        }

    def warnings(self, placed: int, total: int) -> list[str]:
        """Reasons to mistrust the poses, each with what to do."""
        texts = []
        if placed < 0.75 * total:
            texts.append(
                f"structure from motion placed only {placed} of {total} photos; the cloud shows what these "
                f"see. {ADVICE}; take more photos between those that were not placed and the others"
            )
        if self.error > _MAX_ERROR:
            texts.append(
                f"the poses fit badly: points lie {self.error:.1f} px off on average. If the photos come "
                "from several cameras or were cropped, give --camera per-photo"
            )
        for names in self.others:
            texts.append(
                f"{len(names)} photos form a part of their own that does not join the rest, and are left "
                f"out: {listed(names)}. Photos that show both parts would join them; or reconstruct it alone"
            )
        if self.unsound:
            texts.append(
                f"{len(self.unsound)} photos were left out: their camera came out as an impossible lens: "
                f"{listed(self.unsound)}. If they come from one camera, give --camera shared"
            )
        if self.fixed_focal:
            texts.append(
                "focal lengths could not be found from these photos and are those of EXIF, or guessed; "
                "shapes may be bent. Photos from more directions, some of them turned by 90 degrees, help"
            )
        return texts


def listed(names: tuple[str, ...] | list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def camera_facts(model: Any) -> tuple[CameraFacts, ...]:
    """Cameras of a pycolmap model that any photo uses."""
    used: dict[int, int] = {}
    for image in model.images.values():
        if image.has_pose:
            used[image.camera_id] = used.get(image.camera_id, 0) + 1
    facts = []
    for camera_id in sorted(used):
        camera = model.cameras[camera_id]
        params = tuple(round(float(value), 6) for value in camera.params)
        facts.append(
            CameraFacts(
                camera.model_name,
                camera.width,
                camera.height,
                round(float(camera.mean_focal_length()), 3),
                used[camera_id],
                params,
            )
        )
    return tuple(facts)


def photos_with_impossible_camera(model: Any) -> list[int]:
    """Ids of posed photos whose camera cannot be real."""
    found = []
    for image in model.images.values():
        camera = model.cameras[image.camera_id]
        ratio = camera.mean_focal_length() / max(camera.width, camera.height)
        if image.has_pose and not SHORTEST <= ratio <= LONGEST:
            found.append(int(image.image_id))
    return found


def no_model(photos: Path, count: int) -> str:
    who = "the two photos could not" if count == 2 else f"no two of the {count} photos could"
    return f"{photos}: {who} be placed together. {ADVICE}"
