"""Tests of tokenizing only the beginning of a text: the tokens equal those of the whole text."""

import functools
import json
import warnings

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import qkv
from qkv.models.run import truncation
from qkv.models.run.truncation import Truncator
from qkv.text import SubwordTokenizer, WordTokenizer

from ..small_models import CONFIGS, write_small

CORPUS = [
    "the cat sat on the mat and the dog ran to the bank of the river by the old stone bridge",
    "a b ab aba abab a a a b b aa bb aaa abc cab bac don't won't 12 123 1234 == ==== ------",
    "café e\u0301te\u0301 日本 日本語 語 한국 한국어 été naïve straße ﬁne ①② \u00a0 \u3000",
] * 3
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
MASK = AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)
PLACE = AddedToken("new york", normalized=True)
WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLANKS = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]


def trained(model, trainer, cutter=None, normalizer=None):
    """Return a tokenizer of the tokenizers library, trained on the corpus."""
    found = Tokenizer(model)
    if normalizer is not None:
        found.normalizer = normalizer
    if cutter is not None:
        found.pre_tokenizer = cutter
    found.train_from_iterator(CORPUS, trainer)
    return found


def without_cutter(inner):
    """Return the tokenizer without a pre-tokenizer: a whole text is one word, as in Llama 2."""
    values = json.loads(inner.to_str())
    values["pre_tokenizer"] = None
    found = Tokenizer.from_str(json.dumps(values))
    found.normalizer = normalizers.Sequence(BLANKS)
    return found


def bpe(cutter, normalizer=None, **options):
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    model = models.BPE(unk_token="[UNK]", **options)
    return trained(model, trainer, cutter, normalizer)


def unigram(cutter, normalizer=None):
    trainer = trainers.UnigramTrainer(
        vocab_size=150, unk_token="[UNK]", special_tokens=SPECIAL, show_progress=False
    )
    return trained(models.Unigram(), trainer, cutter, normalizer)


