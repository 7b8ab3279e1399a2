"""The masks of transformers as rules of `qkv.attention`, wherever they say the same."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.integrations.tensors import torch_module, unreadable


def mask(*, mask_function: Any = None, attention_mask: Any = None, **others: Any) -> Any:
    """The mask of a forward pass, as the models of transformers ask for it.

    Returns:
        A tensor that stands for `(B, 1, L, S)` numbers, 0 where a query sees a key and the lowest
        number where it does not, as models of transformers expect without qkv. The numbers are made
        when somebody asks for them; `attend` asks for the rules instead.
    """
    torch, masking = torch_module(), _masking()
    asked = {"q_offset": 0, "kv_offset": 0} | others
    asked |= {
        "mask_function": mask_function or masking.causal_mask_function,
        "attention_mask": attention_mask,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }
    elsewhere = torch.device(others.get("device", "cpu")).type != "cpu"
    padding = [x for x in (attention_mask,) if x is not None]
    if elsewhere or torch.compiler.is_compiling() or unreadable(*padding):
        return masking.eager_mask(**asked)
    return mask_type()(Rules(asked))


Window = tuple[int | None, int | None]


class Rules:
    """What a mask of transformers hides, as arguments of `qkv.attention` where they say the same.

    Args:
        asked: what transformers asked its mask function for.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self.length, self.keys = asked["q_length"], asked["kv_length"]
        self.start, self.first_key = int(asked["q_offset"]), int(asked["kv_offset"])
        self.windows = windows(asked["mask_function"])
        self.changed = False  # whether somebody may have written to the numbers
        given = asked["attention_mask"]
        self.padding: Array | None = None  # (B, T), True where there is a token
        if given is not None and given.ndim == 2:
            self.padding = given.detach().bool().numpy()
        elif given is not None:
            self.windows.append(None)  # a mask of the model's own is no window

    @property
    def is_causal(self) -> bool:
        """Whether no query sees what stands behind its own place."""
        return any(found is not None and found[1] == 0 for found in self.windows)

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """Arguments of `qkv.attention`."""
        known = [found for found in self.windows if found is not None]
        if len(known) < len(self.windows):
            return {"attn_mask": _masking().sdpa_mask(**self.asked).numpy()}
        sides = zip(*known, strict=True)
        left, right = (min((n for n in side if n is not None), default=None) for side in sides)
        offset = self.start - self.first_key
        if left is not None and offset + self.length - 1 - left <= 0:
            left = None
        if right is not None and offset + right >= self.keys - 1:
            right = None
        found: dict[str, Any] = {}
        if (left, right, offset) == (None, 0, 0) and self.length == self.keys:
            found = {"is_causal": True}
        elif left is not None or right is not None:
            found = {"window": (left, right), "q_offset": offset}
        return found | self._padding()

    def _padding(self) -> dict[str, Any]:
        """Lengths where padding stands behind the tokens, otherwise a mask of the keys."""
        if self.padding is None:
            return {}
        seen = self.padding[:, self.first_key : self.first_key + self.keys]
        if seen.shape[1] < self.keys:  # keys that nothing was said about are hidden
            seen = np.pad(seen, [(0, 0), (0, self.keys - seen.shape[1])])
        if seen.all():
            return {}
        lengths = seen.sum(axis=1)
        if (seen == (np.arange(self.keys) < lengths[:, None])).all():
            return {"key_lengths": lengths}
        return {"attn_mask": seen[:, None, None, :].copy()}  # (B, 1, 1, S)

    @functools.cached_property
    def numbers(self) -> Any:
        """The whole mask, as a model expects it that does not know of rules."""
        return _masking().eager_mask(**self.asked)


def windows(function: Any) -> list[Window | None]:
    """`window` of `qkv.attention` for each mask function that has to agree in this one.

    None where there is none. The functions are known by their code, which was tried (`_known`).
    """
    rule = _known().get(getattr(function, "__code__", None))
    if rule is None:
        return [None]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in cells}
    if rule == "and":
        return [found for part in inside["mask_functions"] for found in windows(part)]
    size = inside.get("sliding_window")
    return [None if size is not None and size < 1 else _BANDS[rule](size)]


_BANDS: dict[str, Any] = {
    "causal_mask_function": lambda size: (None, 0),
    "bidirectional_mask_function": lambda size: (None, None),
    "sliding_window_overlay": lambda size: (size - 1, None),
    "sliding_window_bidirectional_overlay": lambda size: (size, size),
}


@functools.cache
def _known() -> dict[Any, str]:
    """The code of the mask functions whose rule is known, each tried on a small square."""
    torch, masking = torch_module(), _masking()
    query, key = torch.arange(9)[:, None], torch.arange(9)[None]
    found = {}
    for name, sides in _BANDS.items():
        function = getattr(masking, name, None)
        if function is None:
            continue
        for size in (1, 2, 4):
            made = function(size) if "sliding" in name else function
            left, right = sides(size)
            expected = torch.ones(9, 9, dtype=torch.bool)
            if left is not None:
                expected &= key >= query - left
            if right is not None:
                expected &= key <= query + right
            if not (made(0, 0, query, key).expand(9, 9) == expected).all():
                break
        else:
            found[made.__code__] = name
    both = getattr(masking, "and_masks", None)
    if both is not None:
        joined = both(masking.sliding_window_overlay(3), masking.causal_mask_function)
        expected = (key <= query) & (key > query - 3)
        if (joined(0, 0, query, key) == expected).all():
            found[joined.__code__] = "and"
    return found


@functools.cache
def mask_type() -> Any:
    """The class of the tensors that `mask` gives."""
    torch = torch_module()
    aten = torch.ops.aten

    def new(cls: Any, rules: Rules) -> Any:
        size = (rules.asked["batch_size"], 1, rules.length, rules.keys)
        made = torch.Tensor._make_wrapper_subclass(
            cls, size, dtype=rules.asked.get("dtype", torch.float32), device="cpu"
        )
        made.rules = rules
        return made

    def dispatch(
        cls: Any, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (aten.alias.default, aten.detach.default):
            return cls(args[0].rules)

        def whole(found: Any) -> Any:
            # whoever holds a view of the numbers may write to them
            schema, rules = function._schema, found.rules
            rules.changed |= schema.is_mutable or any(x.alias_info for x in schema.returns)
            return rules.numbers

        args, kwargs = torch.utils._pytree.tree_map_only(cls, whole, (args, kwargs or {}))
        return function(*args, **kwargs)

    return type(
        "Mask",
        (torch.Tensor,),
        {
            "__doc__": "A mask of transformers that keeps the rules it was made of.",
            "__new__": staticmethod(new),
            "__torch_function__": torch._C._disabled_torch_function_impl,
            "__torch_dispatch__": classmethod(dispatch),
        },
    )


def _masking() -> Any:
    return sys.modules["transformers.masking_utils"]
