"""The tokens of a text, and functions that convert tokens to a form that people can read."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qkv._argument_errors import public_call, value_error


@dataclass(frozen=True, eq=False)
class Tokenized:
    """The tokens of one text; each list has one entry per token.

    Attributes:
        ids: (T,) int64, the rows of the tokens in an embedding table.
        tokens: the tokens as the vocabulary spells them.
        offsets: the span (start, end) of characters that each token covers in the text; `(0, 0)`
            for special tokens.
        special: True for a token that the tokenizer added, such as `[CLS]` and `[SEP]`.
            An unknown word is not special.
        text: the text of these tokens; "" if the text is unknown.
    """

    ids: NDArray[np.int64]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    special: list[bool]
    text: str = field(default="", kw_only=True)

    def __len__(self) -> int:
        return len(self.tokens)

    @public_call("positions")
    def positions(self, token: str | int) -> list[int]:
        """Return the positions of a token, in order.

        Args:
            token: the id of the token; or its text (" cat"); or the token as spelled by the
                vocabulary ("Ġcat") or by `plain_tokens`. "cat" means the token with or without a
                space.

        Raises:
            ValueError: the token is not in the text, or the text has "cat" with and without a
                space.

        >>> text = Tokenized(np.array([5, 7, 5]), ["Ġthe", "Ġcat", "Ġthe"], [], [False] * 3)
        >>> text.positions("the"), text.positions(" the"), text.positions(7)
        ([0, 2], [0, 2], [1])
        """
        if isinstance(token, str):
            copies = find_word(token, self.tokens, self.special, what="`token`")
            found = [copy[0] for copy in copies if len(copy) == 1]
        else:
            found = np.flatnonzero(self.ids == token).tolist()
        if not found:
            known = ", ".join(dict.fromkeys(self.tokens))
            raise value_error(f"the text has no token {token!r:.60}: its tokens are {known:.200}")
        return found

    def unknown(self) -> list[str]:
        """List the distinct parts of the text that the tokenizer does not know."""
        return unknown_in(self.tokens, self.offsets, self.text)


UNKNOWN = ("[unk]", "<unk>")  # the tokens for an unknown word, in lower case


def unknown_in(tokens: Sequence[str], offsets: Sequence[tuple[int, int]], text: str) -> list[str]:
    """List the distinct parts of a text that a model reads as its unknown token.

    >>> unknown_in(["the", "[UNK]", "."], [(0, 3), (4, 6), (6, 7)], "the Ж!.")
    ['Ж!']
    """
    spans = [span for token, span in zip(tokens, offsets, strict=False) if token.lower() in UNKNOWN]
    parts = dict.fromkeys(text[start:end].strip() for start, end in spans)
    return [part for part in parts if part and part.lower() not in UNKNOWN]


def told_unknown(unknown: Sequence[str], token: str, most: int = 3) -> str:
    """Return a sentence that names the parts of a text that a model does not know.

    >>> told_unknown(["Ж", "🙂"], "[UNK]")
    'The model does not know Ж and 🙂: it reads [UNK] there.'
    """
    items = [f"{part:.20}" for part in unknown[:most]]
    if len(unknown) > most:
        items.append(f"{len(unknown) - most} more")
    listed = " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
    return f"The model does not know {listed}: it reads {token} there."


def is_piece(token: str) -> bool:
    """Return whether a token is a WordPiece token that continues a word, such as "##ing".

    >>> [is_piece(token) for token in ("##ing", "ing", "##")]
    [True, False, False]
    """
    return len(token) > 2 and token.startswith("##")


def plain_tokens(tokens: Sequence[str], special: Sequence[bool]) -> list[str]:
    """Return tokens in readable form: "##" marks a subword that continues a word.

    Only WordPiece writes "##". Byte-level tokenizers and SentencePiece mark the space
    before a word ("Ġcat", "▁cat"). CLIP's tokenizer marks the end of a word ("cat</w>"). Byte-level
    tokenizers also write non-ASCII bytes as letters ("Ã©" for "é"). If a character consists of
    several tokens, each token is named after the character ("🙂 1/2"). Tokens without these marks
    do not change.

    Args:
        tokens: the tokens of one text, in order.
        special: True for tokens that the tokenizer added.

    >>> plain_tokens(["The", "Ġcat", "Ġwalk", "ing", ".", "ĠcafÃ©"], [False] * 6)
    ['The', 'cat', 'walk', '##ing', '.', 'café']
    >>> plain_tokens(["▁The", "▁cat", "s", "<0x0A>"], [False] * 4)
    ['The', 'cat', '##s', '<0x0A>']
    >>> plain_tokens(["the", "cat", "##s"], [False] * 3)
    ['the', 'cat', '##s']
    >>> plain_tokens(["an", "ĠðŁ", "ĻĤ"], [False] * 3)
    ['an', '🙂 1/2', '🙂 2/2']
    >>> plain_tokens(["▁今天", "天气", "很好"], [False] * 3)
    ['今天', '天气', '很好']
    >>> plain_tokens(["a</w>", "cat", "t</w>", "cafÃ©</w>"], [False] * 4)
    ['a', 'cat', '##t', 'café']
    """
    if any(token.endswith(_END) for token in tokens):
        return _without_ends(tokens, special)
    parts = _parts_of_characters(tokens, special)
    if not marks_blanks(tokens):
        return [parts.get(i, token) for i, token in enumerate(tokens)]
    readable, before = [], ""
    for i, (token, is_special) in enumerate(zip(tokens, special, strict=True)):
        if is_special or i in parts:
            readable.append(parts.get(i, token))
            before = ""
            continue
        text = from_bytes(token) if not token.startswith("▁") else token
        begins = token.startswith(BLANKS)
        plain = text.replace("▁", " ").strip(" ") or text
        joined = not begins and before[-1:].isalnum() and plain[:1].isalnum()
        joined = joined and not without_blanks(before[-1] + plain[0])
        readable.append(f"##{plain}" if joined else plain)
        before = plain
    return readable


def _parts_of_characters(tokens: Sequence[str], special: Sequence[bool]) -> dict[int, str]:
    """Return names, keyed by position, for tokens with only some of the bytes of a character."""
    names: dict[int, str] = {}
    group: list[int] = []  # the tokens of an incomplete character
    pieces, spelled = any(token.startswith("▁") for token in tokens), b""
    for i, (token, is_special) in enumerate(zip(tokens, special, strict=True)):
        code = re.fullmatch("<0x([89A-F].)>", token)
        letters = [] if pieces else [_BYTES.get(letter, -1) for letter in token]
        data = bytes.fromhex(code[1]) if code else b"" if -1 in letters else bytes(letters)
        whole = is_special or max(data, default=0) < 128 or _is_text(data)
        group, spelled = ([], b"") if whole else ([*group, i], spelled + data)
        if group and _is_text(spelled):
            text = spelled.decode().strip()
            names |= {at: f"{text} {k}/{len(group)}" for k, at in enumerate(group, 1)}
            group, spelled = [], b""
    return names


def _is_text(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True


def _without_ends(tokens: Sequence[str], special: Sequence[bool]) -> list[str]:
    """Return tokens in readable form; in `tokens`, the last token of each word ends with "</w>"."""
    readable, goes_on = [], False
    for token, is_special in zip(tokens, special, strict=True):
        plain = token if is_special else from_bytes(token.removesuffix(_END))
        readable.append(f"##{plain}" if goes_on and not is_special else plain)
        goes_on = not is_special and not token.endswith(_END)
    return readable


def without_blanks(text: str) -> bool:
    """Return whether any character of `text` is from a script that puts no spaces between words.

    >>> [without_blanks(text) for text in ("river", "река", "天气", "ねこ", "แมว", "고양이")]
    [False, False, True, True, True, False]
    """
    return any(unicodedata.name(mark, "").startswith(_NOBLANKS) for mark in text)


def marks_blanks(tokens: Sequence[str]) -> bool:
    """Return whether any token begins with the mark for a space or a newline."""
    return any(token.startswith((*BLANKS, _NEWLINE)) for token in tokens)


def from_bytes(token: str, errors: str = "strict") -> str:
    """Return the text of a byte-level token.

    A token that is not byte-level, or that is only a part of a character, is returned unchanged.
    """
    try:
        return bytes(_BYTES[letter] for letter in token).decode("utf-8", errors).replace("\n", "⏎")
    except (KeyError, UnicodeDecodeError):
        return token


def to_bytes(text: str) -> str:
    """Return the byte-level token of a text: "ĠcafÃ©" for " café"."""
    return "".join(_LETTERS[byte] for byte in text.encode())


def _letters_of_bytes() -> dict[str, int]:
    """Map each letter of byte-level tokens to the byte that the letter stands for."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


