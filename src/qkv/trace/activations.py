"""What the intermediates of a run are: the one table of them, which whoever meets a name asks."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

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
