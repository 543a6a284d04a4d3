"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gbinet.errors import GBiNetError
from gbinet.formats.atomic import atomic_path, remove_temporary


def test_success_creates_folders_and_leaves_only_the_file(tmp_path):
    target = tmp_path / "a" / "b" / "file.npz"
    with atomic_path(target) as temporary:
        assert temporary.parent == target.parent and temporary.suffix == ".npz"
        temporary.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert [p.name for p in target.parent.iterdir()] == ["file.npz"]


def test_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(KeyError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise KeyError("x")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "number,words",
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EACCES, "no permission"),
        (errno.EROFS, "read-only"),
        (errno.EDQUOT, "quota"),
    ],
)
def test_disk_errors_are_explained(tmp_path, number, words):
    target = tmp_path / "cloud.ply"
    with pytest.raises(GBiNetError, match=rf"cloud\.ply: .*{words}"), atomic_path(target):
        raise OSError(number, "as the system says it")
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_does_not_fit_is_reported(tmp_path):
    """The error of a copy names two files, the one that is read first."""
    with pytest.raises(GBiNetError, match=r"b\.jpg: .*disk is full"), atomic_path(tmp_path / "b.jpg") as copy:
        raise OSError(errno.ENOSPC, "No space left on device", "/photos/a.jpg", None, str(copy))


def test_impossible_paths_are_reported(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "file" / "a", tmp_path / "folder", tmp_path / ("n" * 300)):
        with pytest.raises(GBiNetError, match="cannot write"), atomic_path(target) as temporary:
            temporary.write_text("x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_errors_of_other_files_are_not_taken_over(tmp_path):
    other = OSError(errno.EACCES, "no", str(tmp_path / "elsewhere" / "input.bin"))
    with pytest.raises(PermissionError), atomic_path(tmp_path / "out" / "a"):
        raise other


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    """File flushed, then renamed, then the folder flushed: a power cut leaves the old file or the new one."""
    done = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(handle):
        done.append(("flush", Path(f"/proc/self/fd/{handle}").resolve().name))
        real_sync(handle)

    def replace(source, target):
        done.append(("rename", Path(target).name))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with atomic_path(tmp_path / "map.npz") as temporary:
        temporary.write_text("new")
        written = temporary.name
    expected = [("flush", written), ("rename", "map.npz"), ("flush", tmp_path.name)]
    assert done == expected if Path("/proc/self/fd").is_dir() else len(done) == 3


def test_a_folder_appears_whole_too(tmp_path):
    with atomic_path(tmp_path / "state") as temporary:
        (temporary / "inner").mkdir(parents=True)
        (temporary / "inner" / "a").write_text("new")
        assert not (tmp_path / "state").exists()
    assert (tmp_path / "state" / "inner" / "a").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_a_disk_that_fails_to_flush_keeps_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "map.npz").write_text("old")

    def fsync(handle):
        raise OSError(errno.ENOSPC, "as the system says it")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(GBiNetError, match="disk is full"), atomic_path(tmp_path / "map.npz") as temporary:
        temporary.write_text("new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("map.npz", "old")]


def test_only_our_own_leftovers_are_removed(tmp_path):
    with atomic_path(tmp_path / "map.npz") as temporary:
        temporary.write_text("new")
        left = temporary.name
    foreign = {".tmp-01234567-map.npz", ".gbinet-tmp-mine", ".gbinet-tmp-0123456z-a", "gbinet-tmp-01234567-a"}
    for name in (left, *foreign):
        (tmp_path / name).write_text("x")
    (tmp_path / ".gbinet-tmp-01234567-folder").mkdir()
    assert [p.name for p in remove_temporary(tmp_path, tmp_path / "nowhere")] == [left]
    assert {p.name for p in tmp_path.iterdir()} == {*foreign, "map.npz", ".gbinet-tmp-01234567-folder"}


def test_another_missing_file_is_not_reported_as_the_folder(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a"):
        (tmp_path / "input.bin").read_bytes()
