"""The edits of a request for a trace, and the memory that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.edits import edits_of
from qkv.models import Model
from qkv.models.run.edit import EditedRun
from qkv.text import Tokenized
from qkv.trace.activations import activation, parse

COPIES = 6  # copies of a layer's weights in memory while an edit changes them


@dataclass(frozen=True)
class Changes:
    """A text, and the edits of the forward pass over it.

    Attributes:
        text: the tokens, after swaps.
        records: the edits in the form that `trace` takes.
        run: the edits fitted to the model.
    """

    text: Tokenized
    records: Sequence[Any]
    run: EditedRun

    @property
    def weights(self) -> list[str]:
        """The names of the scores and weights that edits change in all heads of a layer."""
        return [name for name in self.run.changed if activation(name).is_weights]

    def size(self, model: Model) -> int:
        """Estimate the bytes of the masks and of the arrays that edits change together."""
        tokens, masked = len(self.text), self.run.masked
        heads = [layer.attn.num_heads for layer in model.layers]
        per_head = {mask.layer for mask in masked if mask.head is not None}
        layers = {mask.layer for mask in masked if mask.layer is not None}
        has_edges = any(mask.query is not None or mask.key is None for mask in masked)
        masks = tokens * (tokens if has_edges else 1) * bool(masked)  # arrays of all other layers
        masks += sum(tokens**2 * (heads[n] if n in per_head else 1) for n in layers)
        changed = [heads[parse(name).layer or 0] * tokens**2 for name in self.weights]
        return masks + max(changed, default=0) * COPIES * model.network.dtype.itemsize


def changes_of(model: Model, text: Tokenized, records: Sequence[Any]) -> Changes:
    """Check records of edits against a model and a text; the records stay unchanged.

    Raises:
        TypeError: a record is not an object.
        ValueError: an op, position, layer, head, number or word does not exist; the message names
            the record and valid values.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> text = model.tokenize("the cat")
    >>> changes_of(model, text, [{"op": "ablate", "layer": 0, "head": 1}]).run.ablated
    {0: {1: 0}}
    """
    edits = edits_of(records, call="trace", given="edits")
    [changed], run = model._fit(edits, [text])
    return Changes(changed, [record.fields for record in edits.records if record.op != "swap"], run)
