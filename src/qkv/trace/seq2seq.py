"""A trace of an encoder-decoder: two texts, and the cross-attention between them."""

import difflib
from collections.abc import ItemsView, KeysView, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array, Arrays
from qkv.files import StrPath
from qkv.trace import exports
from qkv.trace.activations import cut, is_tuple_name, meant, numbers_of, of_side, side_of
from qkv.trace.exports import read_trace, write_trace
from qkv.trace.trace import KINDS, Trace, inputs_of, of_all, read_only

SIDES = ("encoder", "decoder")
_KIND = "qkv.seq2seq"
_MASK = "attn_mask"  # the mask of the encoder's text, if some tokens are masked


class Seq2SeqTrace:
    """All activations of a run through an encoder-decoder.

    `trace.encoder` and `trace.decoder` are ordinary traces. This trace has the activations of both,
    with TransformerLens's names for encoder-decoders: `trace["encoder.0.attn.hook_pattern"]`,
    `trace["decoder.0.attn.hook_pattern"]`, `trace["decoder.0.cross_attn.hook_pattern"]`,
    `trace["decoder.0.hook_resid_mid_cross"]`, `trace["decoder.hook_embed"]`. Short names work too:
    `trace["cross_attn.pattern", 0]`. `trace[i]` is pair i without its padding.

    Args:
        encoder: the trace of the text that the model read.
        decoder: the trace of the text that the model wrote.
        cross: the activations of cross-attention, keyed by the decoder's names.
        settings: the options of each layer's cross-attention.

    `qkv.head_view(trace)` shows both self-attentions and the cross-attention.
    `qkv.show(trace.decoder)` shows one of the texts.
    """

    def __init__(
        self,
        encoder: Trace,
        decoder: Trace,
        cross: Arrays,
        *,
        settings: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        self.encoder, self.decoder = encoder, decoder
        self._cross = {name: read_only(array) for name, array in cross.items()}
        self._settings = {layer: dict(one) for layer, one in (settings or {}).items()}

    def __repr__(self) -> str:
        return f"Seq2SeqTrace(encoder={self.encoder!r}, decoder={self.decoder!r})"

    def _repr_html_(self) -> str:
        """Return HTML with the tokens of both texts and the names of the arrays."""
        shown = [f"<p>trace.{side}</p>{getattr(self, side)._repr_html_()}" for side in SIDES]
        return "".join(shown) + (exports.html("across", [], self._cross) if self._cross else "")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and hasattr(Trace, name):
                across = ", attention between both .cross_attentions" * (name == "attentions")
                raise AttributeError(
                    f"trace: encoder and decoder have separate {name}: "
                    f"trace.encoder.{name}, trace.decoder.{name}{across}"
                )
            raise AttributeError(f"'Seq2SeqTrace' object has no attribute {name!r}")

    def __len__(self) -> int:
        """Return the number of pairs of texts."""
        return len(self.encoder)

    def __contains__(self, name: object) -> bool:
        try:
            self[name]  # type: ignore[index]
        except (KeyError, IndexError):
            return False
        return True

    def __getitem__(self, name: str | tuple[Any, ...] | int) -> Any:
        """Return an array by its name, or the trace of a pair of texts by its number."""
        if isinstance(name, (int, np.integer)):
            return self._pair(int(name))
        if isinstance(name, tuple):
            full = next((x for x in meant(name, self.num_layers) if x in self._cross), None)
            if full is not None:
                return self._cross[full]
        elif isinstance(name, str):
            side, inner = side_of(name)
            if side == "decoder" and inner in self._cross:
                return self._cross[inner]
            if side in SIDES and inner in getattr(self, side):
                return getattr(self, side)[inner]
        named, ways = self._named(), meant(name, self.num_layers) if is_tuple_name(name) else []
        near = [x for side in SIDES for full in ways if (x := of_side(side, full)) in named]
        near = near or difflib.get_close_matches(str(name), named, n=3, cutoff=0.5)
        raise KeyError(
            f"trace: there is no {name!r}: names begin with encoder. or decoder., such as "
            f"{', '.join(near or [*named][-3:])}"
        )

    def names(self) -> list[str]:
        """Return the names of all arrays."""
        return list(self.keys())

    def keys(self) -> KeysView[str]:
        """Return all names, so that `dict(trace)` is a dict of all arrays."""
        return self._named().keys()

    def items(self) -> ItemsView[str, Array]:
        """Yield each name with its array."""
        return self._named().items()

    def _named(self) -> dict[str, Array]:
        own = {"encoder": dict(self.encoder), "decoder": dict(self.decoder) | self._cross}
        return {of_side(side, name): array for side in SIDES for name, array in own[side].items()}

    @property
    def num_layers(self) -> int:
        """The number of layers of the decoder; if unknown, the number of kept layers."""
        return max(self.decoder.num_layers, 1 + max(numbers_of(self._cross), default=-1))

    @property
    def cross_attentions(self) -> tuple[Array, ...]:
        """The decoder's weights on the encoder's tokens `(B, Hq, L, S)`, as in `transformers`.

        Raises:
            KeyError: some layers were not kept; the message names the kept layers.
        """
        return of_all(self, "cross_attentions", "cross_attn.pattern")

    def cross_attention_inputs(self, layer: int) -> dict[str, Any]:
        """Return the arguments with which `qkv.attention(**inputs)` repeats this cross-attention.

        For self-attention, call `trace.encoder.attention_inputs(layer)` or
        `trace.decoder.attention_inputs(layer)`.
        """
        layer += self.num_layers if layer < 0 else 0
        query, key, value = (self[f"cross_attn.{name}", layer] for name in "qkv")
        inputs = inputs_of(query, key, value, self.decoder.lengths, self.encoder.lengths)
        return inputs | self._settings.get(layer, {})

    def save(self, path: StrPath) -> None:
        """Write the trace to one safetensors file, completely or not at all."""
        arrays = {f"cross {name}": array for name, array in self._cross.items()}
        settings = {layer: dict(one) for layer, one in self._settings.items()}
        for layer, one in settings.items():
            if _MASK in one:
                arrays[f"{_MASK} {layer}"] = one.pop(_MASK)
        about: dict[str, Any] = {"settings": settings, "cross": list(self._cross)}
        for side in SIDES:
            own, about[side] = getattr(self, side).packed()
            arrays |= {f"{side} {name}": array for name, array in own.items()}
        write_trace(path, _KIND, arrays, about)

    @classmethod
    def load(cls, path: StrPath) -> "Seq2SeqTrace":
        """Read a trace that `save` wrote; same as `qkv.Trace.load`."""
        kinds, call = {_KIND: cls.unpacked}, "Seq2SeqTrace.load"
        trace: Seq2SeqTrace = read_trace(path, kinds, call=call, what="such a trace")
        return trace

    @classmethod
    def unpacked(cls, arrays: Arrays, about: Mapping[str, Any]) -> "Seq2SeqTrace":
        """Build a trace from the arrays and values that `save` wrote."""
        parts: dict[str, dict[str, Array]] = {part: {} for part in (*SIDES, "cross", _MASK)}
        for name, array in arrays.items():
            part, _, inner = name.partition(" ")
            parts[part][inner] = array
        encoder, decoder = (Trace.unpacked(parts[side], about[side]) for side in SIDES)
        settings = {int(layer): one for layer, one in about["settings"].items()}
        for number, mask in parts[_MASK].items():
            settings[int(number)][_MASK] = mask
        cross = {name: parts["cross"][name] for name in about["cross"]}
        return cls(encoder, decoder, cross, settings=settings)

    def _pair(self, index: int) -> "Seq2SeqTrace":
        encoder, decoder = self.encoder[index], self.decoder[index]
        size, width = int(decoder.lengths[0]), int(encoder.lengths[0])
        index %= len(self)
        cross = {
            name: cut(name, array[index : index + 1], size, width)
            for name, array in self._cross.items()
        }
        settings = {layer: dict(one) for layer, one in self._settings.items()}
        for one in settings.values():
            if _MASK in one:  # (B, 1, 1, S)
                one[_MASK] = one[_MASK][index : index + 1, ..., :width]
        return Seq2SeqTrace(encoder, decoder, cross, settings=settings)


KINDS[_KIND] = Seq2SeqTrace.unpacked
