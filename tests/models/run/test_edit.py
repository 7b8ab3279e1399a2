"""Tests of interventions: ablated heads, masked words and edges, edited activations."""

import numpy as np
import pytest

import qkv
from qkv.models import load

from .. import decoders
from ..small_models import CONFIGS, write_small
from ..support import close

TEXT = "the cat sat on the mat."
TEXTS = [TEXT, "a dog ran, the cat ran", "the bank"]
Z = "blocks.0.attn.hook_z"


# heads


def test_layers_and_heads_may_be_counted_from_the_end_and_named_twice(double):
    trace = double.trace(TEXT, ablate=[(-1, -3), (1, 0), (0, np.int64(2))])
    assert trace.changed == {"ablate": [(0, 2), (1, 0)]}
    expected = double.trace(TEXT, ablate=[(0, 2), (1, 0)])
    np.testing.assert_array_equal(trace["attn_out", 1], expected["attn_out", 1])


# words


def positions(model, text, *words):
    """Return the positions of these tokens in a text."""
    return [i for i, token in enumerate(model.tokenize(text).tokens) if token in words]


def test_masking_a_word_masks_exactly_its_own_subwords(double):
    text = "run runs running"  # run, run ##s, run ##ning
    tokens = double.tokenize(text).tokens
    assert tokens == ["[CLS]", "run", "run", "##s", "run", "##ning", "[SEP]"]
    for word, hidden in (("run", [1]), ("runs", [2, 3]), ("running", [4, 5])):
        weights = double.trace(text, hide=[word])["pattern", 0]
        assert np.flatnonzero(~weights.any(axis=(0, 1, 2))).tolist() == hidden


# edges


def test_an_edge_masks_one_key_for_one_query(double):
    """Edges are masked by each text's own positions; -1 is the last position of each text."""
    plain = double.trace(TEXTS)
    trace = double.trace(TEXTS, hide=[(1, 2), (2, 1, 1), (0, -1, 0, 2), (8, 3)])
    for number, text in enumerate(trace):
        length = len(text.tokens)
        seen = np.ones((2, 3, length, length), bool)
        seen[:, :, 1, 2] = seen[1, :, 2, 1] = seen[0, 2, 0, -1] = False
        if length > 8:
            seen[:, :, 8, 3] = False
        shown = np.stack([text["attn_scores", layer][0] for layer in range(2)])
        assert (np.isfinite(shown) == seen).all()
        first = np.where(seen[0], plain[number]["attn_scores", 0][0], -np.inf)
        expected = np.exp(first) / np.exp(first).sum(-1, keepdims=True)
        close(text["pattern", 0][0], expected)
    assert trace.changed == {"hide": [(1, 2), (2, 1, 1), (0, -1, 0, 2), (8, 3)]}


# heads with replaced outputs


def test_ablate_replaces_head_outputs_by_a_mean_a_vector_or_zero(double):
    plain, vector = double.trace(TEXTS), np.array([1.0, -2.0, 0.5, 3.0])
    asked = {(0, 1): "mean", (0, 2): vector, (1, None): "mean", (1, -1): "zero"}
    trace = double.trace(TEXTS, ablate=asked)
    for layer in range(2):
        rows = np.concatenate([text["z", layer][0] for text in plain])  # rows of all texts
        means = rows.mean(0)  # (Hq, d)
        for text, whole in zip(trace, plain, strict=True):
            z = text["z", layer][0]
            if layer == 0:
                close(z[:, 1], np.broadcast_to(means[1], z[:, 1].shape))
                close(z[:, 2], np.broadcast_to(vector, z[:, 2].shape))
                close(text["pattern", 0], whole["pattern", 0])
            else:
                close(z[:, :2], np.broadcast_to(means[:2], z[:, :2].shape))
                assert not z[:, 2].any()
    assert trace.changed == {"ablate": [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]}
    shorter = trace["z", 0][2]
    assert not shorter[len(trace[2].tokens) :].any()  # padding stays 0


# activations


