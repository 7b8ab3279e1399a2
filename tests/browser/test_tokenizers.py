"""Tests of the page's tokenizer, on every published kind, against the library's tokenizer."""

import json
import random
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import pytest
from playwright.sync_api import Page
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from qkv.models.run.truncation import Truncator
from qkv.see.page.engine import reasons_of_tokenizer
from qkv.text import SubwordTokenizer

from .bundling import ROOT
from .support import Visit
from .test_engine_inside import bare

READ = """([file, texts]) => {
  const told = (text, work) => {
    try {
      return work();
    } catch (error) {
      throw new Error(`${JSON.stringify(text)}: ${error.stack}`); // an error in one run of many
    }
  };
  const tokenizer = readTokenizer(JSON.parse(file));
  return texts.map((text) => {
    const { tokens } = told(text, () => tokenize(tokenizer, text, 1e6));
    const of = (name) => tokens.map((token) => token[name]);
    const positions = [0]; // how many characters each part of the text has
    for (const mark of text) positions.push(...mark.split("").fill(positions.at(-1) + 1));
    const offsets = tokens.map(({ start, end }) => [positions[start], positions[end]]);
    const rows = [of("id"), of("id").filter((_, i) => i % 2)];
    const decoded = rows.map((ids) => decode(tokenizer, ids));
    return [of("id"), of("token"), offsets, of("special"), decoded];
  });
}"""
SHIPPED = ("books", "books-decoder")
GPT4 = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GAP, BLANK = "▁", " "

# ---- tokenizers as they were published, with small vocabularies


@cache
def lines() -> tuple[str, ...]:
    """Return lines to train on: English, and a few of other languages."""
    found = [(ROOT / name).read_text("utf-8") for name in ("README.md", "ARCHITECTURE.md")]
    other = "Ça va très bien, né à l'été.\nÜber Größe\n日本語の文章 中文字符\nनमस्ते दुनिया\n"
    return tuple("\n".join([*found, other * 5]).splitlines(keepends=True))


def trained(
    pre: Any, size: int, *special: str | AddedToken, normalizer: Any = None, **options: Any
) -> dict[str, Any]:
    """Train a BPE, and return its vocabulary and merges."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre
    if normalizer is not None:
        made.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), show_progress=False, **options
    )
    made.train_from_iterator(lines(), trainer)
    rules = json.loads(made.to_str())["model"]
    return {"vocab": rules["vocab"], "merges": [tuple(pair) for pair in rules["merges"]]}


@cache
def bytes_of(size: int, *special: str) -> dict[str, Any]:
    """Train a BPE over bytes, and add merges.

    The added merges join two digits, or the long s and a letter, unless the text is cut between
    them.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found = trained(pre, size, *special, initial_alphabet=alphabet)
    more = [("1", "2"), ("3", "4"), ("Å", "¿"), ("Å¿", "a")]
    vocab = dict(found["vocab"])
    for pair in more:
        vocab.setdefault("".join(pair), len(vocab))
    merges = [pair for pair in found["merges"] if pair not in more]
    return {"vocab": vocab, "merges": [*merges, *more]}


def split(pattern: str, behavior: str = "isolated", *, invert: bool = False) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def level(*, prefix: bool = False, regex: bool = False) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def template(single: str, *special: tuple[str, int]) -> Any:
    return processors.TemplateProcessing(single=single, special_tokens=list(special))


def bert(*, lower: bool = True, accents: bool | None = None) -> Tokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=accents)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(
        lines(),
        trainers.WordPieceTrainer(vocab_size=900, special_tokens=names, show_progress=False),
    )
    made.post_processor = template("[CLS] $A [SEP]", ("[CLS]", 2), ("[SEP]", 3))
    made.decoder = decoders.WordPiece()
    return made


def bert_processing() -> Tokenizer:
    made = bert(lower=False)
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.decoder = decoders.WordPiece(cleanup=False)
    made.add_tokens([AddedToken("Don't", single_word=True), AddedToken("don", normalized=True)])
    return made


