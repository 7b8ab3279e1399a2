"""Tests of head scores and of differences between models, against plain loops over traces."""

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from models.small_models import CONFIGS, write_small
from models.support import CONFIG, Folder, bert_tensors
from qkv.circuits import diff, head_scores
from qkv.circuits._reader import watch
from qkv.circuits.means import head_sums
from qkv.layers import MLP
from qkv.models.untrained import fresh_model

NAMES = ("previous", "next", "same", "first", "last", "induction", "entropy")
TEXTS = ["the cat sat on the mat", "a dog ran", "the bank, the river bank.", "the", "run run run"]
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50}
GPT2 |= {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
T5 = {name: value for name, value in CONFIGS["t5"].items() if "decoder" not in name}
DECODER = {name: value for name, value in CONFIGS["llama"].items() if name != "mlp_bias"}
KINDS = {
    **{name: CONFIGS[name] for name in ("gpt2", "llama", "gemma2", "modernbert")},
    "bloom": {  # ALiBi
        **{"model_type": "bloom", "architectures": ["BloomForCausalLM"], "vocab_size": 30},
        **{"hidden_size": 12, "n_layer": 2, "n_head": 4},
    },
    "gpt_oss": {  # sinks
        **{**DECODER, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]},
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "t5, its encoder": {**T5, "architectures": ["T5EncoderModel"]},  # a bias
}


@pytest.fixture
def bert(tmp_path: Path) -> qkv.Model:
    """A BERT of two layers with three heads; its tokenizer adds [CLS] and [SEP]."""
    tensors = bert_tensors(CONFIG, seed=3)
    folder = Folder(tmp_path)
    folder.config, folder.tensors = CONFIG, tensors
    return qkv.load(str(folder.write()))


def uniform() -> qkv.Model:
    """Return a decoder whose queries are 0, so that all visible positions have equal weights."""
    model = fresh_model(GPT2, seed=0)
    parameters = {
        name: np.zeros_like(array) if ".q_proj." in name else array
        for name, array in model.parameters.items()
    }
    return model.with_parameters(parameters)


def looped(model: qkv.Model, texts: list[Any]) -> dict[str, np.ndarray]:
    """Compute the scores in plain float64 loops, one text and one query at a time."""
    shape = (model.num_layers, model.num_heads)
    sums = {name: np.zeros(shape) for name in NAMES}
    counts = dict.fromkeys(NAMES, 0)
    for text in texts:
        trace = model.trace(text)
        ids, last = trace.ids, len(trace.ids) - 1
        for i in range(len(ids)):
            row = np.array([layer[0, :, i].astype(np.float64) for layer in trace.attentions])
            earlier = [j for j in range(i) if ids[j] == ids[i]]
            positions = {
                "previous": [i - 1] if i > 0 else [],
                "next": [i + 1] if i < last else [],
                "same": earlier,
                "first": [0],
                "last": [last],
                "induction": [j + 1 for j in earlier],
            }
            for name, keys in positions.items():
                sums[name] += row[..., keys].sum(axis=-1)
                counts[name] += 1 if name != "induction" or earlier else 0
            sums["entropy"] -= np.where(row > 0, row * np.log(np.maximum(row, 1e-300)), 0).sum(-1)
            counts["entropy"] += 1
    with np.errstate(invalid="ignore"):
        return {name: sums[name] / np.float64(counts[name]) for name in NAMES}


def agree(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == np.float64
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6, err_msg=name)


def test_scores_of_an_encoder_equal_plain_loops(bert: qkv.Model) -> None:
    agree(head_scores(bert, TEXTS), looped(bert, TEXTS))


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_other_families_equal_plain_loops(kind: str, tmp_path: Path) -> None:
    """Cover causal masks, RoPE, fewer key heads, soft caps, windows, ALiBi, sinks and a bias."""
    model = qkv.load(str(write_small(tmp_path / "model", KINDS[kind], seed=2)))
    agree(head_scores(model, TEXTS), looped(model, TEXTS))


def test_a_b_c_a_by_hand() -> None:
    found = head_scores(uniform(), [[5, 6, 7, 5]])
    wanted = {
        "previous": (1 / 2 + 1 / 3 + 1 / 4) / 4,
        "next": 0.0,
        "same": 1 / 4 / 4,
        "first": (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4,
        "last": 1 / 4 / 4,
        "induction": 1 / 4,
        "entropy": (log(2) + log(3) + log(4)) / 4,
    }
    agree(found, {name: np.full((2, 2), value) for name, value in wanted.items()})


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        ("first", {"previous": 7 / 23, "next": 0.0, "same": 0.0, "first": 0.0, "induction": 1 / 3}),
        (("first", "self"), {"previous": 7 / 10, "last": 0.0, "induction": 1 / 2}),
        ("self", {"first": 13 / 23, "previous": 13 / 23, "same": 3 / 23, "induction": 1 / 3}),
    ],
)
def test_skipped_keys_by_hand(skip: Any, expected: dict[str, float]) -> None:
    """Rows are 1; 1/2 1/2; 1/3 1/3 1/3; 1/4 1/4 1/4 1/4.

    Without the first key, they sum to 0, 1/2, 2/3, 3/4; without the query too, to 0, 0, 1/3, 2/4.
    """
    found = head_scores(uniform(), [[5, 6, 7, 5]], list(expected), skip=skip)
    agree(found, {name: np.full((2, 2), value) for name, value in expected.items()})