def test_an_edit_function_receives_a_copy_of_the_traced_activation(double):
    plain, given = double.trace(TEXTS), {}

    def look(name):
        def at(x):
            given[name] = x.copy()
            kept.append(x)
            return x

        return at

    kept = []
    names = plain.names()
    trace = double.trace(TEXTS, edit={name: look(name) for name in names})
    assert list(given) == names
    for name in names:
        np.testing.assert_array_equal(given[name], trace[name], err_msg=name)
        close(np.nan_to_num(given[name], neginf=0), np.nan_to_num(plain[name], neginf=0))
    for x in kept:
        x[:] = 7
    assert not any((trace[name] == 7).any() for name in names)


@pytest.mark.parametrize(("name", "nothing"), [("attn_scores", -np.inf), ("pattern", 0)])
@pytest.mark.parametrize("value", [0.25, np.nan])
def test_edits_of_the_padding_of_scores_and_weights_are_ignored(double, name, nothing, value):
    def written(weights):
        found = weights + 0.0
        for number, length in enumerate(lengths):
            found[number, :, length:] = value
            found[number, :, :, length:] = value
        return found

    lengths = double.trace(TEXTS).lengths
    assert len(set(lengths)) > 1
    plain, found = double.trace(TEXTS), double.trace(TEXTS, edit={(name, 0): written})
    for number, length in enumerate(lengths):
        assert (found[name, 0][number, :, length:] == nothing).all()
        assert (found[name, 0][number, :, :, length:] == nothing).all()
        close(found[number]["normalized_resid_post", 1], plain[number]["normalized_resid_post", 1])


def test_edit_arrays_replace_weights_and_scores(double):
    rng = np.random.default_rng(0)
    weights = rng.random((1, 3, 9, 9))
    trace = double.trace(TEXT, edit={("pattern", 0): weights})
    np.testing.assert_array_equal(trace["pattern", 0], weights)
    close(trace["z", 0], np.einsum("bhqk,bkhd->bqhd", weights, trace["v", 0]))
    scores = np.where(rng.random((1, 3, 9, 9)) < 0.3, -np.inf, rng.standard_normal((1, 3, 9, 9)))
    scores[0, 1, 4] = -np.inf  # a query that sees no key
    trace = double.trace(TEXT, edit={"blocks.1.attn.hook_attn_scores": scores})
    sums = np.exp(scores).sum(-1, keepdims=True)
    close(trace["pattern", 1], np.exp(scores) / np.where(sums == 0, 1, sums))
    assert not trace["z", 1][0, 4, 1].any()


def test_encode_applies_edit_arrays_in_text_order_whatever_the_batch_size(double):
    texts = ["a dog", TEXT, "the cat", "the bank . a dog ran , the cat", "on the mat ."]
    longest = max(len(double.tokenize(text)) for text in texts)
    array = np.random.default_rng(1).standard_normal((5, longest, 12))
    functions = []

    def twice(x):
        functions.append(len(x))
        return 2 * x

    edit = {("resid_post", 0): array, ("z", 1): twice}
    found = double.encode(texts, batch_size=1, output_value="token_embeddings", edit=edit)
    parts = list(functions)
    whole = double.trace(texts, edit=edit)
    for number, rows in enumerate(found):
        close(rows, whole[number]["normalized_resid_post", 1][0])
    double_vectors = double.encode(texts, edit=edit)
    close(double_vectors, double.encode(iter(texts), batch_size=1, edit=edit))
    close(double.encode(texts[1], hide="cat"), double.encode(texts, hide="cat")[1])
    assert sum(parts) == 5
    assert double.encode([], edit=edit).shape == (0, 12)
    mean = {(0, 1): "mean"}
    states = double.trace(texts, ablate=mean)
    rows = double.encode(iter(texts), batch_size=1, output_value="token_embeddings", ablate=mean)
    for number, row in enumerate(rows):
        close(row, states[number]["normalized_resid_post", 1][0])
    with pytest.raises(TypeError, match=r"^encode_stream: edit needs all texts at once"):
        double.encode_stream(texts, edit=edit)


