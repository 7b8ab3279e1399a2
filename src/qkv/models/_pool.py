"""Encode texts in several processes, each of which loads the same model."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from qkv._argument_errors import invalid, public_call, public_method, value_error
from qkv._progress import progress
from qkv.arrays import whole_number
from qkv.models._loading import load
from qkv.models.model import Model
from qkv.models.run.truncation import Cut, counting
from qkv.models.sentence.encode import OPTIONS, EmptyText, Encoder, checked_texts
from qkv.ops.kernel import get_num_threads, set_num_threads
from qkv.signals import end_with_parent

MAX_CHUNK = 5000  # The default chunk size is at most this number, as in sentence-transformers.
CHUNKS = 10  # Chunks per process. Small chunks keep all processes busy until the end.
ENDED = (
    "a process of the pool ended unexpectedly: create the pool under "
    'if __name__ == "__main__", and check that there is enough memory'
)


class Pool:
    """Processes for `model.encode(texts, pool=...)`; end them with `close` or a `with` block.

    A single process already uses all threads. Several processes help on machines with many cores,
    or if the texts are so short that Python code takes most of the time. The threads of this
    process are divided among the pool's processes. As with every pool in Python, a script must
    create the pool under `if __name__ == "__main__":`.

    Args:
        model: each process gets a copy of the model in its current state.
        processes: the number of processes; if None, as many processes as this process has threads.

    Raises:
        TypeError: `processes` is not an integer.
        ValueError: `processes` is below 1.

    >>> import qkv
    >>> Pool(qkv.load("random"), 0)
    Traceback (most recent call last):
    ValueError: Pool: processes is 0: it must be 1 or more
    """

    @public_method
    def __init__(self, model: Model, processes: int | None = None) -> None:
        # imported here to keep `import qkv` light
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from tempfile import TemporaryDirectory

        if processes is None:
            processes = get_num_threads()
        self.processes = whole_number(processes, name="processes", least=1)
        self.model = model
        self._folder = TemporaryDirectory(prefix="qkv-pool-")
        try:
            model.save(self._folder.name)
        except BaseException:
            self._folder.cleanup()
            raise
        self._closed = False
        threads = max(1, get_num_threads() // self.processes)
        limits = [route.max_seq_length for route in model.all_routes()]
        self._executor = ProcessPoolExecutor(
            self.processes,
            mp_context=multiprocessing.get_context("spawn"),  # "fork" would copy only one thread
            initializer=_begin,
            initargs=(os.getpid(), self._folder.name, model.name, limits, threads),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, and remove the files that the processes read."""
        self._closed = True  # an executor whose process died does not say that it was closed
        self._executor.shutdown(cancel_futures=True)
        self._folder.cleanup()

    @public_call("encode")
    def encode(self, encoder: Encoder, texts: Any, size: int | None, show: bool | None) -> Any:
        """Return the result of `Model.encode` for texts, computed in chunks.

        Args:
            encoder: the options of `Model.encode`.
            texts: any iterable of texts.
            size: the number of texts in a chunk (the option `chunk_size` of `Model.encode`).
            show: whether to show a progress bar; if None, a bar appears only on a terminal.

        Raises:
            ValueError: as in `Model.encode`.
            RuntimeError: the pool is closed, or one of its processes died.
        """
        from concurrent.futures.process import BrokenProcessPool

        texts = [*checked_texts(texts)]
        options = {name: getattr(encoder, name) for name in OPTIONS}
        if size is None:
            size = min(MAX_CHUNK, math.ceil(len(texts) / self.processes / CHUNKS) or 1)
        size = whole_number(size, name="chunk_size", least=1)
        starts = range(0, len(texts), size)
        try:
            waiting = [
                self._executor.submit(_encode, texts[first : first + size], first, options)
                for first in starts
            ]
        except RuntimeError as error:
            if isinstance(error, BrokenProcessPool) and not self._closed:
                raise invalid(RuntimeError, ENDED) from error
            raise invalid(RuntimeError, "the pool was closed: start a new one") from error
        cut, chunks = Cut(encoder.limit), []
        try:
            with progress("encode", len(texts), show) as advance:
                for first, future in zip(starts, waiting, strict=True):
                    vectors, chunk_cut = future.result()
                    chunks.append(vectors)
                    cut += chunk_cut
                    advance(len(texts[first : first + size]))
        except BrokenProcessPool as error:
            raise invalid(RuntimeError, ENDED) from error
        finally:
            for future in waiting:
                future.cancel()
        cut.warn()
        if encoder.output_value == "sentence_embedding":
            return np.concatenate([encoder.all([]), *chunks])
        return [vectors for chunk in chunks for vectors in chunk]


# State: the model of this process, if a pool started the process. `_begin` sets it before the first
# task; a process runs one task at a time.
_model: Any = None


def _begin(parent: int, folder: str, name: str, limits: Sequence[int | None], threads: int) -> None:
    """Load the model in a new process; `limits` holds the token limit of each route."""
    global _model
    end_with_parent(parent)
    set_num_threads(threads)
    _model = load(folder)
    for model, limit in zip(_model.all_routes(), limits, strict=True):
        model.reader = replace(model.reader, name=name, limit=limit)


def _encode(texts: Sequence[str], first: int, options: dict[str, Any]) -> tuple[Any, Cut]:
    """Encode a chunk of texts, and count the truncated texts; `first` is the first text's index."""
    cut = Cut(_model.max_seq_length)
    with counting(cut):
        try:
            return _model.encode(texts, show_progress_bar=False, **options), cut
        except EmptyText as error:
            number = first + error.number
            raise value_error(f"text {number} is empty: {error.reason}") from None
