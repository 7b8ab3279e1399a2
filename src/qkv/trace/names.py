"""Find activations by the names that users write: the only code that resolves these names."""

from collections.abc import Callable, Container, Iterable, Mapping
from functools import cached_property
from itertools import compress
from typing import Any

from qkv._suggest import nearest, suggestion
from qkv.arrays import is_whole_number
from qkv.trace.activations import (
    ALIASES,
    activation,
    list_layers,
    numbers_of,
    of_side,
    parse,
    short_name,
    side_of,
)

# The full name of an activation, its short name, or a tuple: (short name, layer) or (short name,
# layer, part of the layer).
Name = str | tuple[Any, ...]

# Short names of a block's parts, and their names in TransformerLens.
_PARTS = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}
_NORMS = ("ln1", "ln2", "ln1_post", "ln2_post", "ln_final")
# Activations of a block that sparse autoencoders can encode, named as in SAELens.
_SPLICED = (
    *("hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_normalized_resid_post"),
    *("hook_attn_out", "hook_mlp_out", "attn.hook_z", "mlp.hook_pre", "mlp.hook_post"),
    *(f"{norm}.hook_{name}" for norm in _NORMS for name in ("input", "normalized")),
    *("attn.hook_input", "mlp.hook_input", "attn.hook_q", "attn.hook_k", "attn.hook_v"),
)
_FEATURES = ".hook_sae_acts_post"
_ATTN, _MLP = ("ln1_post.hook_input", "hook_attn_out"), ("ln2_post.hook_input", "hook_mlp_out")
# Names in TransformerLens's bridge, and qkv's names for the same activation; the first name that a
# model has is used. A block's `hook_out` is the input of the next block.
_BRIDGE = {
    "hook_in": ("hook_resid_pre",),
    "hook_out": ("hook_normalized_resid_post", "hook_resid_post"),
    **{f"{norm}.hook_in": (f"{norm}.hook_input",) for norm in _NORMS},
    **{f"{norm}.hook_out": (f"{norm}.hook_normalized",) for norm in _NORMS},
    "attn.hook_in": ("attn.hook_input",),
    **{f"attn.{name}.hook_in": (f"attn.hook_{name}_in",) for name in "qkv"},
    **{f"attn.{name}.hook_out": (f"attn.hook_{name}",) for name in "qkv"},
    **{f"attn.hook_{name}_input": (f"hook_{name}_input",) for name in "qkv"},
    "attn.o.hook_in": ("attn.hook_z",),
    **dict.fromkeys(("attn.o.hook_out", "attn.hook_out", "attn.hook_hidden_states"), _ATTN),
    "mlp.hook_in": ("mlp.hook_input",),
    "mlp.in.hook_in": ("mlp.hook_input",),
    "mlp.in.hook_out": ("mlp.hook_pre_linear", "mlp.hook_pre"),
    "mlp.gate.hook_out": ("mlp.hook_pre",),
    "mlp.out.hook_in": ("mlp.hook_post",),
    **dict.fromkeys(("mlp.out.hook_out", "mlp.hook_out"), _MLP),
    "embed.hook_out": ("hook_embed",),
    "pos_embed.hook_out": ("hook_pos_embed",),
    "token_type_embed.hook_out": ("hook_token_type_embed",),
    "unembed.hook_in": ("ln_final.hook_normalized",),
    "unembed.hook_out": ("logits",),
    "hook_unembed": ("logits",),
}
# Keys: a name in the bridge, and an activation. Values: if a block has this other activation, the
# name does not mean the activation of the key.
_BRIDGE_UNLESS = {
    **{
        (name, "hook_attn_out"): "ln1_post.hook_scale" for name in _BRIDGE if _BRIDGE[name] == _ATTN
    },
    **{(name, "hook_mlp_out"): "ln2_post.hook_scale" for name in _BRIDGE if _BRIDGE[name] == _MLP},
    ("mlp.in.hook_in", "mlp.hook_input"): "mlp.hook_pre_linear",
}