@pytest.mark.parametrize("side", ["left", "right", "both", "hole"])
def test_positions_in_edits_and_hide_are_columns_including_padding(double, side):
    """With `model(ids, mask)`, the positions in edits and in `hide` are columns of `ids`.

    Columns with padding count too.
    """
    rows = [double.tokenize(text).ids for text in ("the cat sat .", "a dog")]
    ids, mask = np.zeros((2, 9), int), np.zeros((2, 9), int)
    for number, row in enumerate(rows):
        begin = {"left": 9 - len(row), "both": 2, "hole": 1}.get(side, 0)
        ids[number, begin : begin + len(row)] = row
        mask[number, begin : begin + len(row)] = 1
    if side == "hole":
        mask[0, 3] = mask[1, 2] = 0
    there = mask.astype(bool)
    given = []

    def keep(x):
        given.append(x.copy())
        return x

    names = [("attn_scores", 1), ("pattern", 0), ("resid_post", 1), ("k", 0)]
    plain = double(ids, mask).last_hidden_state
    close(double(ids, mask, edit=dict.fromkeys(names, keep)).last_hidden_state, plain)
    shapes = {x.shape for x in given}
    assert shapes == {(2, 3, 9, 9), (2, 9, 12), (2, 9, 3, 4)}
    for x in given:
        if x.ndim == 3 or x.shape[1] == 9:
            assert not x[~there].any()
            assert x[there].any(-1).all()
        else:
            shown = np.isfinite(x) & (x != 0)
            expected = there[:, :, None] & there[:, None]
            assert (shown == expected[:, None]).all()
    array = np.random.default_rng(0).standard_normal((2, 9, 12))
    found = double(ids, mask, edit={("resid_mid", 1): array}).last_hidden_state
    for number in range(2):  # later parts of the layer read each position alone
        normed = double.layers[1].norm1(array[number])
        expected = double.layers[1].norm2(normed + double.layers[1].mlp(normed))
        close(found[number, there[number]], expected[there[number]])
    key, query = np.flatnonzero(there[0])[:2].tolist()

    def cut(scores):
        scores[:, :, query, key] = -np.inf
        return scores

    by_hand = double(ids, mask, edit={("attn_scores", 0): cut}).last_hidden_state
    close(double(ids, mask, hide=[(query, key, 0)]).last_hidden_state[there], by_hand[there])


def test_zeroing_a_head_in_hook_result_equals_ablating_it(double):
    """`hook_result`, which is computed only if it is named, can be edited too."""

    def without_second(result):
        result[:, :, 1] = 0
        return result

    found = double.trace(TEXTS, edit={("result", 0): without_second})
    expected = double.trace(TEXTS, ablate=[(0, 1)])
    close(found["attn_out", 0], expected["attn_out", 0])
    close(found["normalized_resid_post", 1], expected["normalized_resid_post", 1])


def test_a_norm_divides_by_its_edited_scale(double):
    plain = double.trace(TEXTS)
    trace = double.trace(TEXTS, edit={("ln1.scale", 0): lambda scale: 2 * scale})
    parameters = double.parameters
    bias = parameters["blocks.0.norm1.bias"]
    expected = (plain[0]["ln1.normalized", 0] - bias) / 2 + bias
    close(trace[0]["ln1.normalized", 0], expected)


# step by step


def test_hide_accepts_positions_that_are_generated_later(tmp_path):
    model = decoders.gpt2(tmp_path / "model", seed=3, eos_token_id=None)
    (length,) = {len(decoders.ids_of("abc"))}
    hide = [0, (length + 2, length + 1), (length + 3, 2, 1, 0)]
    found = model.generate("abc", max_new_tokens=6, hide=hide, ablate=[(0, 1)], trace=True)
    assert found.trace.changed == {"ablate": [(0, 1)], "hide": hide}
    assert found.ids != model.generate("abc", max_new_tokens=6).ids
    weights = [found.trace["pattern", layer][0] for layer in range(2)]
    for layer in range(2):
        assert not weights[layer][:, :, 0].any()
        assert not weights[layer][:, length + 2, length + 1].any()
    assert not weights[1][0, length + 3, 2].any()
    assert weights[1][1, length + 3, 2].all()
    assert weights[0][:, length + 3, 2].all()
    ids = [*decoders.ids_of("abc"), *found.ids]
    logits = model([ids], hide=hide, ablate=[(0, 1)]).logits[0]
    assert logits.argmax(-1)[length - 1 : -1].tolist() == found.ids
    said = rf"^generate: `hide` has position {length + 6}, but no text"
    with pytest.raises(ValueError, match=said):
        model.generate("abc", max_new_tokens=6, hide=[length + 6])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ablate": {(0, 1): "mean"}}, r"generate: `ablate` has \"mean\" for \(0, 1\), but the"),
        ({"edit": {("z", 0): abs}, "trace": True}, "generate: trace and edit cannot be combined"),
        ({"edit": {("z", 0): np.ones((1, 9, 3, 8))}}, r"generate: `edit` has shape \(1, 9, 3.*8"),
    ],
)
def test_generate_refuses_edits_that_it_does_not_support(tmp_path, options, said):
    model = decoders.gpt2(tmp_path / "model", seed=3)
    with pytest.raises(ValueError, match=f"^{said}"):
        model.generate("abc", **options)


