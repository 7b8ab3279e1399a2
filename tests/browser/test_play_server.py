"""Tests of a page whose model runs on a server: the page gets the library's numbers."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

import qkv
from models import decoders
from models.decoders import gpt2
from models.small_models import CONFIGS, write_small
from models.support import WORDS, mask_bert

from .edited import Edit, run
from .engine import agree, ask, by_the_library
from .play import address, rest
from .playing import open_head, open_tab
from .support import IDLE, press, read, readout
from .test_engine import offsets

TEXT = "the cat sat on the [MASK]"
ROW = [0.5, 0.25, *[0.0] * 5, 0.25]
EDITS: list[Edit] = [
    {"op": "hide", "token": 2},
    {"op": "mask", "query": 5, "key": 1},
    {"op": "causal"},
    {"op": "ablate", "layer": 1, "head": 2},
    {"op": "scale", "value": 0.4},
    {"op": "row", "layer": 1, "head": 0, "query": 4, "weights": ROW},
    {"op": "swap", "token": 2, "with": "dog"},
]
Open = Callable[..., Page]


@contextmanager
def serving(*arguments: str | Path) -> Iterator[str]:
    """Run `qkv serve` with these arguments, and yield its address once it accepts requests."""
    program = [sys.executable, "-c", "from qkv.cli import main; main()", "serve", "--port", "0"]
    with subprocess.Popen(
        [*program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = process.stderr.readline()
            found = re.search(r"at (http://\S+) ", line)
            assert found, line
            yield found[1]
        finally:
            process.kill()


@pytest.fixture
def open_served(chromium: Browser) -> Iterator[Open]:
    """A function that opens a server's page. Errors and requests to other hosts fail the test."""
    complaints, requested = list[str](), list[tuple[str, str]]()
    with ExitStack() as stack:

        def visit(*arguments: str | Path, width: int = 1280) -> Page:
            address = stack.enter_context(serving(*arguments))
            context = chromium.new_context(viewport={"width": width, "height": 900})
            stack.callback(context.close)
            context.add_init_script(IDLE)
            page = context.new_page()
            page.set_default_timeout(60_000)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda asked: requested.append((asked.url, address)))
            page.goto(f'{address}/#view="lab"')
            page.evaluate("qkv.model")
            return page

        yield visit
        assert complaints == []
        assert [url for url, own in requested if not url.startswith((own, "data:"))] == []


def painted(page: Page) -> str:
    """Return the headline, once the first run is painted."""
    page.wait_for_selector("html[data-qkv=ready]", state="attached")
    return page.locator(".outcome-headline").inner_text()


def test_an_encoder_of_twelve_layers(open_served: Open, tmp_path: Path) -> None:
    mask_bert(tmp_path, num_hidden_layers=12)
    model = qkv.load(tmp_path, dtype=np.float64)
    page = open_served("--model", tmp_path)
    assert " guess" in painted(page)
    assert re.search("12 layers.* on the server", page.locator(".badge").inner_text())
    ids = model.tokenize(TEXT).ids.tolist()
    for edits in [[], *([edit] for edit in EDITS), EDITS[:3], EDITS[3:6], EDITS[4:]]:
        found, result = ask(page, TEXT, edits, at=[6, 1], layers=[1])
        expected = run(model, ids, edits)
        agree(result, expected._replace(logits=expected.logits[[6, 1]]), 1e-4, 1e-3)
        assert found["special"] == model.tokenize(TEXT).special
        known = {"q", "k", "v", "attn_scores", "z", "attn_out", "resid_mid", "mlp_out"}
        known |= {"resid_post", "ln1.normalized", "ln2.normalized"}
        assert set(result.inside[0]) == known
    text = "the \N{CAT FACE} sat"
    found, result = ask(page, text)
    assert offsets(text, found) == model.tokenize(text).offsets
    assert len(result.logits) == len(found["tokens"])
    heads = page.evaluate(
        """async ([text, edits]) => {
          const heads = [];
          const heard = ({ layer, head, logits }) => heads.push([layer, head, logits.length]);
          await qkv.sweep(text, edits, heard, { at: [1] });
          return heads;
        }""",
        [TEXT, EDITS[:1]],
    )
    V = len(model.embedding.table)
    assert heads == [[i, j, V] for i in reversed(range(12)) for j in range(3)]
    with pytest.raises(Exception, match=r"trace: edits\[0\] \(hide\) has token 99; pass 0 to 7"):
        ask(page, TEXT, [{"op": "hide", "token": 99}])


