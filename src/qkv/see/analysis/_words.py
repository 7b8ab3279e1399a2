"""The words of a text: the tokens of each word, and which words are content words."""

import re
import string
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.text.gaps import GAP, MASKS
from qkv.text.tokenized import UNKNOWN, is_piece, plain_tokens, told_unknown, without_blanks

Span = tuple[int, int, str]
Texts = Sequence[str]
Flags = Sequence[bool]

_SPECIAL = re.compile(r"\[(CLS|SEP|PAD|MASK|BOS|EOS)\]|<\|.+\|>|</?(s|pad|bos|eos|mask|cls|sep)>")
_WORD_STARTS = ("Ġ", "▁")
_BEFORE_MARK = re.compile(r" (?=[.,;:!?)\]}%](?: |$))")
_LISTS = tomllib.loads(files("qkv.see.analysis").joinpath("function_words.toml").read_text("utf-8"))
FUNCTION_WORDS = frozenset(_LISTS["words"].split())
LEFT_OVER = frozenset(_LISTS["around_apostrophes"].split())
_APOSTROPHES = {"'", "\N{RIGHT SINGLE QUOTATION MARK}"}


def quote_words(text: str, tokens: Texts, special: Flags, most: int = 90) -> str:
    """Quote the beginning of a text; if the text is unknown, quote its tokens.

    A blank, `___`, stands for each mask token of the text.

    >>> quote_words("", ["[CLS]", "it", "##s", "me", "!"], [True, False, False, False, False])
    'its me!'
    >>> quote_words("It's  me!", [], []), quote_words("Here we are again", [], [], 12)
    ("It's me!", 'Here we are…')
    """
    if not text:
        spans = spans_of(tokens, special)
        words = [word for first, _, word in spans if not special[first]] or list(tokens)
        text = _BEFORE_MARK.sub("", " ".join(words))
    for mask in {*MASKS}.intersection(tokens):
        text = text.replace(mask, GAP)
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    return (text[: most + 1].rpartition(" ")[0] or text[: most - 1]) + "…"


def labels_of(tokens: Texts) -> list[str]:
    """Return the names of tokens for a picture, in which `___` stands for a mask token.

    >>> labels_of(["a", "[MASK]"])
    ['a', '___']
    """
    return [GAP if token in MASKS else token for token in tokens]


def show_blanks(word: str) -> str:
    r"""Return a guessed word; if it is empty, or has only spaces and line breaks, show symbols.

    >>> show_blanks("the"), show_blanks(" "), show_blanks("\n"), show_blanks("")
    ('the', '␣', '⏎', '∅')
    """
    return word if word.strip() else word.replace(" ", "␣").replace("\n", "⏎") or "∅"


def name_of(token: str, article: str = "the") -> str:
    """Return a token's name for use in a sentence.

    >>> name_of("[MASK]"), name_of("a")
    ('the gap', 'a')
    """
    return f"{article} gap" if token in MASKS else token


def went_without(changed: Mapping[str, Sequence[Any]]) -> tuple[list[str], list[str]]:
    """Describe the interventions of a run: ablated heads and hidden tokens (`Trace.changed`).

    >>> went_without({"ablate": [(0, 4)], "hide": ["river", 3]})
    (['layer 0, head 4'], ['river', 'token 3'])
    >>> went_without({"hide": [(2, 3), (2, 3, 0, 1)]})[1]
    ['token 3 from token 2', 'token 3 from token 2 in layer 0, head 1']
    """
    pairs = changed.get("ablate", ())
    heads = [f"layer {layer}" + ("" if head is None else f", head {head}") for layer, head in pairs]
    return heads, [_hidden(x) for x in changed.get("hide", ())]


def _hidden(target: Any) -> str:
    """Describe a hidden word, position or link."""
    if not isinstance(target, list | tuple):
        return target if isinstance(target, str) else f"token {target}"
    query, key, *where = target
    if key is None:
        return "later tokens"
    named = [f"{name} {number}" for name, number in zip(("layer", "head"), where, strict=False)]
    return f"token {key} from token {query}" + (f" in {', '.join(named)}" if named else "")


