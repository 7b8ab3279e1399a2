"""Tests of parts of the model in a page: its tokenizer on every character, and its cache."""

import unicodedata

from playwright.sync_api import Page

from qkv.models import Model
from qkv.see.page.engine import engine_payload
from text.odd_gaps import ODD

from .bundling import script_of
from .edited import Edit
from .support import Visit
from .test_engine import EDITS, TEXT

_PARTS = ("tokenizer", "normalizers", "pretokenizers", "spans", "model", "memory", "engine")
_SCRIPTS = tuple(f"engine/{part}" for part in _PARTS)


def bare(visit: Visit) -> Page:
    """Return a page with the worker's scripts but no worker."""
    scripts = f"{script_of(*_SCRIPTS)}\nObject.assign(globalThis, page);"
    return visit(f"<title>bare</title><script>{scripts}</script>")


def test_every_character_is_read_as_the_library_reads_it(visit: Visit, model: Model) -> None:
    """Only marks and punctuation of scripts newer than the library's Unicode may differ."""
    inner = model.tokenizer.inner
    normalize, cut = inner.normalizer.normalize_str, inner.pre_tokenizer.pre_tokenize_str
    none = ("Cn", "Cs", "Co")
    marks = [chr(i) for i in range(0x20000) if unicodedata.category(chr(i)) not in none]
    marks += [chr(i) for i in (0xE000, 0xF8FF, 0x20000, 0x2A6DF, 0x2B81F, 0x2F800, 0x2FFFF)]
    expected = {one: " ".join(word for word, _ in cut(normalize(f"a{one}b"))) for one in marks}
    wrong = bare(visit).evaluate(
        """([{ normalizer, pre_tokenizer }, expected]) => {
          const [normalize, cut] = [normalizerOf(normalizer), pretokenizerOf(pre_tokenizer)];
          return Object.keys(expected).filter((one) => {
            const words = cut(normalize(pieceOf(`a${one}b`))).map(({ text }) => text);
            return words.join(" ") !== expected[one];
          });
        }""",
        [model.tokenizer.rules, expected],
    )
    assert len(expected) > 70_000
    newer = [one for one in wrong if unicodedata.category(one) in ("Mn", "Cn") or not one.isalnum()]
    assert wrong == newer
    assert len(wrong) < 700
    usual = [range(0x600), range(0x2000, 0x2E43), range(0x2E5E, 0xA000), range(0x1F000, 0x20000)]
    assert [one for one in wrong if any(ord(one) in part for part in usual)] == []


def test_gaps_are_the_librarys(visit: Visit, model: Model) -> None:
    page, rules = bare(visit), model.tokenizer.rules
    found = page.evaluate(
        """([file, texts]) => {
          const tokenizer = readTokenizer(file);
          const marks = (text, position) => Array.from(text.slice(0, position)).length;
          const told = (text) => ({ token, start, end }) =>
            [token, marks(text, start), marks(text, end)];
          return texts.map((text) => [...tokensOf(tokenizer, text)].map(told(text)));
        }""",
        [rules, [text for text, _ in ODD]],
    )
    for (text, gaps), tokens in zip(ODD, found, strict=True):
        own = model.tokenize(text)
        spans = zip(own.tokens, own.offsets, own.special, strict=True)
        assert tokens == [[token, *span] for token, span, special in spans if not special], text
        assert [tuple(span) for token, *span in tokens if token == "[MASK]"] == gaps, text


def test_an_edit_recomputes_only_affected_activations(visit: Visit, model: Model) -> None:
    """A run recomputes only the activations that a change affects; the rest is cached."""
    page = bare(visit)
    page.evaluate(
        """(payload) => {
          const [model, memory] = [readModel(payload), new Memory(2e6)];
          globalThis.steps = (ids, edits) => {
            const before = memory.count;
            const steps = forward(model, memory, ids, edits);
            while (!steps.next().done);
            return memory.count - before;
          };
          globalThis.fits = () => memory.size <= memory.most;
        }""",
        engine_payload(model),
    )

    def steps(ids: list[int], *edits: Edit) -> int:
        return page.evaluate("([ids, edits]) => steps(ids, edits)", [ids, list(edits)])

    ids = model.tokenize(TEXT).ids.tolist()
    assert steps(ids) == 1 + 3 * 4  # the embeddings; per layer the projections, heads and rest
    assert steps(ids) == 0
    assert steps(ids, {"op": "ablate", "layer": 3, "head": 0}) == 1
    assert steps(ids, {"op": "ablate", "layer": 1, "head": 0}) == 1 + 3 * 2
    assert steps(ids, {"op": "mask", "query": 0, "key": 1, "layer": 2}) == 2 + 3
    assert steps(ids, EDITS["row"]) == 2 + 3 * 2
    assert steps(ids, EDITS["hide"]) == 2 + 3 * 3
    assert steps(ids, EDITS["hide"], {"op": "ablate", "layer": 3, "head": 0}) == 1
    assert steps(ids) == 0
    assert steps([*ids[:-2], 7, 3]) == 1 + 3 * 4
    for word in (100, 101):  # each run keeps a million numbers
        steps([word] * 62)
    assert page.evaluate("fits()")
    assert steps([101] * 62) == 0
    assert steps(ids) == 1 + 3 * 4  # evicted, as the oldest
