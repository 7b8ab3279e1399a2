"""`CrossEncoderModel`, a model that reads two texts together."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error
from qkv._progress import progress
from qkv.arrays import whole_number
from qkv.attend import softmax
from qkv.edits import Ablate, Edit, Hide
from qkv.extras import need
from qkv.models.model import Model
from qkv.models.run.text_reader import check_device
from qkv.models.sentence.rank import Ranker
from qkv.models.sentence.vectors import as_tensors
from qkv.text.tokenizer import check_text


class CrossEncoderModel(Model):
    """A model that reads two texts together and gives the pair one score, or one per class."""

    @property
    def num_labels(self) -> int:
        """C, the number of scores for a pair of texts."""
        assert self.head is not None  # `qkv.load` uses this class only for models with a head
        return self.head.steps.outputs

    @public_call("predict")
    def predict(
        self,
        inputs: Sequence[str] | Iterable[Sequence[str]],
        top_k: int | None = None,
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
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> Any:
        """Return a score for each pair of texts, or a score for each pair and class.

        Args:
            inputs: pairs of texts, or one pair.
            top_k: not supported, because the model does not predict words.
            prompt_name: the name of the prompt before the first text of each pair, as in `encode`.
            prompt: the text of a prompt, instead of `prompt_name`.
            batch_size: as in `rank`.
            show_progress_bar: as in `encode`.
            activation_fn: as in `rank`; the default for several classes is no activation.
            apply_softmax: whether to apply a softmax to the scores of several classes.
            convert_to_numpy: False for a list of torch tensors, one per pair.
            convert_to_tensor: True for one torch tensor.
            device: None or "cpu".
            ablate: not supported, like `hide` and `edit`; pass edits to `model(input_ids)`.
            hide: not supported.
            edit: not supported.

        Returns:
            The scores (n,), or (n, C) for C classes. For one pair, the result is a number or (C,).
            The type is float32, or float64 for a float64 model.

        Raises:
            TypeError: the inputs are not pairs of strings.
            ValueError: no text has a token, or an argument is invalid or not supported.
            ImportError: tensors are requested, but torch is not installed.
        """
        self.refuse(top_k=top_k, ablate=ablate, hide=hide, edit=edit)
        check_device(device)
        tensors = convert_to_tensor or not convert_to_numpy
        torch = need("torch", "torch") if tensors else None
        batch_size = whole_number(batch_size, name="batch_size", least=1)
        single, pairs = _checked_pairs(inputs)
        scorer = Ranker(self, prompt_name, prompt, activation_fn)
        scores = np.empty((0,) if scorer.classes == 1 else (0, scorer.classes))
        if pairs:
            read = scorer.each(*zip(*pairs, strict=True))
            with progress("predict", len(read), show_progress_bar) as advance:
                scores = scorer.all(read, batch_size, advance)
            scorer.warn(read, "pairs")
        if apply_softmax and scorer.classes > 1:
            scores = softmax(scores)
        scores = scores.astype(self.network.dtype, copy=False)
        if torch is not None:
            scores = as_tensors(scores, torch, joined=convert_to_tensor)
        return scores[0] if single else scores


def _checked_pairs(inputs: Any) -> tuple[bool, list[tuple[str, str]]]:
    """Return `(single, pairs)`; `single` is True if the input is one pair instead of several."""
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
        raise type_error(
            f"`inputs` is {type(inputs).__name__}: this model reads two texts together; "
            "pass pairs of strings, or one pair"
        )
    rows = [*inputs]
    single = len(rows) == 2 and all(isinstance(row, str) for row in rows)
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate([rows] if single else rows):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray) or len(row) != 2:
            count = len(row) if isinstance(row, list | tuple | np.ndarray) else 0
            about = f"{type(row).__name__}{f' of {count}' if count else ''}"
            raise type_error(f"pair {number} is {about}; pass two strings")
        first, second = (check_text(text, name=f"pair {number}") for text in row)
        pairs.append((first, second))
    return single, pairs