def test_a_pattern_of_ones_own_equals_plain_loops(bert: qkv.Model) -> None:
    patterns = {
        "far": lambda ids: np.abs(ids[:, None] - ids) / 9,
        "none": lambda ids: np.zeros([len(ids)] * 2),
    }
    for skip in ((), ("first",), ("first", "self")):
        sums, counts = np.zeros((2, 3)), np.zeros((2, 3))
        for text in TEXTS:
            trace = bert.trace(text)
            ids, weights = np.array(trace.ids), np.array([x[0] for x in trace.attentions])
            kept = np.ones([len(ids)] * 2)
            kept[:, 0] -= "first" in skip
            kept -= np.eye(len(ids)) * ("self" in skip)
            kept = np.maximum(kept, 0)
            sums += np.einsum("lhqk,qk,qk->lh", weights, kept, np.abs(ids[:, None] - ids) / 9)
            counts += np.einsum("lhqk,qk->lh", weights, kept)
        found = head_scores(bert, TEXTS, patterns, skip=skip)
        agree(found, {"far": sums / counts, "none": np.zeros((2, 3))})
        assert found["far"].title == "far"


def test_invalid_patterns_and_skips_are_refused(bert: qkv.Model) -> None:
    for of, skip, message in (
        (
            {"flat": lambda ids: np.ones(len(ids))},
            (),
            r"the pattern 'flat' has shape \(8,\) for a text of 8",
        ),
        ({}, (), "`of` is empty"),
        (NAMES, "last", "`skip` is 'last'; choose among first, self"),
        (["entropy"], "first", "`of` has 'entropy', which needs all weights"),
    ):
        with pytest.raises(ValueError, match=f"^head_scores: {message}"):
            head_scores(bert, TEXTS[:1], of, skip=skip)
    assert "entropy" not in head_scores(bert, TEXTS, skip="self")


def test_a_token_behind_its_own_copy_follows_that_copy() -> None:
    # query 1 has the weight 1/2 on key 1; query 2 has 1/3 on key 1 and 1/3 on key 2
    found = head_scores(uniform(), [[5, 5, 5]], "induction")
    agree(found, {"induction": np.full((2, 2), (1 / 2 + 2 / 3) / 2)})


def test_nan_where_no_query_counts(bert: qkv.Model) -> None:
    found = head_scores(bert, ["the cat"])
    assert np.isnan(found["induction"]).all()
    assert not any(np.isnan(found[name]).any() for name in NAMES if name != "induction")
    for array in head_scores(bert, []).values():
        assert array.shape == (2, 3)
        assert np.isnan(array).all()


