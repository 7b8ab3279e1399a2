"""The documents in a model's folder: the model card, licences and notices."""

import os
from fnmatch import fnmatch
from pathlib import Path

from qkv.models.files.read import CARD, LICENCES, ModelError, first_line, need_file, stays

MAX_BYTES = 2**20  # The maximum size of all documents together, in bytes.


def read_notices(folder: Path) -> dict[str, str]:
    """Return the texts of a folder's documents, keyed by file name, model card first.

    If qkv cannot read a file, the dict holds a sentence with the reason instead of the file's text.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # The user may lack permission to list the folder.
        return {}
    texts: dict[str, str] = {}
    for pattern in (CARD, *LICENCES):
        for name in names:
            if fnmatch(name.upper(), pattern.upper()) and not (folder / name).is_dir():
                texts[name] = _text(folder / name, MAX_BYTES - sum(map(len, texts.values())))
    return texts


def _text(path: Path, most: int) -> str:
    """Return the text of a file, or a sentence that says why qkv cannot read the file.

    A file of more than `most` bytes counts as unreadable.
    """
    try:
        if not stays(path):
            raise ModelError(f"{path}: it is a link to a file outside the folder")
        need_file(path, most)
        return path.read_bytes().decode("utf-8-sig", "replace")
    except (OSError, ModelError) as error:
        return f"(qkv cannot show this file: {first_line(error).removeprefix(f'{path}: ')}.)"
