"""What a trace holds behind the heads, as it is: the walk of a trace without its model."""

from __future__ import annotations

import numpy as np

from qkv.see.steps.rows import PHRASES, phrase
from qkv.see.steps.step import FEW, Walk
from qkv.see.steps.word_steps import chances_step, later_step

# What a block does behind its heads, in its order, by the names of a trace; and what a walk calls
# the norms among it. Which of them there are says where the norms stand.
_BLOCK = (
    *("attn_out", "resid_mid", "ln1.normalized", "ln2.normalized", "mlp.pre", "mlp.pre_linear"),
    *("mlp.post", "mlp_out", "resid_post", "normalized_resid_post"),
)
_NORMED = {"ln1.normalized": "N1", "ln2.normalized": "N2", "normalized_resid_post": "Y"}
_NEEDED = "how these numbers came about, walk(trace, model=...) shows"


def traced_steps(walk: Walk) -> None:
    """Everything behind the heads that the trace holds, to the logits if they are there."""
    trace, layer = walk.trace, walk.layer
    held = [name for name in _BLOCK if (name, layer) in trace and not _is_skipped(walk, name)]
    if not held:
        walk.end("the trace holds nothing behind the heads: walk(trace, model=...) goes on")
        return
    first = len(walk.steps)
    for name in held:
        if name in _NORMED:
            traced_norm(walk, _NORMED[name], f'"{name}", {layer}')
        elif name == "resid_post":
            called = "R2" if held[-1] == "normalized_resid_post" else "Y"
            source = f'trace["{name}", {layer}][0]'
            walk.write(_sum_row(walk), name=called, layer=layer, source=source)
        else:
            walk.write(f"traced {name}", layer=layer)
    if hidden := [k for k, step in enumerate(walk.steps) if k >= first and "F=" in step.shape]:
        walk.show_units(hidden, "post" if "post" in walk.arrays else "pre")
    _later(walk)
    if "logits" not in trace:
        walk.end(f'{_NEEDED}, and goes on to the words; or trace(text, logits=True) keeps "logits"')
        return
    logits, place = trace["logits"][0], walk.place
    order = np.argsort(-np.nan_to_num(logits[place], nan=-np.inf), kind="stable")[:FEW].tolist()
    shown = {one: str(one) for one in order}
    note = phrase("words", words=len(shown), count=logits.shape[1])
    walk.write("traced logits", place=place, shown=shown, note=note)
    chances_step(walk, shown, PHRASES["by number"])
    walk.end(f"which words these are, and {_NEEDED}")


def traced_norm(walk: Walk, name: str, key: str) -> None:
    """Normed vectors of the trace, by the key that it has them under."""
    walk.write("traced norm", name=name, key=key, note=PHRASES[name])


def _sum_row(walk: Walk) -> str:
    """The row of a block's last sum."""
    if ("mlp_out", walk.layer) not in walk.trace:
        return "output"
    both = ("resid_mid", walk.layer) not in walk.trace
    return "traced resid_post of both" if both else "traced resid_post"


def _is_skipped(walk: Walk, name: str) -> bool:
    """Whether it stands elsewhere in a block: the norm that comes before the heads."""
    if name == "ln1.normalized":
        return ("normalized_resid_post", walk.layer) not in walk.trace
    return name == "ln2.normalized" and ("normalized_resid_post", walk.layer) in walk.trace


def _later(walk: Walk) -> None:
    """What the later blocks and the final norm give."""
    trace, end = walk.trace, walk.trace.num_layers - 1
    after = [kind for kind in ("normalized_resid_post", "resid_post") if (kind, end) in trace]
    if walk.layer < end and after:
        later_step(walk, after[0], end)
    if "ln_final.hook_normalized" in trace:
        traced_norm(walk, "final", '"ln_final.hook_normalized"')
