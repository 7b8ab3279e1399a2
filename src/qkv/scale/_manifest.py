"""The folder of vectors: its manifest, its lock, and its files."""

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
from typing import Any, cast

from qkv.arrays import is_whole_number, quote
from qkv.extras import need
from qkv.files import ordinary, replacing
from qkv.models.files.read import first_line

# Programs that read a folder of Parquet files skip names that begin with "_" or ".".
MANIFEST, LOCK = "_manifest.json", ".qkv-lock"
PART = re.compile(r"part-\d{6,}-[0-9a-f]{8}\.parquet")
_LEFT = re.compile(r"\.qkv-.*\.part")  # unfinished files of killed processes
_NUMBER, _TIME = re.compile(r"\d{1,9}", re.ASCII), re.compile(r"\d{1,12}(\.\d*)?", re.ASCII)
BEAT = 10.0  # The number of seconds between two renewals of a lock.
DEAD = 60.0  # A lock that was not renewed for this number of seconds is ignored.


@dataclass(frozen=True)
class Folder:
    """A local folder, or a folder that fsspec opens."""

    path: str

    @property
    def is_local(self) -> bool:
        """Whether the folder is on this machine."""
        return "://" not in self.path

    @property
    def _there(self) -> tuple[Any, str]:
        """The folder's fsspec file system, and its path in this file system."""
        return cast("tuple[Any, str]", need("fsspec", "scale").core.url_to_fs(self.path))

    def path_of(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return f"{self.path.rstrip('/')}/{name}"

    def make(self) -> None:
        """Create the folder if it does not exist."""
        files, path = self._there
        files.makedirs(path, exist_ok=True)

    def names(self) -> dict[str, int]:
        """Return the names of the files in the folder, each with its size in bytes."""
        files, path = self._there
        if not files.exists(path):
            return {}
        files.invalidate_cache()
        return {
            os.path.basename(file["name"]): int(file["size"] or 0)
            for file in files.ls(path, detail=True)
        }

    def read(self, name: str) -> bytes | None:
        """Read a file; return None if it does not exist."""
        files, path = self._there
        try:
            if self.is_local:
                return ordinary(self.path_of(name)).read_bytes()
            return cast("bytes", files.cat_file(f"{path.rstrip('/')}/{name}"))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file; the file appears only when it is complete."""
        if self.is_local:
            with replacing(self.path_of(name)) as file:
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
        """Remove a file, if it exists."""
        files, path = self._there
        with suppress(FileNotFoundError):
            files.rm_file(f"{path.rstrip('/')}/{name}")

    def clean(self, keep: set[str]) -> None:
        """Remove unfinished files left by killed processes, and all parts not in `keep`."""
        for name in self.names():
            if _LEFT.fullmatch(name) or (PART.fullmatch(name) and name not in keep):
                self.remove(name)

    def manifest(self, call: str) -> dict[str, Any] | None:
        """Read the manifest; return None if the folder has no manifest.

        Raises:
            ValueError: the manifest cannot be read, or qkv did not write it.
        """
        begin = f"{call}: {self.path_of(MANIFEST)} cannot be read"
        try:
            data = self.read(MANIFEST)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ValueError(
                f"{begin} ({reason}): choose another folder, or remove this file"
            ) from error
        if data is None:
            return None
        try:
            manifest = json.loads(data)
        except (ValueError, RecursionError) as error:
            problem: str | None = f"it is not JSON: {first_line(error)}"
        else:
            problem = _misfit(manifest, _MANIFEST, "it")
        if problem is not None:
            raise ValueError(
                f"{begin} ({problem}): choose another folder, or start again with resume=False"
            )
        return dict(manifest)

    def is_ours(self, run: str) -> bool:
        """Return whether the run with this identifier holds the lock of the folder."""
        return (self.read(LOCK) or b"").partition(b" ")[0] == run.encode()


# The schema of a manifest. A dict stands for a JSON object with these entries. A dict {"": schema}
# stands for a JSON object whose keys are numbers, and whose values all fit this schema. A list
# with one schema stands for a JSON list whose elements all fit this schema. A tuple of schemas
# stands for a JSON list whose elements fit these schemas in order.
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
    """Describe the first entry that does not fit the schema `kind`; return None if all fit."""
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
        must, fine = "an object whose names are numbers", all(map(_NUMBER.fullmatch, value))
        parts = [(entry, kind[""], f"{name} {number}") for number, entry in value.items()]
    elif fine and isinstance(kind, dict):
        missing = next((entry for entry in kind if entry not in value), None)
        must, fine = f"an object with {missing}", missing is None
        parts = [(value.get(entry), kind[entry], entry) for entry in kind]
    elif fine and isinstance(kind, tuple):
        must, fine = f"a list of {len(kind)}", len(value) == len(kind)
        parts = [(item, item_kind, name) for item, item_kind in zip(value, kind, strict=False)]
    elif fine:
        parts = [(item, kind[0], name) for item in value]
    if not fine:
        return f"{name} is {quote(value)} and must be {must}"
    return next(filter(None, (_misfit(*part) for part in parts)), None)


@contextmanager
def writing(folder: Folder, run: str, call: str) -> Iterator[None]:
    """Hold the lock of a folder, so that only one run at a time writes to the folder.

    The system releases the lock of a local folder when the process ends. In other folders, the lock
    is a file that the run renews every `BEAT` seconds. If a lock has not been renewed for `DEAD`
    seconds, another run may take the lock.

    Raises:
        RuntimeError: another run holds the lock.
    """
    folder.make()
    busy = (
        f"{call}: another run writes to {folder.path}: wait until it has ended, or choose another "
        "folder"
    )
    if folder.is_local and os.name == "posix":
        import fcntl

        with Path(folder.path_of(LOCK)).open("a+b") as file:
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
