"""Random models saved by transformers and loaded by both libraries, and their comparison."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode

import qkv
from models.sizes import MIXED

BOUND = {torch.float32: 2e-5, torch.float64: 1e-10}  # relative to max(1, the largest value)
EVERY_LAYER = {"output_hidden_states": True, "output_attentions": True}


class _Double(TorchFunctionMode):
    """Use float64 wherever code asks torch for float32."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        func = torch.Tensor.double if func is torch.Tensor.float else func
        args = [torch.float64 if value is torch.float32 else value for value in args]
        given = (kwargs or {}).items()
        return func(*args, **{k: torch.float64 if v is torch.float32 else v for k, v in given})


@contextmanager
def double(wanted: bool) -> Iterator[None]:
    """If `wanted`, compute in float64 the parts that transformers always computes in float32.

    These parts are norms, softmax and angles.
    """
    if not wanted:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # the type of a quotient of integers
    try:
        with _Double():
            yield
    finally:
        torch.set_default_dtype(before)


def scatter(model: Any, seed: int = 0) -> None:
    """Set weights, biases and norms to random values, all different and far from initial ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            numbers = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            is_norm = "norm" in name.lower() or "ln_" in name or "layernorm" in name.lower()
            if is_norm and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * numbers)
            elif parameter.ndim >= 2 and "emb" not in name and "wte" not in name:
                parameter.copy_(numbers / np.sqrt(min(parameter.shape[-2:])))
            else:
                parameter.copy_(0.3 * numbers)


@dataclass
class Pair:
    """One model in both libraries."""

    ours: qkv.Model
    theirs: Any
    bound: float

    @property
    def is_double(self) -> bool:
        """Whether transformers' model is in float64."""
        return bool(self.theirs.dtype == torch.float64)

    def run(self, *given: Any, **named: Any) -> Any:
        """Return the outputs of transformers' model for arrays, without gradients."""
        tensors, options = tensors_of(given, named)
        with torch.inference_mode(), double(self.is_double):
            return self.theirs(*tensors, **options)

    def greedy(self, ids: Any, count: int, **named: Any) -> list[list[int]]:
        """Return the `count` tokens that transformers generates for ids (B, T), per text."""
        tensors, options = tensors_of([np.array(ids)], named)
        first = 1 if self.theirs.config.is_encoder_decoder else len(ids[0])
        with torch.inference_mode(), double(self.is_double):
            found = self.theirs.generate(*tensors, max_new_tokens=count, do_sample=False, **options)
        return [row[first:] for row in found.tolist()]

    def near(self, found: Any, expected: Any, what: str) -> None:
        """Assert equal shapes, and values within `bound` times max(1, the largest value)."""
        expected = expected.detach().numpy() if isinstance(expected, torch.Tensor) else expected
        assert found.shape == expected.shape, what
        assert np.isfinite(expected).all(), what
        difference = np.abs(found.astype(np.float64) - expected).max(initial=0)
        allowed = self.bound * max(1, np.abs(expected).max(initial=0))
        assert difference <= allowed, f"{what}: {difference:.2e} > {allowed:.2e}"


