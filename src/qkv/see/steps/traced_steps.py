"""What a trace holds behind the heads, as it is: the walk of a trace without its model."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.see.steps.step import FEW, Walk
from qkv.see.steps.word_steps import chances_step

# What a block does behind its heads, in its order: the name of the numbers in a trace, what a walk
# calls them, and the title. Which of them there are says where the norms stand.
_HIDDEN = {"mlp.pre": "pre", "mlp.pre_linear": "up", "mlp.post": "post"}
_BLOCK = (
    ("attn_out", "out", "What the attention gives, through the output projection"),
    ("resid_mid", "R", "The residual connection: what came in is added"),
    ("ln1.normalized", "N1", "Each vector normed: what the MLP reads"),
    ("ln2.normalized", "N2", "Each vector normed: what the MLP reads"),
    ("mlp.pre", "pre", "The MLP: what its activation is taken of"),
    ("mlp.pre_linear", "up", "The MLP: what is multiplied with the activation"),
    ("mlp.post", "post", "The MLP: its hidden units after the activation"),
    ("mlp_out", "mlp", "What the MLP gives"),
    ("resid_post", "Y", ""),
    ("normalized_resid_post", "Y", "Each vector normed: what the block gives"),
)
_NEEDED = "how these numbers came about, walk(trace, model=...) shows"


def traced_steps(walk: Walk) -> None:
    """Everything behind the heads that the trace holds, to the logits if they are there."""
    trace, layer = walk.trace, walk.layer
    held = [part for part in _BLOCK if (part[0], layer) in trace and not _is_skipped(walk, part[0])]
    if not held:
        walk.end("the trace holds nothing behind the heads: walk(trace, model=...) goes on")
        return
    walk.given["trace"] = trace
    few = _few_units(walk)
    normed_last = held[-1][0] == "normalized_resid_post"
    for name, called, title in held:
        more: dict[str, Any] = {"columns": "F" if name in _HIDDEN else "D"}
        if name in _HIDDEN and few is not None:
            more["shown"] = {unit: str(unit) for unit in few}
            more["note"] = (
                f"the {FEW} of F={trace[name, layer].shape[-1]} that are largest after the "
                f"activation at {walk.tokens[walk.place]}"
            )
        if name == "resid_post":
            called, title = "R2" if normed_last else "Y", _sum_title(walk)
        walk.write_given(
            title, called, f'trace["{name}", {layer}][0]', trace[name, layer][0], **more
        )
    _later(walk)
    if "logits" not in trace:
        walk.end(f'{_NEEDED}, and goes on to the words; or trace(text, logits=True) keeps "logits"')
        return
    logits, place = trace["logits"][0], walk.place
    order = np.argsort(-np.nan_to_num(logits[place], nan=-np.inf), kind="stable")[:FEW].tolist()
    shown = {one: str(one) for one in order}
    walk.write_given(
        "The logits at the place that is walked", "logits", f'trace["logits"][0][[{place}]]',
        logits[[place]], "V", side="place", shown=shown,
        note=f"the {len(shown)} largest of V={logits.shape[1]}",
    )  # fmt: skip
    chances_step(walk, shown, "Softmax: the chance of each word, by its number")
    walk.end(f"which words these are, and {_NEEDED}")


def _sum_title(walk: Walk) -> str:
    """What a block's last sum is of."""
    if ("mlp_out", walk.layer) not in walk.trace:
        return "What the block gives"
    if ("resid_mid", walk.layer) not in walk.trace:
        return "The residual connection: what came in, the attention and the MLP are added"
    return "The residual connection: what the MLP gives is added"


def _is_skipped(walk: Walk, name: str) -> bool:
    """Whether it stands elsewhere in a block: the norm that comes before the heads."""
    if name == "ln1.normalized":
        return ("normalized_resid_post", walk.layer) not in walk.trace
    return name == "ln2.normalized" and ("normalized_resid_post", walk.layer) in walk.trace


def _few_units(walk: Walk) -> list[int] | None:
    """The hidden units that are largest at the place, the largest first; None for all."""
    name = next((name for name in ("mlp.post", "mlp.pre") if (name, walk.layer) in walk.trace), "")
    if not name or walk.trace[name, walk.layer].shape[-1] <= FEW:
        return None
    row = walk.trace[name, walk.layer][0, walk.place]
    found: list[int] = np.argsort(-np.abs(row), kind="stable")[:FEW].tolist()
    return found


def _later(walk: Walk) -> None:
    """What the later blocks and the final norm give."""
    trace, end = walk.trace, walk.trace.num_layers - 1
    after = [kind for kind in ("normalized_resid_post", "resid_post") if (kind, end) in trace]
    if walk.layer < end and after:
        first = walk.layer + 1
        title = f"Block {end} does" if first == end else f"Blocks {first} to {end} do"
        walk.write_given(
            f"{title} the same with other weights", "Z", f'trace["{after[0]}", {end}][0]',
            trace[after[0], end][0], "D", note=f"what block {end} gives",
        )  # fmt: skip
    if "ln_final.hook_normalized" in trace:
        walk.write_given(
            "Each vector normed: the last vectors of the model", "final",
            'trace["ln_final.hook_normalized"][0]', trace["ln_final.hook_normalized"][0], "D",
        )  # fmt: skip
