"""What a view is asked to show: a text, a trace, or weights with their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from qkv.models.pairs import Seq2SeqTrace
from qkv.see import findings
from qkv.see.heads import heads_from
from qkv.see.page import LONG
from qkv.see.words import bare, word_spans
from qkv.text.tokenizer import check_text
from qkv.trace import Trace

if TYPE_CHECKING:
    from qkv.models import Model

# Tokens up to which a text is traced whole, with (T, T) weights for each head.
WHOLE = 2 * LONG


def traced(
    given: Any, tokens: Iterable[str] | None, model: Model | str | None, call: str
) -> tuple[Trace, Model | None]:
    """A trace of one text from whatever was given, and the model if there is one."""
    if isinstance(given, Trace | Seq2SeqTrace):
        trace = findings.one_text(given, call)
        return trace, None if model is None else model_of(model, [" ".join(trace.tokens)])
    if tokens is not None:
        return trace_of_arrays(given, tokens, call), None
    if hasattr(given, "__array__") or (
        isinstance(given, (list, tuple)) and hasattr(given[0] if given else None, "__array__")
    ):
        raise TypeError(f"{call}: weights come without words: give tokens=[...] as well")
    (text,) = texts_of([given], call)
    used = model_of(model, [text])
    size = min(len(used.tokenize(text)), used.max_length or WHOLE + 1)
    if size > WHOLE:
        return findings.readable(used.trace(text, names=["embed", "v"], top_k=8)), used
    return findings.readable(used.trace(text)), used


def trace_of_arrays(attention: Any, tokens: Iterable[str], call: str) -> Trace:
    """A trace that holds these weights and no more."""
    heads = heads_from(attention, tokens, call=call)
    arrays = {
        f"blocks.{layer}.attn.hook_pattern": weights[None]
        for layer, weights in zip(heads.layers, heads.weights, strict=True)
    }
    return Trace(arrays, tokens=[heads.tokens], special=[heads.special])


def texts_of(texts: list[Any], call: str) -> list[str]:
    """Texts that have something in them."""
    names = ["the text"] if len(texts) == 1 else ["the first text", "the second text"]
    for name, text in zip(names, texts, strict=True):
        if not check_text(text, call=call, name=name).strip():
            raise ValueError(f"{call}: {name} is empty: give at least one word")
    return texts


def lesson_model(texts: list[str], call: str, **options: Any) -> Model:
    """The random model whose vocabulary is the words of these texts."""
    from qkv.models import random_model

    return random_model(texts_of(texts, call), **options)


def model_of(model: Model | str | None, texts: list[str]) -> Model:
    """The model itself, or by its name; "random" knows the words of these texts."""
    from qkv.models import Model, load_for

    return model if isinstance(model, Model) else load_for(texts, model)


def places_of(model: Model | None, word: str | None, a: Trace, b: Trace) -> list[list[list[int]]]:
    """Where the word stands in each text, or an error that names the words there are."""
    words = [list(dict.fromkeys(findings.words_of(trace))) for trace in (a, b)]
    shared = [word for word in words[0] if word in words[1]]
    if word is None:
        listed = f"they share {_listed(shared)}" if shared else "they share none"
        raise ValueError(f"compare: which word of both texts? {listed}")
    if model is None:
        found = [_spelled(trace, word) for trace in (a, b)]
    else:
        found = [
            next(filter(None, (findings.find_word(trace, cut) for cut in model.pieces(word))), [])
            for trace in (a, b)
        ]
    missing = [number for number, places in enumerate(found) if not places]
    if len(missing) == 2:
        raise ValueError(
            f"compare: {word!r} is in neither text: the first has {_listed(words[0])}; "
            f"the second {_listed(words[1])}"
        )
    if missing:
        name = ("first", "second")[missing[0]]
        raise ValueError(
            f"compare: {word!r} is not in the {name} text: it has {_listed(words[missing[0]])}"
        )
    return found


def _spelled(trace: Trace, word: str) -> list[list[int]]:
    """Where a word stands among tokens whose tokenizer is not known: as its pieces spell it.

    >>> _spelled(Trace({}, tokens=[["a", "b", "##c"]]), "BC")
    [[1, 2]]
    """
    tokens, special = trace.tokens, trace.special
    spans = word_spans(tokens, special) or [(i, i + 1, bare(t)) for i, t in enumerate(tokens)]
    for spell in (str, str.lower):
        found = [list(range(i, j)) for i, j, name in spans if spell(bare(name)) == spell(word)]
        if found:
            return found
    return []


def _listed(words: list[str], most: int = 20) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return (", ".join(words[:most]) or "no word") + more
