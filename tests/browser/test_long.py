"""Tests of texts of thousands of tokens: the data that the page holds, and its drawing."""

import numpy as np
import pytest

from qkv.see.analysis.head_weights import Axis, Heads, Summary

from .support import Visit, keys, page_of, press, read, readout, sentence, tight, token

SIZE, HEADS, TOP = 8192, 12, 8


@pytest.fixture(scope="module")
def text() -> Heads:
    """A text whose queries each give 0.9 of their weight to 8 keys.

    The keys are a sink, the previous token, the query's own token and 5 random tokens.
    """
    random = np.random.default_rng(0)
    positions = np.arange(SIZE)
    indices = np.argsort(random.random((HEADS, SIZE, 64)), axis=-1)[..., :TOP] * 128 + 5
    indices[..., 0] = 0
    indices[..., 1] = np.maximum(positions - 1, 1)
    indices[..., 2] = np.maximum(positions, 2)
    weights = random.random((HEADS, SIZE, TOP))
    weights = -np.sort(-weights, axis=-1)
    weights *= 0.9 / weights.sum(-1, keepdims=True)
    received = np.zeros((HEADS, SIZE))
    for head in range(HEADS):
        np.add.at(received[head], indices[head].ravel(), weights[head].ravel())
    return Heads(
        Axis([f"w{i}" for i in range(SIZE)], [False] * SIZE),
        [0],
        summary=[Summary(indices, weights.astype(np.float32), received)],
    )


@pytest.fixture(scope="module")
def whole(text: Heads) -> str:
    return page_of(text, query=4000)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_long_text_is_small(visit: Visit, whole: str, width: int) -> None:
    assert len(whole.encode()) < 5e6
    page = visit(whole, width=width)
    assert sentence(page).startswith("w4000 attends to ")
    nodes = "document.querySelector('.qkv-view').shadowRoot.querySelectorAll('*').length"
    assert page.evaluate(nodes) < 400
    assert tight(page)


def test_it_holds_the_largest_weights_and_says_so(visit: Visit, whole: str, text: Heads) -> None:
    page = visit(whole)
    said = "For each query, this page has the 8 largest of 8,192 weights"
    assert said in page.locator(".view").inner_text()
    (summary,) = text.summary
    pairs = zip(summary.indices[0, 4000].tolist(), summary.weights[0, 4000], strict=True)
    expected = dict(sorted(pairs))
    names, values = zip(*keys(page), strict=True)
    assert names == (*(f"w{j}" for j in expected), "8,184 other keys")
    np.testing.assert_allclose([*map(read, values)], [*expected.values(), 0.1], atol=0.00501)
    best = max(expected, key=lambda j: expected[j])
    assert readout(page)["weight"] == f"{expected[best]:.4f}"
    assert readout(page)["positions"] == f"4,000 → {best:,}"


def test_keys_go_from_weight_to_weight_and_far_rows_come_into_view(
    visit: Visit, whole: str, text: Heads
) -> None:
    page = visit(whole)
    (summary,) = text.summary
    page.get_by_role("application").focus()
    press(page, "ArrowDown", "Home")
    for j in sorted(summary.indices[0, 4000].tolist()):
        assert readout(page)["positions"] == f"4,000 → {j:,}"
        press(page, "ArrowRight")
    press(page, "Control+End")
    assert readout(page)["positions"].startswith("8,191 → ")
    assert sentence(page).startswith("w8191 attends to ")
    assert token(page, 8191).is_visible()
    page.get_by_role("button", name="Show cells").click()
    page.get_by_role("button", name="Show the whole").click()


def test_the_token_list_reaches_all_tokens(visit: Visit, whole: str) -> None:
    page = visit(whole)
    token(page, 4000).focus()
    press(page, "End")
    assert sentence(page).startswith("w8191 attends to ")
    press(page, "PageUp", "ArrowUp", "Enter")
    assert sentence(page).startswith("w8180 attends to ")
    assert page.locator(".token").count() < 60


def test_the_note_names_the_key_that_received_most(visit: Visit, whole: str, text: Heads) -> None:
    page = visit(whole)
    received = text.summary[0].received[0]
    best = int(received.argmax())
    note = page.locator(".strip + .note").inner_text()
    assert note.startswith(f"w{best} (position {best:,}) received ")
    assert read(note.split("received ")[1].split(",")[0]) == pytest.approx(received[best], rel=1e-3)
