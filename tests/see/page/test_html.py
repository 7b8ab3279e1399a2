"""Pages: what they hold is what the trace holds, and what comes from outside stays text."""

import base64
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.models import Model, random_model
from qkv.see import View, compare, head_view, plot_shift, replay, show, walk
from qkv.see.analysis.heads import heads_from, heads_of
from qkv.see.analysis.measures import measures_of
from qkv.see.page import html, packing, payload
from qkv.trace import Trace

from ..analysis.test_measures import unpack
from ..support import BANK, CAT, MONEY, made_trace

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """The tags, attributes, scripts and words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data: str) -> None:
        (self.scripts if self.tags and self.tags[-1] == "script" else self.words).append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.tags.append("/script")

    def attribute(self, tag: str, name: str) -> list[str | None]:
        return [value for where, key, value in self.attributes if (where, key) == (tag, name)]


def payload_in(text: str) -> dict[str, Any]:
    """What a page hands to its script."""
    (script,) = Page(text).scripts
    mark, _ = json.JSONDecoder().raw_decode(script, script.rindex('start("') + 6)
    start = script.rindex(f'start("{mark}", ') + len(f'start("{mark}", ')
    data, _ = json.JSONDecoder().raw_decode(script, start)
    return data


def written(view: View, folder: Path) -> str:
    view.to_html(folder / "view.html")
    return (folder / "view.html").read_text(encoding="utf-8")


def hostile_views() -> dict[str, Callable[[], View | None]]:
    """A view of each kind, in which the tokens are hostile."""
    words = ["a", HOSTILE, "b", HOSTILE]
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(4), size=(1, 2, 4))

    def trace(seed: int = 0) -> Trace:
        found = random_model("a b c d").trace("a b c d")
        arrays = {name: found[name] * (1 + seed * ("resid_post" in name)) for name in found.names()}
        return Trace(arrays, tokens=[words], model=HOSTILE, changed={"hide": [HOSTILE] * seed})

    return {
        "show": lambda: show(trace()),
        "arrays": lambda: show(weights, tokens=words),
        "word": lambda: compare(trace(), trace(1), word=HOSTILE),
        "runs": lambda: compare(trace(), trace(1)),
        "walk": lambda: walk(trace()),
        "shift": lambda: plot_shift([trace(), trace()]),
        "heads": lambda: head_view(weights, words, html_action="return"),
        "cross": lambda: head_view(
            cross_attention=[weights[0, :, :2]], decoder_tokens=words[:2], encoder_tokens=words,
            html_action="return",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("kind", hostile_views())
def test_hostile_words_stay_words(kind: str, tmp_path: Path) -> None:
    view = hostile_views()[kind]()
    text = written(view, tmp_path)
    found = Page(text)
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert text.count("</script") == 1
    assert "<img" not in text
    assert HOSTILE in json.dumps(payload_in(text), ensure_ascii=False)
    assert HOSTILE in "".join(found.words)
    assert Page(view._repr_html_()).tags.count("script") == 1
    view.to_svg(tmp_path / "view.svg")
    assert "<img" not in (tmp_path / "view.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", hostile_views())
def test_a_page_asks_no_network_and_forbids_it(kind: str, tmp_path: Path) -> None:
    text = written(hostile_views()[kind](), tmp_path)
    found = Page(text)
    policies = found.attribute("meta", "content")
    assert policies[0] == (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert found.attribute("meta", "http-equiv") == ["Content-Security-Policy"]
    assert found.attribute("link", "href") == ["data:,"]  # or a browser asks for /favicon.ico
    assert not [value for _, name, value in found.attributes if name in ("src", "srcset", "action")]
    (script,) = found.scripts
    code = script[: script.rindex("start(")]
    for needed in ("fetch(", "XMLHttpRequest", "WebSocket", "import(", "require(", "@import"):
        assert needed not in code
    assert not re.findall(r"url\((?!data:)", text)
    addresses = set(re.findall(r"https?://[^\"'<> )]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_a_page_is_complete(tmp_path: Path) -> None:
    view = show(CAT, model="random", theme="dark")
    found = Page(written(view, tmp_path))
    assert found.attribute("html", "lang") == ["en"]
    assert "width=device-width, initial-scale=1" in found.attribute("meta", "content")
    assert "dark" in found.attribute("meta", "content")
    assert {"title", "main", "h1", "svg"} <= set(found.tags)
    assert CAT in found.words
    assert "tokens: the cat sat on the mat" in found.words
    assert (tmp_path / "view.html").read_bytes().startswith(b"<!doctype html>")


def test_a_title_quotes_the_text(tmp_path: Path) -> None:
    model, text = random_model(["It's a cat, isn't it?", CAT]), "It's a  cat, isn't it?"
    trace = model.trace(text)
    trace.save(tmp_path / "trace")
    views = [
        show(text, model=model), show(Trace.load(tmp_path / "trace")), walk(text, model=model),
        compare(trace, model.trace(text, hide=["cat"])), plot_shift(trace), replay({0: trace}),
        head_view(model.trace([CAT, text])[1]),
    ]  # fmt: skip
    for view in views:
        assert payload_in(view._repr_html_())["title"] == "It's a cat, isn't it?"
    weights = np.full((1, 1, 3, 3), 1 / 3)
    spelled = show(weights, tokens=["[CLS]", "walk", "##ing"])
    assert payload_in(spelled._repr_html_())["title"] == "walking"


def test_one_view_is_one_text_and_two_are_two() -> None:
    first = show(CAT, model="random")._repr_html_()
    assert show(CAT, model="random")._repr_html_() == first
    (mark,) = Page(first).attribute("div", "data-qkv")
    other = show(CAT, model="random", head=0, layer=0, theme="light")._repr_html_()
    assert Page(other).attribute("div", "data-qkv") != [mark]
    assert f'start("{mark}", ' in first
    assert Page(first).attribute("div", "id") == []


def test_weights_and_scores_are_those_of_the_trace(minilm: Model) -> None:
    trace = minilm.trace(BANK)
    text = payload_in(show(trace, model=minilm)._repr_html_())["texts"][0]
    assert text["tokens"] == trace.tokens
    assert (text["layers"], text["heads"], text["length"]) == ([0, 1, 2, 3, 4, 5], 12, 11)
    exact = np.array([trace["pattern", layer][0] for layer in range(6)])
    np.testing.assert_array_equal(unpack(text["weights"]), exact)
    scores = text["scores"]
    assert scores["layers"] == text["layers"]
    exact = np.array([trace["attn_scores", layer][0] for layer in range(6)])
    np.testing.assert_array_equal(unpack(scores), exact)
    assert text["scale"] == [pytest.approx(1 / np.sqrt(32))] * 6
    norms = np.array(heads_of(trace, parameters=minilm.parameters).norms)
    np.testing.assert_array_equal(unpack(text["norms"]), norms.astype(np.float32))
    assert text["hidden"] is text["summary"] is text["words"] is None
    assert text["special"] == [1, *[0] * 9, 1]
    assert text["measures"]["entropy"] == measures_of(heads_of(trace))["entropy"].tolist()


def test_the_page_begins_where_the_terminal_does(minilm: Model) -> None:
    view = show(BANK, model=minilm, layer=0, head=4)
    data = payload_in(view._repr_html_())
    assert data["kind"] == "show"
    assert data["start"] == {
        "text": 0, "layer": 0, "head": 4, "query": 5, "chosen": "it was asked for",
        "sentence": "bank looks at river: 0.71 (layer 0, head 4).", "heads": None,
        "merge": False,
    }  # fmt: skip


def test_a_head_without_links_begins_at_its_largest_weight() -> None:
    weights = np.array([[[[1.0, 0.0], [0.3, 0.7]]]])
    view = show(made_trace([".", "!"], weights))
    assert payload_in(view._repr_html_())["start"]["query"] == 0


def test_what_a_mask_hides_is_marked() -> None:
    text = payload_in(show(random_model(CAT, causal=True).trace(CAT))._repr_html_())["texts"][0]
    hidden = text["hidden"]
    assert hidden["shape"] == [1, 1, 6, 6]  # the same in all layers and heads
    bits = np.unpackbits(np.frombuffer(base64.b64decode(hidden["b64"]), np.uint8))[:36]
    np.testing.assert_array_equal(bits.reshape(6, 6), ~np.tri(6, dtype=bool))
    np.testing.assert_array_equal(unpack(text["scores"])[0, 1] == -np.inf, ~np.tri(6, dtype=bool))


def test_bits_hold_for_all_heads_only_where_they_do() -> None:
    flags = np.zeros((2, 3, 2, 2), dtype=bool)
    assert packing.pack_flags(flags) is None
    flags[1, 2, 0, 1] = True
    assert packing.pack_flags(flags)["shape"] == [2, 3, 2, 2]
    flags[1, :, 0, 1] = True
    assert packing.pack_flags(flags)["shape"] == [2, 1, 2, 2]
    flags[0] = flags[1]
    assert packing.pack_flags(flags)["shape"] == [1, 1, 2, 2]


def test_a_head_that_was_left_out_is_hidden_whole(minilm: Model) -> None:
    view = compare(minilm.trace(CAT), minilm.trace(CAT, ablate=[(1, 2)]))
    texts = payload_in(view._repr_html_())["texts"]
    assert texts[0]["hidden"] is None
    hidden = texts[1]["hidden"]
    bits = np.unpackbits(np.frombuffer(base64.b64decode(hidden["b64"]), np.uint8))
    bits = bits[: int(np.prod(hidden["shape"]))].reshape(hidden["shape"])
    assert bits.shape == (6, 12, 8, 8)
    assert bits[1, 2].all()
    assert bits.sum() == 64


def test_weights_that_are_no_numbers_stay_so() -> None:
    weights = np.array([[[[0.5, 0.5], [np.nan, 1.0]]]])
    view = show(made_trace(["a", "b"], weights))
    text = payload_in(view._repr_html_())["texts"][0]
    np.testing.assert_array_equal(unpack(text["weights"]), weights)


def test_pieces_are_merged_where_there_are_some(minilm: Model) -> None:
    text = payload_in(show("Tokenization helps", model=minilm)._repr_html_())["texts"][0]
    assert text["words"] == [
        [0, 1, "[CLS]"],
        [1, 3, "tokenization"],
        [3, 4, "helps"],
        [4, 5, "[SEP]"],
    ]


def test_compare_says_where_the_word_is(minilm: Model) -> None:
    view = compare(BANK, MONEY, word="bank", model=minilm)
    data = payload_in(view._repr_html_())
    word = data["compare"]
    assert (data["kind"], word["what"], word["word"]) == ("compare", "word", "bank")
    assert [text["name"] for text in data["texts"]] == ["A", "B"]
    assert word["places"] == [[5], [2]]
    np.testing.assert_allclose(word["similarity"], view.similarity, atol=5e-5)
    river = {
        "key": 8,
        "name": "river",
        "layer": 0,
        "head": 4,
        "weight": pytest.approx(0.7087, abs=1e-4),
    }
    assert river in word["strongest"][0]
    assert data["texts"][0]["norms"] is not None
    assert (data["start"]["layer"], data["start"]["head"]) == (0, 4)


def test_runs_say_what_changed(minilm: Model) -> None:
    a, b = minilm.trace(BANK), minilm.trace(BANK, hide=["river"])
    view = compare(a, b)
    data = payload_in(view._repr_html_())
    runs = data["compare"]
    assert [text["name"] for text in data["texts"]] == ["as it is", "river hidden"]
    last = [trace.hidden_states[-1][0].astype(float) for trace in (a, b)]
    distances = np.sqrt(((last[1] - last[0]) ** 2).sum(axis=1))
    order = [token for token, *_ in runs["changes"]]
    assert order == np.argsort(-distances).tolist()
    np.testing.assert_allclose([row[1] for row in runs["changes"]], distances[order], atol=5e-5)
    assert data["start"]["query"] == order[0]
    assert len(runs["by_layer"]) == 7
    assert runs["by_layer"][0] == 0


# Long texts


def long_trace(size: int, heads: int = 2, top_k: int = 8) -> Trace:
    rng = np.random.default_rng(0)
    weights = -np.sort(-rng.dirichlet(np.ones(top_k + 1), size=(1, heads, size))[..., :top_k])
    arrays = {
        "blocks.0.attn.top_indices": rng.integers(0, size, size=(1, heads, size, top_k)),
        "blocks.0.attn.top_weights": weights.astype(np.float32),
        "blocks.0.attn.received": rng.random((1, heads, size)).astype(np.float32) * 2,
    }
    return Trace(arrays, tokens=[[f"word{i % 997}" for i in range(size)]])


def test_from_512_tokens_a_page_holds_the_largest_weights() -> None:
    rng = np.random.default_rng(0)
    for size, long in ((511, False), (512, True)):
        weights = rng.dirichlet(np.ones(size), size=(1, 1, size)).astype(np.float32)
        text = payload.text_payload(heads_from(weights, ["w"] * size, call="show"), 0)
        assert (text["weights"] is None) is long
        assert (text["summary"] is not None) is long
        assert bool(text["left_out"]) is long
    kept = text["summary"]
    order = np.argsort(-weights[0, 0], axis=-1, kind="stable")[:, :8]
    np.testing.assert_array_equal(unpack(kept["indices"])[0, 0], order)
    expected = np.take_along_axis(weights[0, 0], order, axis=-1)
    found = unpack(kept["weights"])[0, 0] / kept["weights"]["per"]
    assert [f"{x:.3f}" for x in found.ravel()] == [f"{x:.3f}" for x in expected.ravel()]
    received = unpack(kept["received"])[0, 0]
    np.testing.assert_allclose(received, weights[0, 0].sum(axis=0, dtype=float), rtol=1e-7)
    share = expected.sum(dtype=float) / size
    assert kept["kept"] == pytest.approx(share, abs=1e-6)
    (said,) = text["left_out"]
    assert said.startswith("A text of 512 tokens: of each query's 512 weights the 8 largest are")
    assert f"({share:.1%} of all weight)" in said
    entropy = -(weights[0, 0] * np.log2(weights[0, 0])).sum(axis=-1).mean()
    assert text["measures"]["entropy"] == [[pytest.approx(entropy, rel=1e-5)]]  # of all weights


def test_so_it_does_where_there_are_too_many_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MOST_CELLS", 71)
    text = payload.text_payload(heads_of(random_model(CAT).trace(CAT)), 0)  # 2 heads of 6 x 6
    assert text["weights"] is None
    assert text["scores"] is None
    assert text["summary"]["top_k"] == 6
    monkeypatch.setattr(payload, "MOST_CELLS", 72)
    assert payload.text_payload(heads_of(random_model(CAT).trace(CAT)), 0)["summary"] is None


def test_scores_of_one_layer_are_held_where_those_of_all_are_too_many(
    minilm: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "MOST_SCORES", 6 * 12 * 8 * 8 - 1)
    trace = minilm.trace(CAT)
    text = payload_in(show(trace, layer=4, head=1)._repr_html_())["texts"][0]
    assert text["scores"]["layers"] == [4]
    assert text["scores"]["shape"] == [1, 12, 8, 8]
    assert text["left_out"] == ["Scores are here for layer 4 only; weights for all layers."]
    monkeypatch.setattr(payload, "MOST_SCORES", 6 * 12 * 8 * 8)
    text = payload_in(show(trace, layer=4, head=1)._repr_html_())["texts"][0]
    assert text["scores"]["shape"] == [6, 12, 8, 8]


def test_a_page_of_8192_tokens_is_smaller_than_5_mb(tmp_path: Path) -> None:
    text = written(show(long_trace(8192, heads=12)), tmp_path)
    assert (tmp_path / "view.html").stat().st_size < 5_000_000
    data = payload_in(text)["texts"][0]
    assert data["summary"]["indices"]["shape"] == [1, 12, 8192, 8]
    assert data["measures"]["entropy"] is None
    assert data["measures"]["first"] is not None


def test_of_many_layers_fewer_weights_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MOST_KEPT", 2 * 600 * 5)
    text = payload.text_payload(heads_of(long_trace(600)), 0)
    assert text["summary"]["top_k"] == 5
    assert text["summary"]["weights"]["shape"] == [1, 2, 600, 5]
    monkeypatch.setattr(payload, "MOST_KEPT", 1)
    assert payload.text_payload(heads_of(long_trace(600)), 0)["summary"]["top_k"] == 4


def test_places_beyond_16_bits_are_held() -> None:
    text = payload.text_payload(heads_of(long_trace(65536, heads=1, top_k=2)), 0)
    assert text["summary"]["indices"]["bits"] == 32


# What comes from outside


@pytest.mark.parametrize(
    "token", ["\ud800", "a\x00b", "\u2028", "\u202eabc", "&amp;", "<!--", "]]>", "\\u003c", "'\""]
)
def test_any_token_can_be_written_and_read_back(token: str, tmp_path: Path) -> None:
    text = written(show(np.full((1, 1, 2, 2), 0.5), tokens=[token, "b"]), tmp_path)
    assert payload_in(text)["texts"][0]["tokens"] == [token, "b"]
    (script,) = Page(text).scripts
    data = script[script.rindex("start(") :]
    assert not set(data) & set("<>&\u2028\u2029\ud800")


def test_an_unknown_theme_is_refused() -> None:
    for call in (show, walk, lambda text, **o: compare(text, text, word="cat", **o)):
        with pytest.raises(ValueError, match="theme is 'blue': choose auto, light, dark"):
            call(CAT, model="random", theme="blue")
    with pytest.raises(ValueError, match="plot_shift: theme"):
        plot_shift(random_model(CAT).trace(CAT), theme="blue")
    with pytest.raises(ValueError, match="head_view: theme"):
        head_view(np.ones((1, 1, 1, 1)), ["a"], theme="blue")


# The scripts themselves


@pytest.mark.parametrize("kind", ["show", "compare", "walk", "shift"])
def test_the_script_of_a_page_is_smaller_than_60_kb(kind: str) -> None:
    (script,) = Page(html.fragment(payload.payload_of(kind, "", []), "")).scripts
    code = script[: script.rindex('start("')]
    assert 10_000 < len(code.encode()) < 60_000


@pytest.mark.parametrize(
    "name", [file.name for file in files("qkv.see").joinpath("page", "assets").iterdir()]
)
def test_an_asset_can_stand_in_a_page(name: str) -> None:
    text = html.asset(name)
    assert text
    assert "</script" not in text.lower()
    assert "<!--" not in text
    assert "innerHTML" not in text
    assert "eval(" not in text


def test_an_asset_that_is_not_there_is_empty() -> None:
    assert html.asset("nothing.js") == ""
