"""How a text becomes one vector, as a model's sentence-transformers files say it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np

from qkv.arrays import Array
from qkv.models.files.config import Config
from qkv.models.files.read import (
    CONFIG,
    MODULES,
    PROMPTS,
    SENTENCE,
    WEIGHTS,
    ModelError,
    is_number,
)
from qkv.models.network.pooling import POOLING, LengthOne, Step, to_length_one

# Where a model's limit may stand: the first of them that is there.
_FAMILIES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
LIMITS = (SENTENCE, *(f"sentence_{name}_config.json" for name in _FAMILIES))


TOKENIZER_CONFIG = "tokenizer_config.json"
_NO_LIMIT = 10**20  # transformers writes 10**30 for none
NO_PROMPTS = {"query": "", "document": ""}
_NO_FAMILY = ("PreTrainedTokenizerFast", "TokenizersBackend")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

# Others that are kept beside config.json, and those at the top of the model's folder.
BESIDE = (*LIMITS, TOKENIZER_CONFIG, "special_tokens_map.json")
TOP = (PROMPTS, MODULES)


@dataclass(frozen=True)
class Sentence:
    """How a text becomes one vector.

    Attributes:
        home: the folder of config.json inside the model's folder.
        modes: how the vectors of the tokens are pooled; several are joined side by side.
        has_pooling: whether files say so, and not only what is done where none does.
        include_prompt: whether the tokens of a prompt are pooled with the others.
        steps: what follows the pooling, in order.
        static: whether the vectors of tokens are rows of a table and nothing else, as those of
            `StaticEmbedding`: of a text with its blanks and without special tokens, whose vector is
            zeros if it has no token.
        max_seq_length: the most tokens of a text; without it in the files, and with modules.json,
            `model_max_length` of tokenizer_config.json, as in sentence-transformers. Without
            modules.json a model has its own limit alone.
        lowercase: whether a text is turned to lower case before anything else.
        prompts: what may stand before each text, by name; "query" and "document" are there in any
            model, and empty where its files say nothing, as in sentence-transformers.
        default_prompt: the name of the one that does if none is asked for.
        similarity: how vectors are compared: one of `SIMILARITIES`.
        truncate_dim: how many numbers of a vector are kept, where nobody asks for fewer.
        activation: of a cross-encoder what follows its logits, by its name in torch; None for what
            config.json says.
        files: the files that said so, by their place in the model's folder.
    """

    home: str = ""
    modes: tuple[str, ...] = ("mean",)
    has_pooling: bool = False
    include_prompt: bool = True
    steps: tuple[Step, ...] = ()
    static: bool = False
    max_seq_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: dict(NO_PROMPTS))
    default_prompt: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    activation: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def pair_limit(self) -> int | None:
        """The most tokens of two texts that are read together, None where no file has a limit.

        That is `model_max_length`, with modules.json or without, as in sentence-transformers.

        Raises:
            ModelError: what the file has is no limit.
        """
        if self.max_seq_length is not None:
            return self.max_seq_length
        return tokenizer_limit(self._tokenizer_config())

    @property
    def tells_texts_apart(self) -> bool:
        """Whether tokens of two texts that are read together are of two segments.

        As in transformers, it is the class of the tokenizer that says so: those without a family
        do not, if it is not written down.
        """
        values = self._tokenizer_config().values
        names = values.get("model_input_names")
        if isinstance(names, list):
            return "token_type_ids" in names
        return values.get("tokenizer_class") not in _NO_FAMILY

    def _tokenizer_config(self) -> Config:
        """What tokenizer_config.json says, nothing where there is none."""
        place = str(PurePosixPath(self.home, TOKENIZER_CONFIG))
        try:
            values = json.loads(self.files.get(place, b"{}"))
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{place}: is not JSON that can be read: {error}") from error
        return Config(values if isinstance(values, dict) else {}, place)

    def prepared(self, text: str) -> str:
        """A text as the tokenizer is to have it."""
        return text.lower() if self.lowercase else text

    def stripped(self, text: str) -> str:
        """A text as it is encoded: blanks around it are no part of it, but in a static model."""
        return text if self.static else text.strip()

    def pool(self, rows: Array, unread: int = 0) -> Array:
        """One text's vectors (T, D) as one, (D,) for each mode.

        The first `unread` tokens are those of a prompt that is not to be pooled.
        """
        if self.static and not len(rows):
            return np.zeros(rows.shape[1], rows.dtype)
        if len(self.modes) == 1:
            return POOLING[self.modes[0]](rows, unread)
        return np.concatenate([POOLING[mode](rows, unread) for mode in self.modes])

    def finish(
        self, vectors: Array, *, normalize: bool | None = None, truncate_dim: int | None = None
    ) -> Array:
        """What follows the pooling of vectors (n, width).

        As in sentence-transformers, what the model's files say comes first, then vectors are cut to
        their first `truncate_dim` numbers, and these are scaled to length 1 if `normalize` asks for
        it. False leaves out such a scaling that is the last thing the files say.
        """
        steps = self.steps
        if normalize is False and steps and isinstance(steps[-1], LengthOne):
            steps = steps[:-1]
        for step in steps:
            vectors = step(vectors)
        truncate_dim = self.truncate_dim if truncate_dim is None else truncate_dim
        if truncate_dim is not None:
            vectors = np.ascontiguousarray(vectors[:, :truncate_dim])
        return to_length_one(vectors) if normalize else vectors

    def width(self, dim: int) -> int:
        """How many numbers the result has where the vectors of tokens have `dim`.

        Raises:
            ModelError: a module does not take what comes before it.
        """
        width = dim * len(self.modes)
        for step in self.steps:
            if step.sizes is None:
                continue
            inputs, outputs = step.sizes
            if inputs != width:
                raise ModelError(
                    f"{step.home}/{CONFIG}: {step.size_key} is {inputs} and what comes in "
                    f"has {width} numbers"
                )
            width = outputs
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    def to_files(self) -> dict[str, bytes]:
        """The files that say so, by their place in the model's folder."""
        from safetensors.numpy import save

        found = dict(self.files)
        for step in self.steps:
            arrays = {name: np.ascontiguousarray(one) for name, one in step.arrays().items()}
            if arrays:
                found[f"{step.home}/{WEIGHTS}"] = save(arrays)
        return found


def tokenizer_limit(config: Config) -> int | None:
    """What tokenizer_config.json has for a limit."""
    limit = config.values.get("model_max_length")
    fine = limit is None or (is_number(limit) and limit >= 1 and not limit % 1)
    config.need(fine, "model_max_length", limit, "a whole number >= 1")
    return None if limit is None or limit >= _NO_LIMIT else int(limit)
