"""Texts encoded by several processes, each of which reads the same model for itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from qkv.arrays import whole_number
from qkv.models.loading import load
from qkv.models.model import Model
from qkv.models.run.truncation import Cut, counting
from qkv.models.sentence.encoder import EmptyText
from qkv.ops.threads import get_num_threads, set_num_threads
from qkv.progress import progress

MOST = 5000  # texts of a chunk where nobody says how many, as in sentence-transformers
CHUNKS = 10  # of each process, so that the last to end is not long behind the others


class Pool:
    """Processes for `model.encode(texts, pool=...)`; `close` ends them, and so does a `with`.

    One process computes with all its threads as it is: several are for texts so short that what
    Python does between them counts, or for machines of many processors. The threads of this process
    are shared out among them. As with every pool of Python's, a script that makes one does so
    behind `if __name__ == "__main__":`.

    Args:
        model: whose copies encode, as it is now.
        processes: how many; None for as many as this process has threads.

    Raises:
        TypeError: that is not a whole number.
        ValueError: it is below 1.

    >>> import qkv
    >>> Pool(qkv.load("random"), 0)
    Traceback (most recent call last):
    ValueError: Pool: processes is 0: it must be 1 or more
    """

    def __init__(self, model: Model, processes: int | None = None) -> None:
        # where it is used: `import qkv` is to stay light
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from tempfile import TemporaryDirectory

        if processes is None:
            processes = get_num_threads()
        self.processes = whole_number(processes, call="Pool", name="processes", least=1)
        self.model = model
        self._folder = TemporaryDirectory(prefix="qkv-pool-")
        try:
            model.save(self._folder.name)
        except BaseException:
            self._folder.cleanup()
            raise
        threads = max(1, get_num_threads() // self.processes)
        self._executor = ProcessPoolExecutor(
            self.processes,
            mp_context=multiprocessing.get_context("spawn"),  # a fork would have no threads
            initializer=_begin,
            initargs=(self._folder.name, model.name, _limits(model), threads),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, and remove what they read."""
        self._executor.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def encode(
        self,
        texts: Sequence[str],
        chunk_size: int | None,
        show: bool | None,
        limit: int | None,
        **options: Any,
    ) -> list[Any]:
        """What `Model.encode` gives for each chunk of these texts, in order.

        Args:
            texts: strings.
            chunk_size: as for `Model.encode`.
            show: whether there is a progress bar.
            limit: the most tokens of a text.
            options: the others of `Model.encode`.

        Raises:
            ValueError: as for `Model.encode`.
            RuntimeError: the pool was closed, or a process ended.
        """
        from concurrent.futures.process import BrokenProcessPool

        if chunk_size is None:
            chunk_size = min(MOST, math.ceil(len(texts) / self.processes / CHUNKS) or 1)
        size = whole_number(chunk_size, call="encode", name="chunk_size", least=1)
        places = range(0, len(texts), size)
        try:
            waiting = [
                self._executor.submit(_encode, texts[first : first + size], first, options)
                for first in places
            ]
        except RuntimeError as error:
            raise RuntimeError("encode: the pool was closed: start another") from error
        cut, found = Cut(limit), []
        try:
            with progress("encode", len(texts), show) as advance:
                for first, future in zip(places, waiting, strict=True):
                    vectors, own = future.result()
                    found.append(vectors)
                    cut += own
                    advance(len(texts[first : first + size]))
        except BrokenProcessPool as error:
            raise RuntimeError(
                "encode: a process of the pool ended: is it made behind "
                'if __name__ == "__main__", and is there memory for it?'
            ) from error
        finally:
            for future in waiting:
                future.cancel()
        cut.warn()
        return found


_model: Any = None  # of a process of a pool


def _limits(model: Model) -> list[int | None]:
    """The most tokens of a text, by each of the models that it is made of."""
    return [one.max_seq_length for one in model._all_routes()]


def _begin(folder: str, name: str, limits: Sequence[int | None], threads: int) -> None:
    """What a process does first."""
    global _model
    set_num_threads(threads)
    _model = load(folder)
    for one, limit in zip(_model._all_routes(), limits, strict=True):
        one.reader = replace(one.reader, name=name, limit=limit)


def _encode(texts: Sequence[str], first: int, options: dict[str, Any]) -> tuple[Any, Cut]:
    """What a process makes of texts, which errors count from `first`, and what it cut."""
    cut = Cut(_model.max_seq_length)
    with counting(cut):
        try:
            return _model.encode(texts, show_progress_bar=False, **options), cut
        except EmptyText as error:
            number = first + error.number
            raise ValueError(f"encode: text {number} is empty: {error.reason}") from None