def test_the_error_for_non_finite_logits_names_edit_and_ablate(tmp_path):
    model = decoders.gpt2(tmp_path / "model", seed=3)
    for call in (model.generate, model.predict):
        with pytest.raises(FloatingPointError, match="not finite: check the values of `edit` and"):
            call("abc", edit={("resid_post", 0): lambda x: x * np.nan})


# the record of edits in a trace


def test_attention_inputs_of_an_edited_trace_reproduce_its_weights(double, tmp_path):
    trace = double.trace(TEXTS, hide=["cat"], ablate=[(1, 1)])
    trace.save(tmp_path / "trace.safetensors")
    loaded = qkv.Trace.load(tmp_path / "trace.safetensors")
    for one in (trace, loaded, trace[0], trace[1], loaded[2]):
        assert one.changed == {"ablate": [(1, 1)], "hide": ["cat"]}
        for layer in range(2):
            out, weights = qkv.attention(**one.attention_inputs(layer), return_weights=True)
            close(weights, one["pattern", layer])
            others = [0, 2] if layer == 1 else [0, 1, 2]
            close(np.swapaxes(out, 1, 2)[:, :, others], one["z", layer][:, :, others])
            found = qkv.trace_attention(**one.attention_inputs(layer))["scores"]
            shown = np.isfinite(one["attn_scores", layer])
            assert (np.isfinite(found) == shown).all()
            close(found[shown], one["attn_scores", layer][shown])


def test_a_trace_without_edits_records_no_changes(double):
    assert double.trace(TEXT).changed == {}
    assert double.trace(TEXT, ablate=[], hide=()).changed == {}
    assert "attn_mask" not in double.trace(TEXT).attention_inputs(0)
    assert double.trace(TEXT, edit={}).changed == {}
    assert "attn_mask" not in double.trace(TEXT, ablate=[(1, 0)]).attention_inputs(1)
    hidden = double.trace(TEXT, hide=[(3, 2, 1), (4, 2, 1, 0)])
    assert "attn_mask" not in hidden.attention_inputs(0)
    assert hidden.attention_inputs(1)["attn_mask"].shape == (1, 3, 9, 9)


def test_a_trace_file_without_recorded_changes_loads_as_unedited(double, tmp_path):
    import json

    from safetensors import safe_open
    from safetensors.numpy import save_file

    path = tmp_path / "trace.safetensors"
    double.trace(TEXT).save(path)
    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["qkv.trace"])
        arrays = {name: file.get_tensor(name) for name in about["names"]}
    del about["changed"]
    save_file(arrays, path, {"qkv.trace": json.dumps(about)})
    assert qkv.Trace.load(path).changed == {}


def test_top_k_summaries_reflect_masked_words_and_ablated_heads(double):
    trace = double.trace(TEXT, top_k=9, hide=["cat"], ablate=[(0, 0)])
    (cat,) = positions(double, TEXT, "cat")
    for layer in range(2):
        assert not trace["received", layer][..., cat].any()
    full = double.trace(TEXT, hide=["cat"], ablate=[(0, 0)])
    np.testing.assert_allclose(trace["received", 1], full["pattern", 1].sum(2), atol=1e-12)


