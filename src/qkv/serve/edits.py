"""What the edits of a request come to, and how much memory they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.edits import edits_of
from qkv.models import Model
from qkv.models.run.edit import EditedRun
from qkv.text import Tokenized
from qkv.trace.activations import activation, parse

COPIES = 6  # of an array of all weights of a layer, while a function changes it


@dataclass(frozen=True)
class Changes:
    """A text, and what its run does differently.

    Attributes:
        text: the tokens, once some are swapped.
        records: the edits, as `trace` takes them.
        run: what they come to in this model.
    """

    text: Tokenized
    records: Sequence[Any]
    run: EditedRun

    @property
    def weights(self) -> list[str]:
        """The scores and weights of layers that are changed as a whole."""
        return [name for name in self.run.changed if activation(name).is_weights]

    def size(self, model: Model) -> int:
        """About how many bytes the masks take, and the arrays that functions change at once."""
        tokens, hidden = len(self.text), self.run.masked
        heads = [layer.attn.num_heads for layer in model.layers]
        per_head = {one.layer for one in hidden if one.head is not None}
        layers = {one.layer for one in hidden if one.layer is not None}
        has_edges = any(one.query is not None or one.key is None for one in hidden)
        masks = tokens * (tokens if has_edges else 1) * bool(hidden)  # of all other layers
        masks += sum(tokens**2 * (heads[n] if n in per_head else 1) for n in layers)
        changed = [heads[parse(name).layer or 0] * tokens**2 for name in self.weights]
        return masks + max(changed, default=0) * COPIES * model.network.dtype.itemsize


def changes_of(model: Model, text: Tokenized, records: Sequence[Any]) -> Changes:
    """What records of edits come to for a text; nothing is changed in what is given.

    Raises:
        TypeError: one is no object.
        ValueError: its op, place, layer, head, number or word is not there; the message says which
            record it is and what would fit.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> text = model.tokenize("the cat")
    >>> changes_of(model, text, [{"op": "ablate", "layer": 0, "head": 1}]).run.ablated
    {0: {1: 0}}
    """
    edits = edits_of(records, call="trace", given="edits")
    [changed], run = model._fit(edits, [text])
    return Changes(changed, [record.fields for record in edits.records if record.op != "swap"], run)
