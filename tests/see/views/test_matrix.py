"""Tests that every view of every input shows the trace's numbers in every output, or raises."""

import io
import json
import re
from collections.abc import Callable
from functools import cache
from html import escape, unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from models.support import mask_bert
from qkv.models import Model, load, random_model
from qkv.models.vision import patch_names
from qkv.see import View, compare, head_view, image_view, play, plot_shift, replay, show, walk
from qkv.see.draw import png as png_file
from qkv.trace import Seq2SeqTrace, Trace

from ..page.reading import payload_in

pytestmark = pytest.mark.attack

CAT, DOG = "the cat sat", "cats sat down"
IMAGE = np.random.default_rng(0).integers(0, 256, (4, 8, 3), np.uint8)
CHANGED = {"ablate": {"ablate": [(0, 0)]}, "hide": {"hide": ["sat"]}}
KINDS = [
    "text", "trace", "top_k", "top_k and vectors", "pattern", "pattern and last vectors", "arrays",
    "encoder-decoder", "its decoder", "image", *CHANGED, "infinite", "huge",
]  # fmt: skip


# The inputs


class Given(NamedTuple):
    """Two inputs of one kind, and the complete traces with which their views are compared."""

    a: Any
    b: Any
    trace_a: Trace
    trace_b: Trace

    def named(self, *, both: bool = False) -> dict[str, Any]:
        """Return the keyword argument `tokens` for an array, and no argument for other inputs.

        A view of an array needs this argument, because an array contains no tokens.
        """
        if not isinstance(self.a, np.ndarray):
            return {}
        a, b = self.trace_a.tokens, self.trace_b.tokens
        return {"tokens": (a, b) if both else a}


def of_texts(model: Model, **options: Any) -> Given:
    parts = [model.trace(text, **options) for text in (CAT, DOG)]
    return Given(*parts, *(model.trace(text) for text in (CAT, DOG)))


def changed(trace: Trace, change: Callable[[str, np.ndarray], None]) -> Trace:
    arrays = {name: trace[name].copy() for name in trace.names()}
    for name, array in arrays.items():
        change(name, array)
    return Trace(arrays, tokens=[trace.tokens], special=[trace.special])


def infinite(name: str, array: np.ndarray) -> None:
    if name.endswith("pattern"):
        array[0, 0, 1] = np.nan
    elif name.endswith("attn_scores"):
        array[0, 0, 1, 1] = np.inf
    else:
        array[0, 1] = np.inf


def huge(name: str, array: np.ndarray) -> None:
    if name.endswith("attn_scores"):
        array[:] = -1e30
    elif not name.endswith("pattern"):
        array *= np.float32(1e19)


def doubled(given: Any) -> Any:
    """Copy a trace and double its vectors after each layer; return other inputs unchanged."""

    def change(name: str, array: np.ndarray) -> None:
        array *= 2 if name.endswith("resid_post") else 1

    return changed(given, change) if isinstance(given, Trace) else given


def of_an_image(trace: Trace) -> Trace:
    arrays = {name: trace[name] for name in trace.names()}
    return Trace(arrays, tokens=[patch_names(1, 2)], special=[[True, False, False]])


@pytest.fixture(scope="module")
def given() -> dict[str, Given]:
    model, decoder = random_model([CAT, DOG]), random_model([CAT, DOG], causal=True)
    whole, causal = of_texts(model), of_texts(decoder)
    weights = [np.array([layer[0] for layer in trace.attentions]) for trace in whole[:2]]
    cross = np.random.default_rng(0).dirichlet(np.ones(3), size=(1, 2, 3))
    pairs = [
        Seq2SeqTrace(read, written, {"blocks.0.cross_attn.hook_pattern": cross})
        for read, written in zip(whole[:2], causal[:2], strict=True)
    ]
    images = [of_an_image(trace) for trace in whole[:2]]
    kinds = {
        "text": whole._replace(a=CAT, b=DOG),
        "trace": whole,
        "top_k": of_texts(model, top_k=2),
        "top_k and vectors": of_texts(model, top_k=2, names=["embed", "resid_post"]),
        "pattern": of_texts(model, names=["pattern"]),
        "pattern and last vectors": of_texts(model, names=["pattern", "resid_post"]),
        "arrays": whole._replace(a=weights[0], b=weights[1]),
        "encoder-decoder": Given(*pairs, *whole[:2]),
        "its decoder": causal,
        "image": Given(*images, *images),
        "infinite": Given(*(changed(trace, infinite) for trace in whole)),
        "huge": Given(*(changed(trace, huge) for trace in whole)),
    }
    for name, how in CHANGED.items():
        parts = [model.trace(text, **how) for text in (CAT, DOG)]
        kinds[name] = Given(*parts, *parts)
    assert set(kinds) == set(KINDS)
    return kinds