def test_a_decoder(open_served: Open, tmp_path: Path) -> None:
    model = gpt2(tmp_path, seed=2)
    page = open_served("--model", tmp_path)
    assert re.match("(Best guess|Not sure) after ", painted(page))
    assert "[MASK]" not in page.locator(".view").inner_text()
    assert page.get_by_text("sees all that the model allows").count() == 1
    text = "the cat"
    ids = model.tokenize(text).ids.tolist()
    row = {**EDITS[5], "weights": [0.2] * len(ids), "query": 3}
    own = [EDITS[0], {**EDITS[1], "query": 4}, *EDITS[2:5], row, {**EDITS[6], "with": "Ġthe"}]
    for edits in [[], *([edit] for edit in own), own[2:5], own[4:]]:
        _, result = ask(page, text, edits, at=[4])
        expected = by_the_library(model, text, edits)
        agree(result, expected._replace(logits=expected.logits[[4]]), 1e-4, 1e-3)


def test_the_steps_of_a_served_decoder_match_the_trace(open_served: Open, tmp_path: Path) -> None:
    model = gpt2(tmp_path, seed=2)
    page = open_served("--model", tmp_path)
    painted(page)
    page.get_by_role("button", name="Look inside").click()
    page.get_by_label("Your sentence").fill("the cat")
    open_tab(page, "Numbers")
    own = page.locator("[data-part=steps]")
    tabs = own.get_by_role("tab")
    ids = model.tokenize("the cat").ids.tolist()
    own.get_by_text(f"(T={len(ids)}, T={len(ids)})").wait_for()
    rest(page)
    layer, _ = open_head(page)  # the head that the rule chose
    names = [text.split()[-1] for text in tabs.all_inner_texts()]
    head = "Q K V scores scaled masked weights context joined"
    assert names == f"X N {head} out R N2 mlp Y".split()
    assert own.locator("[role=tab].changed").count() == 0  # the mask is the model's own
    trace = model.trace(ids)
    traced_as = {"N": "ln1.hook_normalized", "N2": "ln2.hook_normalized", "Y": "hook_resid_post"}
    traced_as |= {"X": "hook_resid_pre", "out": "hook_attn_out", "R": "hook_resid_mid"}
    for name, traced in {**traced_as, "mlp": "hook_mlp_out"}.items():
        tabs.nth(names.index(name)).click()
        own.locator(".steps-view .map").first.focus()
        press(page, "ArrowDown", "Control+Home", "ArrowDown")
        number = float(trace[f"blocks.{layer}.{traced}"][0, 1, 0])
        shown = readout(own)[""].rpartition(" = ")[2]
        assert read(shown) == pytest.approx(number, abs=2e-3), name
    hidden = own.locator(".row-table td:nth-child(4)").all_text_contents()
    position = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('query')")
    last = len(ids) - 1 if position is None else int(position)
    assert hidden == ["open" if key <= last else "hidden" for key in range(len(ids))]


def test_the_layers_of_a_model_without_mlps(open_served: Open, tmp_path: Path) -> None:
    config = {"model_type": "qkv-attention-only", "vocab_size": len(WORDS), "hidden_size": 12}
    write_small(tmp_path, {**config, "num_attention_heads": 3, "num_hidden_layers": 2})
    page = open_served("--model", tmp_path)
    painted(page)
    tabs = page.locator("[data-part=steps]").get_by_role("tab")
    head = ["Q", "K", "V", "scores", "scaled", "masked", "weights", "context", "joined"]
    for state, names in (
        ({"only": ["block"]}, []),
        ({"inside": True, "only": None, "tab": "steps"}, head),
    ):
        page.evaluate("hash => { location.hash = hash; }", address(**state))
        tabs.nth(1 + len(names)).wait_for()
        rest(page)
        assert [text.split()[-1] for text in tabs.all_inner_texts()] == ["X", *names, "Y"]


