"""Cache the activations of many texts in memory-mapped files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, public_call, value_error
from qkv._progress import progress
from qkv.arrays import Array, Arrays, DType, convert_exactly, float_type, quote
from qkv.circuits import _reader
from qkv.files import StrPath, named_folder, replacing
from qkv.models.files import Stored, header
from qkv.models.files.read import ModelError, read_json
from qkv.models.model import Model
from qkv.trace import Trace
from qkv.trace.names import NameIndex

MANIFEST = "cache.json"
BYTES = 2**28  # The approximate size of a file with activations.
# The names of two arrays in each file: the token ids, and the index of each text's first row.
_IDS, _STARTS = "ids", "starts"


class Cache:
    """A folder of cached activations, written by `cache`.

    `cache[i]` is a trace of text i, with token ids but without token strings. Arrays are read from
    disk only when you use them.

    Args:
        folder: the path of the folder.

    Attributes:
        names: the full names of the activations.
        model: the name of the model.
        tokens: the total number of tokens.

    Raises:
        FileNotFoundError: `folder` holds no cache.
        ModelError: a file is broken or missing.
    """

    @public_call("Cache")
    def __init__(self, folder: StrPath) -> None:
        self.folder = Path(folder)
        about = _manifest(self.folder)
        self.names: list[str] = about["names"]
        self.model: str = about["model"]
        self._files = [header(self.folder / shard["file"]) for shard in about["shards"]]
        for shard, stored in zip(about["shards"], self._files, strict=True):
            self._check_file(stored, shard)
        counts = [[shard[name] for shard in about["shards"]] for name in ("texts", "tokens")]
        self._ends = np.cumsum(counts[0], dtype=np.int64)  # cumulative numbers of texts
        self.tokens = sum(counts[1])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __repr__(self) -> str:
        return (
            f"<Cache of {', '.join(self.names)}: {len(self):,} texts, {self.tokens:,} tokens of "
            f"{self.model}>"
        )

    @public_call("cache")
    def arrays(self, name: str | tuple[Any, ...]) -> list[Array]:
        """Return an activation as a list of read-only memory maps (tokens, ...), one for each file.

        `np.concatenate(cache.arrays(name))` loads the rows of all texts into memory.

        Args:
            name: the activation's full name, or a short name such as ("resid_post", 3).

        Raises:
            KeyError: the activation is not in the cache.
        """
        full = NameIndex(self.names).one(name)
        if full is None:
            raise KeyError(
                f"arrays: {quote(name)} is not cached: choose among {', '.join(self.names)}"
            )
        return [stored[full].read() for stored in self._files]

    @public_call("cache")
    def ids(self, number: int) -> Array:
        """Return the token ids (T,) of a text."""
        stored, rows = self._locate(number)
        return stored[_IDS].read()[rows]

    @public_call("cache")
    def __getitem__(self, number: int) -> Trace:
        stored, rows = self._locate(number)
        ids = stored[_IDS].read()[rows].tolist()
        arrays = {name: stored[name].read()[None, rows] for name in self.names}
        return Trace(arrays, tokens=[list(map(str, ids))], ids=[ids], model=self.model)

    def __iter__(self) -> Iterator[Trace]:
        return (self[number] for number in range(len(self)))

    def _check_file(self, stored: Mapping[str, Stored], shard: Mapping[str, Any]) -> None:
        """Raise an error if a file disagrees with its entry in the manifest."""
        shapes = {_IDS: (shard["tokens"],), _STARTS: (shard["texts"] + 1,)}
        for name in (*self.names, *shapes):
            shape = stored[name].shape if name in stored else ()
            if shape[:1] != shapes.get(name, (shard["tokens"],)):
                raise ModelError(
                    f"{self.folder / shard['file']}: {name} has shape {shape}, but {MANIFEST} "
                    f"lists {shard['tokens']} tokens of {shard['texts']} texts: write the cache "
                    "again"
                )

    def _locate(self, number: int) -> tuple[Mapping[str, Stored], slice]:
        """Return `(file, rows)`: the file that holds a text, and the slice of the text's rows."""
        number = _reader.check_index(number, len(self), "text")
        file = int(np.searchsorted(self._ends, number, side="right"))
        starts = self._files[file][_STARTS].read()
        first = number - (int(self._ends[file - 1]) if file else 0)
        return self._files[file], slice(int(starts[first]), int(starts[first + 1]))


