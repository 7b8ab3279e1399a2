"""Tests of the JavaScript interface to the recorded texts in a page.

The interface returns the saved numbers of a text. It refuses requests that need a model.
"""

from typing import Any

import numpy as np

from qkv.see.analysis.head_weights import LONG, Heads
from qkv.see.page.html import script_json
from qkv.see.page.payload import payload_of, text_payload

from .bundling import by_node, script_of
from .support import WORDS, made


def asked(code: str, *texts: Heads) -> Any:
    """Return the result of JavaScript code in which `api` is the interface to these texts."""
    data = payload_of("show", "a title", [text_payload(text, 0) for text in texts], model="a model")
    script = f"{script_of('engine/recorded')}\nconst api = page.openRecorded({script_json(data)});"
    return by_node(f"{script}\nconst result = (async () => {{{code}}})();")


def test_run_returns_the_saved_numbers_of_a_text() -> None:
    one, other = made(WORDS, name="A"), made(WORDS[:4], 1, 2, seed=1, name="B")
    found = asked(
        "return Promise.all(['B', 'A'].map(async (name) => {"
        " const { tokens, special, pattern, source } = await api.run(name);"
        " const weights = pattern.map((layer) => layer.map((head) => [...head]));"
        " return [tokens, special, weights, source.text.name]; }))",
        one,
        other,
    )
    for text, (tokens, special, pattern, name) in zip((other, one), found, strict=True):
        assert (tokens, special) == (text.queries.tokens, text.queries.special)
        weights = np.array(text.weights)
        np.testing.assert_array_equal(np.float32(pattern).reshape(weights.shape), weights)
        assert name == text.name


def test_requests_that_need_a_model_are_refused() -> None:
    why = "needs a model, but this page has only saved numbers."
    asking = ["api.run('A', [{ op: 'hide', token: 1 }])", "api.run('a text')", "api.sweep('A', [])"]
    found = asked(
        f"return Promise.all([{', '.join(asking)}].map((asked) => asked.catch(String)))",
        made(WORDS, name="A"),
    )
    first = ["A change", "Another text", "Removing heads"]
    assert found == [f"Error: {what} {why}" for what in first]
    assert asked("return [api.name, api.where]", made(WORDS)) == ["a model", "recorded"]


def test_a_long_text_has_no_pattern() -> None:
    code = "return [api.runs[0].pattern, api.runs[0].tokens.length]"
    assert asked(code, made(["a"] * LONG, 1, 1)) == [None, LONG]