# Each check compares the numbers of a view with those of a trace, and then returns a text. All
# outputs of the view, except PNG and numbers, must contain this text.


def close(found: Any, expected: Any) -> None:
    """Compare numbers of a view with numbers of a trace; None counts as NaN."""
    np.testing.assert_allclose(np.array(found, dtype=float), expected, rtol=1e-6, atol=1e-7)


def of_weights(view: View, kind: str, given: Given) -> str:
    found, trace = view.to_dict(), given.trace_a
    pattern = trace.pattern(found["layer"], found["head"])
    if kind.startswith("top_k"):
        assert found["weights"] is None
    else:
        close(found["weights"], pattern)
    link = re.search(r"(\S+) (?:attends to|→) (\S+)[:,] (\d\.\d\d) ", found["sentence"])
    assert link
    query, key = (trace.tokens.index(token) for token in link.groups()[:2])
    assert link[3] == f"{pattern[query, key]:.2f}"
    return link[0]


def word_of(kind: str) -> str:
    return "0,1" if kind == "image" else "sat"


def of_compare(view: View, kind: str, given: Given) -> str:
    found = view.to_dict()
    sides = [given.trace_a, given.trace_b]
    positions = [trace.tokens.index(word_of(kind)) for trace in sides]
    rows = [
        trace.pattern(found["layer"], found["head"])[position]
        for trace, position in zip(sides, positions, strict=True)
    ]
    for text, position, row in zip(found["texts"], positions, rows, strict=True):
        assert text["positions"] == [position]
        kept = np.array(text["weights"], dtype=float) > 0  # the weights that top_k kept
        close(np.array(text["weights"])[kept], row[kept])
        assert kept.sum() >= min(2, (row > 0).sum())
    vectors = kind not in {
        "arrays",
        "pattern",
        "pattern and last vectors",
        "top_k",
        "top_k and vectors",
    }
    assert len(found["similarity"]) == 2 * vectors
    if not vectors:
        most = re.search(r"sat attends to (\w+) in A \((\d\.\d\d)\)", found["sentence"])
        if most is None:  # an image has patches instead of words
            return found["sentence"]
        assert most[2] == f"{rows[0][sides[0].tokens.index(most[1])]:.2f}"
        return most[0]
    if kind == "infinite":
        return "nan after the last layer"
    a, b = (
        trace.hidden_states[-1][0, position].astype(float)
        for trace, position in zip(sides, positions, strict=True)
    )
    return f"{a @ b / np.linalg.norm(a) / np.linalg.norm(b):.3f} after the last layer"


def of_runs(view: View, kind: str, given: Given) -> str:
    found = view.to_dict()
    # For two strings, `compare` shows one word of both texts instead of two runs. Here the texts
    # are equal, so the similarity of the word is 1 at each layer.
    if kind == "text":
        close(found["similarity"], 1.0)
        return "1.000 after the last layer"
    lengths = np.linalg.norm(given.trace_a["resid_post", 0][0].astype(float), axis=-1)
    changes = sorted(found["changes"], key=lambda change: change["place"])
    expected = np.where(np.isfinite(lengths), lengths, np.nan)  # an infinite vector has no distance
    close([change["distance"] for change in changes], expected)
    if kind == "infinite":
        return "changes most"
    close([change["cosine"] for change in changes], 1.0)
    return f"changes most: by {lengths.max():.2f}"


