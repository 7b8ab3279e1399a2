"""Copy a student's folder, so that the student's code changes only the copy."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qkv_marking.files._source import NOTEBOOK

PREFIX = "qkv-check-"  # the start of the name of the folder that holds the copy
_MOST_FILES = 1000  # The maximum number of copied files.
_MOST_BYTES = 100 << 20  # The maximum size of the copied files.
_OMITTED = ("__", "node_modules", "site-packages", "venv")


@contextmanager
def copy_folder(file: Path) -> Iterator[tuple[Path, Path]]:
    """Copy a file and its folder; yield the copied file, and a folder that is deleted afterwards.

    Hidden files, links, other notebooks and installed packages are not copied. If the folder is
    very large, only a part is copied: first the file itself, then the other files in its folder,
    then the files in subfolders.

    Args:
        file: the path of the file, without links.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        own = folder / (file.parent.name or "own")
        own.mkdir()
        (folder / "tmp").mkdir(exist_ok=True)
        copied = own / file.name
        shutil.copyfile(file, copied)
        files, size = 1, copied.stat().st_size
        for parent, folders, names in os.walk(file.parent):
            folders[:] = [name for name in folders if not name.startswith((".", *_OMITTED))]
            to = own / Path(parent).relative_to(file.parent)
            to.mkdir(exist_ok=True)
            for name in names:
                path = Path(parent, name)
                with suppress(OSError):  # unreadable files are left out
                    omitted = name[0] == "." or path.suffix == NOTEBOOK or path == file
                    if omitted or path.is_symlink() or not path.is_file():
                        continue
                    files, size = files + 1, size + path.stat().st_size
                    if files > _MOST_FILES or size > _MOST_BYTES:
                        break
                    shutil.copyfile(path, to / name)
            if files > _MOST_FILES or size > _MOST_BYTES:
                break
        yield copied, folder
