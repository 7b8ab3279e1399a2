"""The documents beside a model's weights: its card, its licences and its notices."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path

from qkv.models.files.read import CARD, LICENCES, ModelError, first_line, need_file, stays

MOST = 2**20  # bytes of all files together


def read_notices(folder: Path) -> dict[str, str]:
    """Return the texts of these files in a folder by their names, the card first.

    The text of a file that cannot be read says why.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # a folder that cannot be listed may have files that can be read
        return {}
    texts: dict[str, str] = {}
    for pattern in (CARD, *LICENCES):
        for name in names:
            if fnmatch(name.upper(), pattern.upper()) and not (folder / name).is_dir():
                texts[name] = _text(folder / name, MOST - sum(map(len, texts.values())))
    return texts


def _text(path: Path, most: int) -> str:
    """Return the text of a file of at most `most` bytes, or why it cannot be read."""
    try:
        if not stays(path):
            raise ModelError(f"{path}: is a link that leads out of the folder")
        need_file(path, most)
        return path.read_bytes().decode("utf-8-sig", "replace")
    except (OSError, ModelError) as error:
        return f"(This file is not here: {first_line(error).removeprefix(f'{path}: ')}.)"