# errors


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"ablate": [(2, 0)]}, ValueError, "`ablate` names layer 2, but the model has 2 layers"),
        ({"ablate": [(0, 3)]}, ValueError, "`ablate` names head 3, but layer 0 has 3 heads.*2"),
        ({"ablate": (0, 1)}, TypeError, r"`ablate` has 0; pass \(layer, head\) pairs"),
        ({"ablate": [(0, True)]}, TypeError, r"`ablate` has \(0, True\)"),
        ({"hide": ["dog"]}, ValueError, "`hide` has 'dog', which is in no text: the words are"),
        ({"hide": [""]}, ValueError, "`hide` has '', which is in no text"),
        ({"hide": [3.0]}, TypeError, r"`hide` has 3\.0; pass words, positions as whole numb"),
        ({"hide": [(1, "cat")]}, TypeError, r"`hide` has \(1, 'cat'\); pass words"),
        ({"hide": [(1, 2, 2)]}, ValueError, "`hide` names layer 2, but the model has 2 layers"),
        ({"hide": [(1, 2, 0, 3)]}, ValueError, "`hide` names head 3, but layer 0 has 3 heads.*2"),
        ({"hide": [(9, 2)]}, ValueError, "`hide` has position 9, but no text has more than 9"),
        ({"ablate": {(0, 1): "men"}}, ValueError, r"`ablate` has 'men' for \(0, 1\); pass"),
        ({"ablate": {(0, 1): np.ones(12)}}, ValueError, r"`ablate` has an array \(12,\) for \(0"),
        ({"ablate": {(0, 1): ["a"]}}, TypeError, r"`ablate`\[\(0, 1\)\]|`ablate` has <U1"),
        ({"edit": [("z", 0)]}, TypeError, r"edit\[0\] is \('z', 0\); pass a record, such as "),
        ({"edit": 3}, TypeError, "`edit` is 3; pass a mapping from an activation to .*, or a list"),
        ({"edit": {3: abs}}, TypeError, "`edit` has 3; pass an activation's full name, or a tuple"),
        ({"edit": {("z", 0): None}}, TypeError, "`edit` has None for blocks.0.attn.hook_z; pass a"),
        ({"edit": {("z", 0): abs, Z: abs}}, ValueError, f"`edit` has two changes for {Z}; pass"),
        ({"edit": {"logits": abs}}, ValueError, "`edit` has 'logits', which is the output of the"),
        *(
            ({"edit": {name: abs}}, KeyError, "`edit` has .*, and there is no ")
            for name in (("zz", 0), ("z", 2), "hook_zz", ("z", 0, "mlp"))
        ),
        ({"edit": {("z", 0): np.ones((2, 9, 3, 4))}}, ValueError, r"`edit` has shape \(2, 9, 3.*4"),
        ({"edit": {Z: np.ones((1, 9, 3, 4), bool)}}, TypeError, "`edit` has bool for blocks"),
        ({"edit": {("z", 0): lambda z: None}}, TypeError, "the function for blocks.0.attn.hook_z"),
        (
            {"edit": {Z: lambda z: z[:, 0]}},
            ValueError,
            r".*_z got \(1, 9, 3, 4\) and re.* \(1, 3, 4",
        ),
        ({"edit": {("z", 0): lambda z: z > 0}}, TypeError, ".*hook_z returned bool: return floats"),
        (
            {"edit": {("pattern", 1): abs}, "top_k": 2},
            ValueError,
            "top_k is 2, but an edit changes",
        ),
        ({"hide": (3, 1)}, TypeError, r"`hide` is \(3, 1\), which could mean positions or one"),
        ({"hide": ["the", "cat", "sat", "on", "mat", "."]}, ValueError, "hide masks every word of"),
    ],
)
def test_trace_refuses_invalid_ablate_hide_and_edit(double, options, error, said):
    with pytest.raises(error, match=f"^.?trace: {said}") as raised:  # a KeyError is quoted
        double.trace(TEXT, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"edit": {"hook_zz": abs}},
        {"edit": {("z", 0): "zero"}},
        {"edit": {("z", 0): np.array(["a"])}},
        {"edit": {("z", 0): abs, Z: abs}},
        {"ablate": [(9, 0)]},
        {"ablate": {(0, 0): "men"}},
        {"hide": [(0, 1, 9)]},
        {"hide": {}},
    ],
)
@pytest.mark.parametrize("output", ["sentence_embedding", "token_embeddings"])
def test_encode_refuses_invalid_edits_even_without_texts(double, options, output):
    with pytest.raises((KeyError, TypeError, ValueError)) as refused:
        double.encode(["the cat"], **options)
    for texts in ([], (), iter([])):
        with pytest.raises(refused.type) as found:
            double.encode(texts, output_value=output, **options)
        assert found.value.args == refused.value.args


