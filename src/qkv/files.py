"""Open files that users name, and write files completely or not at all."""

import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from qkv._argument_errors import value_error

StrPath = str | os.PathLike[str]


def named_folder(folder: StrPath) -> Path:
    """Return the path of an output folder. Raise an error for "", which `Path` reads as "."."""
    if not os.fspath(folder):
        raise value_error(
            'the name of the folder is empty; pass a name, or "." for the current folder'
        )
    return Path(folder)


def ordinary(path: StrPath) -> Path:
    """Return the path of a file to read; raise a ValueError for a pipe, a socket or a device.

    Every reader of a named file calls this function, because a pipe may block, and a device may
    have no end.
    """
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise ValueError(f"{path} is a pipe, a socket or a device: copy its content to a file")
    return Path(path)


@contextmanager
def replacing(path: StrPath) -> Iterator[BinaryIO]:
    """Write to a new file, then replace `path` with it; on an error, remove the new file.

    The new file gets the permissions of the old file. If the user may set the owner and the group,
    the new file also gets the old owner and group. If `path` is a link, the target of the link is
    replaced.

    Raises:
        OSError: the file cannot be written; the error names `path`.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp(), "note.txt")
    >>> with replacing(target) as file:
    ...     _ = file.write(b"whole")
    >>> target.read_text()
    'whole'
    """
    target = check_target(path)
    part = target.with_name(f".qkv-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with io.BufferedWriter(_Part(part, str(path), target)) as file:
            yield file
        with _naming(str(path)):
            part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def check_target(path: StrPath) -> Path:
    """Resolve the links in a path; raise OSError if `replacing` cannot replace the target."""
    target = Path(path).resolve()
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; pass a file in it")
    if target.exists() and not target.is_file():
        raise OSError(f"{path} is not a regular file and cannot be replaced; choose another file")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"{path} cannot be written: the folder {target.parent} does not exist"
        )
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"{path} cannot be written: it is read-only")
    return target


class _Part(io.FileIO):
    """A new file that will replace an old file. Error messages give the name of the old file."""

    def __init__(self, part: Path, name: str, target: Path) -> None:
        self._name = name
        old = target.stat() if target.exists() else None
        # Until the old permissions are set, only the owner has access to the new file.
        mode = 0o666 if old is None else 0o600
        with _naming(name):
            super().__init__(part, "xb", opener=lambda file, flags: os.open(file, flags, mode))
        if old is not None:
            _take_over(part, old)

    def write(self, data: Any) -> int:
        with _naming(self._name):
            return super().write(data)

    def close(self) -> None:
        with _naming(self._name):
            super().close()


def _take_over(part: Path, old: os.stat_result) -> None:
    """Give a file the owner, group and permissions of another file, as far as allowed."""
    for owner in (old.st_uid, -1):
        with suppress(OSError, AttributeError):  # Windows has no os.chown
            os.chown(part, owner, old.st_gid)
            break
    with suppress(OSError):  # some file systems do not store permissions
        part.chmod(stat.S_IMODE(old.st_mode) & 0o777)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Re-raise each OSError of the block, with `name` as its file name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from error