def of_walk(view: View, kind: str, given: Given) -> str:
    found = view.to_dict()
    (weights,) = (step["values"] for step in found["steps"] if step["name"] == "weights")
    if kind not in ("infinite", "huge"):  # the vectors and the weights are from different traces
        close(weights, given.trace_a.pattern(found["layer"], found["head"]))
    return f" is {view.difference:.1e}."  # type: ignore[attr-defined]


def of_shift(view: View, kind: str, given: Given) -> str:
    trace, found = given.trace_a, view.to_dict()
    words = [i for i, special in enumerate(trace.special) if not special]
    before, after = (x[0, words].astype(float) for x in (trace["embed"], trace.hidden_states[-1]))
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosine = (before * after).sum(axis=1) / lengths
    close(found["stages"][-1]["cosine"][: len(words)], cosine)
    return f"{min(found['stages'][-1]['cosine']):.3f}"


def of_image(view: View, kind: str, given: Given) -> str:
    found = view.to_dict()
    pattern = given.trace_a["pattern", found["layer"]][0, :, 0]
    close(np.reshape(found["weights"], (len(pattern), -1)), pattern[:, 1:])
    return f"(red frame), with a weight of {pattern[found['head'], 1:].max():.2f}, in layer "


def of_replay(view: View, kind: str, given: Given) -> str:
    found = view.to_dict()
    pattern = given.trace_a.pattern(found["layer"], found["head"])
    close(found["weights"], [pattern, pattern])
    before = np.diagonal(pattern, -1).mean(dtype=float)
    assert found["scores"]["previous"][0][0][found["head"]] == pytest.approx(before)
    return "stays at"


@cache
def bert() -> Model:
    """Load a small BERT with a language-model head, which a page can run."""
    with TemporaryDirectory() as folder:
        mask_bert(Path(folder, "small"))
        model = load(Path(folder, "small"), dtype=np.float64)
    return model


def of_play(view: View, kind: str, given: Given) -> str:
    found = view.to_dict()
    assert found["tokens"] == ["[CLS]", *CAT.split(), "[SEP]"]
    trace = bert().trace(CAT, logits=True)
    logits = trace["logits"][0, 3].astype(float)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    close(max(share for _, share in found["before"]), probabilities.max())
    digits = 1 if probabilities.max() < 0.0995 else 0
    return f"Most likely at sat: {found['before'][0][0]}, {100 * probabilities.max():.{digits}f}%"


VIEWS: dict[str, tuple[Callable[[Given, str], View], Callable[[View, str, Given], str]]] = {
    "show": (lambda g, kind: show(g.a, **g.named()), of_weights),
    "head_view": (lambda g, kind: head_view(g.a, **g.named()), of_weights),
    "compare": (
        lambda g, kind: compare(g.a, g.b, word=word_of(kind), **g.named(both=True)),
        of_compare,
    ),
    "compare runs": (
        lambda g, kind: compare(
            g.a, doubled(g.a), tokens=[g.trace_a.tokens] * 2 if g.named() else None
        ),
        of_runs,
    ),
    "walk": (lambda g, kind: walk(g.a, **g.named()), of_walk),
    "plot_shift": (lambda g, kind: plot_shift(g.a), of_shift),
    "plot_shift of two": (lambda g, kind: plot_shift([g.a, g.b]), of_shift),
    "image_view": (lambda g, kind: image_view(g.a, IMAGE), of_image),
    "play": (lambda g, kind: play(g.a, model=bert(), embed=True), of_play),
    "replay": (lambda g, kind: replay(g.a if kind == "text" else {0: g.a, 1: g.a}), of_replay),
}


# Rejected inputs, and the remedies that the errors name