def wordpiece():
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    return trained(
        models.WordPiece(unk_token="[UNK]"),
        trainer,
        pre_tokenizers.BertPreTokenizer(),
        normalizers.BertNormalizer(),
    )


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
PIECES = pre_tokenizers.Metaspace()
KINDS = {
    "wordpiece": wordpiece,
    "bytes": lambda: bpe(BYTES),
    "bytes by another pattern": lambda: bpe(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(WORD), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "merges of the whole text": lambda: without_cutter(bpe(PIECES, fuse_unk=True)),
    "merges over words": lambda: bpe(None, normalizers.Sequence(BLANKS)),
    "unigram": lambda: unigram(
        PIECES,
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
    ),
    "unigram of the whole text": lambda: without_cutter(unigram(PIECES)),
    "unigram over words": lambda: unigram(None, normalizers.Sequence(BLANKS)),
    "one word": lambda: without_cutter(wordpiece()),  # words become the unknown token
    "words": None,
}
ACROSS = {"merges over words", "unigram over words"}


@functools.cache
def tokenizer(kind, *, framed=True):
    """Return the tokenizer that is named `kind` in `KINDS`.

    The kind "words" is a `WordTokenizer`. All other tokenizers find added tokens in texts. If
    `framed` is true, these tokenizers also add the tokens [CLS] and [SEP] to each text.
    """
    if KINDS[kind] is None:
        return WordTokenizer(CORPUS)
    inner = KINDS[kind]()
    inner.add_tokens([PLACE] if "over" in kind else [])
    inner.add_special_tokens([MASK])
    if framed:
        ids = [(name, inner.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        inner.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=ids
        )
    return SubwordTokenizer(inner)


BITS = [
    *("a", "b", "aa", "ab", "aba", "the", "cat", "river", "don't", "I'm", "123", "12345", "==="),
    *("日本語", "한국어", "e\u0301", "\u0301", "\u0600", "ﬁ", "①", "\u200d", "😀", "Ⓐ", "İ", "▁"),
    *("Ġ", "##s", "<mask>", "new york", "[UNK]", ".", ",", "(", "\ufeff", "\u200b", "\u0e33"),
]
GAPS = [" ", " ", " ", "  ", "", "   ", "\n", " \n ", "\t", "\u00a0", "\u3000", "\u2009", "\x1f"]


@st.composite
def texts(draw):
    """Draw long texts of a few repeated parts, to expose tokens that depend on much later text."""
    parts = draw(st.lists(st.sampled_from(BITS), min_size=1, max_size=5))
    gaps = draw(st.lists(st.sampled_from(GAPS), min_size=1, max_size=4))
    once = "".join(part + gaps[n % len(gaps)] for n, part in enumerate(parts))
    end = draw(st.lists(st.sampled_from(BITS + GAPS), max_size=6))
    return once * draw(st.integers(1, 1 + 900 // len(once))) + "".join(end)


def ids_of_the_whole(used, text, limit):
    whole = used.tokenize(text)
    if len(whole) <= limit:
        return list(whole.ids), whole.offsets
    tail = 1 if whole.special[-1] else 0
    keep = [*range(limit - tail), *range(len(whole) - tail, len(whole))]
    return list(whole.ids[keep]), [whole.offsets[position] for position in keep]


@pytest.mark.parametrize("examples", [10, pytest.param(60, marks=pytest.mark.attack)])
@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_those_of_the_whole_text(kind, framed, examples):
    used = tokenizer(kind, framed=framed)

    @settings(max_examples=examples, deadline=None)
    @given(texts(), st.integers(3, 20))
    def same(text, limit):
        [found] = Truncator(used, limit)([text])
        assert (list(found.ids), found.offsets) == ids_of_the_whole(used, text, limit)

    same()


ORDINARY = "The cat sat on the mat, and the dog ran to the old bridge. " * 300


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_reads_whole_texts_only_if_tokens_need_it(kind, monkeypatch):
    used, read = tokenizer(kind), []
    assert used.keeps_words_apart is (kind not in ACROSS)
    batch, one = used.tokenize_batch, used.tokenize
    monkeypatch.setattr(used, "tokenize_batch", lambda texts: read.extend(texts) or batch(texts))
    monkeypatch.setattr(used, "tokenize", lambda text: read.append(text) or one(text))
    cutter = Truncator(used, 16)
    [found] = cutter([ORDINARY])
    assert len(found) == min(16, len(one(ORDINARY)))
    if kind in ACROSS or kind == "one word":
        assert ORDINARY in read  # no token is certain before the end
    else:
        assert sum(map(len, read)) <= 3 * 16 * truncation.CHARS_PER_TOKEN


def test_subwords_over_two_words_may_depend_on_the_end_of_the_text(monkeypatch):
    """The first token may depend on whether the number of words is odd or even.

    The vocabulary has a token for one word and a token for two words. If the number of words is
    odd, the tokenizer uses the token for one word once. This token may be the first. The number of
    words is known only at the end of the text.
    """
    subwords = [("[UNK]", -20.0), ("▁a", -1.0), ("▁a▁a", -1.0)]
    inner = Tokenizer(models.Unigram(subwords, unk_id=0, byte_fallback=False))
    inner.normalizer = normalizers.Sequence(BLANKS)
    used = SubwordTokenizer(inner)
    odd, even = (Truncator(used, 4)(["a " * n + "a"])[0].tokens for n in (1000, 1001))
    assert {tuple(odd), tuple(even)} == {("▁a", *["▁a▁a"] * 3), ("▁a▁a",) * 4} or odd == even
    for text, found in (("a " * 1000 + "a", odd), ("a " * 1001 + "a", even)):
        assert found == used.tokenize(text).tokens[:4]


def said(cutter):
    """Return the text of the warning, or None without a warning."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        cutter.cut.warn()
    return str(noted[0].message) if noted else None


def test_the_warning_counts_truncated_texts(monkeypatch):
    monkeypatch.setattr(truncation, "MAX_CHARS", 1000)
    used = WordTokenizer(CORPUS)
    cutter = Truncator(used, 4)
    assert [len(text) for text in cutter(["the cat", "the cat sat on the mat", "a"])] == [2, 4, 1]
    assert said(cutter) == "1 of 3 texts were cut to 4 tokens (the longest has 6)"
    cutter(["the cat " * 100])
    assert said(cutter) == "2 of 4 texts were cut to 4 tokens (the longest has 800 characters)"
    cutter(["the cat " * 1000])
    longest = "the longest has 1,000 characters or more"
    assert said(cutter) == f"3 of 5 texts were cut to 4 tokens ({longest})"
    [found] = cutter(["x" * 5000])  # one word, of which no token is certain
    assert found.offsets == [(0, 1000)]
    assert said(cutter) == (
        f"3 of 6 texts were cut to 4 tokens ({longest}) and 1 of 6 texts were cut to 1,000 "
        "characters"
    )


def test_text_cut_by_characters_ends_with_a_whole_word(monkeypatch):
    monkeypatch.setattr(truncation, "MAX_CHARS", 30)
    cutter = Truncator(WordTokenizer(CORPUS), None)
    [found] = cutter(["the cat sat on the mat and the dog ran"])
    assert found.tokens == ["the", "cat", "sat", "on", "the", "mat", "and", "the"]
    assert said(cutter) == "1 of 1 text was cut to 30 characters"
    assert cutter(["the cat sat"])[0].tokens == ["the", "cat", "sat"]


def test_a_model_cuts_texts_at_the_character_limit(monkeypatch):
    monkeypatch.setattr(truncation, "MAX_CHARS", 1000)
    monkeypatch.setattr("qkv.models.tasks.generate.MAX_CHARS", 1000)
    model = qkv.load("random")
    text = "the cat sat on the mat " * 100
    with pytest.warns(UserWarning, match="1 of 1 text was cut to 1,000 characters"):
        assert len(model.tokenize(text)) == 261
    for call in (model.trace, model.encode):
        with pytest.warns(UserWarning, match="1 of 1 text was cut to 1,000 characters"):
            call(text)


def test_a_prompt_that_is_far_too_long_is_not_read(monkeypatch, tmp_path):
    monkeypatch.setattr("qkv.models.tasks.generate.MAX_CHARS", 1000)
    model = qkv.load(write_small(tmp_path / "model", CONFIGS["llama"]))
    monkeypatch.setattr(model.tokenizer, "tokenize_batch", lambda texts: pytest.fail("it was"))
    with pytest.raises(ValueError, match="prompt 1 has 8,000 characters; pass at most 1,000"):
        model.generate(["the cat", "the cat " * 1000])