def run_name(changed: Mapping[str, Sequence[Any]]) -> str:
    """Make the name of a run from its interventions.

    >>> run_name({"ablate": [(0, 4)], "hide": ["river"]}), run_name({})
    ('without layer 0, head 4, river hidden', 'as it is')
    """
    heads, hidden = went_without(changed)
    parts = ["without " + " and ".join(heads)] if heads else []
    parts += [f"{' and '.join(hidden)} hidden"] if hidden else []
    edited = list(changed.get("edit", ()))
    parts += [f"{' and '.join(edited)} edited"] if edited else []
    return ", ".join(parts) or "as it is"


def is_punctuation(token: str) -> bool:
    """Return whether a token consists only of punctuation marks and ASCII symbols.

    >>> [is_punctuation(token) for token in ("river", ".", "##ing", "...", "€5", "+", "Ġ,", "▁")]
    [False, True, False, True, False, True, True, True]
    """
    text = bare(token)
    return bool(text) and all(
        mark in _WORD_STARTS or mark in string.punctuation or unicodedata.category(mark)[0] == "P"
        for mark in text
    )


def is_special(token: str) -> bool:
    """Return whether a token of an unknown tokenizer looks like a special token.

    >>> [is_special(token) for token in ("[CLS]", "<s>", "<|endoftext|>", "[UNK]", "<3")]
    [True, True, True, False, False]
    """
    return bool(_SPECIAL.fullmatch(token))


def bare(token: str) -> str:
    """Remove the marks that tokenizers put on a token.

    >>> [bare(token) for token in ("Ġriver", "▁river", "river</w>", "##ing")]
    ['river', 'river', 'river', 'ing']
    """
    token = token.removesuffix("</w>") or token
    return token[2:] if is_piece(token) else token.lstrip("".join(_WORD_STARTS)) or token


def is_function_word(word: str) -> bool:
    """Return whether a word is an English function word; the word must be in lower case.

    >>> [is_function_word(word) for word in ("the", "of", "she", "don't", "river", "don")]
    [True, True, True, True, False, False]
    """
    return word in FUNCTION_WORDS


def is_word(tokens: Texts, special: Flags) -> Array:
    """Return a bool array that is False for special tokens and punctuation, and True otherwise."""
    pairs = zip(tokens, special, strict=True)
    return np.array([not flag and not is_punctuation(token) for token, flag in pairs], dtype=bool)


def content(tokens: Texts, special: Flags) -> tuple[Array, Array]:
    """Return which tokens are in content words (bool), and the index of each token's word.

    Equal words have the same index. Content words are the words that the model knows, except
    function words: articles, pronouns, prepositions, conjunctions and auxiliaries. The list of
    function words is English. In other languages, only words with the same spelling as an English
    function word are left out. If a text has fewer than two content words, all its words count as
    content words.

    >>> flags, numbers = content(["the", "bank", "##er", "of", "the", "bank", "."], [False] * 7)
    >>> flags.astype(int).tolist(), numbers.tolist()
    ([0, 1, 1, 0, 0, 1, 0], [0, 1, 1, 2, 0, 3, 4])
    """
    spans = spans_of(tokens, special)
    names = [bare(name).lower() for _, _, name in spans]
    known: dict[str, int] = {}
    numbers = [known.setdefault(name, len(known)) for name in names]
    sizes = [end - first for first, end, _ in spans]
    words = is_word(tokens, special)
    little = [name in FUNCTION_WORDS or name in UNKNOWN for name in names]
    for i, name in enumerate(names):  # the "s" in "king ' s" and the "t" in "don ' t" do not count
        little[i] |= name in LEFT_OVER and not _APOSTROPHES.isdisjoint(names[max(0, i - 1) : i + 2])
    of_tokens = np.repeat(numbers, sizes)
    flags = words & ~np.repeat(np.array(little, dtype=bool), sizes)
    return (flags if len(set(of_tokens[flags].tolist())) > 1 else words), of_tokens


