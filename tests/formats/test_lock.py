"""One writer per folder; a dead one does not block the next."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gbinet.errors import GBiNetError
from gbinet.formats import lock
from gbinet.formats.lock import FILE, locked

HOLDER = (
    "import sys, time; from pathlib import Path; from gbinet.formats.lock import locked\n"
    "with locked(Path(sys.argv[1])): print('mine', flush=True); time.sleep(600)"
)


def other_process(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "mine\n"
    return process


@pytest.fixture(params=["flock", "no flock"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Also as on file systems without locks (or Windows), where the file alone has to do."""
    if request.param == "no flock":
        monkeypatch.setattr(lock, "fcntl", None)
    return str(request.param)


def test_the_second_learns_who_the_first_is(tmp_path: Path, kind: str) -> None:
    process = other_process(tmp_path / "out")
    try:
        expected = (
            rf"out: process {process.pid} on {socket.gethostname()} \(since 20.*wait until it has ended"
        )
        with pytest.raises(GBiNetError, match=expected), locked(tmp_path / "out"):
            pass
        assert (tmp_path / "out" / FILE).exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert (tmp_path / "out" / FILE).exists()  # left by the dead
    with locked(tmp_path / "out"):
        assert json.loads((tmp_path / "out" / FILE).read_text())["process"] == os.getpid()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_leaves_no_lock(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lock.os, "write", full)
    with pytest.raises(GBiNetError, match="the disk is full"), locked(tmp_path / "a" / "b"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_who_waits_can_be_told_to_stop(tmp_path: Path, kind: str) -> None:
    tries = 0

    def meanwhile() -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            raise InterruptedError("given up")

    with locked(tmp_path), pytest.raises(InterruptedError), locked(tmp_path, meanwhile):
        pass
    with locked(tmp_path, meanwhile):
        assert tries == 3


def test_within_one_process_too(tmp_path: Path, kind: str) -> None:
    with (
        locked(tmp_path),
        pytest.raises(GBiNetError, match=f"process {os.getpid()}"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_another_process_with_the_same_number_is_not_the_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    holder = {"process": os.getpid(), "machine": socket.gethostname(), "process_started": "1"}
    (tmp_path / FILE).write_text(json.dumps(holder))
    with locked(tmp_path):
        pass


def test_where_nobody_can_know_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    (tmp_path / FILE).write_text(json.dumps({"process": 1, "machine": "elsewhere", "since": "yesterday"}))
    with pytest.raises(GBiNetError, match=rf"process 1 on elsewhere.*delete .*{FILE}"), locked(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", "\0", "[" * 100_000])
def test_a_garbled_lock_of_nobody_is_taken(tmp_path: Path, kind: str, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_what_only_bears_the_name_of_a_lock_stays(tmp_path: Path, kind: str, what: str) -> None:
    """A link would lead the writing of the lock to somebody's file; a pipe would keep us waiting."""
    (tmp_path / "thesis.txt").write_text("precious")
    path = tmp_path / FILE
    make = {
        "link": lambda: path.symlink_to("thesis.txt"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }
    make[what]()
    with pytest.raises(GBiNetError, match=r"not the lock of a run; move it away"), locked(tmp_path):
        pass
    assert os.path.lexists(path) and (tmp_path / "thesis.txt").read_text() == "precious"


def test_folders_that_were_made_for_nothing_go_again(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path / "a" / "b"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "c").mkdir()
    with locked(tmp_path / "c"):
        pass
    assert (tmp_path / "c").is_dir()  # not ours
    with locked(tmp_path / "d"):
        (tmp_path / "d" / "result").write_text("x")
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["result"]


def test_impossible_folders_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(GBiNetError, match="a part of this path is a file"), locked(tmp_path / "file" / "out"):
        pass
    with pytest.raises(GBiNetError, match="the name is too long"), locked(tmp_path / ("n" * 300) / "out"):
        pass
    if Path("/proc").is_dir():
        with (
            pytest.raises(GBiNetError, match=r"cannot write /proc/foo: no folder can be made"),
            locked(Path("/proc/foo")),
        ):
            pass

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "as the system says it")

    monkeypatch.setattr(lock.os, "open", full)
    with pytest.raises(GBiNetError, match="the disk is full"), locked(tmp_path / "out"):
        pass
