"""Activations of many texts on the disk: written as texts come, mapped where they are read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array, float_type, is_whole_number, shown
from qkv.circuits.checks import check_model
from qkv.circuits.streaming import PLACES, Read, recorded, sites, windows
from qkv.files import named_folder, replacing
from qkv.models.files.read import ModelError, read_json
from qkv.models.files.tensors import Stored, header
from qkv.models.model import Model
from qkv.progress import progress
from qkv.trace import Trace
from qkv.trace.activations import meant, numbers_of

_CALL = "cache"
MANIFEST = "cache.json"
BYTES = 2**28  # of a file, about
_IDS, _STARTS = "ids", "starts"  # of the tokens of a file, and where each of its texts begins
_FIXED = ("qkv_cache", "model", "names", "dtype")  # what a call must ask for to go on


class Cache:
    """Activations of texts in a folder that `cache` has written.

    `cache[i]` is a trace of text i, with `ids` and without the words of tokens. Numbers stay in the
    files until they are used.

    Args:
        folder: where they are.

    Attributes:
        names: the full names of the activations.
        model: the name of the model.
        tokens: how many tokens all texts have.

    Raises:
        FileNotFoundError: `folder` holds no cache.
        ModelError: a file is broken or missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        about = _manifest(self.folder)
        self.names: list[str] = about["names"]
        self.model: str = about["model"]
        self._files = [header(self.folder / shard["file"]) for shard in about["shards"]]
        for shard, stored in zip(about["shards"], self._files, strict=True):
            _check_file(self.folder / shard["file"], stored, self.names, shard)
        counts = [[shard[name] for shard in about["shards"]] for name in ("texts", "tokens")]
        self._ends = np.cumsum(counts[0], dtype=np.int64)  # the number behind each file's last text
        self.tokens = sum(counts[1])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __repr__(self) -> str:
        return (
            f"<Cache of {', '.join(self.names)}: {len(self):,} texts, {self.tokens:,} tokens of "
            f"{self.model}>"
        )

    def arrays(self, name: str | tuple[Any, ...]) -> list[Array]:
        """All rows of an activation, (tokens, ...) for each file, mapped and read-only.

        `np.concatenate(cache.arrays(name))` has those of all texts in memory.

        Args:
            name: as a trace is indexed.

        Raises:
            KeyError: the cache has no such activation.
        """
        layers = 1 + max(numbers_of(self.names), default=0)
        full = next((one for one in meant(name, layers) if one in self.names), None)
        if full is None:
            raise KeyError(f"arrays: there is no {shown(name)}: it has {', '.join(self.names)}")
        return [stored[full].read() for stored in self._files]

    def ids(self, number: int) -> Array:
        """The ids of the tokens of a text, (T,)."""
        stored, rows = self._place(number)
        return stored[_IDS].read()[rows]

    def __getitem__(self, number: int) -> Trace:
        stored, rows = self._place(number)
        ids = stored[_IDS].read()[rows].tolist()
        return Trace(
            {name: stored[name].read()[None, rows] for name in self.names},
            tokens=[list(map(str, ids))],
            ids=[ids],
            model=self.model,
        )

    def __iter__(self) -> Iterator[Trace]:
        return (self[number] for number in range(len(self)))

    def _place(self, number: int) -> tuple[Mapping[str, Stored], slice]:
        """The file of a text, and its rows there."""
        if not is_whole_number(number):
            raise TypeError(f"cache: text {shown(number)}: give a whole number")
        if not -len(self) <= number < len(self):
            raise IndexError(f"cache: there is no text {number}: there are {len(self)}")
        number %= len(self)
        file = int(np.searchsorted(self._ends, number, side="right"))
        starts = self._files[file][_STARTS].read()
        place = number - (int(self._ends[file - 1]) if file else 0)
        return self._files[file], slice(int(starts[place]), int(starts[place + 1]))


def cache(
    model: Model,
    texts: Iterable[Any] | Array,
    folder: str | os.PathLike[str],
    *,
    names: Any,
    dtype: Any = "float32",
) -> Cache:
    """Write activations of texts to a folder as the texts come, to be read where they are mapped.

    The folder gets "cache.json" and safetensors files of about 256 MB, in which the tokens of texts
    stand end to end. Memory is that of one file. A call that was stopped goes on where it was: the
    texts of files that are there are compared, and not run again. More texts are added so, too.

    Args:
        model: one that `qkv.load` has read, of one text at a time.
        texts: any iterable of texts, or of the ids of their tokens, (T,) each.
        folder: is made if it is not there.
        names: the activations, as for `model.trace`, each with a row for each token: "resid_post",
            ("z", 3), or a list of such.
        dtype: of the files: "float16", "bfloat16", "float32" or "float64".

    Returns:
        The folder as a `Cache`; `Cache(folder)` opens it again.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: an activation has no row for each token; a text has no token; the type does not
            hold a number; or the folder is of other texts, names, another type or another model.
        KeyError: there is no activation of a name.
        OSError: the folder cannot be written.

    >>> import tempfile
    >>> import qkv
    >>> model, texts = qkv.load("books-decoder"), ["The queen spoke.", "It was night."]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = cache(model, texts, folder, names=("resid_post", 2))
    ...     len(found), found[1]["resid_post", 2].shape
    (2, (1, 4, 192))
    """
    model = check_model(model, _CALL)
    chosen, kind = sites(model, names, _CALL, "names"), float_type(dtype, call=_CALL)
    path = named_folder(folder, _CALL)
    about = {"qkv_cache": 1, "model": model.name, "names": chosen, "dtype": kind.name}
    done = _begun(path, about)
    known = 0 if done is None else len(done)
    path.mkdir(parents=True, exist_ok=True)
    writer = _Writer(path, about if done is None else _manifest(path), kind)
    count = 0
    with progress("Caching", None, unit="texts") as advance:
        for window in windows(model, texts, _CALL, empty=True):
            for text in window:
                if not len(text.ids):
                    raise ValueError(f"{_CALL}: text {text.number} has no token: leave it out")
            old = [text for text in window if text.number < known]
            if old and done is not None:
                _compare(model, done, old, chosen)
            for part in _parts(window[len(old) :]):
                writer.add(part, recorded(model, [text.ids for text in part], chosen))
                advance(len(part))
            count += len(window)
    if count < known:
        raise ValueError(
            f"{_CALL}: texts are {count} and {path} has {known}: give them all, or another folder"
        )
    writer.write()
    return Cache(path)


