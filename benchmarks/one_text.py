"""One short text with MiniLM: a vector, a rank and a masked word, including tokenizing."""

import atexit
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from benchmarks.common import Row, Way, faster
from benchmarks.encode import exact, folder, sentence_transformers
from benchmarks.peers import needs, torch

TEXT, QUERY, MASKED = "A cat sat on the mat.", "Where is the cat?", "A cat sat on the [MASK]."


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield a row for each task; MiniLM gets random heads for ranks and words from transformers."""
    model, truth = qkv.load("minilm"), exact([TEXT])
    peer = sentence_transformers()

    def vector_error(found: Any) -> float:
        return float(np.abs(np.asarray(found, np.float64) - truth).max())

    yield row(
        "a vector", lambda: model.encode([TEXT]), peer and (lambda: peer([TEXT])), vector_error
    )
    if (made := heads()) is None:
        return
    (ranker, ranks), (guesser, guess) = made
    for name, call, other in (
        (
            "a rank",
            lambda: ranker.rank(QUERY, [TEXT])[0]["score"],
            lambda: ranks([(QUERY, TEXT)])[0],
        ),
        ("a masked word", lambda: guesser.predict(MASKED)[0][0][1], guess),
    ):
        expected = float(other())
        yield row(name, call, other, lambda found, expected=expected: abs(float(found) - expected))


def row(name: str, call: Callable, peer: Callable | None, error: Callable[[Any], float]) -> Row:
    """Make the row of a task."""
    than = "sentence-transformers" if name != "a masked word" else "transformers"
    ways = {"qkv": Way(call, error), than: peer and Way(peer, error)}
    return Row(f"one short text, {name}", ways, (faster(than, 1.0, 2.0),))


@needs("sentence_transformers", "transformers")
def heads() -> tuple[tuple[qkv.Model, Callable], tuple[qkv.Model, Callable]]:
    """Return qkv's model and the peer's function, for ranks and for masked words."""
    import transformers
    from sentence_transformers import CrossEncoder

    library, home = torch(), tempfile.TemporaryDirectory()
    atexit.register(home.cleanup)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder())
    for kind, options in (("SequenceClassification", {"num_labels": 1}), ("MaskedLM", {})):
        library.manual_seed(0)
        cls = getattr(transformers, f"AutoModelFor{kind}")
        place = Path(home.name, kind)
        cls.from_pretrained(folder(), **options).save_pretrained(place)
        tokenizer.save_pretrained(place)
    ranker, guesser = (Path(home.name, kind) for kind in ("SequenceClassification", "MaskedLM"))
    words = transformers.AutoModelForMaskedLM.from_pretrained(guesser).eval()

    def guess() -> float:
        read = tokenizer(MASKED, return_tensors="pt")
        at = read["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        return float(words(**read).logits[0, at].softmax(-1).topk(5).values[0])

    return (
        (qkv.load(ranker), CrossEncoder(str(ranker), device="cpu").predict),
        (qkv.load(guesser), guess),
    )
