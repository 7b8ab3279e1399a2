"""Tokenizers of trained models, which are read from a tokenizer.json."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from qkv.files import StrPath, replacing
from qkv.text.growth import growth
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers


class SubwordTokenizer(Tokenizer):
    """Cut a text into the subwords that a trained model knows.

    All rules of the tokenizer apply, and special tokens are added. Only padding, truncation and
    dropout (a method for training) are switched off, so that no token of a text is lost.
    `decode` omits special tokens.

    Args:
        tokenizer: a tokenizer of the `tokenizers` library; it is copied.

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
                f"SubwordTokenizer: tokenizer is {type(tokenizer).__name__}: give a "
                "tokenizers.Tokenizer, or a path to SubwordTokenizer.from_file"
            )
        content = tokenizer.to_str()
        self._take(library.Tokenizer.from_str(content), growth(json.loads(content)))

    def _take(self, inner: "tokenizers.Tokenizer", factor: float) -> None:
        """Wrap a tokenizer of the library without a copy; the caller must not use it elsewhere."""
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
            ValueError: the file is not a tokenizer.json, or its rules make texts far too long.
        """
        import tokenizers as library

        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"SubwordTokenizer.from_file: there is no file {path}")
        if path.is_dir():
            raise ValueError(
                f"SubwordTokenizer.from_file: {path} is a folder: give the tokenizer.json in it"
            )
        try:
            content = path.read_bytes().decode("utf-8")
            factor = growth(json.loads(content))  # raises before the library runs the rules
            inner = library.Tokenizer.from_str(content)
        except Exception as error:  # the library raises an Exception without a subclass
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"SubwordTokenizer.from_file: {path} is not a tokenizer.json ({reason})"
            ) from error
        tokenizer = cls.__new__(cls)
        tokenizer._take(inner, factor)
        return tokenizer


class BareTokenizer(SubwordTokenizer):
    """Cut a text into subwords, without special tokens at the start and end.

    Attributes:
        truncation: the file's rule for texts that are too long. It is not applied, but `save`
            writes it.

    >>> from tokenizers import Tokenizer, models, processors
    >>> library = Tokenizer(models.WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "play": 3}))
    >>> library.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    >>> BareTokenizer(library)("play").tokens, SubwordTokenizer(library)("play").tokens
    (['play'], ['[CLS]', 'play', '[SEP]'])
    """

    _frames = False

    def _take(self, inner: "tokenizers.Tokenizer", factor: float) -> None:
        self.truncation: dict[str, Any] | None = inner.truncation
        super()._take(inner, factor)

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
        """Write a tokenizer.json, which `BareTokenizer.from_file` reads."""
        with replacing(path) as file:
            file.write(json.dumps(self.rules, indent=2, ensure_ascii=False).encode("utf-8"))
