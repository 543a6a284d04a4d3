"""Every band is worked on once, by threads that use one core each and change no setting of others."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbinet.ops import threads_cpu
from gbinet.ops.threads_cpu import in_bands

CPU = torch.device("cpu")


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@given(st.integers(1, 50), st.integers(1, 60), st.sampled_from([1, 3]))
def test_every_row_is_worked_on_once(height: int, rows: int, threads: int) -> None:
    before, counts = torch.get_num_threads(), torch.zeros(height)
    torch.set_num_threads(threads)

    def work(band: slice) -> None:
        counts[band] += 1

    in_bands(work, height, rows)
    torch.set_num_threads(before)
    assert bool((counts == 1).all())


def test_threads_use_one_core_each_and_write_to_tensors_of_the_caller(three_threads: None) -> None:
    found: set[tuple[int, bool, bool]] = set()
    with torch.inference_mode():
        values = torch.ones(40)

        def work(band: slice) -> None:
            values[band] *= 2  # outside inference mode this tensor could not be written to
            found.add((torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

        in_bands(work, 40, 4)
    assert found == {(1, False, True)} and values.tolist() == [2] * 40
    numbers = [torch.get_num_threads()]
    other = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert numbers == [3, 3]


def test_the_number_of_threads_is_limited(three_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_cpu, "MOST_THREADS", 2)
    with torch.no_grad():
        names = threads_cpu.in_threads(lambda _: threading.current_thread().name, range(100), CPU)
    assert len(set(names)) <= 2 and torch.get_num_threads() == 3


def test_an_error_in_a_band_is_raised(three_threads: None) -> None:
    def work(band: slice) -> None:
        if band.start == 6:
            raise MemoryError("no room")

    with torch.no_grad(), pytest.raises(MemoryError, match="no room"):
        in_bands(work, 9, 3)
