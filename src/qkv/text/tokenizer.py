"""The base class of tokenizers, and the tokenizers of trained models (tokenizer.json)."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkv._argument_errors import add_name, public_call, type_error, value_error
from qkv.arrays import Array, as_array
from qkv.files import StrPath, ordinary, replacing
from qkv.text._tokenizer_limits import GROWN, USUAL, growth
from qkv.text.gaps import MASKS
from qkv.text.tokenized import BLANKS, Tokenized, from_bytes, text_of, to_bytes

if TYPE_CHECKING:
    import tokenizers


Text = TypeVar("Text", bound=Sized)
Kind = TypeVar("Kind", bound="SubwordTokenizer")


_ACROSS = re.compile(r"[^\s▁Ġ⏎][ ▁Ġ]")  # finds a space inside a token


class Tokenizer:
    """The base class of `WordTokenizer` and `SubwordTokenizer`; use one of these two classes.

    Attributes:
        unknown: the token for unknown words, if any.
        cuts_left: whether a text that is too long loses its first tokens instead of its last.
        rows: the number of rows of the model's token table, if some tokens have no row; otherwise
            None. A text that contains a token without a row raises an error.
        inner: the tokenizer of the `tokenizers` library that splits the texts.
        chat_template: the template that turns messages into a prompt, or several templates by name;
            None if the model's files have no template.
        named_tokens: the tokens that templates use by name, such as {"bos_token": "<s>"}.
    """

    chat_template: "str | Mapping[str, str] | None" = None
    named_tokens: Mapping[str, str] = MappingProxyType({})
    cuts_left = False
    rows: int | None = None
    _frames = True  # whether the class adds special tokens around a text

    def __init__(self, inner: "tokenizers.Tokenizer", factor: float = 1.0) -> None:
        self.inner = inner
        # The rules turn a text of at most this length into at most `GROWN` characters.
        self._at_once = max(1, int(GROWN / factor))
        self.unknown = _unknown(inner)
        around = set(inner.encode("").ids) if self._frames else set()
        self._special_ids = {
            index
            for index, token in inner.get_added_tokens_decoder().items()
            if token.special and (token.content != self.unknown or index in around)
        }
        self._size = max(inner.get_vocab().values(), default=-1) + 1

    def __call__(self, text: str) -> Tokenized:
        """Call `tokenize`."""
        return self.tokenize(text)

    def __len__(self) -> int:
        """The number of rows that an embedding table needs: the largest id + 1."""
        return self._size

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} ids>"

    @property
    def vocabulary(self) -> dict[str, int]:
        """A copy of the vocabulary: each token (with a row) and its id, in the order of the ids."""
        known = sorted(self.inner.get_vocab().items(), key=lambda item: item[1])
        return {token: index for token, index in known if self.rows is None or index < self.rows}

    @property
    def rules(self) -> dict[str, Any]:
        """A copy of the contents of the tokenizer.json."""
        rules: dict[str, Any] = json.loads(self.inner.to_str())
        return rules

    @cached_property
    def mask(self) -> str | None:
        """The mask token, which marks a word to predict; None if the vocabulary has none."""
        known = self.inner.get_vocab()
        return next((token for token in MASKS if token in known), None)

    @cached_property
    def keeps_words_apart(self) -> bool:
        """Whether no token of the vocabulary spans two words.

        A token spans two words if it contains a space after another character, as in "of the".
        """
        spelled = (from_bytes(token, "replace") for token in self.inner.get_vocab())
        return not any(map(_ACROSS.search, spelled))

    @cached_property
    def blank(self) -> str:
        """The mark for a space before a word: "Ġ" or "▁"; "" if the vocabulary has no such mark."""
        tokens = self.inner.encode("a a", add_special_tokens=False).tokens
        return next((token[0] for token in tokens if token.startswith(BLANKS)), "")

    @public_call("entries")
    def entries(self, word: str) -> dict[str, int]:
        """Return the tokens of the vocabulary that a word names, with their ids.

        " cat" and "Ġcat" (or "▁cat") name the token of the word after a space. "cat" names both
        this token and the token without a space. The result is empty if the word is not one token.
        """
        text = text_of(check_text(word, name="the word"))
        names = [word] * (getattr(self.inner.model, "end_of_word_suffix", None) is None)
        if self.blank:
            spelled = to_bytes if self.blank == BLANKS[0] else str
            both = [text] if text.startswith(" ") or not text else [text, f" {text}"]
            names = [spelled(one).replace(" ", self.blank) for one in both]
        ids = {name: self.inner.token_to_id(name) for name in names}
        if not (found := {name: index for name, index in ids.items() if index is not None}):
            [row] = self.ids_batch([text])  # for example, if the tokenizer ignores case
            name = self.token(int(row[0])) if len(row) == 1 else self.unknown
            name = word if name == self.unknown else str(name)
            known = self.inner.token_to_id(name)
            found = {} if known is None else {name: known}
        return {name: index for name, index in found.items() if index < (self.rows or len(self))}

    def tokenize(self, text: str) -> Tokenized:
        """Cut one text into tokens.

        The tokens of an empty text are special tokens only.

        Raises:
            TypeError: `text` is not a string.
            ValueError: `text` contains a lone surrogate (half a character), or the `tokenizers`
                library fails for `text`.
        """
        try:
            check_text(text, name="text")
            with _translate_errors():
                self._check_growth(text)
                encoding = self.inner.encode(text, add_special_tokens=self._frames)
            return _read_encoding(self._with_rows(encoding))
        except Exception as error:  # faster than the decorator `public_call`
            add_name(error, "tokenize")
            raise

    def tokenize_batch(self, texts: Iterable[str]) -> list[Tokenized]:
        """Cut each of several texts into tokens, as `tokenize` does.

        Raises:
            TypeError: `texts` is one string, or a text is not a string.
            ValueError: a text contains a lone surrogate (half a character), or the `tokenizers`
                library fails for a text.
        """
        try:
            encodings = self._encodings(texts, add_special_tokens=self._frames)
            return [*map(_read_encoding, encodings)]
        except Exception as error:
            add_name(error, "tokenize_batch")
            raise

    def ids_batch(self, texts: Iterable[str]) -> list[NDArray[np.int32]]:
        """Return the ids of each of several texts, without special tokens.

        Raises:
            TypeError: as in `tokenize_batch`.
            ValueError: as in `tokenize_batch`.
        """
        try:
            encodings = self._encodings(texts, add_special_tokens=False)
            return [np.array(encoding.ids, np.int32) for encoding in encodings]
        except Exception as error:
            add_name(error, "ids_batch")
            raise

    @public_call("pair")
    def pair(self, first: str, second: str) -> tuple[Array, Array, list[int | None]]:
        """Cut two texts into one row of tokens, as models read a pair of texts.

        Returns:
            The ids (T,), the segments (T,), and a list that says which text each token is from.
            The segment of a token is its row in the segment table.
            In the list, 0 means `first`, 1 means `second`, and None means a special token.

        Raises:
            TypeError: a text is not a string.
            ValueError: as in `tokenize`.
        """
        for text in check_texts((first, second)):
            self._check_growth(text)
        with _translate_errors():
            pair = self.inner.encode(first, second)
        self._with_rows(pair)
        return np.array(pair.ids, np.int64), np.array(pair.type_ids, np.int64), pair.sequence_ids

    def _encodings(self, texts: Any, **options: Any) -> "Iterator[tokenizers.Encoding]":
        """Yield the library's encoding of each text; long lists of texts run in several batches."""
        for part in parts_of(check_texts(texts), self._at_once):
            with _translate_errors():
                for text in part:
                    self._check_growth(text)
                encodings = self.inner.encode_batch(part, **options)
            yield from (self._with_rows(encoding) for encoding in encodings)

    def _with_rows(self, encoding: "tokenizers.Encoding") -> "tokenizers.Encoding":
        """Return an encoding; raise an error if one of its tokens has no row (see `rows`)."""
        last = 0 if self.rows is None else max(encoding.ids, default=0)
        if self.rows is not None and last >= self.rows:
            raise value_error(
                f"the token {self.token(last)!r:.80} has the id {last}, but the token "
                f"table has only {self.rows} rows: leave the token out, or add a row to the table"
            )
        return encoding

    def _check_growth(self, text: str) -> None:
        """Raise an error if the rules make a long text more than `USUAL` times longer."""
        normalizer: Any = self.inner.normalizer
        if len(text) <= self._at_once or normalizer is None:
            return
        step = self._at_once
        grown = sum(
            len(normalizer.normalize_str(text[start : start + step]))
            for start in range(0, len(text), step)
        )
        if grown > USUAL * len(text):
            raise value_error(
                "the tokenizer's normalizer makes this text too long: it turns "
                f"{len(text):,} characters into {grown:,}"
            )

    @public_call("apply_chat_template")
    def apply_chat_template(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> Any:
        r"""Turn messages into a prompt in the format that the model was trained on.

        Templates run in Jinja's sandbox (extra `chat`), with a limit on their work.

        Args:
            messages: the messages of one conversation, for example
                `[{"role": "user", "content": "Hello"}]`.
            chat_template: a template, or the name of one of the tokenizer's templates; by default
                the tokenizer's own template.
            add_generation_prompt: whether the prompt ends with the beginning of the model's answer.
            tokenize: whether to return token ids instead of text.
            variables: further variables for the template, such as `enable_thinking` for Qwen 3.

        Returns:
            The ids of the prompt, a list of T integers, or its text.
            Unlike qkv, transformers 5 returns a dict with this list as `input_ids`.

        Raises:
            TypeError: the messages are not a list of dicts.
            ValueError: the tokenizer has no template; or the template is broken, runs too long,
                writes too much, reads unsafe attributes, or refuses the messages.
            ImportError: Jinja is not installed.

        Source:
            transformers' `apply_chat_template`.

        >>> from tokenizers import Tokenizer as Library, models
        >>> tokenizer = SubwordTokenizer(Library(models.WordPiece({"[UNK]": 0, "hi": 1})))
        >>> tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
        >>> tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
        'hi\n'
        """
        from qkv.text._chat_template import chat_prompt

        variables["add_generation_prompt"] = add_generation_prompt
        text = chat_prompt(
            messages, self.chat_template, chat_template, self.named_tokens, variables
        )
        return self.tokenize_prompt(text).ids.tolist() if tokenize else text

    def tokenize_prompt(self, text: str) -> Tokenized:
        """Cut a text into tokens, without adding special tokens: the text already has them."""
        [encoding] = self._encodings([text], add_special_tokens=False)
        tokens = _read_encoding(encoding)
        special = [self.is_special(token) for token in encoding.ids]
        return replace(tokens, special=special, text=text)

    @public_call("decode")
    def decode(self, ids: ArrayLike) -> str:
        """Return the text of token ids `(T,)`.

        The spaces in the result may differ from those in the original text. An unknown word becomes
        the token `unknown`. If the tokenizer also adds the token `unknown` at the start or end of
        texts, `decode` omits the token, like all special tokens.

        Raises:
            TypeError: `ids` are not integers.
            ValueError: `ids` are not one-dimensional, or an id has no token.
        """
        row = as_array(ids, name="ids")
        if row.ndim != 1:
            raise value_error(f"ids have shape {row.shape}; pass the (T,) ids of one text")
        if row.size and row.dtype.kind not in "iu":
            raise type_error(f"ids are {row.dtype}; pass integers")
        wanted = [int(index) for index in row]
        missing = sorted(index for index in set(wanted) if self.token(index) is None)
        if missing:
            raise value_error(
                f"no token has the id {', '.join(map(str, missing[:5]))}: "
                f"the ids of this tokenizer run from 0 to {len(self) - 1}"
            )
        wanted = [index for index in wanted if index not in self._special_ids]
        with _translate_errors():
            text = self.inner.decode(wanted, skip_special_tokens=False)
        end = getattr(self.inner.model, "end_of_word_suffix", None)
        # the decoder of CLIP's tokenizer does not remove the mark at the end of a word
        return text.replace(end, " ").rstrip(" ") if end else text

    def token(self, index: int) -> str | None:
        """Return the token of an id as the vocabulary spells it; None if the id has no token."""
        return self.inner.id_to_token(index) if 0 <= index < len(self) else None

    def id_of(self, token: str) -> int | None:
        """Return the id of a token that is spelled as in the vocabulary; None if it has no row."""
        index = self.inner.token_to_id(token)
        return None if index is None or index >= (self.rows or len(self)) else index

    def is_special(self, index: int) -> bool:
        """Return whether an id belongs to a special token."""
        return index in self._special_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(self._special_ids)

    def save(self, path: StrPath) -> None:
        """Write a tokenizer.json, which `SubwordTokenizer.from_file` reads.

        Raises:
            OSError: the file cannot be written.
        """
        with replacing(path) as file:
            file.write(self.inner.to_str(pretty=True).encode("utf-8"))


class SubwordTokenizer(Tokenizer):
    """Cut a text into the subwords that a trained model knows.

    All rules of the tokenizer apply, and special tokens are added. Padding, truncation and dropout
    (random cuts for training) are switched off, so that no token of a text is lost.
    `decode` omits special tokens.

    Args:
        tokenizer: a tokenizer of the `tokenizers` library; it is copied.

    Attributes:
        truncation: the rule in tokenizer.json for texts that are too long; None if qkv does not
            need the rule. The tokenizer does not apply this rule, but `save` writes the rule.

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> library = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2}))
        >>> text = SubwordTokenizer(library)("playing")
        >>> text.tokens, text.offsets
        (['play', '##ing'], [(0, 4), (4, 7)])
    """

    def __init__(self, tokenizer: "tokenizers.Tokenizer") -> None:
        import tokenizers as library

        if not isinstance(tokenizer, library.Tokenizer):
            raise TypeError(
                f"SubwordTokenizer: tokenizer is {type(tokenizer).__name__}; pass a "
                "tokenizers.Tokenizer, or call SubwordTokenizer.from_file(path)"
            )
        content = tokenizer.to_str()
        self._take(library.Tokenizer.from_str(content), growth(json.loads(content)))

    def _take(self, inner: "tokenizers.Tokenizer", factor: float) -> None:
        """Use the tokenizer `inner` without copying, and switch off its padding and truncation."""
        cut: dict[str, Any] | None = inner.truncation
        self.cuts_left = cut is not None and cut["direction"] == "left"
        self.truncation = None if self._frames and not self.cuts_left else cut
        inner.no_padding()
        inner.no_truncation()
        if getattr(inner.model, "dropout", None) is not None:
            inner.model.dropout = None
        super().__init__(inner, factor)

    @classmethod
    def from_file(cls, path: StrPath) -> Self:
        """Read a tokenizer.json.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is not a tokenizer.json, or its rules can turn a short text into a
                very long text.
        """
        return read_tokenizer(path, cls)

    def lowercased(self) -> "SubwordTokenizer":
        """Return a tokenizer that converts texts to lower case before it applies its own rules.

        Special tokens in a text stay as they are.
        """
        import tokenizers as library

        rules = self.rules
        normalizer = rules["normalizer"] or {"type": "Sequence", "normalizers": []}
        steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
        lower = {"type": "Lowercase"}
        if lower in steps:
            return self
        rules["normalizer"] = {"type": "Sequence", "normalizers": [lower, *steps]}
        return SubwordTokenizer(library.Tokenizer.from_str(json.dumps(rules)))

    def add_tokens(self, tokens: Sequence[Mapping[str, Any]]) -> None:
        """Add tokens, given as arguments of `tokenizers.AddedToken`, or change their options."""
        import tokenizers as library

        if tokens:
            self.inner.add_tokens([library.AddedToken(**token) for token in tokens])
            Tokenizer.__init__(self, self.inner, GROWN / self._at_once)

    @property
    def rules(self) -> dict[str, Any]:
        """A copy of the contents of the tokenizer.json."""
        if self.truncation is None:
            return super().rules
        spelled = {
            key: value.title().replace("_", "") if isinstance(value, str) else value
            for key, value in self.truncation.items()
        }
        return super().rules | {"truncation": spelled}

    def save(self, path: StrPath) -> None:
        """Write a tokenizer.json, which `from_file` reads."""
        with replacing(path) as file:
            file.write(json.dumps(self.rules, indent=2, ensure_ascii=False).encode("utf-8"))


class BareTokenizer(SubwordTokenizer):
    """Cut a text into subwords, without special tokens at the start and end.

    >>> from tokenizers import Tokenizer, models, processors
    >>> library = Tokenizer(models.WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "play": 3}))
    >>> library.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    >>> BareTokenizer(library)("play").tokens, SubwordTokenizer(library)("play").tokens
    (['play'], ['[CLS]', 'play', '[SEP]'])
    """

    _frames = False


def read_tokenizer(path: StrPath, kind: type[Kind], *, trusted: bool = False) -> Kind:
    """Read a tokenizer.json; check its rules unless the file is trusted (comes with qkv)."""
    path = ordinary(path)
    if not path.exists():
        raise FileNotFoundError(f"SubwordTokenizer.from_file: there is no file {path}")
    if path.is_dir():
        raise ValueError(
            f"SubwordTokenizer.from_file: {path} is a folder; pass the tokenizer.json in it"
        )
    try:
        return parse_tokenizer(path.read_bytes().decode("utf-8"), kind, trusted=trusted)
    except Exception as error:  # `from_str` raises a plain Exception
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"SubwordTokenizer.from_file: {path} is not a tokenizer.json ({reason})"
        ) from error