def test_the_last_of_two_ablations_of_a_head_wins(double):
    """If two entries of `ablate` name the same head, the later entry counts."""
    values = {(1, None): np.full(4, 2.0), (1, -1): "zero"}
    z = double.trace(TEXT, ablate=values)["z", 1]
    assert (z[:, :, :2] == 2).all()
    assert not z[:, :, 2].any()
    assert (double.trace(TEXT, ablate=dict(reversed(values.items())))["z", 1] == 2).all()


def test_edits_are_checked_before_the_run_and_errors_of_functions_propagate(double):
    calls = []
    with pytest.raises(ValueError, match="`edit` has"):
        double.encode(
            ["the cat", "a dog"], edit={("z", 0): calls.append, ("z", 1): np.ones((3, 4, 3, 4))}
        )
    assert not calls

    def fails(_):
        raise RuntimeError("mine")

    before = double.trace(TEXT)["resid_post", 1]
    with pytest.raises(RuntimeError, match=r"^mine$"):
        double.trace(TEXT, edit={("z", 0): fails})
    np.testing.assert_array_equal(double.trace(TEXT)["resid_post", 1], before)


def test_hiding_an_unknown_word_does_not_match_other_unknown_words(double):
    assert double.tokenize("xyzzy").tokens == ["[CLS]", "[UNK]", "[SEP]"]
    with pytest.raises(ValueError, match="'plugh', which is in no text"):
        double.trace("the xyzzy cat", hide=["plugh"])


# embeddings of another size than the layers


@pytest.mark.parametrize(
    ("kind", "narrow", "sizes"),
    [
        ("albert", ["embed", "pos_embed", "token_type_embed"], (8, 12)),
        ("opt", ["embed"], (10, 24)),
    ],
)
def test_narrow_embeddings_are_edited_in_their_own_shape(tmp_path, kind, narrow, sizes):
    config = CONFIGS[kind] | {"word_embed_proj_dim": 10} if kind == "opt" else CONFIGS[kind]
    model = load(str(write_small(tmp_path / kind, config)), dtype="float64")
    ids, others = [3, 7, 1, 9], [4, 7, 8, 2]
    run = model.trace(ids)
    assert (run["embed"].shape[-1], run["full_embed"].shape[-1]) == sizes
    for name in ("embed", *narrow):
        wide = np.zeros_like(run["full_embed"])
        with pytest.raises(ValueError, match=rf"hook_{name}, whose shape is \(1, 4, {sizes[0]}\)"):
            model.trace(ids, edit={name: wide})
    close(
        model.trace(ids, edit={"embed": model.trace(others)["embed"]}, logits=True)["logits"],
        model.trace(others, logits=True)["logits"],
    )
    weights = {"embed": np.ones_like(run["embed"])}
    found = model.gradient(ids, of=weights, at=["embed"])["embed"]
    np.testing.assert_array_equal(found, weights["embed"])


def test_the_final_projection_is_an_activation(tmp_path):
    config = CONFIGS["opt"] | {"word_embed_proj_dim": 10}
    model = load(str(write_small(tmp_path / "opt", config)), dtype="float64")
    trace = model.trace([3, 7, 1, 9], logits=True)
    weight = model.parameters["final_proj.weight"]
    close(trace["final_proj"], trace["ln_final.normalized"] @ weight)
    close(trace["logits"], trace["final_proj"] @ model.parameters["embed.weight"].T)
    assert trace.hidden_states[-1] is trace["final_proj"]
    gradient = model.gradient([3, 7, 1, 9], of=(2, 5), at=["final_proj", "ln_final.normalized"])
    expected = np.zeros((1, 4, 10))
    expected[0, 2] = model.parameters["embed.weight"][5]
    close(gradient["final_proj"], expected)
    close(gradient["ln_final.normalized"], expected @ weight.T)
    zeros = model.trace([3, 7], edit={"final_proj": np.zeros((1, 2, 10))}, logits=True)
    assert not zeros["logits"].any()
    assert model.unembed(trace["resid_post", -1]).shape == trace["logits"].shape
