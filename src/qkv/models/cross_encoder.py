"""A model that reads two texts together, and gives them a score, or one for each class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qkv.arrays import whole_number
from qkv.attend import softmax
from qkv.extras import need
from qkv.models.model import Model
from qkv.models.run.inputs import check_device
from qkv.models.sentence.vectors import as_tensors
from qkv.progress import progress
from qkv.text.tokenizer import check_text


class CrossEncoderModel(Model):
    """A model whose head has classes for a text, by which `qkv.load` knows it."""

    @property
    def num_labels(self) -> int:
        """C, how many numbers a pair gets."""
        assert self._head is not None  # `qkv.load` has seen it
        return self._head.steps.outputs

    def predict(  # type: ignore[override]  # it is given pairs of texts, and words are not guessed
        self,
        inputs: Sequence[str] | Iterable[Sequence[str]],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
    ) -> Any:
        """A score for each pair of texts, or one for each class, as a cross-encoder gives them.

        Args:
            inputs: pairs of texts, or one pair.
            prompt_name: which prompt goes before the first text of each, as for `encode`.
            prompt: what goes before it, in place of those.
            batch_size: how many pairs of 128 tokens are run at once.
            show_progress_bar: None for one on a terminal if it takes long.
            activation_fn: what the logits go through: a function of an array, or one of torch.nn's
                activations; None for what the model's files say, or a sigmoid where there is one
                class.
            apply_softmax: whether the scores of several classes go through a softmax.
            convert_to_numpy: False for a list of tensors of torch, one for each pair.
            convert_to_tensor: True for one tensor of torch.
            device: None or "cpu".

        Returns:
            (n,), or (n, C) for C classes; of one pair a number, or (C,). float32, or float64 for a
            model of that.

        Raises:
            TypeError: it is given something else than pairs of strings.
            ValueError: no text has a token, or an argument makes no sense.
            ImportError: tensors are asked for, and torch is not there.
        """
        check_device(device, "predict")
        tensors = convert_to_tensor or not convert_to_numpy
        torch = need("torch", "torch") if tensors else None
        batch_size = whole_number(batch_size, call="predict", name="batch_size", least=1)
        single, pairs = _pairs(inputs)
        head = self._head
        assert head is not None  # `qkv.load` has seen it
        scorer = self._scorer(head, "predict", prompt_name, prompt, activation_fn)
        found = np.empty((0,) if scorer.classes == 1 else (0, scorer.classes))
        if pairs:
            read = scorer.each(*zip(*pairs, strict=True))
            with progress("predict", len(read), show_progress_bar) as advance:
                found = scorer.all(read, batch_size, advance)
            scorer.warn(read, "pairs")
        if apply_softmax and scorer.classes > 1:
            found = softmax(found)
        found = found.astype(self._body.dtype, copy=False)
        if torch is not None:
            found = as_tensors(found, torch, joined=convert_to_tensor)
        return found[0] if single else found


def _pairs(inputs: Any) -> tuple[bool, list[tuple[str, str]]]:
    """Whether it is one pair, and all of them."""
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
        raise TypeError(
            f"predict: inputs is {type(inputs).__name__}: this model reads two texts together: "
            "give pairs of strings, or one pair"
        )
    rows = [*inputs]
    single = len(rows) == 2 and all(isinstance(one, str) for one in rows)
    found: list[tuple[str, str]] = []
    for number, row in enumerate([rows] if single else rows):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray) or len(row) != 2:
            count = len(row) if isinstance(row, list | tuple | np.ndarray) else 0
            about = f"{type(row).__name__}{f' of {count}' if count else ''}"
            raise TypeError(f"predict: pair {number} is {about}: give two strings")
        first, second = (check_text(one, call="predict", name=f"pair {number}") for one in row)
        found.append((first, second))
    return single, found
