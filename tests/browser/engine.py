"""Helpers that run the model in a page, and the references for its numbers."""

import base64
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from playwright.sync_api import Page

from qkv.models import Model
from qkv.see.page.engine import engine_part, engine_payload
from qkv.see.page.html import WITH_WORKER, document
from qkv.text import Tokenized
from qkv.trace import Trace

from .edited import Edit, Result

# Runs a text and packs the result: float32 arrays as base64, the rest unchanged.
RUN = """async ([text, edits, options]) => {
  const pack = (x) => {
    if (Array.isArray(x)) return x.map(pack);
    if (!(x instanceof Float32Array)) return x;
    return new Uint8Array(x.buffer, x.byteOffset, x.byteLength).toBase64();
  };
  const { blocks, ...found } = await qkv.run(text, edits, options);
  const named = (x) => Object.fromEntries(Object.entries(x).map(([name, y]) => [name, pack(y)]));
  return { ...named(found), blocks: Object.values(blocks).map(named) };
}"""


# The bounds of `agree`: for weights, and for other numbers in relation to the largest of them. A
# page without WebAssembly computes in float64, and sends float32. A page with WebAssembly computes
# in float32, where each operation has a relative error of 2**-24. SINGLE allows for about 50
# operations between the tokens and the last layer, and for scores up to 4: a weight changes by at
# most half as much as the scores of its row. The random parameters of small models make larger
# scores, and sums that cancel: WIDE.
EXACT = 1e-7, 1e-6
SINGLE = 6e-6, 3e-6
WIDE = 4e-5, 1.5e-5

COMPUTE = "function compute() {\n"


def page_of(model: Model, *, plain: bool = False) -> str:
    """Write a page that runs a model; with `plain`, its worker has no WebAssembly."""
    html = document("the engine", engine_part(engine_payload(model)), "auto", WITH_WORKER)
    assert html.count(COMPUTE) == 1
    return html.replace(COMPUTE, f"{COMPUTE}delete globalThis.WebAssembly;\n") if plain else html


def unpacked(packed: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed), "<f4")


def ask(page: Page, text: Any, edits: Any = None, **options: Any) -> tuple[dict[str, Any], Result]:
    """Run a text in the page: return the page's answer, and its arrays in their shapes."""
    found = page.evaluate(RUN, [text, [] if edits is None else edits, options])
    size = len(found["tokens"])
    result = result_of(size, *(found[name] for name in ("pattern", "resid", "logits")))
    logits = result.logits.reshape(len(options.get("at", range(size))), -1)
    return found, result._replace(logits=logits, inside=found["blocks"])


def result_of(size: int, pattern: list[list[str]], resid: list[str], logits: str) -> Result:
    """Unpack a page's arrays: the logits of one position, or of all of them side by side."""
    heads = np.array([[unpacked(head) for head in layer] for layer in pattern])
    return Result(
        heads.reshape(*heads.shape[:2], size, size),
        np.array([unpacked(one).reshape(size, -1) for one in resid]),
        unpacked(logits)[None],
        [],
    )


def agree(found: Result, expected: Result, weights: float, others: float) -> None:
    """Check float32 results: weights within `weights`, others within `others` times the maximum."""
    np.testing.assert_allclose(found.pattern, expected.pattern, rtol=0, atol=weights)
    for one, other in ((found.resid, expected.resid), (found.logits, expected.logits)):
        np.testing.assert_allclose(one, other, rtol=0, atol=others * np.abs(other).max())


def ranked_alike(found: np.ndarray, expected: np.ndarray) -> None:
    """Check that both rank the five likeliest words alike, except for differences below 1e-5."""
    for mine, own in zip(shares(found), shares(expected), strict=True):
        best = np.argpartition(-own, 6)[:6]
        best = best[np.argsort(-own[best])]
        for first, second in itertools.pairwise(best):
            assert own[first] - own[second] <= 1e-5 or mine[first] > mine[second]
        fifth = best[4]
        assert (mine[own < own[fifth] - 1e-5] < mine[fifth]).all()


def shares(logits: np.ndarray) -> np.ndarray:
    exact = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return exact / exact.sum(-1, keepdims=True)


def traced(model: Model, text: str) -> tuple[Tokenized | Trace, Trace, Result]:
    """Return the tokens of a text, the library's trace of it, and the trace's numbers."""
    tokens = model.tokenize(text)
    if all(tokens.special):  # `trace` rejects such a text, but accepts its ids
        trace = model.trace(tokens.ids, logits=True)
        return tokens, trace, numbers(model, trace)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* cut to")
        trace = model.trace(text, logits=True)
    return trace, trace, numbers(model, trace)


def numbers(model: Model, trace: Trace) -> Result:
    """Return the numbers of a trace: `resid` has what each block passes on."""
    layers = range(model.num_layers)
    behind = "normalized_resid_post" if model.layers[-1].post_norm else "resid_post"
    resid = ["full_embed", *((behind, layer) for layer in layers)]
    return Result(
        np.array([trace["pattern", layer][0] for layer in layers]),
        np.array([trace[name][0] for name in resid]),
        trace["logits"][0],
        [],
    )


def by_the_library(model: Model, text: str | list[int], edits: Sequence[Edit] = ()) -> Result:
    """Return the library's numbers for a text, or for its ids, with these edits."""
    return numbers(model, model.trace(text, logits=True, edit=[*edits]))