def refusals() -> dict[tuple[str, str], str]:
    summaries, weights = ("top_k", "top_k and vectors"), ("pattern", "pattern and last vectors")
    found = {(view, "encoder-decoder"): "pass trace.encoder or trace.decoder" for view in VIEWS}
    del found["head_view", "encoder-decoder"]
    for kind in KINDS:
        if kind not in ("image", "encoder-decoder"):
            found["image_view", kind] = "pass model.trace("
    for kind in ("top_k", "pattern", "arrays"):
        found["compare runs", kind] = (
            "trace resid_post or normalized_resid_post in both runs. To compare the attention of"
        )
    for kind in summaries:
        found["walk", kind] = "call walk(text, model=...), or qkv.show(trace) for the kept weights"
        found["replay", kind] = 'trace hook_pattern with model.trace(text, names=["pattern"])'
    for kind in weights:
        found["walk", kind] = "or call walk(text, model=...); qkv.show(trace) shows the weights"
    found["walk", "arrays"] = "qkv.show(weights, tokens=...) shows weights"
    for view in ("plot_shift", "plot_shift of two"):
        for kind in ("top_k", *weights):
            found[view, kind] = (
                "pass model.trace(text), or show this trace's weights with qkv.show(trace)"
            )
        found[view, "arrays"] = "if you have only weights, call qkv.show(weights, tokens=...)"
        found[view, "infinite"] = "has NaN, infinity or a number beyond 1e150"
    for kind in KINDS[1:]:
        found["play", kind] = "not a string"
    found["replay", "text"] = "the folder the cat sat"
    found["replay", "arrays"] = "step 0 has type ndarray; pass a model or a trace"
    found["replay", "infinite"] = "no snapshot has finite weights"
    found["replay", "encoder-decoder"] = "(for an encoder-decoder, trace.encoder or trace.decoder)"
    return found


REFUSED = refusals()


# The text of each output


def terminal(view: View, path: Path) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, _environ={})
    view.print(console)
    assert console.file.getvalue().strip()  # type: ignore[attr-defined]
    return " ".join(str(view).split())


def numbers(view: View, path: Path) -> str:
    return json.dumps(view.to_dict(), allow_nan=False)


def page(view: View, path: Path) -> str:
    view.to_html(path)
    html = path.read_text(encoding="utf-8")
    in_a_notebook = view._repr_html_()
    assert in_a_notebook in html or in_a_notebook.startswith(f'<iframe srcdoc="{escape(html)}"')
    return html


def notebook(view: View, path: Path) -> str:
    html = view._repr_html_()
    if html.startswith("<iframe"):
        return unescape(html)
    if "data-qkv" in html:
        assert payload_in(html)["version"] == 1
    return html


def svg(view: View, path: Path) -> str:
    view.to_svg(path)
    assert not re.search(r'="-?(nan|inf)"', path.read_text(encoding="utf-8"))
    return " ".join(" ".join(ElementTree.parse(path).getroot().itertext()).split())


def png(view: View, path: Path) -> str:
    view.to_png(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    return ""


OUTPUTS = {write.__name__: write for write in (terminal, numbers, page, notebook, svg, png)}


@pytest.fixture(scope="module")
def made(given: dict[str, Given]) -> Callable[[str, str], tuple[View, str]]:
    """Make the view of a kind of input once; return the view and its expected contents."""
    found: dict[tuple[str, str], tuple[View, str]] = {}

    def make(view: str, kind: str) -> tuple[View, str]:
        if (view, kind) not in found:
            call, check = VIEWS[view]
            one = call(given[kind], kind)
            found[view, kind] = one, check(one, kind, given[kind])
        return found[view, kind]

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_each_cell_is_right_or_refused(
    output: str,
    view: str,
    kind: str,
    made: Callable[[str, str], tuple[View, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QKV_MODEL", "random")
    if output == "png" and kind not in ("trace", "infinite"):  # resvg draws only these
        monkeypatch.setattr(png_file, "render", lambda *_: b"\x89PNG")
    way_out = REFUSED.get((view, kind))
    if way_out is not None:
        said = re.compile(rf"^{view.split()[0]}: .*{re.escape(way_out)}")
        with pytest.raises((TypeError, ValueError, FileNotFoundError), match=said):
            made(view, kind)
        return
    one, expected = made(view, kind)
    text = OUTPUTS[output](one, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] in ([], ["file"])
    assert output in ("png", "numbers") or expected in text