def of_bytes(
    *special: str,
    pre: Any = None,
    post: Any = None,
    normalizer: Any = None,
    added: Iterable[str | AddedToken] = (),
    **options: Any,
) -> Tokenizer:
    """Return a BPE over bytes; `pre` cuts texts, by default as GPT-2 does."""
    made = Tokenizer(models.BPE(**bytes_of(1200, *special), **options))
    made.decoder = decoders.ByteLevel()
    made.pre_tokenizer = pre or level(regex=True)
    if normalizer is not None:
        made.normalizer = normalizer
    if post is not None:
        made.post_processor = post
    made.add_tokens([*added])
    return made


def sequence(*parts: Any) -> Any:
    return pre_tokenizers.Sequence([*parts])


def blanks(*sizes: int) -> list[AddedToken]:
    return [AddedToken(BLANK * size, normalized=True) for size in sizes]


def gpt2(*, prefix: bool = False, normalizer: Any = None) -> Tokenizer:
    return of_bytes(
        "<|endoftext|>",
        pre=level(prefix=prefix, regex=True),
        post=processors.ByteLevel(trim_offsets=prefix),
        normalizer=normalizer,
    )


def neox() -> Tokenizer:
    return of_bytes(
        *("<|endoftext|>", "<|padding|>"),
        normalizer=normalizers.NFC(),
        post=processors.ByteLevel(trim_offsets=True, add_prefix_space=False),
        added=blanks(*range(24, 1, -1)),
    )


def opt() -> Tokenizer:
    names = ("<pad>", "</s>", "<unk>")
    added = [AddedToken(name, normalized=True, special=True) for name in names]
    return of_bytes(*names, post=template("</s> $A", ("</s>", 1)), added=added)