class NameIndex:
    """The activations of a network or of a trace, found by any name that a user may write.

    Args:
        full: the full names. The names of an encoder-decoder begin with "encoder." or "decoder.".
        counts: the number of layers of each side: "encoder" and "decoder", or "" in other models.
            By default, the numbers are inferred from the names.

    >>> names = NameIndex(["hook_embed", "blocks.0.attn.hook_q", "blocks.1.attn.hook_q"])
    >>> names.one("embed"), names.one(("q", -1)), names.one("q")
    ('hook_embed', 'blocks.1.attn.hook_q', None)
    >>> names.find("q") == names.find(("q", None)) == names.find(("q", (0, 1)))
    True
    """

    def __init__(self, full: Iterable[str], counts: Mapping[str, int] | None = None) -> None:
        self.full, self._given = dict.fromkeys(full), counts

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The number of layers of each side: "encoder" and "decoder", or "" in other models."""
        if self._given is not None:
            return self._given
        counts: dict[str, int] = {}
        for side, layer, _ in map(parse, self.full):
            counts[side] = max(counts.get(side, 0), 0 if layer is None else layer + 1)
        return counts or {"": 0}

    def one(self, name: object) -> str | None:
        """Return the full name of the single activation that a name stands for, or None."""
        found = self._on_one_side(name, self._single)
        return found[0] if found else None

    def find(self, name: object) -> list[str]:
        """Return the full names of the activations that a name stands for, in order of layers.

        A name without a layer stands for the activation in each layer that has it. In an
        encoder-decoder, a name must show whether it means the encoder or the decoder. The result
        for any other name is [].
        """
        return self._on_one_side(name, self._several)

    def matching(self, name: object) -> list[str]:
        """Return all full names that a name fits, on both sides and in all parts of layers.

        For example, "scale" fits the scale of each norm.
        """
        words = self.full if isinstance(name, str) else ()
        spelled = [full for full in words if name in spellings(full)]
        return spelled or [full for names in self._by_side(name, self._several) for full in names]

    def why_not(self, name: object, *, in_trace: bool = False) -> str:
        """Explain in an error message why a name does not stand for an activation.

        Args:
            name: the name that was not found.
            in_trace: whether the full names are those that a trace has kept.
        """
        first = name[0] if isinstance(name, tuple) and name else name
        side, _ = side_of(str(first))
        count = self.counts.get(side, max(self.counts.values()))
        name = next((one for one in _of_layers(name) if self.one(one) is None), name)
        names = _candidates(name, count, self.full)
        layer: Any = parse(names[0]).layer if names else None
        if isinstance(name, tuple) and len(name) > 1:
            layer = name[1]
        if is_whole_number(layer) and not -count <= layer < count:
            return no_layer(layer, count)
        if len(self.counts) > 1:
            return f"there is no {name!r}: names begin with {self._sides_for(name)}"
        local = {parse(full).local for full in names}
        layers = numbers_of(full for full in self.full if parse(full).local in local)
        if is_whole_number(layer) and layers:
            if not in_trace:
                return f"{name!r} exists only in {list_layers(layers)}"
            return (
                f"{name!r} was not kept: layer {layer % count} was not traced; only "
                f"{list_layers(layers)} {'were' if len(layers) > 1 else 'was'} traced"
            )
        fault = f"there is no {name!r}; {self._nearest(name, layer, count, in_trace)}"
        rare = next((full for full in names if not activation(full).unasked), None)
        if not in_trace or rare is None:
            return fault
        return f"{fault}; {rare} is kept only if it is named: trace(..., names=[{rare!r}])"

    def _single(self, name: Any, side: str) -> list[str]:
        """Return the full name of a single activation on a side, as a list, or []."""
        prefix = f"{side}." if side else ""
        names = (prefix + full for full in _candidates(name, self.counts[side], self.full, prefix))
        return next(([full] for full in names if full in self.full), [])

    def _several(self, name: Any, side: str) -> list[str]:
        """Return the full names on a side for a name of one, several or all layers."""
        if found := self._single(name, side):
            return found
        every = _of_layers(name, self.counts[side])
        matches = [self._single(one, side) for one in every]
        has_layers = isinstance(name, tuple) and name[1:2] != (None,)
        return [] if has_layers and [] in matches else [full for found in matches for full in found]

    def _by_side(self, name: object, find: Callable[[Any, str], list[str]]) -> list[list[str]]:
        """Find a name on the side that the name shows, or on each side."""
        first = name[0] if isinstance(name, tuple) and name else name
        if not isinstance(first, str):
            return []
        side, inner = side_of(first)
        if side not in self.counts or not side:
            return [find(name, side) for side in self.counts]
        return [find((inner, *name[1:]) if isinstance(name, tuple) else inner, side)]

    def _on_one_side(self, name: object, find: Callable[[Any, str], list[str]]) -> list[str]:
        sides = self._by_side(name, find)
        found = next(filter(None, sides), [])
        if len(sides) < 2 or not found:
            return found
        local = {parse(full).local for full in found}
        owners = {parse(full).side for full in self.full if parse(full).local in local}
        return found if len(owners) == 1 else []

    def _sides_for(self, name: object) -> str:
        """Describe an encoder-decoder's prefixes and similar names, for an error."""
        joint = {full: of_side(*side_of(full)) for full in self.full}
        found = [joint[full] for names in self._by_side(name, self._single) for full in names]
        known = {one: one for one in joint.values()} | {short_name(x): joint[x] for x in joint}
        text = name[0] if isinstance(name, tuple) and name else name
        near = found or [known[x] for x in nearest(text, known)] or [*joint.values()][-3:]
        sides = " or ".join(f"'{side}.'" for side in self.counts)
        return f"{sides}, such as {', '.join(near)}"

    def _nearest(self, name: object, layer: Any, count: int, in_trace: bool) -> str:
        text = str(name[0] if isinstance(name, tuple) and name else name)
        if not in_trace and not is_whole_number(layer):
            known = {spelled for full in self.full for spelled in spellings(full)}
            return suggestion(nearest(text, sorted(known)), map(short_name, self.full))
        # Activations of different layers have the same short name. The dict `short` keeps only the
        # last activation of each short name. So the sorted list ends with the activations of the
        # requested layer.
        number = layer % count if is_whole_number(layer) and count else -1
        ordered = sorted(self.full, key=lambda full: parse(full).layer == number)
        short = {short_name(full): full for full in ordered}
        near = [short.get(match, match) for match in nearest(text, [*self.full, *short])]
        return suggestion(near, short)


