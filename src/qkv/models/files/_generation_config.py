"""Read generation_config.json: the rules that change logits before a token is chosen."""

import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from qkv.arrays import Array
from qkv.models.files.config import Config
from qkv.models.files.read import is_whole

_LEFT_OUT = tomllib.loads(Path(__file__).with_name("generation_config.toml").read_text("utf-8"))
_NOTHING = {"repetition_penalty": 1.0}  # The default of every other key, 0 or (), has no effect.


@dataclass(frozen=True)
class Penalties:
    """The rules of generation_config.json that change logits, applied as in transformers.

    Attributes:
        rules: the value of each key that changes logits.
        ends: the tokens that end a text.
    """

    rules: Mapping[str, Any]
    ends: frozenset[int]

    @classmethod
    def read(cls, values: Mapping[str, Any], source: str, ends: frozenset[int]) -> Self:
        """Read the rules, and warn about keys that qkv does not apply.

        Raises:
            ModelError: a value is invalid.
        """
        given = {key: value for key, value in values.items() if value is not None}
        config = Config(given, source)
        rules: dict[str, Any] = {"repetition_penalty": config.positive("repetition_penalty", 1.0)}
        for key in ("no_repeat_ngram_size", "min_length", "min_new_tokens"):
            rules[key] = config.whole(key, 0)
        for key in ("forced_bos_token_id", "forced_eos_token_id"):
            value = config.value(key, [])
            rules[key] = _tokens(config, key, [value] if is_whole(value) else value)
        for key in ("suppress_tokens", "begin_suppress_tokens"):
            rules[key] = _tokens(config, key, config.value(key, []))
        words = config.value("bad_words_ids", [])
        config.need(isinstance(words, list), "bad_words_ids", words, "a list of lists of token ids")
        words = [_tokens(config, "bad_words_ids", word) for word in words]
        rules["bad_words_ids"] = [w for w in words if w and not (len(w) == 1 and w[0] in ends)]
        unless = dict.fromkeys(_LEFT_OUT["always"]) | _LEFT_OUT["unless"]
        left_out = [key for key, value in given.items() if value != unless.get(key, value)]
        if left_out:
            warnings.warn(
                f"{source}: qkv does not apply {', '.join(left_out)}: generated texts "
                "may differ from those of transformers",
                UserWarning,
                stacklevel=2,
            )
        return cls({key: x for key, x in rules.items() if x and x != _NOTHING.get(key)}, ends)

    def __call__(self, logits: Array, ids: Sequence[int], prompt: int, most: int) -> Array:
        """Return the changed logits (V,) of the next token.

        Args:
            logits: (V,), the logits of the model.
            ids: the tokens of the text, with its prompt.
            prompt: the number of tokens in the prompt.
            most: the maximum number of new tokens.
        """
        rule, logits, row = self.rules.get, logits.copy(), np.array(ids, np.int64)
        seen = np.unique(row[row < len(logits)])
        by = rule("repetition_penalty", 1.0)
        logits[seen] = np.where(logits[seen] < 0, logits[seen] * by, logits[seen] / by)
        words = rule("bad_words_ids", ())  # A word's last token is banned after its other tokens.
        banned = [word[-1] for word in words if [*ids][len(ids) + 1 - len(word) :] == word[:-1]]
        size, new = rule("no_repeat_ngram_size", 0), len(ids) - prompt
        if 0 < size <= len(ids):
            grams = np.lib.stride_tricks.sliding_window_view(row, size)  # (n, size)
            same = (grams[:, :-1] == row[len(row) + 1 - size :]).all(axis=1)
            banned += grams[same, -1].tolist()
        least = rule("min_new_tokens", 0)
        if new < least or (not least and len(ids) < rule("min_length", 0)):
            banned += self.ends
        forced = rule("forced_bos_token_id", ()) if len(ids) == 1 else ()
        forced = (rule("forced_eos_token_id") if new == most - 1 else None) or forced
        if forced:
            logits[:], banned = -np.inf, []
            logits[_inside(forced, logits)] = 0
        banned += rule("suppress_tokens", ())
        late = bool(rule("forced_bos_token_id")) and prompt == 1
        banned += rule("begin_suppress_tokens", ()) if new == late else ()
        logits[_inside(banned, logits)] = -np.inf
        return logits


def sampling_of(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a generation_config.json's sampling options as arguments of `generate`; {} if none.

    Raises:
        ModelError: a value is invalid.

    >>> sampling_of({"do_sample": True, "temperature": 0.6}, "generation_config.json")
    {'temperature': 0.6, 'top_k': 50, 'top_p': 1.0}
    """
    config = Config({key: value for key, value in values.items() if value is not None}, source)
    if not config.flag("do_sample", False):
        return {}
    temperature, top_p = config.positive("temperature", 1.0), config.positive("top_p", 1.0)
    return {"temperature": temperature, "top_k": config.whole("top_k", 50) or None, "top_p": top_p}


def _inside(tokens: Sequence[int], logits: Array) -> list[int]:
    """Return the tokens that have a logit."""
    return [token for token in tokens if 0 <= token < len(logits)]


def _tokens(config: Config, key: str, value: Any) -> list[int]:
    """Return a list of token ids; any other value is an error."""
    fine = isinstance(value, list) and all(map(is_whole, value))
    config.need(fine, key, value, "a list of token ids")
    return list(value)
