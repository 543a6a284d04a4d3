"""A Ray of one thread, for the laws of the pool: workers that die, refuse, or lose what they made."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gbinet.cluster.worker import Answer


class RayError(Exception):
    pass


class Reference:
    """A result that is there, or an error."""

    def __init__(self, value: Any, node: str = "") -> None:
        self.value, self.node = value, node


Behaviour = Callable[["Actor", int, dict[int, str]], Any]


class Actor:
    """`do` calls the behaviour of the test, which returns a value or an Answer, or raises RayError."""

    def __init__(self, ray: FakeRay, node: str) -> None:
        self.fake, self.node, self.dead = ray, node, False
        self.ready = SimpleNamespace(remote=lambda: Reference((node, ray.version)))
        self.do = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._do))

    def _do(self, item: int, following: list[int], lost: dict[int, str]) -> tuple[Reference, Reference]:
        self.fake.log.append((self.node, item))
        try:
            if self.dead:
                raise RayError("dead")
            made = self.fake.behave(self, item, dict(lost))
        except RayError as error:
            self.dead = True
            return Reference(error, self.node), Reference(error)
        answer = made if isinstance(made, Answer) else Answer(made)
        return Reference(answer, self.node), Reference(self.fake.large(item))


class FakeRay:
    """Answers arrive in a random order. Each machine has one core, or what `cores` says."""

    def __init__(self, machines: list[str], behave: Behaviour, seed: int = 0) -> None:
        from gbinet import __version__

        self.version, self.machines, self.behave = __version__, machines, behave
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.running, self.cores = True, 1
        self.slow: set[str] = set()  # machines whose answers come when all others wait
        self.log: list[tuple[str, int]] = []
        self.random, self.hired, self.killed = random.Random(seed), 0, 0
        self.large: Callable[[int], Any] = lambda item: f"large {item}"

    def is_initialized(self) -> bool:
        return self.running

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cores * len(self.machines))}

    def nodes(self) -> list[dict[str, Any]]:
        gone = {"Alive": False, "Resources": {}}
        return [gone, *({"Alive": True, "Resources": {"CPU": float(self.cores)}} for _ in self.machines)]

    def remote(self, _: object) -> Any:
        def hire(*_: object) -> Actor:
            self.hired += 1
            return Actor(self, self.machines[(self.hired - 1) % len(self.machines)])

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=hire))

    def wait(
        self, references: list[Reference], num_returns: int, timeout: float
    ) -> tuple[list[Reference], None]:
        quick = [reference for reference in references if reference.node not in self.slow]
        return [self.random.choice(quick or references)], None

    def get(self, reference: Reference) -> Any:
        if isinstance(reference.value, RayError):
            raise reference.value
        return reference.value

    def kill(self, actor: Actor) -> None:
        assert self.running, "this would start a new Ray"
        self.killed += 1