def roberta(*, prefix: bool = False) -> Tokenizer:
    return of_bytes(
        *("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
        pre=level(prefix=prefix, regex=True),
        post=processors.RobertaProcessing(
            ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=prefix
        ),
        added=[AddedToken("<mask>", lstrip=True, normalized=False, special=True)],
    )


def modernbert() -> Tokenizer:
    mask = AddedToken("[MASK]", lstrip=True, normalized=False, special=True)
    return of_bytes(
        *("<|padding|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"),
        normalizer=normalizers.NFC(),
        post=template("[CLS]:0 $A:0 [SEP]:0", ("[CLS]", 2), ("[SEP]", 3)),
        added=[mask, *blanks(8, 4, 3, 2), "|||EMAIL_ADDRESS|||", "<|im_start|>"],
    )


def qwen2(pattern: str = SUFFIXES + GPT4.replace("{1,3}", "")) -> Tokenizer:
    return of_bytes(
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        normalizer=normalizers.NFC(),
        pre=sequence(split(pattern), level()),
        post=processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        added=[AddedToken("<think>", normalized=False), "</think>"],
    )


def llama3() -> Tokenizer:
    begin = template("<|begin_of_text|> $A", ("<|begin_of_text|>", 0))
    return of_bytes(
        *("<|begin_of_text|>", "<|end_of_text|>"),
        ignore_merges=True,
        pre=sequence(split(SUFFIXES + GPT4), level()),
        post=processors.Sequence([processors.ByteLevel(trim_offsets=False), begin]),
    )


def ignoring_merges() -> Tokenizer:
    """Return a tokenizer whose vocabulary has words that no merges lead to."""
    rules = dict(bytes_of(1200, "<|begin_of_text|>"))
    words = ("Ġdon", "hello", "Ġ123", "ĠĠĠĠ", "'S")
    vocab = rules["vocab"] | {
        word: len(rules["vocab"]) + i
        for i, word in enumerate(word for word in words if word not in rules["vocab"])
    }
    made = Tokenizer(models.BPE(vocab=vocab, merges=rules["merges"], ignore_merges=True))
    made.pre_tokenizer = sequence(split(SUFFIXES + GPT4), level())
    made.decoder = decoders.ByteLevel()
    return made


def deepseek() -> Tokenizer:
    characters = split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+")
    pre = sequence(split(r"\p{N}{1,3}"), characters, split(DEEPSEEK), level())
    return of_bytes("<s>", "</s>", pre=pre, post=template("<s> $A", ("<s>", 0)))


def starcoder() -> Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return of_bytes("<|endoftext|>", pre=sequence(digits, level(regex=True)))


def falcon() -> Tokenizer:
    return of_bytes(
        "<|endoftext|>",
        pre=sequence(
            pre_tokenizers.Punctuation("contiguous"),
            level(regex=True),
            pre_tokenizers.Digits(individual_digits=False),
            split("[0-9][0-9][0-9]"),
        ),
        post=processors.ByteLevel(trim_offsets=True, add_prefix_space=False),
    )


def words_apart() -> Tokenizer:
    """Return a tokenizer with removed and inverted splits and character classes of every kind."""
    return of_bytes(
        "<|endoftext|>",
        pre=sequence(
            split(r"\s+", "removed"),
            split(r"\w+|[^\w\s]+", "removed", invert=True),
            split(r"\p{Han}|\d{2}|(?<=\p{Lu})\P{Lu}+", "merged_with_previous"),
            pre_tokenizers.Split("'", "merged_with_next"),
            split(r"(?!é)[\S\D]\W|\W.\D", "contiguous"),
            level(prefix=True),
        ),
        post=processors.ByteLevel(trim_offsets=True, add_prefix_space=True),
    )


@cache
def subwords_of(size: int, *, fallback: bool, across: bool) -> dict[str, Any]:
    """Train subwords as in SentencePiece.

    `fallback` adds a token for each byte. With `across`, a subword can contain parts of two words.
    """
    pre = pre_tokenizers.Metaspace(prepend_scheme="never", split=not across)
    found = trained(pre, size)
    names = ["<unk>", "<s>", "</s>", "<mask>" if across else "<pad>"]
    if fallback:
        names += [f"<0x{byte:02X}>" for byte in range(256)]
    merges = found["merges"] + [(GAP, GAP), (GAP * 2, GAP * 2), (GAP, "1")]
    for one, other in merges:
        names += [name for name in (one, other, one + other) if name not in found["vocab"]]
    vocab = {name: i for i, name in enumerate(dict.fromkeys([*names, *found["vocab"]]))}
    return {"vocab": vocab, "merges": merges}


def subwords(*, fallback: bool = True, across: bool = False, **options: Any) -> Tokenizer:
    rules = subwords_of(600, fallback=fallback, across=across)
    options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": fallback} | options
    made = Tokenizer(models.BPE(**rules, **options))
    names = ("<unk>", "<s>", "</s>")
    made.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    parts = [decoders.Replace(GAP, BLANK), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(BLANK, 1, 0)])
    return made


def llama2() -> Tokenizer:
    made = subwords()
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend(GAP), normalizers.Replace(BLANK, GAP)]
    )
    made.post_processor = template("<s> $A", ("<s>", 1))
    made.add_tokens([AddedToken("<tool>", normalized=True, rstrip=True)])
    return made


def mistral(scheme: str = "first", *, cut: bool = False) -> Tokenizer:
    made = subwords()
    made.pre_tokenizer = pre_tokenizers.Metaspace(GAP, prepend_scheme=scheme, split=cut)
    made.post_processor = template("<s> $A </s>", ("<s>", 1), ("</s>", 2))
    return made


def metaspace(scheme: str) -> Tokenizer:
    made = mistral(scheme, cut=True)
    made.decoder = decoders.Metaspace(GAP, prepend_scheme=scheme)
    return made


