"""Errors say the same after a journey between processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from gbinet.errors import FormatError, GBiNetError, InputError, SceneError


@pytest.mark.parametrize("travelled", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "error", [FormatError("a.ply", "is cut short", "line 7"), SceneError("no photos"), InputError("--views")]
)
def test_errors_survive_a_journey(
    error: GBiNetError, travelled: Callable[[GBiNetError], GBiNetError]
) -> None:
    found = travelled(error)
    assert type(found) is type(error) and str(found) == str(error) and vars(found) == vars(error)