@public_call("cache")
def cache(
    model: Model, texts: _reader.Texts, folder: StrPath, *, names: Any, dtype: Any = "float32"
) -> Cache:
    """Run many texts and write their activations to files.

    The folder holds "cache.json" and safetensors files of about 256 MB each. A file stores the rows
    of consecutive texts, without padding. Memory holds only the rows that have not yet been
    written. If a call is interrupted, repeat the call. Texts in complete files are not run again:
    only their tokens are compared with the stored tokens. To add texts later, repeat the call with
    the earlier texts followed by the new texts.

    Args:
        model: a text encoder or decoder from `qkv.load`.
        texts: an iterable of texts. A text is a string or an array (T,) of token ids.
        folder: the path of the folder, which is created if it is missing.
        names: the activations, as for `model.trace` ("resid_post", ("z", 3), or a list of names).
            Each activation must have one row per token.
        dtype: the dtype of the stored arrays ("float16", "bfloat16", "float32" or "float64").

    Returns:
        The folder as a `Cache`; `Cache(folder)` opens it again.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an activation does not have one row per token; a text has no tokens; a value is
            too large for the dtype; or the folder was written with different texts, names, dtype or
            model.
        KeyError: an activation does not exist.
        OSError: the folder cannot be written.

    >>> import tempfile
    >>> import qkv
    >>> model, texts = qkv.load("books-decoder"), ["The queen spoke.", "It was night."]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cached = cache(model, texts, folder, names=("resid_post", 2))
    ...     len(cached), cached[1]["resid_post", 2].shape
    (2, (1, 4, 192))
    """
    model = _reader.check_model(model)
    chosen, kind = _reader.sites(model, names, "names"), float_type(dtype)
    path = named_folder(folder)
    about = {"qkv_cache": 1, "model": model.name, "names": chosen, "dtype": kind.name}
    done = _open_cache(path, about)
    known = 0 if done is None else len(done)
    path.mkdir(parents=True, exist_ok=True)
    writer = _RowWriter(path, about if done is None else _manifest(path), kind)
    count = 0
    with progress("Caching", None, unit="texts") as advance:
        for window in _reader.windows(model, texts, empty=True):
            for text in window:
                if not len(text.ids):
                    raise value_error(f"text {text.number} has no tokens: omit it")
            old = [text for text in window if text.number < known]
            if old and done is not None:
                _compare(model, done, old, chosen)
            for part in _groups(window[len(old) :]):
                writer.add(part, _reader.record_rows(model, [text.ids for text in part], chosen))
                advance(len(part))
            count += len(window)
    if count < known:
        raise value_error(
            f"{count} texts are given, but {path} has {known} texts; pass all "
            f"{known} texts, or another folder"
        )
    writer.write()
    return Cache(path)


def _open_cache(path: Path, about: Mapping[str, Any]) -> Cache | None:
    """Return the cache in the folder, or None if the folder has no manifest."""
    if not (path / MANIFEST).exists():
        return None
    there = _manifest(path)
    for name, value in about.items():
        if there[name] != value:
            raise value_error(
                f"{path} has {name} {quote(there[name])} but the call has {quote(value)}; "
                "pass another folder"
            )
    return Cache(path)


