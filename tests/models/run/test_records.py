"""Tests of edits as records: each kind against a plain float64 BERT, and refused records."""

import itertools
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from browser.edited import Edit, examples, run
from qkv.edits import schema
from qkv.models import Model
from qkv.see.analysis._words import run_name
from qkv.trace.activations import activation, parse

from ..decoders import gpt2
from ..small_models import CONFIGS, write_small
from ..support import mask_bert

TEXT = "the cat sat on the [MASK]"  # 8 tokens
RECORDS = examples(8, "dog", 12)
ABLATE: Edit = {"op": "ablate", "layer": 0, "head": 1}
ADD: Edit = {"op": "add", "at": "attn_out", "layer": 0, "vector": [1.0] * 12}
PATCH: Edit = {"op": "patch", "at": "z", "layer": 0, "from": "the dog ran by the [MASK]"}
SET: Edit = {"op": "set", "at": "z", "layer": 0, "head": 1}
LISTS: list[list[Edit]] = [
    *([one] for one in RECORDS.values()),
    *map(list, itertools.pairwise([*RECORDS.values(), *list(RECORDS.values())[:1]])),
    [{"op": "mask", "query": 4, "key": 1, "layer": 0, "head": 2}],
    [{"op": "ablate", "layer": 1}],
    [{"op": "scale", "value": 3.0}, {"op": "scale", "value": 0}],
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("bert")
    mask_bert(folder)
    return qkv.load(folder, dtype=np.float64)


MORE = [
    pytest.param([*some], marks=pytest.mark.attack)
    for count in (2, 3)
    for some in itertools.combinations(RECORDS.values(), count)
    if [*some] not in LISTS
]


@pytest.mark.parametrize(
    "records", [*LISTS, *MORE], ids=lambda records: "-".join(r["op"] for r in records)
)
def test_records_are_those_of_a_plain_bert(model: Model, records: list[Edit]) -> None:
    ids = model.tokenize(TEXT).ids.tolist()
    expected = run(model, ids, records)
    trace = model.trace(TEXT, edit=records, logits=True)
    pattern = [trace["pattern", layer][0] for layer in range(model.num_layers)]
    np.testing.assert_allclose(pattern, expected.pattern, atol=1e-12)
    np.testing.assert_allclose(trace["logits"][0], expected.logits, atol=1e-10)
    output = model([ids], edit=records).last_hidden_state
    np.testing.assert_allclose(output[0], expected.resid[-1], atol=1e-10)
    tokens = model.encode(TEXT, edit=records, output_value="token_embeddings")
    np.testing.assert_allclose(tokens, expected.resid[-1], atol=1e-10)
    [[(_, probability)]] = model.predict(TEXT, top_k=1, edit=records)
    probabilities = np.exp(expected.logits[6] - expected.logits[6].max())
    np.testing.assert_allclose(probability, (probabilities / probabilities.sum()).max(), atol=1e-12)


OTHER = "the dog ran by the [MASK]"  # 8 tokens, too
SITES = schema()["$defs"]["site"]["enum"]
PARTS: list[tuple[str, dict[str, int]]] = [
    *((at, {}) for at in SITES),
    *((at, {"token": 3}) for at in SITES),
    *((at, {"head": 2}) for at in ("q", "k", "v", "z", "pattern")),
    *((at, {"head": 0, "token": 6}) for at in ("q", "k", "v", "z", "pattern")),
]


@pytest.mark.parametrize(("at", "of"), PARTS, ids=str)
def test_patch_and_set_records_replace_an_activation(
    model: Model, at: str, of: dict[str, int]
) -> None:
    """A `patch` record takes the activation from another text; a `set` record gives its values."""
    ids = model.tokenize(TEXT).ids.tolist()
    patch = {"op": "patch", "at": at, "layer": 1, **of, "from": OTHER}
    expected = run(model, ids, [patch])
    token, head = (of.get(name, slice(None)) for name in ("token", "head"))
    array = model.trace(OTHER)[at, 1][0]
    heads_first, has_heads = at == "pattern", at in ("q", "k", "v", "z")
    value = array[head, token] if heads_first else array[token, head] if has_heads else array[token]
    given = {"op": "set", "at": at, "layer": 1, **of, "value": value.tolist()}
    for records in ([patch], [given]):
        trace = model.trace([TEXT, TEXT], edit=records, logits=True)
        for found in trace["logits"]:
            np.testing.assert_allclose(found, expected.logits, atol=1e-10)
    assert np.abs(expected.logits - run(model, ids, []).logits).max() > 1e-6


def test_every_editable_activation_has_a_record(model: Model) -> None:
    """A record replaces an activation as an array does, which `test_edit.py` tests."""
    names = [name for name in model.network.hook_names if activation(name).editable]
    trace = model.trace(OTHER, names=names)
    for name in names:
        layer, local = parse(name).layer, parse(name).local.replace("hook_", "")
        where = {} if layer is None else {"layer": layer}
        record = {"op": "set", "at": local, **where, "value": trace[name][0].tolist()}
        found, expected = (
            model.trace(TEXT, edit=edit, logits=True)["logits"]
            for edit in ([record], {name: trace[name]})
        )
        np.testing.assert_array_equal(found, expected)
        if activation(name).axes[1] == "token":
            one = {**record, "token": 3, "value": record["value"][3]}
            part = model.trace(TEXT, names=[name], edit=[one])[name]
            np.testing.assert_array_equal(part[0, 3], trace[name][0, 3])
    for record, says in (
        ({"at": "embed", "layer": 0}, "at 'embed'; pass an activation of the layer, or one outs"),
        ({"at": "z"}, "at 'z'; pass the layer too, or one outside the layers, such as 'embed'"),
        ({"at": "top_weights", "layer": 0}, "at 'top_weights'; pass an activation of the layer"),
        ({"at": 7}, "at 7; pass the layer too"),
    ):
        with pytest.raises(ValueError, match=says):
            model.trace(TEXT, edit=[{"op": "set", **record, "value": [0.0]}])
    record = {"op": "set", "at": "embed", "value": trace["embed"][0].tolist()}
    with pytest.raises(ValueError, match="changes embed, but only layers 0 to 1 run"):
        model.run_layers(trace["full_embed"], 0, edit=[record])


@pytest.mark.parametrize("at", schema()["$defs"]["stream"]["enum"])
@pytest.mark.parametrize("of", [{}, {"token": 5}], ids=str)
def test_add_records_add_a_vector_at_each_site(model: Model, at: str, of: dict[str, int]) -> None:
    ids = model.tokenize(TEXT).ids.tolist()
    record = {"op": "add", "at": at, "layer": 0, "vector": [*np.linspace(-2, 1, 12)], **of}
    expected = run(model, ids, [record])
    found = model.trace(TEXT, edit=[record], logits=True)["logits"][0]
    np.testing.assert_allclose(found, expected.logits, atol=1e-10)


def test_activations_of_several_texts_and_layers(model: Model) -> None:
    """Patches come from two texts, one of them twice; two edits of one activation run in order."""
    records = [
        {"op": "patch", "at": "z", "layer": 0, "head": 1, "from": OTHER},
        {"op": "patch", "at": "resid_pre", "layer": 1, "token": 2, "from": OTHER},
        {"op": "patch", "at": "v", "layer": 1, "from": "a dog sat on a mat"},
        {"op": "add", "at": "attn_out", "layer": 0, "vector": [0.5] * 12},
        {"op": "set", "at": "attn_out", "layer": 0, "token": 1, "value": [0.25] * 12},
    ]
    expected = run(model, model.tokenize(TEXT).ids.tolist(), records)
    found = model.trace(TEXT, edit=records, logits=True)["logits"][0]
    np.testing.assert_allclose(found, expected.logits, atol=1e-10)


def test_records_apply_to_each_text(model: Model) -> None:
    """Records apply to texts of any length, in batches of any size."""
    texts = [TEXT, "a dog ran", "the cat sat on the mat."]
    records = [RECORDS["hide"], RECORDS["ablate"], {"op": "scale", "value": 0.4}, RECORDS["swap"]]
    for trace in (
        model.trace(texts, edit=records),
        model.trace(texts, edit=records, batch_size=2),
        *model.trace_stream(iter(texts), edit=records, batch_size=3),
    ):
        for number, text in enumerate(texts):
            ids = model.tokenize(text).ids.tolist()
            expected = run(model, ids, records).resid[-1]
            found = trace["normalized_resid_post", -1][number, : len(ids)]
            np.testing.assert_allclose(found, expected, atol=1e-10)
            assert trace.tokens[number][2] == "dog"


def test_records_and_arguments_say_the_same(model: Model) -> None:
    mean = {(1, 0): "mean", (0, 2): np.arange(4.0)}
    trace = model.trace(TEXT, ablate=mean, hide=[2, (4, 1), (4, 3, 0, 1)])
    records = [
        {"op": "ablate", "layer": 1, "head": 0, "with": "mean"},
        {"op": "ablate", "layer": 0, "head": 2, "with": np.arange(4.0)},
        {"op": "hide", "token": 2},
        {"op": "mask", "query": 4, "key": 1},
        {"op": "mask", "query": 4, "key": 3, "layer": 0, "head": 1},
    ]
    found = model.trace(TEXT, edit=records)
    assert found.changed == trace.changed
    np.testing.assert_equal(dict(found), dict(trace))


def test_a_trace_says_what_its_records_changed(model: Model, tmp_path: Path) -> None:
    names = ("hide", "mask", "causal", "ablate", "scale", "row", "swap")
    trace = model.trace(TEXT, edit=[RECORDS[name] for name in names])
    assert trace.changed == {
        "edit": [
            "blocks.1.attn.hook_pattern",
            "blocks.0.attn.hook_attn_scores",
            "blocks.1.attn.hook_attn_scores",
        ],
        "ablate": [(1, 2)],
        "hide": [2, (4, 1), (None, None)],
    }
    trace.save(tmp_path / "trace.npz")
    assert qkv.Trace.load(tmp_path / "trace.npz").changed == trace.changed
    said = "layer 1, head 2, token 2 and token 1 from token 4 and later tokens hidden"
    assert said in run_name(trace.changed)


def test_records_stay_in_force_while_a_text_is_generated(tmp_path: Path) -> None:
    """A `row` record changes only one row of the prompt's attention weights.

    The other records in this test also apply to new tokens.
    """
    model = gpt2(tmp_path, seed=2)
    prompt, size = "the cat", len(model.tokenize("the cat"))
    weights = [1.0] + [0.0] * (size - 1)
    records = [
        {"op": "hide", "token": 1},
        {"op": "ablate", "layer": 1, "head": 0},
        {"op": "scale", "value": 0.2},
        {"op": "row", "layer": 0, "head": 1, "query": 2, "weights": weights},
        {"op": "swap", "token": 0, "with": "Ġthe"},
    ]
    found = model.generate(prompt, max_new_tokens=4, edit=records)
    plain = model.generate(prompt, max_new_tokens=4)
    ids = model.tokenize(prompt).ids.tolist()
    for token in found.ids:
        row = [*weights, *[0.0] * (len(ids) - size)]
        now = [one | {"weights": row} if one["op"] == "row" else one for one in records]
        logits = model.trace(ids, edit=now, logits=True)["logits"][0, -1]
        assert int(logits.argmax()) == token
        ids.append(token)
    assert found.ids != plain.ids


def test_generate_adds_vectors_to_new_tokens_but_patches_only_the_prompt(
    tmp_path: Path,
) -> None:
    model, other = gpt2(tmp_path, seed=2), "a dog"
    size = len(model.tokenize("the cat"))
    steer = {"op": "add", "at": "resid_post", "layer": 0, "vector": [*np.linspace(-30, 20, 24)]}
    patch = {"op": "patch", "at": "v", "layer": 1, "head": 1, "from": other}
    given = model.trace(other)["mlp_out", 0][0]
    records = [steer, patch, {"op": "set", "at": "mlp_out", "layer": 0, "value": given}]
    found = model.generate("the cat", max_new_tokens=4, edit=records)
    ids, values = model.tokenize("the cat").ids.tolist(), model.trace(other)["v", 1][0, :, 1]

    def of_prompt(place: Any, value: Any) -> Any:
        def put(array: Any) -> Any:
            array[(slice(None), slice(size), *place)] = value
            return array

        return put

    for token in found.ids:
        change = {
            ("v", 1): of_prompt([1], values),
            ("mlp_out", 0): of_prompt([], given),
            ("resid_post", 0): lambda x: x + np.linspace(-30, 20, 24),
        }
        logits = model.trace(ids, edit=change, logits=True)["logits"][0, -1]
        assert int(logits.argmax()) == token
        ids.append(token)
    assert found.ids != model.generate("the cat", max_new_tokens=4).ids


def test_a_record_counts_heads_of_its_activation_in_grouped_attention(tmp_path: Path) -> None:
    """A record's head is a head of its activation: queries have more heads than values."""
    model = qkv.load(write_small(tmp_path, CONFIGS["llama"]), dtype=np.float64)
    attn = model.layers[0].attn
    assert attn.num_heads > attn.num_kv_heads
    other = model.trace("the dog sat")
    for at, count in [("q", attn.num_heads), ("z", attn.num_heads), ("v", attn.num_kv_heads)]:
        record = {"op": "patch", "at": at, "layer": 0, "head": count - 1, "from": "the dog sat"}
        found = model.trace("the cat sat", edit=[record])[at, 0][0]
        np.testing.assert_allclose(found[:, -1], other[at, 0][0, :, -1], atol=1e-12)
        with pytest.raises(ValueError, match=rf"has head {count}; pass 0 to {count - 1}, because"):
            model.trace("the cat sat", edit=[record | {"head": count}])


def test_a_patch_from_a_text_is_refused_without_a_tokenizer(model: Model) -> None:
    """Without a tokenizer, `from` is refused, and the error asks for an array."""
    bare = copy(model)
    bare.tokenizer = None
    patch = {"op": "patch", "at": "z", "layer": 0, "from": OTHER}
    with pytest.raises(ValueError, match=r'^trace: .* has from .*; pass an array in a "set"'):
        bare.trace(model.tokenize(TEXT).ids, edit=[patch])


def test_the_layers_that_are_run_take_records(model: Model) -> None:
    patch = {"op": "patch", "at": "q", "layer": 1, "head": 0, "from": OTHER}
    records = [RECORDS["mask"] | {"layer": 1}, {"op": "ablate", "layer": 1, "head": 2}, patch]
    trace = model.trace(TEXT, edit=records)
    found = model.run_layers(trace["resid_pre", 1], 1, edit=records)
    np.testing.assert_allclose(found, trace["normalized_resid_post", 1], atol=1e-12)
    with pytest.raises(ValueError, match=r"^run_layers: edit\[0\] \(ablate\) changes layer 0, but"):
        model.run_layers(trace["resid_pre", 1], 1, edit=[{"op": "ablate", "layer": 0}])
    with pytest.raises(ValueError, match=r"^run_layers: edit\[0\] \(swap\) needs tokens"):
        model.run_layers(trace["resid_pre", 1], 1, edit=[RECORDS["swap"]])


def test_a_gradient_is_that_of_the_swapped_text(model: Model) -> None:
    swapped = model.tokenize(TEXT).ids.copy()
    swapped[2] = model.tokenizer.vocabulary["dog"]
    found = model.gradient(TEXT, of=(6, "mat"), edit=[RECORDS["swap"]])["embed"]
    np.testing.assert_array_equal(found, model.gradient(swapped, of=(6, "mat"))["embed"])


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"op": "hide", "token": 8}, r"\(hide\) has token 8; pass 0 to 7, because the text has 8"),
        ({"op": "hide", "token": "cat"}, r"\(hide\) has token 'cat'; pass 0 to 7"),
        ({"op": "mask", "query": 1, "key": 9}, r"\(mask\) has key 9; pass 0 to 7"),
        ({"op": "ablate", "layer": 2}, r"\(ablate\) has layer 2; pass 0 to 1, because the model"),
        ({"op": "ablate", "layer": 0, "head": 3}, r"\(ablate\) has head 3; pass 0 to 2, because a"),
        (
            ABLATE | {"with": [1.0] * 3},
            r"\(ablate\) has an array \(3,\) for \(0, 1\), but .* \(4,\)",
        ),
        ({"op": "scale", "value": np.nan}, r"\(scale\) has value nan; pass a finite number"),
        ({"op": "scale", "value": 10**400}, r"\(scale\) has value \d+\.\.\.; pass a .* fits in 64"),
        ({"op": "scale", "value": 2**70}, r"\(scale\) has value \d+; pass a .* fits in 64"),
        (RECORDS["row"] | {"weights": [1]}, r"\(row\) has weights \[1\]; pass.*8"),
        (
            ADD | {"vector": [1.0] * 11},
            r"\(add\) has vector \[1.*; pass 12 finite numbers, the size",
        ),
        (
            ADD | {"at": "z"},
            r"\(add\) has at 'z': it must be one of resid_pre, resid_post, attn_out",
        ),
        (PATCH | {"from": "a dog ran"}, r"\(patch\) has from 'a dog"),
        (
            PATCH | {"from": ["a dog ran"]},
            r"\(patch\) has from \['a dog ran'\]; pass a text with at",
        ),
        (
            PATCH | {"at": "mlp_out", "head": 1},
            r"\(patch\) has a head, but mlp_out does not belong",
        ),
        (
            SET | {"value": [[1.0] * 4] * 7},
            r"\(set\) has value \[\[1.*; pass finite numbers \(8, 4\), b",
        ),
        (
            {"op": "set", "at": "pattern", "layer": 0, "value": [[1.0]]},
            r"\(set\) has value \[\[1.0\]\]; pass finite numbers \(3, 8, 8\), because text 0 has 8",
        ),
        (
            SET | {"token": 0, "value": [np.inf] * 4},
            r"\(set\) has value \[inf.*; pass finite .*\(4,\)",
        ),
        ({"op": "swap", "token": 2, "with": "dig"}, r"\(swap\) has with 'dig'; pass one entry of"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_does_not_fit_is_said(model: Model, record: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"^trace: edit\[0\] {said}") as raised:
        model.trace(TEXT, edit=[record])
    assert "\n" not in str(raised.value)


def test_a_text_that_is_too_short_is_named(model: Model) -> None:
    said = "has token 6; pass 0 to 4, because text 1 has 5 tokens$"
    texts, edit = [TEXT, "a dog ran"], [{"op": "hide", "token": 6}]
    with pytest.raises(ValueError, match=said):
        model.trace(texts, edit=edit)
    stream = model.trace_stream(texts, edit=edit, batch_size=1)
    next(stream)
    with pytest.raises(ValueError, match=said):
        next(stream)
