"""Compute the scores of heads over many files: workers compute sums, and one process adds them."""

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import add
from typing import Any

from qkv._argument_errors import public_call
from qkv.circuits.means import NAMES, HeadSums, checked_names, head_sums
from qkv.circuits.results import Result
from qkv.files import StrPath
from qkv.models import Model
from qkv.models.run.truncation import MAX_CHARS, Cut, counting
from qkv.scale._counting import bad_row, counts_of, cut
from qkv.scale.sources import Bad, RowRange, find_column, find_sources, rows_of
from qkv.scale.workers import all_of, current_client, resolve

CALL = "scale.head_scores"
ROWS, BYTES = 4096, 2**20  # One task reads at most this many rows, and this many bytes.


def head_scores(
    model: StrPath | None,
    sources: Any,
    of: str | Iterable[str] = NAMES,
    client: Any = None,
    column: str = "text",
) -> dict[str, Result]:
    r"""Compute the scores of `qkv.circuits.head_scores` over many files.

    The scores do not depend on the number of workers or tasks.

    Args:
        model: the name or the folder of a model, as for `qkv.load`; None for the default.
        sources: a path, a glob, or a list of paths and globs. The files are .txt, .jsonl, .csv or
            .parquet. Paths are local, or URLs that fsspec opens.
        of: the names of the scores, as for `qkv.circuits.head_scores`.
        client: the cluster's client. The default is the current client. If there is no client, this
            process computes all sums.
        column: the name of the column with the texts; not used for .txt.

    Returns:
        For each name, a float64 array (layers, heads). If the texts have no query to which a score
        applies, the score is NaN.

    Raises:
        ValueError: a score or the column does not exist; or a row has no text. The error names the
            file and the row, counted from 0.
        FileNotFoundError: a source does not exist.
        ConnectionError: the cluster was lost.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp(), "texts.txt")
    >>> _ = file.write_text("The cat sat.\nI love you.\n")
    >>> head_scores(None, file, "first")["first"].shape
    (4, 6)
    """
    with public_call(CALL):
        names = checked_names(of, NAMES)
    files = [find_column(source, CALL) for source in find_sources(sources, column, CALL)]
    used, client = resolve(model, CALL), current_client(client)
    parts: list[RowRange | None] = [*cut(files, counts_of(files, client, CALL), ROWS, BYTES)]
    cases = [(part, names) for part in parts or [None]]
    results = all_of(client, _part_sums, cases, call=CALL, model=used)
    sums = [part_sums for part_sums, _ in results]
    while len(sums) > 1:  # the fixed order of additions makes the result reproducible
        pairs = [sums[n : n + 2] for n in range(0, len(sums), 2)]
        sums = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    reduce(add, (texts_cut for _, texts_cut in results)).warn()
    return sums[0].means()


def _part_sums(model: Model, case: tuple[RowRange | None, tuple[str, ...]]) -> tuple[HeadSums, Cut]:
    """Return the sums of scores over the texts of a part, and the count of truncated texts."""
    part, names = case
    texts_cut = Cut(model.max_seq_length)
    with counting(texts_cut):
        return head_sums(model, () if part is None else _texts(part), names), texts_cut


def _texts(part: RowRange) -> Iterator[str]:
    for row, text in enumerate(rows_of(part, MAX_CHARS), part.row):
        if isinstance(text, Bad):  # the file changed after its rows were counted
            raise ValueError(bad_row(CALL, part.source, row, text.reason))
        yield text