def _compare(
    model: Model, done: Cache, texts: Sequence[_reader.Read], names: Sequence[str]
) -> None:
    """Raise an error if the tokens of a text or the activations of text 0 differ from the cache."""
    for text in texts:
        if not np.array_equal(done.ids(text.number), text.ids):
            raise value_error(
                f"text {text.number} has different tokens in {done.folder}; pass the "
                "same texts, or another folder"
            )
    first = texts[0]
    if first.number:
        return
    for name, rows in _reader.record_rows(model, [first.ids], names).items():
        stored = done[0][name][0].astype(np.float64)
        if not np.allclose(rows, stored, rtol=0.02, atol=0.02 * np.abs(stored).max()):
            raise value_error(
                f"{name} of text 0 differs from the values in {done.folder}; pass the same "
                "model, or another folder"
            )


def _groups(texts: Sequence[_reader.Read]) -> Iterator[list[_reader.Read]]:
    """Yield groups of texts in order.

    A group is a single text, or several texts with at most `MOST_POSITIONS` tokens in total,
    including padding.
    """
    group: list[_reader.Read] = []
    for text in texts:
        longest = max(len(other.ids) for other in [*group, text])
        if group and longest * (len(group) + 1) > _reader.MOST_POSITIONS:
            yield group
            group = []
        group.append(text)
    if group:
        yield group


class _RowWriter:
    """A buffer that writes its rows to a file as soon as their size reaches `BYTES`."""

    def __init__(self, folder: Path, about: Mapping[str, Any], kind: DType) -> None:
        self.folder, self.kind = folder, kind
        self.about = {**about, "shards": list(about.get("shards", ()))}
        self._empty()

    def _empty(self) -> None:
        self.ids: list[Array] = []
        self.rows: dict[str, list[Array]] = {name: [] for name in self.about["names"]}
        self.size = 0

    def add(self, texts: Sequence[_reader.Read], rows: Arrays) -> None:
        """Add texts and the rows of their activations."""
        self.ids += [text.ids for text in texts]
        for name, array in rows.items():
            self.rows[name].append(convert_exactly(array, self.kind, name))
            self.size += self.rows[name][-1].nbytes
        if self.size >= BYTES:
            self.write()

    def write(self) -> None:
        """Write the collected rows, if any."""
        from safetensors.numpy import save

        if not self.ids:
            return
        shards = self.about["shards"]
        starts = np.cumsum([0, *map(len, self.ids)], dtype=np.int64)
        arrays = {name: np.concatenate(rows) for name, rows in self.rows.items()}
        arrays |= {_IDS: np.concatenate(self.ids).astype(np.int64), _STARTS: starts}
        file = f"{len(shards):05d}.safetensors"
        shards.append({"file": file, "texts": len(self.ids), "tokens": int(starts[-1])})
        self._empty()
        with replacing(self.folder / file) as stream:
            stream.write(save(arrays))
        with replacing(self.folder / MANIFEST) as stream:
            stream.write((json.dumps(self.about, indent=1) + "\n").encode())


def _manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a folder.

    Raises:
        FileNotFoundError: the folder has no manifest.
        ModelError: the file is not the manifest of a cache.
    """
    if not (folder / MANIFEST).is_file():
        raise invalid(FileNotFoundError, f"{folder} has no {MANIFEST}; pass a folder from cache()")
    about: dict[str, Any] = read_json(folder / MANIFEST)

    def fits(value: Any, kinds: Mapping[str, type]) -> bool:
        return isinstance(value, dict) and all(
            isinstance(value.get(name), kind) for name, kind in kinds.items()
        )

    if not (
        fits(about, {"qkv_cache": int, "model": str, "dtype": str, "names": list, "shards": list})
        and about["qkv_cache"] == 1
        and all(isinstance(name, str) for name in about["names"])
        and all(
            fits(shard, {"file": str, "texts": int, "tokens": int})
            and Path(shard["file"]).name == shard["file"]
            for shard in about["shards"]
        )
    ):
        raise ModelError(
            f"{folder / MANIFEST} is not the manifest of a cache: write the cache again with "
            "cache()"
        )
    return about
