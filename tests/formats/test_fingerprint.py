"""The content decides; size and times only say whether to look again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbinet.formats import fingerprint
from gbinet.formats.fingerprint import UNREADABLE, Fingerprints


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_equal_bytes_and_nothing_else_have_equal_hashes(
    tmp_path_factory: pytest.TempPathFactory, one: bytes, other: bytes
) -> None:
    folder = tmp_path_factory.mktemp("hash")
    (folder / "a").write_bytes(one)
    (folder / "b").write_bytes(other)
    hashes = Fingerprints(folder / "store.json")
    assert (hashes.of(folder / "a") == hashes.of(folder / "b")) == (one == other)


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files written until now are old enough to be remembered."""
    now = time.time_ns() + 10**10
    monkeypatch.setattr(fingerprint.time, "time_ns", lambda: now)


def test_what_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "photo"
    path.write_bytes(b"one")
    later(monkeypatch)
    first = Fingerprints(tmp_path / "store.json")
    known = first.of(path)
    first.save()
    monkeypatch.setattr(fingerprint.hashlib, "file_digest", None)  # would fail
    again = Fingerprints(tmp_path / "store.json")
    assert again.of(path) == known
    before = (tmp_path / "store.json").stat().st_mtime_ns
    again.save()
    assert (tmp_path / "store.json").stat().st_mtime_ns == before


def test_time_set_back_does_not_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "photo"
    path.write_bytes(b"one")
    state = path.stat()
    later(monkeypatch)
    hashes = Fingerprints(tmp_path / "store.json")
    known = hashes.of(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert hashes.of(path) != known


def test_two_changes_within_a_tick_of_a_coarse_clock_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that knows nothing but the size and seconds: fresh files are not remembered."""
    monkeypatch.setattr(fingerprint, "_stamp", lambda state: [state.st_size])
    path = tmp_path / "photo"
    path.write_bytes(b"one")
    hashes = Fingerprints(tmp_path / "store.json")
    known = hashes.of(path)
    path.write_bytes(b"two")
    assert hashes.of(path) != known


def test_what_is_not_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    hashes = Fingerprints(tmp_path / "store.json")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing", Path("/dev/zero")):
        assert hashes.of(path) == UNREADABLE
    os.mkfifo(tmp_path / "store.json")
    Fingerprints(tmp_path / "store.json")


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"a": 1}', '{"a": [1, 2, 3]}', "[" * 100_000])
def test_a_garbled_store_is_forgotten(tmp_path: Path, content: str) -> None:
    (tmp_path / "store.json").write_text(content)
    (tmp_path / "photo").write_bytes(b"one")
    assert len(Fingerprints(tmp_path / "store.json").of(tmp_path / "photo")) == 32
