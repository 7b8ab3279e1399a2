"""Tests of the model that runs in a page: tokens, numbers, edits, and the order of requests."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Error, Page

import qkv
from models.support import mask_bert
from qkv.models import Model
from rows import sample

from .edited import Edit, examples, run
from .engine import (
    EXACT,
    SINGLE,
    WIDE,
    agree,
    ask,
    by_the_library,
    page_of,
    ranked_alike,
    traced,
    unpacked,
)
from .support import Visit
from .texts import TEXTS

TEXT = "The bank of the river was [MASK]."  # 10 tokens
OTHER = "The boss of the firm was [MASK]."  # 10 tokens, too
EDITS = examples(10, "money", 192)
OTHERS: dict[str, list[Edit]] = {
    "nothing": [],
    "mask of a layer": [{"op": "mask", "query": 5, "key": 1, "layer": 2}],
    "mask of a head": [{"op": "mask", "query": 5, "key": 1, "layer": 0, "head": 5}],
    "a query that sees nothing": [{"op": "mask", "query": 3, "key": key} for key in range(10)],
    "nothing to see at all": [{"op": "hide", "token": token} for token in range(10)],
    "a layer ablated": [{"op": "ablate", "layer": 2}],
    "a mean": [{"op": "ablate", "layer": 1, "head": 2, "with": "mean"}],
    "means of a layer": [{"op": "ablate", "layer": 1, "with": "mean"}],
    "numbers of a head": [{"op": "ablate", "layer": 1, "head": 0, "with": [0.5] * 32}],
    "two scales": [{"op": "scale", "value": 3.0}, {"op": "scale", "value": 0.0}],
    "two rows": [EDITS["row"], EDITS["row"] | {"weights": [0.1] * 10}],
    "a row of a hidden word": [EDITS["row"], {"op": "hide", "token": 1}],
    "two texts": [
        {"op": "patch", "at": "resid_pre", "layer": 1, "token": 2, "from": OTHER},
        {"op": "patch", "at": "v", "layer": 2, "from": "A fee for the loan was [MASK]."},
    ],
    "one behind the other": [
        {"op": "set", "at": "attn_out", "layer": 0, "token": 1, "value": [0.25] * 192},
        {"op": "add", "at": "attn_out", "layer": 0, "vector": [0.5] * 192},
    ],
    **{
        f"patch {at} {of}": [{"op": "patch", "at": at, "layer": 1, **of, "from": OTHER}]
        for at in ("resid_pre", "attn_out", "mlp_out", "z", "q", "k", "v", "pattern")
        for of in ({}, {"token": 3}, {"head": 2}, {"head": 5, "token": 8})
        if "head" not in of or at in ("z", "q", "k", "v", "pattern")
    },
    "set of a head": [
        {"op": "set", "at": "q", "layer": 2, "head": 4, "value": [[0.5, -0.25] * 16] * 10}
    ],
    "set of a residual stream": [
        {"op": "set", "at": "resid_post", "layer": 1, "token": 3, "value": [0.5, -0.25] * 96}
    ],
    "set of a row": [
        {"op": "set", "at": "pattern", "layer": 0, "head": 4, "token": 3, "value": [0.1] * 10}
    ],
    "two swaps": [EDITS["swap"], EDITS["swap"] | {"with": "[MASK]"}],
}
WRONG: list[tuple[Any, str]] = [
    ("causal", 'run: edits is string; pass a list of objects with "op"'),
    ([{"op": "hyde", "token": 1}], 'edits[0] has op "hyde"; it must be one of hide, mask,'),
    ([{"op": "toString"}], 'edits[0] has op "toString"'),
    ([None], "edits[0] has op undefined"),
    ([EDITS["causal"], {"op": "hide"}], "edits[1] (hide) has no token; it needs token"),
    ([{"op": "hide", "token": 10}], "edits[0] (hide) has token 10; pass 0 to 9"),
    ([{"op": "hide", "token": -1}], "(hide) has token -1"),
    ([{"op": "hide", "token": 1.5}], "(hide) has token 1.5"),
    ([{"op": "mask", "query": 1, "key": 10}], "(mask) has key 10; pass 0 to 9"),
    ([{"op": "mask", "query": 1, "key": 1, "head": 2}], "(mask) has head 2 but no layer"),
    ([{"op": "ablate", "head": 1}], "(ablate) has no layer; it needs layer and may have head"),
    ([{"op": "ablate", "layer": 0, "head": 6}], "(ablate) has head 6; pass 0 to 5"),
    ([{"op": "ablate", "layer": 0, "haed": 1}], '(ablate) has "haed"; it needs layer and may'),
    ([{"op": "ablate", "layer": 0, "with": [1]}], "has with [1]; pass "),
    ([{"op": "scale", "value": "1"}], '(scale) has value "1"; pass a finite number'),
    ([EDITS["row"] | {"weights": [1, 0]}], "has weights [1,0]; pass 10 finite numbers"),
    ([EDITS["swap"] | {"with": "no such entry"}], 'has with "no such entry"; pass one entry'),
    ([EDITS["add"] | {"vector": [1, 2]}], "(add) has vector [1,2]; pass 192 finite numbers"),
    ([EDITS["add"] | {"at": "z"}], '(add) has at "z"; pass one of resid_pre, resid_post'),
    ([EDITS["patch"] | {"from": 7}], "(patch) has from 7; pass a string"),
    ([EDITS["patch"] | {"from": "a dog"}], 'patch has from "a dog" with 4 tokens, but the text'),
    ([EDITS["patch"] | {"at": "mlp_out"}], "(patch) has head 1; pass no head, because mlp_out"),
    ([EDITS["set"] | {"value": [[1]]}], "(set) has value [[1]]; pass finite numbers (192)"),
    ([EDITS["set"] | {"at": "mlp.post"}], '(set) has at "mlp.post"; pass one of resid_pre'),
    ([EDITS["set"] | {"layer": None}], '(set) has at "attn_out"; pass the layer too'),
    ([EDITS["swap"] | {"with": "two words"}], "pass one entry of the vocabulary"),
]


@pytest.fixture(scope="module")
def html(model: Model) -> str:
    return page_of(model)


@pytest.fixture(scope="module")
def page(visit_once: Visit, html: str) -> Page:
    """One page for all tests: its answers do not depend on earlier requests."""
    return visit_once(html)


@pytest.fixture(scope="module")
def plain(visit_once: Visit, model: Model) -> Page:
    """Like `page`, without WebAssembly."""
    return visit_once(page_of(model, plain=True))


def test_tokens_and_numbers_are_the_librarys(
    page: Page, plain: Page, model: Model, exact: Model
) -> None:
    for text in sample(TEXTS):
        found, result = ask(page, text)
        tokens, _, expected = traced(exact, text)
        assert found["tokens"] == tokens.tokens, text
        assert found["ids"] == list(tokens.ids), text
        assert found["special"] == tokens.special, text
        assert offsets(text, found) == tokens.offsets, text
        agree(result, expected, *SINGLE)
        agree(ask(plain, text)[1], expected, *EXACT)
        _, trace, expected = traced(model, text)
        scores = [trace["attn_scores", layer] for layer in range(model.num_layers)]
        agree(result, expected, 2e-6 + 2**-23 * np.abs(scores).max(), 1e-4)
        ranked_alike(result.logits, expected.logits)


def test_a_model_of_int8_rows_takes_half_the_page(visit: Visit, tmp_path: Path) -> None:
    whole = qkv.load()
    model = whole.with_parameters(whole.parameters, np.float16)
    model.save(tmp_path / "int8", dtype="int8")
    small, judge = (qkv.load(tmp_path / "int8", dtype=kind) for kind in (None, np.float64))
    short = page_of(small)
    numbers = sum(array.size for array in model.parameters.values())
    # one byte less per number, in base64
    assert len(page_of(model)) - len(short) > 0.98 * numbers * 4 / 3
    page = visit(short)
    for text in sample(TEXTS[:20]):
        _, result = ask(page, text)
        agree(result, traced(judge, text)[2], *SINGLE)
        ranked_alike(result.logits, traced(small, text)[2].logits)
    names = ["blocks.3.mlp.down_proj.weight", "embed.weight"]
    check_parameters(page, small, names, [16383, 0])


def check_parameters(page: Page, model: Model, names: list[str], rows: list[int]) -> None:
    """Check the parameters that the page gives: all matrices, and these rows of the last one."""
    found = page.evaluate(
        """async ([names, rows]) => {
          const found = await qkv.parameters(names, { [names.at(-1)]: rows });
          return names.map((name) => Array.from(found[name]));
        }""",
        [names, rows],
    )
    *others, table = (model.parameters[name] for name in names)
    for array, own in zip(found, [*(one.T for one in others), table[rows]], strict=True):
        np.testing.assert_array_equal(array, own.ravel())


def offsets(text: str, found: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the tokens' offsets in characters, from the page's offsets in UTF-16 units."""
    units = text.encode("utf-16-le")

    def characters(position: int) -> int:
        return len(units[: 2 * position].decode("utf-16-le"))

    return [(characters(start), characters(end)) for start, end in found["offsets"]]


