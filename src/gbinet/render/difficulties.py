"""What makes photos hard to match: each difficulty with how often it occurs and how strong it gets."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from gbinet.errors import InputError
from gbinet.render.seeding import generator


@dataclass(frozen=True)
class Difficulty:
    """One difficulty."""

    share: float  # of the scenes or samples with difficulties, 0 to 1
    amount: float  # its largest strength, or the share of a scene that has it; the unit stands beside it


@dataclass(frozen=True)
class Difficulties:
    """All difficulties. Those in OF_SCENES belong to a scene, the others are drawn for every sample."""

    gloss: Difficulty = Difficulty(0.3, 0.6)  # share of the parts whose highlights move with the camera
    paint: Difficulty = Difficulty(0.45, 0.85)  # share of the walls of one colour; fewer things
    plastic: Difficulty = Difficulty(0.2, 0.6)  # share of the things of white plastic
    glass: Difficulty = Difficulty(0.2, 0.35)  # share of the things that mirror: what is seen has no depth
    sky: Difficulty = Difficulty(0.25, 6.0)  # backgrounds without depth, up to so many times as bright
    thin: Difficulty = Difficulty(0.35, 10.0)  # wires, plants, railings, brushes in the scene
    repetition: Difficulty = Difficulty(0.2, 0.6)  # share of the walls and grounds of tiles; and fences

    calibration: Difficulty = Difficulty(0.6, 0.7)  # error of reprojection by wrong cameras, pixels (RMS)
    dim: Difficulty = Difficulty(0.15, 0.06)  # noise of a mid-grey pixel in little light
    motion: Difficulty = Difficulty(0.12, 7.0)  # length of the streaks, pixels
    defocus: Difficulty = Difficulty(0.12, 2.5)  # radius of the disc that a point becomes, pixels
    exposure: Difficulty = Difficulty(0.2, 0.6)  # spread of log brightness between photos
    roll: Difficulty = Difficulty(0.12, 0.8)  # chance that a view of the sample is turned by 90 degrees
    wide: Difficulty = Difficulty(0.2, 45.0)  # angle between reference and source at the target, degrees
    forward: Difficulty = Difficulty(0.12, 0.3)  # way towards what is seen, as a share of its distance
    above: Difficulty = Difficulty(0.1, 90.0)  # elevation of the camera over what is seen, degrees
    range: Difficulty = Difficulty(0.25, 50.0)  # far / near of the range to search
    sizes: Difficulty = Difficulty(0.15, 2.0)  # photos up to so many times as large or small as the reference

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Difficulty = getattr(self, field.name)
            if not (0 <= value.share <= 1 and value.amount > 0):
                raise InputError(f"{field.name} needs a share from 0 to 1 and a positive amount, got {value}")

    def only(self, *names: str) -> Difficulties:
        """These difficulties always, the others never."""
        if unknown := sorted(set(names) - set(NAMES)):
            raise InputError(f"there is no difficulty {unknown}; the difficulties are {', '.join(NAMES)}")
        return replace(
            self, **{name: replace(getattr(self, name), share=float(name in names)) for name in NAMES}
        )

    def drawn(self, names: tuple[str, ...], *key: int | str) -> dict[str, float]:
        """Which of these a scene or sample has, with amounts.

        Each is drawn independently, except that a sample with "forward" does not have "wide".
        """
        amounts = {
            name: getattr(self, name).amount
            for name in names
            if generator(*key, "has", name).random() < getattr(self, name).share
        }
        if "forward" in amounts:
            amounts.pop("wide", None)
        return amounts


NAMES = tuple(field.name for field in fields(Difficulties))
OF_SCENES = ("gloss", "paint", "plastic", "glass", "sky", "thin", "repetition")
OF_SAMPLES = tuple(name for name in NAMES if name not in OF_SCENES)