def gemma() -> Tokenizer:
    made = subwords(across=True)
    made.normalizer = normalizers.Replace(BLANK, GAP)
    made.pre_tokenizer = pre_tokenizers.Split(BLANK, "merged_with_previous")
    made.post_processor = template("<s> $A", ("<s>", 1))
    made.add_tokens([AddedToken("\n" * size, normalized=False) for size in (1, 2, 3)])
    parts = [decoders.Replace(GAP, BLANK), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(parts)
    return made


def unknown(*, fuse: bool) -> Tokenizer:
    made = subwords(fallback=False, fuse_unk=fuse)
    made.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\s+"), BLANK),
            normalizers.Strip(left=True, right=fuse),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if fuse else None
    made.add_tokens(["Don't", AddedToken("the", single_word=True, lstrip=True, rstrip=True)])
    made.decoder = None if fuse else decoders.BPEDecoder("s")
    return made


def compatible() -> Tokenizer:
    made = subwords()
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("``", '"')])
    return made


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "bert": bert,
    "bert in two cases": lambda: bert(lower=False),
    "bert with accents": lambda: bert(accents=False),
    "bert processing": bert_processing,
    "gpt2": gpt2,
    "gpt2 with a blank in front": lambda: gpt2(prefix=True),
    "gpt-neox": neox,
    "opt": opt,
    "roberta": roberta,
    "roberta with a blank in front": lambda: roberta(prefix=True),
    "modernbert": modernbert,
    "qwen": qwen2,
    "llama 3": llama3,
    "ignoring merges": ignoring_merges,
    "o200k": lambda: qwen2(O200K),
    "cl100k": lambda: qwen2(r"'(?i:[sdmt]|ll|ve|re)|" + GPT4),
    "deepseek": deepseek,
    "starcoder": starcoder,
    "falcon": falcon,
    "words apart": words_apart,
    "llama 2": llama2,
    "mistral": mistral,
    "metaspace, always": lambda: metaspace("always"),
    "metaspace, never": lambda: metaspace("never"),
    "gemma": gemma,
    "unknown": lambda: unknown(fuse=False),
    "unknown, fused": lambda: unknown(fuse=True),
    "compatible": compatible,
    "taken apart": lambda: gpt2(prefix=True, normalizer=normalizers.NFD()),
}

# ---- odd texts

ATOMS = [
    *("the cat", "don't", "DON'T", "I'll we've they're", "'s", "'\u017f", "'S", "'LL", "\u212a"),
    *("'\u017fa", "\u0915\u093e\u0903", "it'\u017f", "Isn't", "hello World", "snake_case"),
    *("camelCaseWord", "HTTPServer", "1234567"),
    *("3.14", "\u0663\u0664", "\u2167", "\u00b2", "\u00bd", "\uff11\uff12", "...", "!?!", "--"),
    *("(a)", "``", '"', "$1", "\\", "/", "[x]", "{y}", "~", "\u00bf", "\u20ac", "\u2026"),
    *(" ", "  ", "   ", "    ", "\t", "\n", "\r\n", "\n\n\n", "\r", "\u00a0", "\u3000", "\u2003"),
    *("\u2028", "\u0085", "\u200b", "\u200d", "\u00ad", "\ufeff", "\x00", "\x1f", "\ufffd"),
    *("\u00e9", "e\u0301", "\u1ec7", "e\u0323\u0302", "\u00e9\u0323", "\u0301", "\u0308\u0301"),
    *("\u00c5", "\u212b", "\u00df", "\u1e9e", "\u0130", "\ufb01", "\ufb06", "\u03a3\u03c2"),
    *("\uac00\u11a8", "\u1112\u1161\u11ab", "\ud55c\uad6d", "\u65e5\u672c\u8a9e", "\u4e2d a"),
    *("\u30ab\u3099", "\uff76\uff9e", "\U00020000", "\u3042", "\u0627\u0644\u0639\u0631\u0628"),
    *("\u0645\u0631\u062d\u0628\u0627\u064b", "\ufdfa", "\u0e20\u0e32\u0e29\u0e32\u0e33"),
    *("\u0928\u092e\u0938\u094d\u0924\u0947", "\u05e9\u05c1\u05dc\u05d5\u05dd", "\u043f\u0440"),
    *("\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea"),
    *("\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\U0001d54f", GAP, GAP + "a", "\u0120", "\u010a"),
    *("_", "___", "[MASK]", "[mask]", " ? ", "<mask>", "<0x0A>", "the the", "0", "7 8"),
]