LISTS = [
    *([edit] for edit in EDITS.values()),
    *map(list, itertools.combinations(EDITS.values(), 3)),
    *OTHERS.values(),
]


def test_the_reference_run_of_edits_matches_the_library(exact: Model) -> None:
    ids = exact.tokenize(TEXT).ids.tolist()
    for edits in sample(LISTS):
        agree(run(exact, ids, edits), by_the_library(exact, ids, edits), 1e-12, 1e-12)


def test_every_edit_alone_and_three_at_a_time(page: Page, plain: Page, exact: Model) -> None:
    unchanged = ask(page, TEXT)[1]
    for edits in sample(LISTS):
        found, result = ask(page, TEXT, edits)
        ids = exact.tokenize(TEXT).ids.tolist()
        expected = run(exact, ids, edits)
        agree(result, expected, *SINGLE)
        agree(ask(plain, TEXT, edits)[1], expected, *EXACT)
        names = [exact.tokenizer.token(id) for id in found["ids"]]
        assert found["tokens"] == names
        assert edits == [] or np.abs(result.resid - unchanged.resid).max() > 1e-3, edits


def test_undo_gives_the_same_bits_whatever_was_run_before(visit: Visit, html: str) -> None:
    one, other = visit(html), visit(html)
    changes = [[], *([edit] for edit in EDITS.values())]
    there = [ask(one, TEXT, edits)[1] for edits in changes]
    back = [ask(one, TEXT, edits)[1] for edits in reversed(changes)][::-1]
    anew = [ask(other, TEXT, edits)[1] for edits in reversed(changes)][::-1]
    for first, *others in zip(there, back, anew, strict=True):
        for again, part in itertools.product(others, ("pattern", "resid", "logits")):
            np.testing.assert_array_equal(getattr(first, part), getattr(again, part))