BLANKS = ("Ġ", "▁")
_NOBLANKS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_NEWLINE = "Ċ"
_END = "</w>"
_BYTES = _letters_of_bytes()
_LETTERS = {byte: letter for letter, byte in _BYTES.items()}


def joined_words(tokens: Sequence[str], special: Sequence[bool]) -> list[str]:
    """Join readable tokens into words; omit the special tokens that the tokenizer added.

    >>> joined_words(["[CLS]", "bank", "##er", "."], [True, False, False, False])
    ['banker', '.']
    """
    words: list[str] = []
    for token, is_special in zip(tokens, special, strict=True):
        if is_piece(token) and words:
            words[-1] += token[2:]
        elif not is_special:
            words.append(token)
    return words


def find_pieces(tokens: Sequence[str], pieces: Sequence[str]) -> list[list[int]]:
    """For each occurrence of a word among tokens, return the positions of its subwords.

    An occurrence does not count if the word continues. For example, the tokens "bank" and "##er"
    form the word "banker", so the word "bank" does not occur in them.

    >>> find_pieces(["the", "bank", "##er", "at", "the", "bank"], ["bank"])
    [[5]]
    """
    n = len(pieces)
    return [
        list(range(i, i + n))
        for i in range(len(tokens) - n + 1)
        if list(tokens[i : i + n]) == list(pieces)
        and not (i + n < len(tokens) and is_piece(tokens[i + n]))
    ]


