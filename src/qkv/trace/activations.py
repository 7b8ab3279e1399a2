"""The activations of a model: a table of their properties, and the parts of their names."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, Arrays

WORDS = ("token", "query", "key")  # axes with an index for each token


class ActivationSpec(NamedTuple):
    """Properties that an activation has in every layer of a model.

    Attributes:
        axes: the names of the axes of the activation's array in a trace.
        fill: the value that padding has in the array.
        aliases: other names in TransformerLens.
        editable: whether an edit may replace the activation. An editable activation also has a
            gradient. Summaries of attention, such as `top_weights`, are not editable.
        unasked: whether a trace without `names=` keeps the activation.
        of_keys: whether the activation has one vector per key. In cross-attention, the keys are
            the tokens of the other text.
    """

    axes: tuple[str, ...] = ("text", "token", "D")
    fill: float = 0
    aliases: tuple[str, ...] = ()
    editable: bool = True
    unasked: bool = True
    of_keys: bool = False

    @property
    def is_weights(self) -> bool:
        """Whether the activation has a number for each pair of a query and a key."""
        return {"query", "key"} <= {*self.axes}


_EDGES = ("text", "head", "query", "key")
_BEST = ("text", "head", "query", "rank")
_INNER = ("text", "token", "F")
_OTHER = ActivationSpec()  # activations that are not in `TABLE`, such as the residual stream
TABLE = {
    "q": ActivationSpec(("text", "token", "head", "d"), aliases=("query",)),
    "k": ActivationSpec(("text", "token", "kv_head", "d"), aliases=("key",), of_keys=True),
    "v": ActivationSpec(("text", "token", "kv_head", "dv"), aliases=("value",), of_keys=True),
    "rot_q": ActivationSpec(("text", "token", "head", "d")),
    "rot_k": ActivationSpec(("text", "token", "kv_head", "d"), of_keys=True),
    "attn_scores": ActivationSpec(_EDGES, -np.inf, ("attn_logits",)),
    "pattern": ActivationSpec(_EDGES, aliases=("attn",)),
    "z": ActivationSpec(("text", "token", "head", "dv")),
    # a vector per head and token; a trace has `result` only if `names=` lists `result`
    "result": ActivationSpec(("text", "token", "head", "D"), unasked=False),
    # the input of a norm, a part or a projection; kept like `result`
    "input": ActivationSpec(unasked=False),
    "q_in": ActivationSpec(unasked=False),
    "k_in": ActivationSpec(unasked=False, of_keys=True),
    "v_in": ActivationSpec(unasked=False, of_keys=True),
    # the input of a part, before its norm, for each head; kept like `result`
    "q_input": ActivationSpec(("text", "token", "head", "D"), editable=False, unasked=False),
    "k_input": ActivationSpec(("text", "token", "kv_head", "D"), editable=False, unasked=False),
    "v_input": ActivationSpec(("text", "token", "kv_head", "D"), editable=False, unasked=False),
    "mlp_in": ActivationSpec(editable=False, unasked=False),
    "top_indices": ActivationSpec(_BEST, -1, editable=False),
    "top_weights": ActivationSpec(_BEST, editable=False),
    "received": ActivationSpec(("text", "head", "key"), editable=False),
    "lse": ActivationSpec(("text", "head", "query"), -np.inf, editable=False),
    "scale": ActivationSpec(("text", "token", "one")),
    "pre": ActivationSpec(_INNER, aliases=("mlp_pre",)),
    "pre_linear": ActivationSpec(_INNER),
    "post": ActivationSpec(_INNER, aliases=("mlp_post",)),
    "expert_weights": ActivationSpec(("text", "token", "expert")),
    "expert_indices": ActivationSpec(("text", "token", "rank"), editable=False, unasked=False),
    "sae_acts_post": ActivationSpec(("text", "token", "feature")),
    "logits": ActivationSpec(("text", "token", "V")),
}
ALIASES = {alias: name for name, one in TABLE.items() for alias in one.aliases}
WEIGHTS = SCORES, PATTERN = tuple(f"hook_{name}" for name, one in TABLE.items() if one.is_weights)
SUMMARY = tuple(name for name, one in TABLE.items() if one.unasked and not one.editable)


@lru_cache(4096)
def activation(name: str) -> ActivationSpec:
    """Return the properties of an activation, given its full or short name.

    >>> activation("blocks.0.attn.hook_pattern").axes, activation("lse").fill
    (('text', 'head', 'query', 'key'), -inf)
    >>> activation("hook_embed").axes
    ('text', 'token', 'D')
    """
    return TABLE.get(short_name(name), _OTHER)


def short_name(name: str) -> str:
    """Return the short name of an activation, without the layer and the part.

    >>> short_name("blocks.0.attn.hook_pattern"), short_name("blocks.0.attn.lse")
    ('pattern', 'lse')
    """
    return name.rpartition(".")[2].removeprefix("hook_")


# Three groups: "encoder" or "decoder" (optional), the layer, and the name within the layer.
_NAME = re.compile(r"(?:(encoder|decoder)\.)?(?:blocks\.(\d+)\.)?(.+)")


class Parsed(NamedTuple):
    """The parts of an activation's full name.

    Attributes:
        side: "encoder" or "decoder" for an encoder-decoder, else "".
        layer: the number of the layer; None for an activation outside the layers.
        local: the name within the layer.
    """

    side: str
    layer: int | None
    local: str

    @property
    def crosses(self) -> bool:
        """Whether the activation belongs to cross-attention."""
        return self.local.startswith("cross_attn.")

    @property
    def is_last(self) -> bool:
        """Whether the activation belongs to the final norm or projection."""
        return self.local.startswith(("ln_final.", "hook_final_proj"))


@lru_cache(4096)
def parse(full: str) -> Parsed:
    """Divide the full name of an activation into its parts.

    >>> parse("decoder.blocks.3.attn.hook_q")
    Parsed(side='decoder', layer=3, local='attn.hook_q')
    """
    match = _NAME.fullmatch(full)
    if match is None:
        return Parsed("", None, full)
    side, layer, local = match.groups()
    return Parsed(side or "", None if layer is None else int(layer), local)


def of_side(side: str, full: str) -> str:
    """Convert a name in an encoder's or decoder's own trace to the name in the joint trace.

    >>> of_side("encoder", "blocks.0.attn.hook_q"), of_side("decoder", "hook_embed")
    ('encoder.0.attn.hook_q', 'decoder.hook_embed')
    """
    return f"{side}.{full.removeprefix('blocks.')}"


def side_of(name: str) -> tuple[str, str]:
    """Split a name of a joint trace: return "encoder" or "decoder", and the name in that part.

    >>> side_of("encoder.0.attn.hook_q"), side_of("decoder.blocks.0.hook_resid_pre")
    (('encoder', 'blocks.0.attn.hook_q'), ('decoder', 'blocks.0.hook_resid_pre'))
    """
    side, _, rest = name.partition(".")
    return side, re.sub(r"^(?=\d+\.)", "blocks.", rest)


def axes(full: str, shape: tuple[int, ...], heads: int | None = None) -> tuple[str, ...]:
    """Return a name for each axis of an array in a trace.

    If there are as many key heads as query heads (`heads`), both axes are named "head".

    >>> axes("blocks.0.attn.hook_pattern", (1, 2, 7, 7))
    ('text', 'head', 'query', 'key')
    >>> axes("scores", (2, 7, 7))
    ('head', 'query', 'key')
    >>> axes("blocks.0.attn.hook_k", (1, 7, 2, 4), heads=2)
    ('text', 'token', 'head', 'd')
    """
    known = activation(full).axes
    if "kv_head" in known and shape[-2:-1] == (heads,):
        known = tuple("head" if axis == "kv_head" else axis for axis in known)
    if full.startswith(("scores", "pattern", "out")):  # an intermediate of `qkv.attention`
        known = ("head", "query", "dv" if full == "out" else "key")
    if len(known) == len(shape):
        return known
    if len(known) > len(shape):
        return known[len(known) - len(shape) :]
    return (*(f"batch_{number}" for number in range(len(shape) - len(known))), *known)


def check_shapes(arrays: Arrays, texts: int, queries: int, keys: int) -> None:
    """Raise a ValueError if an array of a trace does not have the axes that `TABLE` lists.

    `queries` and `keys` are the numbers of tokens in the longest text. Arrays that do not occur in
    any model are ignored.
    """
    same: dict[tuple[str, str], int] = {}  # sizes that are equal in a part of a layer
    for name, array in arrays.items():
        one, part = activation(name), name.rpartition(".")[0]
        if parse(name).layer is None and not name.startswith(("hook_", "ln_final.", "logits")):
            continue
        sizes = {"text": texts, "query": queries, "key": keys, "one": 1}
        sizes["token"] = keys if one.of_keys else queries
        pairs = [*zip(one.axes, array.shape, strict=False)]
        inner = {"head", "kv_head", "d", "dv", "F"}
        sizes |= {axis: same.setdefault((part, axis), n) for axis, n in pairs if axis in inner}
        if array.ndim != len(one.axes) or any(sizes.get(axis, n) != n for axis, n in pairs):
            shape = ", ".join(str(sizes.get(axis, axis)) for axis in one.axes)
            raise ValueError(f"{name} has shape {array.shape}: it must have shape ({shape})")


def cut(name: str, array: Array, queries: int, keys: int) -> Array:
    """Return one text's part of an array, without padding."""
    tokens = keys if activation(name).of_keys else queries
    sizes = {"query": queries, "key": keys, "token": tokens}
    return array[tuple(slice(sizes.get(axis)) for axis in axes(name, array.shape))]


def list_layers(numbers: list[int]) -> str:
    """Describe layers in words, for an error.

    >>> list_layers([2]), list_layers([0, 2, 3])
    ('layer 2', 'layers 0, 2, 3')
    """
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def numbers_of(names: Any) -> list[int]:
    """Return the sorted layer numbers of full names."""
    return sorted({at.layer for at in map(parse, names) if at.layer is not None})
