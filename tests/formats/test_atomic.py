"""Files appear whole or not at all."""

from __future__ import annotations

import errno

import pytest

from gbinet.errors import GBiNetError
from gbinet.formats.atomic import atomic_path


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
def test_trouble_with_the_disk_is_said_plainly(tmp_path, number, words):
    target = tmp_path / "cloud.ply"
    with pytest.raises(GBiNetError, match=rf"cloud\.ply: .*{words}"), atomic_path(target):
        raise OSError(number, "as the system says it")
    assert list(tmp_path.iterdir()) == []


def test_impossible_places_are_said_plainly(tmp_path):
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