def test_a_small_model_of_other_sizes(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    mask_bert(tmp_path / "small")
    wide = qkv.load(tmp_path / "small", dtype=np.float64)
    half = {name: array.astype(np.float16) for name, array in wide.parameters.items()}
    small = wide.with_parameters(half, np.float64)
    page = visit(page_of(small))
    model = page.evaluate("qkv.model")
    words = model.pop("words")
    assert words[4:7] == ["the", "cat", "sat"]
    guessed = dict(small.predict("The [MASK] ran on.", top_k=30)[0])
    assert set(words) == set(guessed), "a row of the table without a token has its number"
    assert model == {
        **{"name": "small", "layers": 2, "heads": 3, "dim": 12, "vocabulary": 30, "most": 16},
        **{"kv_heads": 3, "size": 4, "eps": 1e-12, "mask": "[MASK]", "next": False, "bert": True},
        **{"scales": [["", 0.5], ["", 0.5]], "exact": True},
    }
    edits = [{"op": "ablate", "layer": 0, "head": 2}, {"op": "swap", "token": 2, "with": "dog"}]
    for text, own in itertools.product(["The cats ran on.", "cat, " * 20], [[], edits]):
        found, result = ask(page, text, own)
        ids = small.tokenize(text).ids.tolist()
        expected = run(small, [*ids[:15], ids[-1]] if len(ids) > 16 else ids, own)
        assert found["cut"] == (len(ids) > 16)
        agree(result, expected, *WIDE)


def test_a_run_returns_the_requested_positions_and_layers(page: Page, exact: Model) -> None:
    ids = exact.tokenize(TEXT).ids.tolist()
    expected = run(exact, ids, [EDITS["ablate"]])
    _, result = ask(page, TEXT, [EDITS["ablate"]], at=[8, 1], layers=[1])
    agree(result, expected._replace(logits=expected.logits[[8, 1]]), *SINGLE)
    (inside,) = result.inside
    for name, exactly in expected.inside[1].items():
        np.testing.assert_allclose(unpacked(inside[name]), exactly.ravel(), rtol=0, atol=1e-5)


def test_parameters_are_the_models_own(page: Page, exact: Model) -> None:
    names = ["blocks.1.attn.q_proj.weight", "blocks.0.norm1.bias", "embed.weight"]
    check_parameters(page, exact, names, [7, 3, 7])
    with pytest.raises(Error, match=r'the model has no "embed\.wait"'):
        page.evaluate("qkv.parameters(['embed.wait'])")


def test_a_sweep_removes_every_head_in_turn(page: Page, exact: Model) -> None:
    parts = page.evaluate(
        """async ([text, edits]) => {
          const parts = [];
          const pack = (x) => new Uint8Array(x.buffer).toBase64();
          await qkv.sweep(text, edits, ({ layer, head, resid, logits }) =>
            parts.push([layer, head, pack(resid), pack(logits)]), { at: [8] });
          return parts;
        }""",
        [TEXT, [EDITS["hide"]]],
    )
    layers, heads = range(exact.num_layers), range(exact.num_heads)
    assert [part[:2] for part in parts] == [[i, j] for i in reversed(layers) for j in heads]
    ids = exact.tokenize(TEXT).ids.tolist()
    for layer, head, resid, logits in parts:
        ablated = {"op": "ablate", "layer": layer, "head": head}
        expected = run(exact, ids, [EDITS["hide"], ablated])
        for packed, own in ((resid, expected.resid[-1]), (logits, expected.logits[8])):
            atol = SINGLE[1] * np.abs(own).max()
            np.testing.assert_allclose(unpacked(packed), own.ravel(), rtol=0, atol=atol)


def test_the_newest_run_goes_first_and_a_sweep_last(page: Page) -> None:
    order = page.evaluate(
        """async (text) => {
          const order = [];
          await qkv.run(text);
          const long = "one two three four five six seven eight nine ten. ".repeat(8);
          await Promise.all([
            qkv.sweep(long, [], () => {}, { at: [0] }).then(() => order.push("sweep")),
            qkv.run(`first ${long}`).then(() => order.push("first run")),
            qkv.run(`second ${long}`).then(() => order.push("second run")),
          ]);
          return order;
        }""",
        TEXT,
    )
    assert order == ["second run", "first run", "sweep"]


def test_aborted_requests_reject_and_later_runs_still_work(page: Page) -> None:
    said = page.evaluate(
        """async (text) => {
          const [one, other] = [new AbortController(), new AbortController()];
          const early = AbortSignal.abort();
          let heard = 0;
          const asked = [
            qkv.sweep(text, [], () => (heard += 1) === 3 && one.abort(), { signal: one.signal }),
            qkv.run(text, [], { signal: other.signal }),
            qkv.run(text, [], { signal: early }),
          ];
          other.abort();
          const names = (await Promise.allSettled(asked)).map(({ reason }) => reason?.name);
          await qkv.run(text);
          return [...names, heard];
        }""",
        TEXT,
    )
    assert said == ["AbortError", "AbortError", "AbortError", 3]


def test_invalid_requests_reject_with_the_reason(page: Page) -> None:
    for edits, complaint in WRONG:
        with pytest.raises(Error) as raised:
            ask(page, TEXT, edits)
        assert complaint in raised.value.message
    with pytest.raises(Error, match="run: text is number; pass a string"):
        ask(page, 7)
    with pytest.raises(Error, match="run: at has 10, but there are 10 tokens; pass 0 to 9"):
        ask(page, TEXT, at=[0, 10])
    with pytest.raises(Error, match="run: layers has 4, but there are 4 layers; pass 0 to 3"):
        ask(page, TEXT, layers=[4])
    assert ask(page, TEXT)[0]["tokens"][1] == "the"  # and later runs still work