def tensors_of(given: Iterable[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Convert arrays to tensors, and leave other values as they are."""

    def tensor(value: Any) -> Any:
        return torch.tensor(value) if isinstance(value, np.ndarray) else value

    return [*map(tensor, given)], {name: tensor(value) for name, value in named.items()}


def made(
    folder: Path,
    kind: Any,
    config: Any,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    **options: Any,
) -> Pair:
    """Save a random model of class `kind` with transformers, and load it with both libraries.

    `kind` is a class or its name, and `config` a config or its values. `options` are passed to
    transformers' `from_pretrained`.
    """
    kind = getattr(transformers, kind) if isinstance(kind, str) else kind
    config = kind.config_class(**config) if isinstance(config, dict) else config
    options = {"attn_implementation": "eager", "dtype": dtype, **options}
    if config.model_type in MIXED:
        options["experts_implementation"] = "eager"  # the others support only float32
    torch.manual_seed(seed)
    with double(dtype == torch.float64):
        model = kind(config).to(dtype)
        scatter(model, seed)
        model.save_pretrained(folder)
        theirs = kind.from_pretrained(folder, **options).eval()
    return Pair(qkv.load(folder), theirs, BOUND[dtype])


def ids_of(pair: Pair, lengths: list[int], side: str, seed: int = 0) -> tuple[Any, Any]:
    """Return random ids (B, T) and their mask, with padding on the left, on the right or inside."""
    rng = np.random.default_rng(seed)
    longest = max(lengths)
    size = pair.theirs.config.get_text_config().vocab_size
    ids = rng.integers(3, size, (len(lengths), longest))
    mask = np.zeros((len(lengths), longest), np.int64)
    for row, length in enumerate(lengths):
        mask[row, slice(longest - length, None) if side == "left" else slice(0, length)] = 1
        if side == "inside":
            mask[row, 2 : length - 1 : 3] = 0
    padding = pair.theirs.config.get_text_config().pad_token_id
    return np.where(mask == 1, ids, 1 if padding is None else padding), mask


def images_of(pair: Pair, count: int, size: tuple[int, int] | None = None) -> Any:
    """Return random images (count, C, H, W) in the model's type, of `size` or of its own size."""
    design = getattr(pair.ours, "vision", pair.ours).design
    shape = (count, design.channels, *(size or design.image))
    kind = np.float64 if pair.is_double else np.float32
    return np.random.default_rng(0).standard_normal(shape).astype(kind)


def compare_batch(pair: Pair, lengths: list[int], side: str) -> None:
    """Compare the last hidden states and logits of a padded batch, except at padding."""
    ids, mask = ids_of(pair, lengths, side)
    theirs = pair.run(ids, attention_mask=mask, output_hidden_states=True)
    ours = pair.ours(ids, mask)
    real = mask.astype(bool)
    pair.near(ours.last_hidden_state[real], theirs.hidden_states[-1].numpy()[real], "last")
    logits = theirs.get("logits", theirs.get("prediction_logits"))
    if logits is not None:
        if logits.shape[:2] == mask.shape:  # logits for each token
            pair.near(ours.logits[real], logits.numpy()[real], "logits")
        else:
            pair.near(ours.logits, logits, "logits")


def compare_layers(pair: Pair, length: int) -> None:
    """Compare hidden states and attention weights of every layer, for one text without padding."""
    ids, _ = ids_of(pair, [length], "right")
    compare_trace(pair, pair.ours.trace(ids), pair.run(ids, **EVERY_LAYER))


def compare_trace(pair: Pair, trace: qkv.Trace, theirs: Any) -> None:
    """Compare every hidden state and weight, and recompute layer 0's weights from its inputs."""
    assert len(trace.hidden_states) == len(theirs.hidden_states)
    for number, states in enumerate(zip(trace.hidden_states, theirs.hidden_states, strict=True)):
        pair.near(*states, f"hidden state {number}")
    for number, weights in enumerate(zip(trace.attentions, theirs.attentions, strict=True)):
        pair.near(*weights, f"weights of layer {number}")
    again = qkv.attention(**trace.attention_inputs(0), return_weights=True)[1]
    pair.near(again, theirs.attentions[0], "the inputs of layer 0")


def compare_saved(pair: Pair, folder: Path) -> None:
    """Assert that a model saved by qkv loads in transformers with unchanged weights."""
    pair.ours.save(folder)
    again, notes = type(pair.theirs).from_pretrained(
        folder, dtype=pair.theirs.dtype, output_loading_info=True
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not notes[what], what
    expected = pair.theirs.state_dict()
    for name, found in again.state_dict().items():
        assert torch.equal(found, expected[name]), name


def compare(pair: Pair, *, length: int = 23, sides: tuple[str, ...] = ("right", "left")) -> None:
    """Compare all layers and padded batches, but not the files that we save.

    Some models of transformers classify a text by the hidden state in the first column. With
    padding on the left, the first column is padding: leave "left" out of `sides` for these models.
    """
    compare_layers(pair, length)
    for side in (*sides, "inside"):
        compare_batch(pair, [length, 5, 1, 14], side)


def compare_all(folder: Path, kind: type, config: Any, dtype: torch.dtype = torch.float64) -> Pair:
    """Compare a random model of class `kind` in qkv with the same model in transformers.

    Compare every layer, padded batches, and the files that qkv saves.
    """
    pair = made(folder / "theirs", kind, config, dtype)
    head = pair.ours.design.head
    first = head is not None and head.pool in ("cls", "cls and mean")
    compare(pair, sides=("right",) if first else ("right", "left"))
    compare_saved(pair, folder / "ours")
    return pair
