"""Writing files whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def named_folder(folder: str | os.PathLike[str], call: str) -> Path:
    """The path of a folder that is to be written; "" is none, though `Path` reads it as "."."""
    if not os.fspath(folder):
        raise ValueError(f'{call}: the name of the folder is empty: give a name, "." for this one')
    return Path(folder)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file beside `path` that takes its place at the end, and vanishes on an error.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp(), "note.txt")
    >>> with replacing(target) as file:
    ...     _ = file.write(b"whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(path).resolve()  # of a link what it leads to is replaced, not the link
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it")
    if target.exists() and not target.is_file():
        raise OSError(f"{path} is not a file that can be replaced")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {target.parent}")
    part = target.with_name(f".qkv-{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
