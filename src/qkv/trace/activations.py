"""The activations of a run: the table of what is known of each, and how their names are read."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import is_whole_number

WORDS = ("token", "query", "key")  # the axes that count tokens


class Activation(NamedTuple):
    """What holds of an intermediate wherever it stands in a model.

    Attributes:
        axes: of its array in a trace, a word for each.
        fill: what stands in the padding.
        aliases: what TransformerLens also calls it.
        editable: whether another array may take its place, and it has a gradient; else it is a
            summary of weights, which attention computes itself where `top_k` asks for it.
        unasked: whether it is kept where nobody has said by name what is kept.
        of_keys: whether its tokens are those that are looked at: of the other text in
            cross-attention.
    """

    axes: tuple[str, ...] = ("text", "token", "D")
    fill: float = 0
    aliases: tuple[str, ...] = ()
    editable: bool = True
    unasked: bool = True
    of_keys: bool = False

    @property
    def is_weights(self) -> bool:
        """Whether it has a number for each query and key, as scores and weights have."""
        return {"query", "key"} <= {*self.axes}


_EDGES = ("text", "head", "query", "key")
_BEST = ("text", "head", "query", "rank")
_INNER = ("text", "token", "F")
_OTHER = Activation()  # vectors between the parts: the embeddings, the residual stream, ...
TABLE = {
    "q": Activation(("text", "token", "head", "d"), aliases=("query",)),
    "k": Activation(("text", "token", "kv_head", "d"), aliases=("key",), of_keys=True),
    "v": Activation(("text", "token", "kv_head", "dv"), aliases=("value",), of_keys=True),
    "rot_q": Activation(("text", "token", "head", "d")),
    "rot_k": Activation(("text", "token", "kv_head", "d"), of_keys=True),
    "attn_scores": Activation(_EDGES, -np.inf, ("attn_logits",)),
    "pattern": Activation(_EDGES, aliases=("attn",)),
    "z": Activation(("text", "token", "head", "dv")),
    # one vector a head, which is computed for it alone
    "result": Activation(("text", "token", "head", "D"), unasked=False),
    "top_indices": Activation(_BEST, -1, editable=False),
    "top_weights": Activation(_BEST, editable=False),
    "received": Activation(("text", "head", "key"), editable=False),
    "lse": Activation(("text", "head", "query"), -np.inf, editable=False),
    "scale": Activation(("text", "token", "one")),
    "pre": Activation(_INNER, aliases=("mlp_pre",)),
    "pre_linear": Activation(_INNER),
    "post": Activation(_INNER, aliases=("mlp_post",)),
    "sae_acts_post": Activation(("text", "token", "feature")),
    "logits": Activation(("text", "token", "V")),
}
ALIASES = {alias: name for name, one in TABLE.items() for alias in one.aliases}
WEIGHTS = SCORES, PATTERN = tuple(f"hook_{name}" for name, one in TABLE.items() if one.is_weights)
SUMMARY = tuple(name for name, one in TABLE.items() if not one.editable)


@lru_cache(4096)
def activation(name: str) -> Activation:
    """What is known of the activation of a name, in full or short.

    >>> activation("blocks.0.attn.hook_pattern").axes, activation("lse").fill
    (('text', 'head', 'query', 'key'), -inf)
    >>> activation("hook_embed").axes
    ('text', 'token', 'D')
    """
    return TABLE.get(short_name(name), _OTHER)


def short_name(name: str) -> str:
    """What an activation is called wherever it stands.

    >>> short_name("blocks.0.attn.hook_pattern"), short_name("blocks.0.attn.lse")
    ('pattern', 'lse')
    """
    return name.rpartition(".")[2].removeprefix("hook_")


# The parts of a block as TransformerLens also calls them.
_PARTS = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}
# Where a sparse autoencoder is put into a block, as SAELens names what it computes there.
_SPLICED = ("resid_pre", "resid_mid", "resid_post", "normalized_resid_post", "attn_out", "mlp_out")
# The side of an encoder-decoder, the layer, and what an activation is called in there.
_NAME = re.compile(r"(?:(encoder|decoder)\.)?(?:blocks\.(\d+)\.)?(.+)")


class Parsed(NamedTuple):
    """Where an activation stands.

    Attributes:
        side: "encoder" or "decoder" of a model that has both, else "".
        layer: its number; None for what is in no layer.
        local: what it is called in there.
    """

    side: str
    layer: int | None
    local: str

    @property
    def crosses(self) -> bool:
        """Whether it is of attention that looks at the other text."""
        return self.local.startswith("cross_attn.")

    @property
    def is_last(self) -> bool:
        """Whether it is of the final norm, which follows the last layer."""
        return self.local.startswith("ln_final.")


def meant(name: object, num_layers: int) -> list[str]:
    """The full names that one may stand for, the likeliest first; none for what is no name.

    Args:
        name: a string, or `(name, layer)` or `(name, layer, part)`; the layer may be counted from
            the end, or None for what is in no layer.
        num_layers: how many the model has.

    >>> meant("hook_embed", 4)[0], meant(("pattern", -1), 4)[0], meant(("scale", 0, "ln1"), 4)[0]
    ('hook_embed', 'blocks.3.attn.hook_pattern', 'blocks.0.ln1.hook_scale')
    """
    if isinstance(name, str):
        inner, dot, last = name.rpartition(".")
        return [name, f"{inner}{dot}hook_{last}"]
    if not (isinstance(name, tuple) and len(name) in (2, 3) and isinstance(name[0], str)):
        return []
    short, layer = name[0], name[1]
    part = name[2] if len(name) == 3 else None
    if layer is None:
        part = "ln_final" if part is None and short in ("scale", "normalized") else part
        return meant(f"{part}.{short}" if part else short, num_layers)
    if not is_whole_number(layer) or not isinstance(part, str | None):
        return []
    block = f"blocks.{layer + num_layers if layer < 0 else layer}."
    other = ALIASES.get(short, short)
    if part is not None:
        part = _PARTS.get(part, part)
        inside = f"{part}." if part else ""
        return [f"{block}{inside}{at}" for at in (f"hook_{short}", short, f"hook_{other}")]
    inner, dot, last = short.rpartition(".")
    if dot:
        return [f"{block}{inner}.hook_{last}", block + short, f"{block}hook_{inner}.hook_{last}"]
    places = [f"attn.hook_{short}", f"hook_{short}", f"mlp.hook_{short}", f"attn.{short}", short]
    places += [f"attn.hook_{other}", f"mlp.hook_{other}"]
    if short.startswith("sae_"):
        sites = [*(f"hook_{site}" for site in _SPLICED), "attn.hook_z", "mlp.hook_post"]
        places = [f"{site}.hook_{short}" for site in sites]
    return [block + place for place in dict.fromkeys(places)]


def is_tuple_name(given: object) -> bool:
    """Whether it is one name as TransformerLens has them, and not several names.

    >>> is_tuple_name(("pattern", 3)), is_tuple_name(("scale", None)), is_tuple_name(("q", "k"))
    (True, True, False)
    """
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        return False
    return given[1] is None or is_whole_number(given[1])


@lru_cache(4096)
def parse(full: str) -> Parsed:
    """Where the activation of a full name stands.

    >>> parse("decoder.blocks.3.attn.hook_q")
    Parsed(side='decoder', layer=3, local='attn.hook_q')
    """
    found = _NAME.fullmatch(full)
    if found is None:
        return Parsed("", None, full)
    side, layer, local = found.groups()
    return Parsed(side or "", None if layer is None else int(layer), local)


def of_side(side: str, full: str) -> str:
    """What a trace of an encoder and a decoder calls what one of them calls `full`.

    >>> of_side("encoder", "blocks.0.attn.hook_q"), of_side("decoder", "hook_embed")
    ('encoder.0.attn.hook_q', 'decoder.hook_embed')
    """
    return f"{side}.{full.removeprefix('blocks.')}"


def side_of(name: str) -> tuple[str, str]:
    """What such a name begins with, and what that side calls it.

    >>> side_of("encoder.0.attn.hook_q"), side_of("decoder.blocks.0.hook_resid_pre")
    (('encoder', 'blocks.0.attn.hook_q'), ('decoder', 'blocks.0.hook_resid_pre'))
    """
    side, _, rest = name.partition(".")
    return side, re.sub(r"^(?=\d+\.)", "blocks.", rest)


def spellings(full: str) -> set[str]:
    """The strings by which an array may be asked for, as a trace takes them.

    >>> sorted(spellings("blocks.0.attn.hook_q"))
    ['attn.hook_q', 'attn.q', 'blocks.0.attn.hook_q', 'hook_q', 'q']
    """
    side, _, local = parse(full)
    found = {full, local, local.replace("hook_", ""), local.rpartition(".")[2], short_name(full)}
    return found | {of_side(*side_of(full)), f"{side}.{local}"} if side else found


def axes(full: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """A name for each axis of an array of a trace.

    >>> axes("blocks.0.attn.hook_pattern", (1, 2, 7, 7))
    ('text', 'head', 'query', 'key')
    >>> axes("scores", (2, 7, 7))
    ('head', 'query', 'key')
    """
    known = activation(full).axes
    if full.startswith(("scores", "pattern", "out")):  # of one call of the formula
        known = ("head", "query", "dv" if full == "out" else "key")
    if len(known) == len(shape):
        return known
    if len(known) > len(shape):
        return known[len(known) - len(shape) :]
    return (*(f"batch_{number}" for number in range(len(shape) - len(known))), *known)


def counted(numbers: list[int]) -> str:
    """Layers as an error names them.

    >>> counted([2]), counted([0, 2, 3])
    ('layer 2', 'layers 0, 2, 3')
    """
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def numbers_of(names: Any) -> list[int]:
    """The layers that names belong to, in order."""
    return sorted({at.layer for at in map(parse, names) if at.layer is not None})
