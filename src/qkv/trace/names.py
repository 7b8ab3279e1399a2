"""What an activation is called: in full, for short, and by the tuples of TransformerLens."""

from __future__ import annotations

import re
from typing import Any

from qkv.arrays import is_whole_number

# What TransformerLens also calls them, and the parts of a block.
_ALIASES = {
    **{"attn": "pattern", "attn_logits": "attn_scores", "query": "q", "key": "k", "value": "v"},
    **{"mlp_pre": "pre", "mlp_post": "post"},
}
_PARTS = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
# The axes of an array of a model's trace, by the last part of its name.
_ROWS = ("text", "token")
_AXES = {
    **dict.fromkeys(("pattern", "attn_scores"), ("text", "head", "query", "key")),
    **dict.fromkeys(("top_indices", "top_weights"), ("text", "head", "query", "rank")),
    **{"received": ("text", "head", "key"), "lse": ("text", "head", "query")},
    **dict.fromkeys(("q", "rot_q"), (*_ROWS, "head", "d")),
    **dict.fromkeys(("k", "rot_k"), (*_ROWS, "kv_head", "d")),
    **{"v": (*_ROWS, "kv_head", "dv"), "z": (*_ROWS, "head", "dv")},
    **{"result": (*_ROWS, "head", "D"), "scale": (*_ROWS, "one"), "logits": (*_ROWS, "V")},
    **dict.fromkeys(("pre", "pre_linear", "post"), (*_ROWS, "F")),
}


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
    other = _ALIASES.get(short, short)
    if part is not None:
        part = _PARTS.get(part, part)
        inside = f"{part}." if part else ""
        return [f"{block}{inside}{at}" for at in (f"hook_{short}", short, f"hook_{other}")]
    inner, dot, last = short.rpartition(".")
    places = [f"attn.hook_{short}", f"{inner}{dot}hook_{last}", f"mlp.hook_{short}"]
    places += [f"attn.{short}", short, f"attn.hook_{other}", f"mlp.hook_{other}"]
    return [block + place for place in dict.fromkeys(places)]


def is_tuple_name(given: object) -> bool:
    """Whether it is one name as TransformerLens has them, and not several names.

    >>> is_tuple_name(("pattern", 3)), is_tuple_name(("scale", None)), is_tuple_name(("q", "k"))
    (True, True, False)
    """
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        return False
    return given[1] is None or is_whole_number(given[1])


def split(full: str) -> tuple[int | None, str]:
    """The layer of a full name, None for none, and what the activation is called in there.

    >>> split("blocks.3.attn.hook_q"), split("hook_embed")
    ((3, 'attn.hook_q'), (None, 'hook_embed'))
    """
    found = _BLOCK.fullmatch(full)
    return (None, full) if found is None else (int(found[1]), found[2])


def axes(full: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """A name for each axis of an array of a trace.

    >>> axes("blocks.0.attn.hook_pattern", (1, 2, 7, 7))
    ('text', 'head', 'query', 'key')
    >>> axes("scores", (2, 7, 7))
    ('head', 'query', 'key')
    """
    last = full.rpartition(".")[2]
    known = _AXES.get(last.removeprefix("hook_"), (*_ROWS, "D"))
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
    return sorted({layer for layer, _ in map(split, names) if layer is not None})