def test_one_text_ids_and_any_iterable(bert: qkv.Model) -> None:
    ids = [bert.tokenize(text).ids for text in TEXTS]
    wanted = head_scores(bert, TEXTS)
    for texts in (ids, tuple(map(list, ids)), iter(TEXTS), [TEXTS[0], *ids[1:]]):
        agree(head_scores(bert, texts), wanted)
    for one in (TEXTS[0], ids[0], ids[0].tolist(), [TEXTS[0]]):
        agree(head_scores(bert, one), looped(bert, TEXTS[:1]))


def test_a_blank_text_has_only_its_special_tokens_if_any(bert: qkv.Model, tmp_path: Path) -> None:
    agree(head_scores(bert, ["", "the cat"]), looped(bert, [[2, 3], "the cat"]))
    plain = qkv.load("random")
    assert len(plain.tokenize("")) == 0
    agree(head_scores(plain, ["", "the cat the", " "]), looped(plain, ["the cat the"]))


def test_only_requested_scores_are_returned_in_their_order(bert: qkv.Model) -> None:
    found = head_scores(bert, TEXTS, ("entropy", "first", "entropy"))
    whole = looped(bert, TEXTS)
    agree(found, {name: whole[name] for name in ("entropy", "first")})


def test_the_order_of_texts_and_how_they_are_batched_change_nothing(
    bert: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = head_scores(bert, TEXTS)
    agree(head_scores(bert, TEXTS[::-1]), wanted)
    for cells, tokens, texts in ((1, 10**6, 100), (100, 10**6, 2), (10**6, 10, 100)):
        monkeypatch.setattr("qkv.circuits._reader.CELLS", cells)
        monkeypatch.setattr("qkv.circuits._reader.MOST_POSITIONS", tokens)
        monkeypatch.setattr("qkv.circuits._reader.TEXTS", texts)
        agree(head_scores(bert, TEXTS), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_looked_at_some_queries_at_a_time(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qkv.load(str(write_small(tmp_path / "model", KINDS[kind], seed=2)))
    shapes = []

    def spied(*args: Any, **options: Any) -> Any:
        found = qkv.attention(*args, **options)
        shapes.append(found[1].shape)
        return found

    monkeypatch.setattr("qkv.circuits._reader.attention", spied)
    monkeypatch.setattr("qkv.circuits._reader.CELLS", 3 * 4 * 7)
    agree(head_scores(model, TEXTS), looped(model, TEXTS))
    assert max(np.prod(shape) for shape in shapes) <= 3 * 4 * 7
    assert {shape[2] for shape in shapes} != {shape[3] for shape in shapes}


def test_few_texts_of_a_stream_are_held_at_once(
    bert: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read, ahead = [0], [0], []

    def texts() -> Any:
        for _ in range(40):
            read[0] += len(TEXTS)
            yield from TEXTS

    def spied(model: qkv.Model, batch: Any, use: Any) -> None:
        ahead.append(read[0] - run[0])
        run[0] += len(batch)
        assert max(map(len, batch)) * len(batch) <= 64
        watch(model, batch, use)

    monkeypatch.setattr("qkv.circuits._reader.watch", spied)
    monkeypatch.setattr("qkv.circuits._reader.MOST_POSITIONS", 64)
    monkeypatch.setattr("qkv.circuits._reader.TEXTS", 20)
    found = head_scores(bert, texts())
    assert run[0] == 40 * len(TEXTS)  # each text runs once
    assert max(ahead) <= 20 + len(TEXTS)
    monkeypatch.undo()
    agree(found, looped(bert, TEXTS))


def test_nothing_after_the_last_attention_weights_is_computed(
    bert: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    plain = MLP.run
    numbers = {id(layer.mlp): number for number, layer in enumerate(bert.layers)}

    def spied(self: MLP, *args: Any, **options: Any) -> Any:
        ran.append(numbers[id(self)])
        return plain(self, *args, **options)

    monkeypatch.setattr(MLP, "run", spied)
    agree(head_scores(bert, TEXTS[:1]), looped(bert, TEXTS[:1]))
    # `head_scores` runs only the MLP of layer 0. Then `looped` runs the MLPs of both layers.
    assert ran[0] == 0
    assert ran[1:3] == [0, 1]


def test_parts_add_up_to_the_whole(bert: qkv.Model) -> None:
    wanted = looped(bert, TEXTS)
    for cut in range(len(TEXTS) + 1):
        parts = head_sums(bert, TEXTS[:cut]) + head_sums(bert, TEXTS[cut:])
        agree(parts.means(), wanted)


def test_long_texts_are_cut_as_in_a_trace_and_counted_once(bert: qkv.Model) -> None:
    long = "the cat sat on the mat a dog ran the cat sat on the mat a dog ran"
    with pytest.warns(UserWarning, match=r"2 of 3 texts were cut to 16 tokens") as said:
        found = head_scores(bert, [long, "the cat", f"{long} a bank"])
    assert len(said) == 1
    assert said[0].filename == __file__
    with pytest.warns(UserWarning, match="cut to 16 tokens"):
        wanted = looped(bert, [long, "the cat", f"{long} a bank"])
    agree(found, wanted)


@pytest.mark.parametrize("of", ["inducton", ["previous", "inducton"], [3], []])
def test_invalid_score_names_are_refused_with_a_list_of_names(bert: qkv.Model, of: Any) -> None:
    with pytest.raises(ValueError, match=f"head_scores: `of` .*choose among {', '.join(NAMES)}"):
        head_scores(bert, TEXTS, of)


def test_invalid_texts_are_refused(bert: qkv.Model) -> None:
    with pytest.raises(TypeError, match="head_scores: text 2 is int, not a string"):
        head_scores(bert, ["the", "cat", 3])
    with pytest.raises(ValueError, match=r"head_scores: there is no token 30: the ids run"):
        head_scores(bert, ["the", [1, 30]])
    with pytest.raises(ValueError, match=r"head_scores: text 1 has 17 ids; pass 1 to 16"):
        head_scores(bert, ["the", [1] * 17])
    with pytest.raises(TypeError, match="head_scores: text 1 is float64"):
        head_scores(bert, ["the", [0.5]])
    with pytest.raises(TypeError, match="head_scores: `texts` is int"):
        head_scores(bert, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="text 0 is not a list of ids and fresh has no tokenizer"):
        head_scores(uniform(), ["the"])


@pytest.mark.parametrize(("kind", "does"), [("t5", "reads one text"), ("vit", "reads images")])
def test_encoder_decoders_and_image_models_are_refused(
    kind: str, does: str, tmp_path: Path
) -> None:
    model = qkv.load(str(write_small(tmp_path / kind, CONFIGS[kind])))
    with pytest.raises(
        ValueError, match=f"head_scores: .* {does}.*: load a text encoder or decoder"
    ):
        head_scores(model, TEXTS)


def test_a_name_in_place_of_a_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"head_scores: `model` is str; pass a model"):
        head_scores("minilm", TEXTS)  # type: ignore[arg-type]


# Differences between two models

IDS = [[3, 7, 1, 9, 4, 7], [5], [5, 2, 8, 11]]
SITES = {"resid": "resid_post", "attn": "attn_out", "mlp": "mlp_out", "heads": "z"}


def moved(model, seed=0, size=0.3):
    """Return the model with random changes of its weights."""
    rng = np.random.default_rng(seed)
    parameters = {
        name: array + size * rng.standard_normal(array.shape) * array.std()
        for name, array in model.parameters.items()
    }
    return model.with_parameters(parameters)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "parallel"])
def test_cosines_and_changes_equal_plain_loops(small, kind):
    one, other = small(kind), moved(small(kind))
    found = diff(one, other, iter(IDS))
    cosines = {name: [] for name in SITES}
    sizes, kl, same = [], [], []
    for ids in IDS:
        a, b = one.trace(ids, logits=True), other.trace(ids, logits=True)
        for name, site in SITES.items():
            if kind == "bert" and name == "resid":
                site = "normalized_resid_post"
            x, y = (np.moveaxis(run.stack(site)[:, 0], 1, 0) for run in (a, b))  # (T, layers, ...)
            lengths = np.sqrt((x * x).sum(-1)) * np.sqrt((y * y).sum(-1))
            cosines[name] += list((x * y).sum(-1) / lengths)
        for x, y in zip(a["logits"][0], b["logits"][0], strict=True):
            p, q = (np.exp(logits) / np.exp(logits).sum() for logits in (x, y))
            sizes.append(np.abs(x - y).mean())
            kl.append(sum(p * np.log(p / q)))
            same.append(np.argmax(p) == np.argmax(q))
    for name, each in cosines.items():
        np.testing.assert_allclose(found[name], np.mean(each, 0), rtol=0, atol=1e-12)
        assert found[name].axes == (("layer", "head") if name == "heads" else ("layer",))
        assert found[name].max() < 0.999
    for name, each in (("logits", sizes), ("kl", kl), ("same", same)):
        np.testing.assert_allclose(found[name], np.mean(each), rtol=1e-10, atol=1e-14)


def test_a_model_does_not_differ_from_itself(small):
    found = diff(small("gpt2"), small("gpt2"), IDS)
    for name in SITES:
        np.testing.assert_allclose(found[name], 1, rtol=0, atol=1e-12)
    assert (found["logits"], found["same"]) == (0, 1)
    assert abs(found["kl"]) < 1e-12
    ablated = small("gpt2").parameters
    silent = dict(ablated) | {
        "blocks.1.attn.v_proj.weight": 0 * ablated["blocks.1.attn.v_proj.weight"],
        "blocks.1.attn.v_proj.bias": 0 * ablated["blocks.1.attn.v_proj.bias"],
    }
    silent = small("gpt2").with_parameters(silent)
    # the cosine of a zero vector and another vector is 0; the cosine of two zero vectors is 1
    assert not diff(small("gpt2"), silent, IDS)["heads"][1].any()
    assert (diff(silent, silent, IDS)["heads"][1] == 1).all()


def test_diff_does_not_depend_on_the_batches(small, monkeypatch):
    one, other = small("gpt2"), moved(small("gpt2"))
    expected = diff(one, other, IDS)
    monkeypatch.setattr("qkv.circuits._reader.MOST_POSITIONS", 8)
    monkeypatch.setattr("qkv.circuits._reader.TEXTS", 2)
    for name, value in diff(one, other, IDS).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-12)


def test_models_that_cannot_be_compared(small, tmp_path):
    model = small("gpt2")
    with pytest.raises(TypeError, match="diff: `model` is str"):
        diff(model, "gpt2", IDS)
    with pytest.raises(ValueError, match=r"diff: .* has 2 layers and .* 1; pass models of the"):
        diff(model, qkv.load("random"), IDS)
    with pytest.raises(ValueError, match=r"the blocks of .* and .* have different parts; pass mod"):
        diff(small("parallel"), model, IDS)
    wide = {**CONFIGS["gpt2"], "vocab_size": 31}
    wide = qkv.load(str(write_small(tmp_path / "wide", wide)), dtype="float64")
    with pytest.raises(ValueError, match=r"has 30 words and .* 31"):
        diff(model, wide, IDS)
    with pytest.raises(ValueError, match="diff: the texts contain no tokens; pass a text"):
        diff(model, model, [])
    other = moved(model)
    other.max_seq_length = 4
    with pytest.raises(ValueError, match=r"splits text 0 into 8 tokens, but .* into 4 different"):
        diff(model, other, ["the cat sat on the mat"])
