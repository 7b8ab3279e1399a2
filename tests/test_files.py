"""Tests of writing a file completely or not at all."""

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from qkv.files import replacing


def test_an_error_leaves_the_old_file_unchanged(tmp_path: Path) -> None:
    target = tmp_path / "it"
    target.write_bytes(b"before")

    def stop_half_way() -> None:
        with replacing(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_the_new_file_shows_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "it"
    with replacing(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_an_unwritable_path_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not exist"), replacing(tmp_path / "no" / "it"):
        raise AssertionError("must not get here")
    with pytest.raises(IsADirectoryError, match="is a folder"), replacing(tmp_path):
        raise AssertionError("must not get here")


def test_replacing_a_symlink_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    (tmp_path / "link").symlink_to("file")
    with replacing(tmp_path / "link") as file:
        file.write(b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"after"


def test_a_named_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"), replacing(tmp_path / "pipe"):
        raise AssertionError("must not get here")
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_name_of_255_characters_can_be_written(tmp_path: Path) -> None:
    with replacing(tmp_path / ("x" * 255)) as file:
        file.write(b"whole")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"whole"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are those of Unix")
@pytest.mark.parametrize("before", [0o600, 0o640, 0o664, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, before: int) -> None:
    target = tmp_path / "it"
    target.write_bytes(b"before")
    target.chmod(before)
    with replacing(target) as file:
        (part,) = tmp_path.glob(".qkv-*.part")
        assert mode(part) == before  # set before the first byte is written
        file.write(b"after")
    assert (target.read_bytes(), mode(target)) == (b"after", before)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are those of Unix")
def test_a_new_file_has_the_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    with replacing(tmp_path / "it") as file:
        file.write(b"new")
    assert mode(tmp_path / "it") == mode(tmp_path / "other")


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away"
)
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    target = tmp_path / "it"
    target.write_bytes(b"before")
    os.chown(target, 1234, 4321)
    with replacing(target) as file:
        file.write(b"after")
    assert (target.stat().st_uid, target.stat().st_gid) == (1234, 4321)


def test_a_file_that_is_read_only_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "it"
    target.write_bytes(b"before")
    monkeypatch.setattr(os, "access", lambda path, _: path != target)  # root may write everywhere
    with pytest.raises(PermissionError, match="it is read-only"), replacing(target):
        raise AssertionError("must not get here")
    assert target.read_bytes() == b"before"


@pytest.mark.skipif(sys.platform == "win32", reason="limits are those of Unix")
@pytest.mark.parametrize("pieces", [1, 200])  # a single large write, and writes through the buffer
def test_a_full_disk_names_the_file(tmp_path: Path, pieces: int) -> None:
    import resource

    target = tmp_path / "it"
    target.write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write() -> None:
        with replacing(target) as file:
            for _ in range(pieces):
                file.write(bytes(200_000 // pieces))

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as found:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (found.value.errno, found.value.filename) == (errno.EFBIG, str(target))
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_of_the_caller_keeps_its_file_name(tmp_path: Path) -> None:
    def read_what_is_not_there() -> None:
        with replacing(tmp_path / "it"):
            raise OSError(errno.EIO, "Input/output error", "input")

    with pytest.raises(OSError, match="Input/output error") as found:
        read_what_is_not_there()
    assert found.value.filename == "input"


def test_two_files_at_once_in_one_folder(tmp_path: Path) -> None:
    with replacing(tmp_path / "one") as one, replacing(tmp_path / "two") as two:
        one.write(b"1")
        two.write(b"2")
    assert [(tmp_path / name).read_bytes() for name in ("one", "two")] == [b"1", b"2"]
