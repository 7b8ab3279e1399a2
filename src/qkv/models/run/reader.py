"""Turn texts or token ids into batches for a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.models.files.read import TOKENIZER
from qkv.models.files.sentence import Sentence
from qkv.models.network.transformer import Transformer
from qkv.models.run.inputs import ids_given, named
from qkv.models.run.truncation import Truncator
from qkv.text import Tokenized, Tokenizer
from qkv.text.tokenized import marks_blanks, plain_tokens
from qkv.text.tokenizer import check_text, check_texts


@dataclass(frozen=True)
class TextReader:
    """Turns texts or token ids into batches for a network.

    Attributes:
        name: the model's name, for errors.
        tokenizer: splits a text into tokens; None if the model's folder has none.
        sentence: the settings for texts, read from the model's files.
        limit: the maximum number of tokens in a text, including special tokens; None for no limit.
        rows: the number of rows in the token table.
        fills_gaps: whether the mask token replaces each gap in a text.
        has_images: whether another part of the model reads images, which errors then mention.
    """

    name: str
    tokenizer: Tokenizer | None
    sentence: Sentence
    limit: int | None = None
    rows: int = 0
    fills_gaps: bool = True
    has_images: bool = False

    @property
    def mask(self) -> str | None:
        """The token that replaces gaps; None if gaps are not replaced."""
        return self.tokenizer.mask if self.fills_gaps and self.tokenizer is not None else None

    @property
    def known_subwords(self) -> Callable[[str], list[list[str]]] | None:
        """`subwords`, or None if no word can be found among the tokens."""
        return None if self.tokenizer is None else self.subwords

    @property
    def known_ids(self) -> Callable[[str, str], Array] | None:
        """`ids`, or None if the model reads no text."""
        return None if self.tokenizer is None else self.ids

    def need_tokenizer(self, call: str) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            ValueError: there is none.
        """
        if self.tokenizer is None:
            raise ValueError(
                f"{call}: {self.name} has no {TOKENIZER}, so it cannot read text: "
                "call model(input_ids)"
            )
        return self.tokenizer

    def need_text(self, call: str) -> None:
        """Do nothing, as this model reads texts; readers of images raise a ValueError."""

    def tokenize(self, text: str) -> Tokenized:
        """Return the tokens of a whole text, see `Model.tokenize`."""
        text = check_text(text, call="tokenize", name="text")
        truncator = Truncator(self.need_tokenizer("tokenize"), None, self.mask)
        [tokens] = truncator([self.sentence.prepared(text)])
        truncator.cut.warn()
        return tokens

    def split(
        self, texts: Any, call: str, first: int = 0
    ) -> tuple[bool, list[str], list[Tokenized]]:
        """Return `(single, strings, tokens)`: whether there is one text; tokens only for ids.

        Errors number the texts from `first`.
        """
        if self.has_images:
            self.refuse_images(texts, call)
        ids = ids_given(texts, rows=self.rows, limit=self.limit, call=call, first=first)
        if ids is not None:
            return ids[0], [], ids[1]
        self.need_tokenizer(call)
        if isinstance(texts, str):
            return True, [check_text(texts, call=call, name="text")], []
        return False, check_texts(texts, call=call, first=first), []

    def read(self, texts: Any, call: str = "trace", first: int = 0) -> tuple[bool, list[Tokenized]]:
        """Return `(single, tokens)`: whether there is one text, and the tokens, truncated.

        Ids do not change. Errors number the texts from `first`.
        """
        single, strings, batch = self.split(texts, call, first)
        if strings:
            truncator = Truncator(self.need_tokenizer(call), self.limit, self.mask)
            batch = truncator([self.sentence.prepared(text) for text in strings])
            for number, tokens in enumerate(batch, first):
                if all(tokens.special):
                    where = "the text" if single else f"text {number}"
                    raise ValueError(
                        f"{call}: {where} is empty: give a text with at least one word"
                    )
            truncator.cut.warn()
            batch = [
                replace(tokens, text=text[: max(end for _, end in tokens.offsets)])
                for tokens, text in zip(batch, strings, strict=True)
            ]
        if not batch:
            raise ValueError(f"{call}: no text is given: give at least one")
        return single, batch

    def ids(self, text: str, call: str) -> Array:
        """Return the ids of one text, (T,)."""
        return self.read(text, call)[1][0].ids

    def with_names(self, text: Tokenized) -> Tokenized:
        """Return the tokens with their names, if the text was given as ids."""
        if text.text or any(text.special) or text.tokens != [str(token) for token in text.ids]:
            return text
        return named(text.ids, np.ones(len(text), bool), self.tokenizer)

    def subwords(self, word: str) -> list[list[str]]:
        """Return the ways to split a word into subwords, see `Model.subwords`."""
        unknown = self.need_tokenizer("subwords").unknown
        before = ["Ġ"] if marks_blanks(self.tokenize("a a").tokens) else []
        splits = []
        for text in (word, f" {word}"):
            tokens = self.tokenize(text)
            pairs = zip(tokens.tokens, tokens.special, strict=True)
            words = [token for token, is_special in pairs if not is_special]
            flags = [True] * len(before) + [False] * len(words)
            names = plain_tokens([*before, *words], flags)[len(before) :]
            if names and unknown not in words and names not in splits:
                splits.append(names)
        return splits

    def run(
        self, network: Transformer, batch: Sequence[Tokenized], **options: Any
    ) -> tuple[Array, Array]:
        """Run a packed batch; return `(rows, cu_lengths)`: vectors (total, D), and (B + 1,).

        The options are those of a call of `Transformer`.
        """
        return network.packed([text.ids for text in batch], **options)

    def refuse_images(self, texts: Any, call: str) -> None:
        """Raise a TypeError if images are given instead of texts."""
        first = texts[0] if isinstance(texts, list | tuple) and texts else texts
        if hasattr(first, "convert") or getattr(first, "ndim", 0) > 2:
            raise TypeError(
                f"{call}: {self.name} reads texts here, not images: call encode_image(images), or "
                "model.vision, for example model.vision.trace(image)"
            )
