"""Convert `transformers` masks to options of `qkv.attention`."""

import functools
import sys
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.integrations._tensors import torch_module, unreadable


def mask(*, mask_function: Any = None, attention_mask: Any = None, **others: Any) -> Any:
    """Return the mask of a forward pass; `transformers` models call this function.

    Returns:
        A tensor `(B, 1, L, S)` to add to the scores: 0 where a query sees a key, and the lowest
            number of the dtype elsewhere. The numbers are computed only when code reads them.
            The function `attend` does not read the numbers, but uses options such as `is_causal`.
    """
    torch, masking = torch_module(), _masking()
    request = {"q_offset": 0, "kv_offset": 0} | others
    request |= {
        "mask_function": mask_function or masking.causal_mask_function,
        "attention_mask": attention_mask,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }
    elsewhere = torch.device(others.get("device", "cpu")).type != "cpu"
    padding = [] if attention_mask is None else [attention_mask]
    if elsewhere or torch.compiler.is_compiling() or unreadable(*padding):
        return masking.eager_mask(**request)
    return mask_type()(MaskOptions(request))


Window = tuple[int | None, int | None]


class MaskOptions:
    """The options of `qkv.attention` that describe a `transformers` mask.

    Most masks are described by options such as `is_causal`, `window` and `key_lengths`. For any
    other mask, the only option is `attn_mask`, an array with the mask itself.

    Args:
        request: the arguments with which transformers requested the mask.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.length, self.keys = request["q_length"], request["kv_length"]
        self.start, self.first_key = int(request["q_offset"]), int(request["kv_offset"])
        self.windows = windows(request["mask_function"])
        self.changed = False  # whether other code may have changed the mask
        padding = request["attention_mask"]
        padding = None if padding is None else padding.detach().clone()
        # copy tensors: a cache adds to its `q_offset` before a layer reads the mask
        self.request = request | {"q_offset": self.start, "attention_mask": padding}
        self.padding: Array | None = None  # (B, T), True for tokens
        if padding is not None and padding.ndim == 2:
            self.padding = padding.bool().numpy()
        elif padding is not None:
            self.windows.append(None)  # no option such as `window` describes this mask
        # (B, 1, L, S), for a mask that no other option describes
        self.visible = _masking().sdpa_mask(**self.request) if None in self.windows else None

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """Arguments of `qkv.attention`."""
        if self.visible is not None:
            return {"attn_mask": self.visible.numpy()}
        sides = zip(*(window for window in self.windows if window is not None), strict=True)
        left, right = (min((n for n in side if n is not None), default=None) for side in sides)
        offset = self.start - self.first_key
        if left is not None and offset + self.length - 1 - left <= 0:
            left = None
        if right is not None and offset + right >= self.keys - 1:
            right = None
        if (left, right, offset) == (None, 0, 0) and self.length == self.keys:
            return {"is_causal": True, **self._padding()}
        if left is None and right is None:
            return self._padding()
        return {"window": (left, right), "q_offset": offset, **self._padding()}

    def _padding(self) -> dict[str, Any]:
        """Return the lengths of texts if all padding follows the tokens, otherwise a key mask."""
        if self.padding is None:
            return {}
        seen = self.padding[:, self.first_key : self.first_key + self.keys]
        if seen.shape[1] < self.keys:  # keys without an entry in the padding mask are masked
            seen = np.pad(seen, [(0, 0), (0, self.keys - seen.shape[1])])
        if seen.all():
            return {}
        lengths = seen.sum(axis=1)
        if (seen == (np.arange(self.keys) < lengths[:, None])).all():
            return {"key_lengths": lengths}
        return {"attn_mask": seen[:, None, None, :].copy()}  # (B, 1, 1, S)

    @functools.cached_property
    def numbers(self) -> Any:
        """The whole mask as a tensor, for code that reads its numbers."""
        computed = {"mask_function": lambda *_: self.visible, "use_vmap": False}
        return _masking().eager_mask(**self.request | ({} if self.visible is None else computed))


def windows(function: Any) -> list[Window | None]:
    """Return the windows of a mask function; a key is visible if it is inside all windows.

    A window is a pair as in the option `window` of `qkv.attention`. If `_known_functions` does not
    recognise a function, the list contains None in place of the function's window.
    """
    rule = _known_functions().get(getattr(function, "__code__", None))
    if rule is None:
        return [None]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in cells}
    if rule == "and":
        return [window for part in inside["mask_functions"] for window in windows(part)]
    size = inside.get("sliding_window")
    return [None if size is not None and size < 1 else _BANDS[rule](size)]


_BANDS: dict[str, Any] = {
    "causal_mask_function": lambda size: (None, 0),
    "bidirectional_mask_function": lambda size: (None, None),
    "sliding_window_overlay": lambda size: (size - 1, None),
    "sliding_window_bidirectional_overlay": lambda size: (size, size),
}


@functools.cache
def _known_functions() -> dict[Any, str]:
    """Return the names of the known mask functions, keyed by their code objects.

    `_BANDS` lists the mask functions and the window that each function should have. Each function
    is tested with 9 queries and 9 keys. If its mask differs from the mask of its window, the
    result does not contain the function.
    """
    torch, masking = torch_module(), _masking()
    query, key = torch.arange(9)[:, None], torch.arange(9)[None]

    def is_band(function: Any, left: int | None, right: int | None) -> bool:
        visible = (key >= query - (9 if left is None else left)) & (
            key <= query + (9 if right is None else right)
        )
        return bool((function(0, 0, query, key).expand(9, 9) == visible).all())

    names = {}
    for name, sides in _BANDS.items():
        function = getattr(masking, name, None)
        if function is None:
            continue
        made = {size: function(size) if "sliding" in name else function for size in (1, 2, 4)}
        if all(is_band(band, *sides(size)) for size, band in made.items()):
            names[made[1].__code__] = name
    if hasattr(masking, "and_masks"):
        joined = masking.and_masks(masking.sliding_window_overlay(3), masking.causal_mask_function)
        if is_band(joined, 2, 0):
            names[joined.__code__] = "and"
    return names


@functools.cache
def mask_type() -> Any:
    """Return the class of the tensors that `mask` returns."""
    torch = torch_module()
    aten = torch.ops.aten

    def new(cls: Any, rules: MaskOptions) -> Any:
        size = (rules.request["batch_size"], 1, rules.length, rules.keys)
        made = torch.Tensor._make_wrapper_subclass(
            cls, size, dtype=rules.request.get("dtype", torch.float32), device="cpu"
        )
        made.rules = rules
        return made

    def dispatch(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (aten.alias.default, aten.detach.default):
            return cls(args[0].rules)

        def whole(made: Any) -> Any:
            # code that gets a view of the numbers may change them
            schema, rules = function._schema, made.rules
            rules.changed |= schema.is_mutable or any(x.alias_info for x in schema.returns)
            return rules.numbers

        args, kwargs = torch.utils._pytree.tree_map_only(cls, whole, (args, kwargs or {}))
        return function(*args, **kwargs)

    members = {
        "__doc__": "A mask that stores rules, and computes its numbers when code reads them.",
        "__new__": staticmethod(new),
        "__torch_function__": torch._C._disabled_torch_function_impl,
        "__torch_dispatch__": classmethod(dispatch),
    }
    return type("Mask", (torch.Tensor,), members)


def _masking() -> Any:
    return sys.modules["transformers.masking_utils"]