def _begun(path: Path, about: Mapping[str, Any]) -> Cache | None:
    """What is in the folder already, if it is what is asked for."""
    if not (path / MANIFEST).exists():
        return None
    there = _manifest(path)
    for name in _FIXED:
        if there[name] != about[name]:
            raise ValueError(
                f"{_CALL}: {path} has {name} {shown(there[name])} and the call {shown(about[name])}"
                ": name another folder"
            )
    return Cache(path)


def _compare(model: Model, done: Cache, texts: Sequence[Read], names: Sequence[str]) -> None:
    """An error where texts, or what the model makes of the first, are not those in the folder."""
    for text in texts:
        if not np.array_equal(done.ids(text.number), text.ids):
            raise ValueError(
                f"{_CALL}: text {text.number} has other tokens than in {done.folder}: give the "
                "same texts, or another folder"
            )
    first = texts[0]
    if first.number:
        return
    for name, rows in recorded(model, [first.ids], names).items():
        stored = done[0][name][0].astype(np.float64)
        if not np.allclose(rows, stored, rtol=0.02, atol=0.02 * np.abs(stored).max()):
            raise ValueError(
                f"{_CALL}: {name} of text 0 is not what {done.folder} has: give the same model, or "
                "another folder"
            )


def _parts(texts: Sequence[Read]) -> Iterator[list[Read]]:
    """Texts in their order, as many at a time as have `PLACES`, or one."""
    part: list[Read] = []
    for text in texts:
        longest = max(len(one.ids) for one in [*part, text])
        if part and longest * (len(part) + 1) > PLACES:
            yield part
            part = []
        part.append(text)
    if part:
        yield part


class _Writer:
    """Collects rows, and writes a file and the manifest when there are `BYTES`."""

    def __init__(self, folder: Path, about: Mapping[str, Any], kind: np.dtype[Any]) -> None:
        self.folder, self.kind = folder, kind
        self.about = {**about, "shards": list(about.get("shards", ()))}
        self._empty()

    def _empty(self) -> None:
        self.ids: list[Array] = []
        self.rows: dict[str, list[Array]] = {name: [] for name in self.about["names"]}
        self.size = 0

    def add(self, texts: Sequence[Read], rows: Mapping[str, Array]) -> None:
        """Take the rows of texts, end to end."""
        self.ids += [text.ids for text in texts]
        for name, array in rows.items():
            with np.errstate(over="ignore"):
                found = array.astype(self.kind)
            lost = ~np.isfinite(found.astype(np.float32)) & np.isfinite(array)
            if lost.any():
                raise ValueError(
                    f"{_CALL}: {name} has {array[lost][0]:.6g}, which {self.kind} does not hold: "
                    "give dtype='float32'"
                )
            self.rows[name].append(found)
            self.size += found.nbytes
        if self.size >= BYTES:
            self.write()

    def write(self) -> None:
        """Write what was collected, if there is something."""
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
    """What a folder says it holds.

    Raises:
        FileNotFoundError: there is no such file.
        ModelError: it is not of a cache.
    """
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"Cache: {folder} has no {MANIFEST}: name a folder of cache()")
    about: dict[str, Any] = read_json(folder / MANIFEST)
    shards = about.get("shards")
    kinds = {"file": str, "texts": int, "tokens": int}
    whole = (
        about.get("qkv_cache") == 1
        and isinstance(about.get("model"), str)
        and isinstance(about.get("dtype"), str)
        and isinstance(about.get("names"), list)
        and all(isinstance(name, str) for name in about["names"])
        and isinstance(shards, list)
        and all(
            isinstance(shard, dict)
            and all(isinstance(shard.get(name), kind) for name, kind in kinds.items())
            and Path(shard["file"]).name == shard["file"]
            for shard in shards
        )
    )
    if not whole:
        raise ModelError(f"{folder / MANIFEST}: is not what cache() writes: write it again")
    return about


def _check_file(
    path: Path, stored: Mapping[str, Stored], names: Sequence[str], shard: Mapping[str, Any]
) -> None:
    """An error where a file is not what the manifest says."""
    shapes = {_IDS: (shard["tokens"],), _STARTS: (shard["texts"] + 1,)}
    for name in (*names, *shapes):
        found = stored[name].shape if name in stored else ()
        if found[:1] != shapes.get(name, (shard["tokens"],)):
            raise ModelError(
                f"{path}: has {name} {found} and {MANIFEST} {shard['tokens']} tokens of "
                f"{shard['texts']} texts: write it again"
            )