def spelled(rules: dict[str, Any]) -> list[str]:
    """Return the added tokens, each in a few spellings."""
    names = [one["content"] for one in rules["added_tokens"]]
    return [way for name in names for way in (name, f" {name} ", f"  {name}\t", name.upper())]


@cache
def old() -> str:
    """Return all characters whose category is the same in Unicode 3.2 (2002) and today.

    The Unicode tables of Python, of the library and of browsers all include these characters.
    """
    before = unicodedata.ucd_3_2_0
    every = map(chr, range(0x20, sys.maxunicode + 1))
    kinds = ((one, before.category(one)) for one in every)
    return "".join(
        one
        for one, kind in kinds
        if kind not in ("Cn", "Cs", "Co") and kind == unicodedata.category(one)
    )


def odd(seed: int, count: int, more: list[str]) -> Iterator[str]:
    """Yield odd texts, the same for the same seed."""
    rng = random.Random(seed)
    chars = old()
    yield from ("", " ", "  ", "\n", "a", " a", "a ", "\U0001f600", " \U0001f600", "don't")
    yield from more
    for _ in range(count - 10 - len(more)):
        parts = []
        for _ in range(rng.randint(1, 9)):
            kind = rng.random()
            if kind < 0.6:
                parts.append(rng.choice(ATOMS))
            elif kind < 0.75 and more:
                parts.append(rng.choice(more))
            elif kind < 0.85:
                parts.append("".join(rng.choices(chars, k=rng.randint(1, 3))))
            else:
                parts.append("".join(map(chr, rng.choices(range(32, 127), k=rng.randint(1, 6)))))
            if rng.random() < 0.5:
                parts.append(rng.choice(("", " ", " ", "\n")))
        yield "".join(parts)


def compared(page: Page, tokenizer: SubwordTokenizer, texts: Iterable[str]) -> None:
    texts = list(texts)
    found = page.evaluate(READ, [json.dumps(tokenizer.rules), texts])
    expected = Truncator(tokenizer, None, tokenizer.mask)(texts)
    for text, (ids, tokens, offsets, special, decoded), own in zip(
        texts, found, expected, strict=True
    ):
        assert tokens == own.tokens, ascii(text)
        assert ids == own.ids.tolist(), ascii(text)
        assert [tuple(pair) for pair in offsets] == own.offsets, ascii((text, own.tokens))
        assert special == own.special, ascii(text)
        some = own.ids[1::2]  # including bytes that are parts of characters
        assert decoded == [tokenizer.decode(own.ids), tokenizer.decode(some)], ascii(text)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tokenizer_of_every_kind_is_the_librarys(visit: Visit, name: str) -> None:
    """The texts omit characters newer than the library's Unicode, which a browser may know."""
    tokenizer = SubwordTokenizer(FAMILIES[name]())
    assert list(reasons_of_tokenizer(tokenizer)) == []
    seed = list(FAMILIES).index(name)
    compared(bare(visit), tokenizer, odd(seed, 320, spelled(tokenizer.rules)))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_tokenizers_that_ship_are_the_librarys(visit: Visit, name: str) -> None:
    tokenizer = SubwordTokenizer.from_file(ROOT / "src/qkv/data" / name / "tokenizer.json")
    assert list(reasons_of_tokenizer(tokenizer)) == []
    compared(bare(visit), tokenizer, odd(100, 320, spelled(tokenizer.rules)))