def text_of(token: str) -> str:
    """Return the text of a token: " cat" for " cat", "Ġcat" and "▁cat"."""
    return from_bytes(token).replace("▁", " ")


def find_word(
    word: str,
    tokens: Sequence[str],
    special: Sequence[bool],
    splits: Sequence[Sequence[str]] | None = None,
    *,
    marks: bool | None = None,
    either: bool = False,
    what: str,
) -> list[list[int]]:
    """For each occurrence of a word in a text, return the positions of its subwords.

    " cat", "Ġcat" and "▁cat" stand for the word after a space; "cat" stands for the word with or
    without a space. If the text has no such word, find the tokens that the vocabulary spells like
    `word`.

    `tokens` are spelled as in the vocabulary. `splits` are the ways to split the word into readable
    subwords, by default any way. `marks` says whether the vocabulary marks spaces; by default, this
    is inferred from the tokens. In errors, `what` names the argument.

    Raises:
        ValueError: the text has the word "cat" with and without a space, and `either` is False.

    >>> tokens = ["a", "Ġcat", "Ġa", "Ġkit", "ten"]
    >>> [find_word(x, tokens, [False] * 5, what="") for x in (" a", "cat", "kitten")]
    [[[2]], [[1]], [[3, 4]]]
    """
    marks, text = marks_blanks(tokens) if marks is None else marks, text_of(word)
    front = [BLANKS[0]] * marks  # tells `plain_tokens` that the vocabulary marks spaces
    plain = plain_tokens([*front, *tokens], [*map(bool, front), *special])[len(front) :]
    if splits is None:
        splits = _splits(text.strip(" "), plain)
    copies = [copy for cut in splits for copy in find_pieces(plain, cut)]
    # if the space before a word is a separate token, the word is found with and without this token
    sizes = {copy[-1]: len(copy) for copy in sorted(copies, key=len)}
    copies = [copy for copy in copies if len(copy) == sizes[copy[-1]]]
    spaced = [copy for copy in copies if tokens[copy[0]].startswith(BLANKS)]
    if text.startswith(" ") and marks:
        copies = spaced
    elif 0 < len(spaced) < len(copies) and not either:
        raise value_error(
            f"{what} is {word!r}, but the text has both {word!r} without a space before it "
            f"and {f' {word}'!r}; pass {f' {word}'!r}, or the number of the token"
        )
    both = enumerate(zip(tokens, plain, strict=True))
    return copies or [[i] for i, names in both if word in names or text == text_of(names[0])]


def _splits(word: str, plain: Sequence[str]) -> list[list[str]]:
    """Return the readable subwords of a word in a text; if necessary, ignore its case."""
    starts = [i for i, name in enumerate(plain) if not is_piece(name)]
    cuts = [[*plain[i:j]] for i, j in pairwise([*starts, len(plain)])]
    for spell in (str, str.lower):
        found = [
            cut for cut in cuts if spell(joined_words(cut, [False] * len(cut))[0]) == spell(word)
        ]
        if found:
            return [cut for at, cut in enumerate(found) if cut not in found[:at]]
    return []