def parse_tokenizer(content: str, kind: type[Kind], *, trusted: bool = False) -> Kind:
    """Return the tokenizer that the contents of a tokenizer.json describe."""
    import tokenizers as library

    factor = growth(json.loads(content), trusted=trusted)  # before the rules run
    inner = library.Tokenizer.from_str(content)
    tokenizer = kind.__new__(kind)
    tokenizer._take(inner, factor)
    return tokenizer


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn an error or a panic of the `tokenizers` library into a ValueError about the text."""
    try:
        yield
    except BaseException as error:
        # `tokenizers` raises a plain Exception for an error, a BaseException for a Rust panic.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        raise value_error(
            f"the tokenizer's own rules do not work on this text: {reason}"
        ) from error


def check_text(text: Any, *, name: str) -> str:
    """Raise an error unless `text` is a string that UTF-8 can encode."""
    if isinstance(text, bytes | bytearray):
        raise type_error(f"{name} is bytes, not a string: decode it with .decode()")
    if not isinstance(text, str):
        raise type_error(f"{name} is {type(text).__name__}, not a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise value_error(
            f"{name} has the lone surrogate {text[error.start]!a} at character "
            f"{error.start}, which cannot be encoded: replace it"
        ) from None
    return text


def check_no_mapping(texts: Any) -> None:
    """Raise an error if `texts` is a dict, because only its keys would be read."""
    if isinstance(texts, Mapping):
        raise type_error(
            f"`texts` is {type(texts).__name__}, of which only the keys would be read; pass a "
            "list of strings, for example list(texts.values())"
        )


def check_texts(texts: Any, *, first: int = 0) -> list[str]:
    """Return `texts` as a list of strings.

    An error gives the number of the wrong text; the texts are numbered from `first`.
    """
    if isinstance(texts, str | bytes | bytearray):
        raise type_error(f"`texts` is one {type(texts).__name__}; pass a list of strings")
    check_no_mapping(texts)
    if not isinstance(texts, Iterable):
        raise type_error(f"`texts` is {type(texts).__name__}; pass a list of strings")
    return [check_text(text, name=f"text {i}") for i, text in enumerate(texts, first)]


def parts_of(texts: Iterable[Text], most: int) -> Iterator[list[Text]]:
    """Yield lists of texts, each with a total length of at most `most` (characters or tokens).

    A text that is longer than `most` is alone in its list.

    >>> list(parts_of(["the", "cat", "sat", "on the mat"], 6))
    [['the', 'cat'], ['sat'], ['on the mat']]
    """
    part: list[Text] = []
    size = 0
    for text in texts:
        if part and size + len(text) > most:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


def _read_encoding(encoding: "tokenizers.Encoding") -> Tokenized:
    return Tokenized(
        ids=np.array(encoding.ids, dtype=np.int64),
        tokens=list(encoding.tokens),
        offsets=list(encoding.offsets),  # (0, 0) for tokens that the library added
        special=[mask == 1 for mask in encoding.special_tokens_mask],
    )


def _unknown(inner: "tokenizers.Tokenizer") -> str | None:
    """Return the tokenizer's token for unknown words, or None."""
    model: Any = inner.model
    if hasattr(model, "unk_token"):
        token: str | None = model.unk_token
        return token
    # A Unigram model has no `unk_token`; its JSON contains the id of the unknown token.
    index = json.loads(inner.to_str())["model"].get("unk_id")
    return None if index is None else inner.id_to_token(index)