def test_a_mask_of_another_name(open_served: Open, tmp_path: Path) -> None:
    mask_bert(tmp_path)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text("utf-8").replace("[MASK]", "<mask>"), "utf-8")
    page = open_served("--model", tmp_path)
    assert re.match("Best guess: |Not sure: the best guess is ", painted(page))
    typed = "Type it as ___, _ or <mask>, or as ? between words."
    assert typed in page.locator(".view").inner_text()
    chips = page.get_by_role("listbox", name="words of the sentence").get_by_role("option")
    page.get_by_label("Your sentence").fill("the cat sat on the <mask>")
    chips.get_by_text("___").wait_for()
    chips.get_by_text("cat").click()
    page.get_by_role("button", name="Replace with a gap").click()
    page.get_by_role("button", name="Put back").wait_for()
    assert chips.get_by_text("___").count() == 2
    assert "cat → the gap" in page.locator("[data-part=changes]").inner_text()
    assert "[MASK]" not in page.locator(".view").inner_text()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_temperature_of_a_model_with_its_own_scale(
    open_served: Open, tmp_path: Path, family: str
) -> None:
    write_small(tmp_path, CONFIGS[family])
    model = qkv.load(tmp_path)
    usual = {"llama": 6**-0.5, "gemma2": 5**-0.5}[family]  # heads have 6 dimensions, not 12 / 4
    page = open_served("--model", tmp_path)
    painted(page)
    page.get_by_role("button", name="Look inside").click()
    text = "the cat sat"
    page.get_by_label("Your sentence").fill(text)
    page.get_by_label("Attention temperature").evaluate(
        "node => { node.value = '1'; node.dispatchEvent(new Event('input')); }"
    )
    changes = page.locator("[data-part=changes]")
    changes.get_by_role("button", name="temperature 2.00").wait_for()
    rest(page)
    (edit,) = page.evaluate("JSON.parse(new URLSearchParams(location.hash.slice(1)).get('edits'))")
    assert edit["value"] == pytest.approx(usual / 2)
    page.get_by_role("button", name="Copy as Python").click()
    code = page.get_by_label("The same numbers in Python").input_value()
    had: dict[str, Any] = {}
    exec(re.sub(r"qkv.load\(.*\)", f"qkv.load({str(tmp_path)!r})", code), had)
    _, result = ask(page, text, [edit])
    other = model.trace(text)
    for layer in range(2):
        mine = had["trace"]["pattern", layer][0]
        np.testing.assert_allclose(mine, result.pattern[layer], atol=1e-6)
        assert np.abs(mine - other["pattern", layer][0]).max() > 0.01


def test_the_key_form_opens_a_model_that_guesses_no_words(
    open_served: Open, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("open-sesame\n")
    page = open_served("--model", "minilm", "--api-key-file", tmp_path / "key")
    form = page.locator("#qkv-key")
    form.wait_for(state="visible")
    assert "the key of this request is missing" in form.inner_text()
    form.locator("input").fill("sesame")
    form.locator("button").click()
    page.locator("#qkv-key", has_text="the key of this request is wrong").wait_for()
    form.locator("input").fill("open-sesame")
    form.locator("button").click()
    assert "This model does not guess words" in painted(page)
    assert not form.is_visible()
    assert page.evaluate("Object.keys(localStorage).length") == 0


def test_a_served_decoder_generates_what_the_library_does(
    open_served: Open, tmp_path: Path
) -> None:
    model = decoders.writer(tmp_path, "a b", " the é the")
    page = open_served("--model", tmp_path)
    row = {"op": "row", "layer": 0, "head": 1, "query": 2, "weights": [0.5, 0.5, 0.0]}
    generate = "edits => qkv.generate('a b', { max: 12 }, edits)"
    for edits in ([], [{"op": "hide", "token": 0}, row]):
        new = page.evaluate(generate, edits)
        own = model.generate("a b", max_new_tokens=12, edit=edits)
        assert (new["ids"], new["text"]) == (own.ids, str(own))
    patch = [{"op": "patch", "at": "z", "layer": 0, "from": "b a"}]
    said = page.evaluate(f"{generate}.catch(({{message}}) => message)", patch)
    assert said == 'generate: the server cannot generate with the edit "patch"; undo the edit first'
    page.get_by_label("Your sentence").fill("a b")
    part = page.locator("[data-part=writing]")
    part.locator("input[type=range]").fill("0")
    part.get_by_role("button", name="Continue").click()
    part.locator("xpath=self::*[@data-writing='done']").wait_for()
    shown = part.locator(".written").inner_text()
    assert shown.replace("…", "").startswith("a b the é the")
