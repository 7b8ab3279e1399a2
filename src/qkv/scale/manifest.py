"""The folder of vectors: its manifest, who writes to it, and files that are whole or not there."""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.arrays import is_whole_number, shown
from qkv.extras import need
from qkv.files import replacing
from qkv.models.files.read import first_line

MANIFEST, LOCK = "_manifest.json", ".qkv-lock"  # which readers of Parquet folders pass over
PART = re.compile(r"part-\d{6,}-[0-9a-f]{8}\.parquet")
_LEFT = re.compile(r"\.qkv-.*\.part")  # of a process that was killed
_NUMBER, _TIME = re.compile(r"\d{1,9}", re.ASCII), re.compile(r"\d{1,12}(\.\d*)?", re.ASCII)
BEAT, DEAD = 10.0, 60.0  # seconds between two signs of life, and without one


@dataclass(frozen=True)
class Folder:
    """A folder that fsspec opens, or a local one."""

    path: str

    @property
    def is_local(self) -> bool:
        """Whether the system's own calls reach it."""
        return "://" not in self.path

    @property
    def _there(self) -> tuple[Any, str]:
        found: tuple[Any, str] = need("fsspec", "scale").core.url_to_fs(self.path)
        return found

    def place(self, name: str) -> str:
        """Where a file of it is."""
        return f"{self.path.rstrip('/')}/{name}"

    def make(self) -> None:
        """Make it where it is not there."""
        files, path = self._there
        files.makedirs(path, exist_ok=True)

    def names(self) -> dict[str, int]:
        """Its files, and their sizes."""
        files, path = self._there
        if not files.exists(path):
            return {}
        files.invalidate_cache()
        found = files.ls(path, detail=True)
        return {os.path.basename(one["name"]): int(one["size"] or 0) for one in found}

    def read(self, name: str) -> bytes | None:
        """What a file holds; None where there is none."""
        files, path = self._there
        try:
            found: bytes = files.cat_file(f"{path.rstrip('/')}/{name}")
        except FileNotFoundError:
            return None
        return found

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all."""
        if self.is_local:
            with replacing(self.place(name)) as file:
                file.write(data)
            return
        files, path = self._there
        home = path.rstrip("/")
        part = f"{home}/.qkv-{secrets.token_hex(8)}.part"
        try:
            files.pipe_file(part, data)
            files.mv(part, f"{home}/{name}")
        except BaseException:
            with suppress(Exception):
                files.rm_file(part)
            raise

    def remove(self, name: str) -> None:
        """Take a file away."""
        files, path = self._there
        with suppress(FileNotFoundError):
            files.rm_file(f"{path.rstrip('/')}/{name}")

    def clean(self, keep: set[str]) -> None:
        """Take away parts of ours that are not to be kept, and what killed writers left."""
        for name in self.names():
            if _LEFT.fullmatch(name) or (PART.fullmatch(name) and name not in keep):
                self.remove(name)

    def manifest(self, call: str) -> dict[str, Any] | None:
        """What is whole; None where nothing is.

        Raises:
            ValueError: the manifest is none of ours.
        """
        begin = f"{call}: {self.place(MANIFEST)} cannot be read"
        try:
            data = self.read(MANIFEST)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ValueError(
                f"{begin} ({reason}): choose another folder, or take it away"
            ) from error
        if data is None:
            return None
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            said: str | None = f"it is no JSON: {first_line(error)}"
        else:
            said = _misfit(found, _MANIFEST, "it")
        if said is not None:
            raise ValueError(
                f"{begin} ({said}): choose another folder, or begin anew with resume=False"
            )
        return dict(found)

    def is_ours(self, run: str) -> bool:
        """Whether a run is the one that writes here: one that ended must not."""
        return (self.read(LOCK) or b"").partition(b" ")[0] == run.encode()


# What a manifest holds: an object with these entries or, where the name is "", with one for each
# number; a list of one kind, or of one entry for each kind of a tuple; text, or a whole number.
_SIZE, _TEXT = range(2**31), str
_PART = {
    "name": PART,
    "rows": _SIZE,
    "skipped": [(_SIZE, _TEXT)],
    "bytes": _SIZE,
    "checksum": _TEXT,
}
_MANIFEST = {
    "qkv": range(1, 2),
    "model": {"name": _TEXT, "checksum": _TEXT},
    "column": _TEXT,
    "sizes": dict.fromkeys(("block", "bytes", "rows"), range(1, 2**31)),
    "sources": [{"path": _TEXT, "rows": range(2**53), "checksum": _TEXT}],
    "parts": {"": _PART},
}


def _misfit(value: Any, kind: Any, name: str) -> str | None:
    """Where a value is not of its kind, in words; None where all of it is."""
    parts: list[tuple[Any, Any, str]] = []
    must = "an object" if isinstance(kind, dict) else "a list"
    fine = isinstance(value, dict if isinstance(kind, dict) else list)
    if isinstance(kind, range):
        most = f"{kind[0]} to {kind[-1]}" if len(kind) > 1 else str(kind[0])
        must, fine = f"a whole number, {most}", is_whole_number(value) and value in kind
    elif isinstance(kind, re.Pattern):
        must, fine = "the name of a part", isinstance(value, str) and bool(kind.fullmatch(value))
    elif kind is _TEXT:
        must, fine = "text", isinstance(value, str)
    elif fine and isinstance(kind, dict) and "" in kind:
        must, fine = (
            "an object with numbers for names",
            all(_NUMBER.fullmatch(one) for one in value),
        )
        parts = [(one, kind[""], f"{name} {number}") for number, one in value.items()]
    elif fine and isinstance(kind, dict):
        missing = next((one for one in kind if one not in value), None)
        must, fine = f"an object with {missing}", missing is None
        parts = [(value.get(one), kind[one], one) for one in kind]
    elif fine and isinstance(kind, tuple):
        must, fine = f"a list of {len(kind)}", len(value) == len(kind)
        parts = [(one, own, name) for one, own in zip(value, kind, strict=False)]
    elif fine:
        parts = [(one, kind[0], name) for one in value]
    if not fine:
        return f"{name} is {shown(value)} and must be {must}"
    return next(filter(None, (_misfit(*part) for part in parts)), None)


@contextmanager
def writing(folder: Folder, run: str, call: str) -> Iterator[None]:
    """Be the one run that writes to a folder.

    In a local one the lock goes with the process. Elsewhere it is a file with a sign of life every
    `BEAT` seconds, and another run takes it over `DEAD` seconds after the last one.

    Raises:
        RuntimeError: another run does.
    """
    folder.make()
    busy = (
        f"{call}: another run writes to {folder.path}: wait until it has ended, or choose another "
        "folder"
    )
    if folder.is_local and os.name == "posix":
        import fcntl

        with Path(folder.place(LOCK)).open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RuntimeError(busy) from None
            file.truncate(0)
            file.write(run.encode())
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)
        return
    owner, _, beat = (folder.read(LOCK) or b"").decode(errors="replace").partition(" ")
    if owner and time.time() - (float(beat) if _TIME.fullmatch(beat) else 0.0) < DEAD:
        raise RuntimeError(busy)
    ended = threading.Event()

    def live() -> None:
        while not ended.wait(BEAT):
            with suppress(Exception):
                folder.write(LOCK, f"{run} {time.time()}".encode())

    folder.write(LOCK, f"{run} {time.time()}".encode())
    beating = threading.Thread(target=live, daemon=True)
    beating.start()
    try:
        yield
    finally:
        ended.set()
        beating.join()
        folder.remove(LOCK)
