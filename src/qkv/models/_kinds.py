"""The table of the calls that each kind of model supports, and of the errors for other calls."""

import tomllib
from importlib.resources import files

from qkv.models.network.design import AnyDesign, DualDesign, Seq2SeqDesign, VisionDesign

_TABLE = tomllib.loads(files("qkv.models").joinpath("kinds.toml").read_text("utf-8"))


def kind_of(design: AnyDesign) -> str:
    """Return the kind of a model, a name in kinds.toml."""
    head = design.head
    if isinstance(design, Seq2SeqDesign):
        return "encoder-decoder" if head is not None else "encoder-decoder without head"
    if isinstance(design, DualDesign):
        return "dual encoder"
    side = "image " if isinstance(design, VisionDesign) else ""
    if head is None:
        return f"{side}encoder"
    if head.embeds:
        return f"{side}embedder"
    if head.pool is not None:
        return "cross-encoder" if head.outputs == 1 and not side else f"{side}classifier"
    if head.classes:
        return "tagger"
    is_causal = all(layer.options.get("is_causal") for layer in design.layers)
    if head.outputs != design.vocabulary:
        return "predictor"
    return "decoder" if is_causal else "masked LM"


def can(kind: str, ask: str) -> bool:
    """Return whether a kind of model supports a call.

    >>> can("masked LM", "predict"), can("masked LM", "generate"), can("image encoder", "text")
    (True, False, False)
    """
    row, names = _TABLE["asks"][ask], {kind, kind.split()[0]}
    return kind in row.get("kinds", [kind]) and names.isdisjoint(row.get("not", ()))


def cannot(design: AnyDesign, ask: str) -> str:
    """Return the end of an error, after the model's name, for a call that the model lacks."""
    kind, row = kind_of(design), _TABLE["asks"][ask]
    text: str | None = row.get(kind, row.get(kind.split()[0]))
    if text is not None:
        return text
    return f"{does(design)}{row.get('without', '')}: {_TABLE['instead'][row['instead']]}"


def does(design: AnyDesign) -> str:
    """Return the words for a model's kind in error messages, such as "has no head"."""
    outputs = 0 if design.head is None else design.head.outputs
    text: str = _TABLE["kinds"][kind_of(design)]
    return text.format(outputs=outputs)