def words_of(tokens: Texts, special: Flags, *, only_content: bool = False) -> list[str]:
    """List the distinct words of a text, or only the content words; leave out punctuation.

    >>> tokens = ["the", "bank", "##er", "of", "the", "bank", "."]
    >>> words_of(tokens, [False] * 7), words_of(tokens, [False] * 7, only_content=True)
    (['the', 'banker', 'of', 'bank'], ['banker', 'bank'])
    """
    flags = content(tokens, special)[0] if only_content else is_word(tokens, special)
    spans = spans_of(tokens, special)
    return list(dict.fromkeys(bare(name) for first, _, name in spans if flags[first]))


def explain_tokens(tokens: Texts, special: Flags, name: str = "", written: Texts = ()) -> list[str]:
    """Explain the tokens of a text in sentences; if `name` is given, each sentence begins with it.

    `written` lists the words of the text that became unknown tokens.

    >>> explain_tokens(["fish", "##erm", "##an", "[UNK]", "."], [False] * 5)
    ['fisherman is cut into fish ##erm ##an: ## marks a subword that continues the word before it.',
     '[UNK] stands for a word for which the model has no token.',
     'Read this view with care: 3 of 5 tokens are parts of words or unknown.']
    """
    spans = word_spans(tokens, special) or []
    cut = [span for span in spans if span[1] - span[0] > 1]
    unknown = [token for token in tokens if token.lower() in UNKNOWN]
    notes = []
    if cut:
        first, end, word = cut[0]
        pieces = plain_tokens(tokens[first:end], special[first:end])
        others = len(cut) - 1
        more = f", and {others} more word{'s are' if others > 1 else ' is'} cut" if others else ""
        sign = ": ## marks a subword that continues the word before it"
        marked = sign if "##" in pieces[-1] else ""
        notes.append(f"{word} is cut into {' '.join(pieces)}{more}{marked}.")
    if unknown:
        untold = f"{unknown[0]} stands for a word for which the model has no token."
        notes.append(told_unknown(written, unknown[0]) if written else untold)
    odd = sum(end - first - 1 for first, end, _ in cut) + len(unknown)
    size = len(tokens) - sum(special)
    if 5 * odd > size:
        notes.append(
            f"Read this view with care: {odd} of {size} tokens are parts of words or unknown."
        )
    return [f"{name}: {line}" for line in notes] if name else notes


def spans_of(tokens: Texts, special: Flags) -> list[Span]:
    """List each word as `(first, last + 1, word)`, where first and last are positions of tokens."""
    return word_spans(tokens, special) or [(i, i + 1, t) for i, t in enumerate(tokens)]


def word_spans(tokens: Texts, special: Flags) -> list[Span] | None:
    """Join subwords into words as `spans_of` does; return None if no token is a subword.

    The function knows the marks of WordPiece ("##ing" continues a word), of byte-level BPE and
    SentencePiece ("Ġa" and "▁a" begin a word), and of older BPE ("a</w>" ends a word). A
    punctuation mark counts as a word.

    >>> word_spans(["i", "walk", "##ing", "."], [False] * 4)
    [(0, 1, 'i'), (1, 3, 'walking'), (3, 4, '.')]
    >>> word_spans(["I", "Ġwalk", "ing", "."], [False] * 4)
    [(0, 1, 'I'), (1, 3, 'walking'), (3, 4, '.')]
    """
    starts = any(token.startswith(_WORD_STARTS) for token in tokens)
    ends = any(token.endswith("</w>") for token in tokens)
    groups: list[list[int]] = []
    for position, token in enumerate(tokens):
        before = tokens[position - 1] if position else ""
        goes_on = is_piece(token) or (starts and not token.startswith(_WORD_STARTS))
        if not is_piece(token) and without_blanks(before[-1:] + token[:1]):
            goes_on = False
        goes_on = goes_on or (ends and not before.endswith("</w>"))
        apart = special[position] or is_punctuation(token) or not position
        if apart or special[position - 1] or is_punctuation(before) or not goes_on:
            groups.append([position])
        else:
            groups[-1].append(position)
    if len(groups) == len(tokens):
        return None
    return [
        (group[0], group[-1] + 1, "".join(bare(tokens[position]) for position in group))
        if len(group) > 1
        else (group[0], group[0] + 1, tokens[group[0]])
        for group in groups
    ]