def no_layer(layer: int, count: int) -> str:
    """Return the error message for a layer that a model of `count` layers does not have."""
    return f"there is no layer {layer}: the model has {count} layers, numbered 0 to {count - 1}"


def is_tuple_name(name: object) -> bool:
    """Return whether a tuple is a single name, as in TransformerLens, and not a tuple of names.

    >>> is_tuple_name(("pattern", 3)), is_tuple_name(("scale", None)), is_tuple_name(("q", "k"))
    (True, True, False)
    """
    if not isinstance(name, tuple) or len(name) not in (2, 3):
        return False
    return name[1] is None or is_whole_number(name[1])


def spellings(full: str) -> set[str]:
    """Return all names, full or short, of an array in a trace.

    >>> sorted(spellings("blocks.0.attn.hook_q"))
    ['attn.hook_q', 'attn.q', 'blocks.0.attn.hook_q', 'hook_q', 'q']
    """
    side, _, local = parse(full)
    names = {full, local, local.replace("hook_", ""), local.rpartition(".")[2], short_name(full)}
    return names | {of_side(*side_of(full)), f"{side}.{local}"} if side else names


def _of_layers(name: object, count: int = 0) -> list[Name]:
    """Return a name for each layer that a name stands for: its layers, or all `count` layers."""
    if isinstance(name, str):
        return [(name, layer) for layer in range(count)]
    if not (isinstance(name, tuple) and len(name) in (2, 3)):
        return []
    layers = range(count) if name[1] is None else name[1]
    if not isinstance(layers, tuple | range):
        return []
    return [(name[0], layer, *name[2:]) for layer in layers]


def _candidates(
    name: object, num_layers: int, known: Container[str] = (), prefix: str = ""
) -> list[str]:
    """Return the full names that a name may mean, most likely first.

    `known` holds the full names of a model or trace, which begin with `prefix`.

    >>> _candidates(("pattern", -1), 4)[0], _candidates(("scale", 0, "ln1"), 4)[0]
    ('blocks.3.attn.hook_pattern', 'blocks.0.ln1.hook_scale')
    >>> _candidates("blocks.1.attn.hook_out", 4)[-1]
    'blocks.1.hook_attn_out'
    """
    paths = _paths(name, num_layers)
    # A name without a part of the layer, such as ("out", 0), means the block.
    for path in sorted(paths, key=lambda path: path.count(".")):
        inside = _FEATURES if path.endswith(_FEATURES) else ""  # of an SAE at the activation
        local = parse(path).local.removesuffix(inside)
        if local in _BRIDGE:
            before = path.removesuffix(local + inside)
            unless = (_BRIDGE_UNLESS.get((local, other)) for other in _BRIDGE[local])
            fits = (one is None or prefix + before + one not in known for one in unless)
            return [*paths, *(before + other + inside for other in compress(_BRIDGE[local], fits))]
    return paths


def _paths(name: object, num_layers: int) -> list[str]:
    if isinstance(name, str):
        inner, dot, last = name.rpartition(".")
        return [name, f"{inner}{dot}hook_{last}"]
    if not (isinstance(name, tuple) and len(name) in (2, 3) and isinstance(name[0], str)):
        return []
    short, layer = name[0], name[1]
    part = name[2] if len(name) == 3 else None
    if layer is None:
        part = "ln_final" if part is None and short in ("scale", "normalized") else part
        return _paths(f"{part}.{short}" if part else short, num_layers)
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
    paths = [f"attn.hook_{short}", f"hook_{short}", f"mlp.hook_{short}", f"attn.{short}", short]
    paths += [f"attn.hook_{other}", f"mlp.hook_{other}"]
    if short.startswith("sae_"):
        paths = [f"{site}.hook_{short}" for site in _SPLICED]
    return [block + path for path in dict.fromkeys(paths)]
