"""Tests of encoder-decoders against a plain T5 in loops: results, traces and generation."""

import copy
import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

import qkv
from qkv.models import load
from qkv.models.model import Seq2SeqModel
from qkv.models.network._relative_bias import Buckets
from qkv.models.network.batch import PackedIds
from qkv.models.run.edited_run import EditedRun
from qkv.models.tasks.generate import Generated, first_step
from qkv.trace import Seq2SeqTrace
from rows import failing
from see.page.reading import payload_in

from .formulas import attend, causal, rms_norm
from .small_models import CONFIGS, arrays_of
from .support import padded, refused

CONFIG = {
    **CONFIGS["t5"],
    **{"vocab_size": 20, "d_ff": 16, "relative_attention_max_distance": 12},
    **{"layer_norm_epsilon": 1e-4, "tie_word_embeddings": True},
    **{"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
}
WORDS = [
    *("<pad>", "</s>", "<unk>", "the", "cat", "sat", "a", "dog", "die", "katze", "ein", "hund"),
    *("und", "noch", "zwei", "mehr", "als", "vorher", "hier", "waren"),
]


def tokenizer_json():
    """Return the JSON of a word tokenizer that puts `</s>` after each text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    ids = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer.to_str()


def t5(folder, *, config=None, tensors=None, change=None, generation=None):
    config = {**CONFIG, **(config or {})}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    tensors = arrays_of(config) if tensors is None else tensors
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def tied(tensors):
    """Remove the output matrix, as in the files of a tied model."""
    tensors.pop("lm_head.weight", None)
    return tensors


def with_own_output(seed):
    """Return the tensors of a model whose output matrix is not the token table."""
    shape = CONFIG["vocab_size"], CONFIG["d_model"]
    matrix = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return {**arrays_of(CONFIG, seed=seed), "lm_head.weight": matrix}


@pytest.fixture
def model(tmp_path) -> Seq2SeqModel:
    found = load(t5(tmp_path / "model", change=tied), dtype="float64")
    assert isinstance(found, Seq2SeqModel)
    return found


def plain_t5(tensors, ids, written):
    """Run a plain T5 on one pair; return both last hidden states, the logits and the weights."""
    p = {name: array.astype(float) for name, array in tensors.items()}

    def norm(x, name):
        return rms_norm(x, p[f"{name}.weight"], 1e-4)

    def attention(x, context, name, bias, visible=True):
        q, k, v = (
            given @ p[f"{name}.{part}.weight"].T
            for part, given in zip("qkv", (x, context, context), strict=True)
        )
        out, weights = attend(q, k, v, 3, 1, bias, visible)
        return out @ p[f"{name}.o.weight"].T, weights

    def feed(x, name):
        hidden = np.maximum(x @ p[f"{name}.wi.weight"].T, 0)
        return hidden @ p[f"{name}.wo.weight"].T

    def bias_of(side, both_ways, length):
        table = p[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        distances = np.arange(length) - np.arange(length)[:, None]
        return np.moveaxis(table[Buckets(8, 12, both_ways).of(distances)], -1, 0)

    found = {"encoder": [], "decoder": [], "cross": []}
    x, bias = p["shared.weight"][ids], bias_of("encoder", True, len(ids))
    for layer in range(2):
        here = f"encoder.block.{layer}.layer"
        normed = norm(x, f"{here}.0.layer_norm")
        out, weights = attention(normed, normed, f"{here}.0.SelfAttention", bias)
        found["encoder"].append(weights)
        x = x + out
        x = x + feed(norm(x, f"{here}.1.layer_norm"), f"{here}.1.DenseReluDense")
    memory = norm(x, "encoder.final_layer_norm")
    x, bias = p["shared.weight"][written], bias_of("decoder", False, len(written))
    for layer in range(3):
        here = f"decoder.block.{layer}.layer"
        y = norm(x, f"{here}.0.layer_norm")
        out, weights = attention(y, y, f"{here}.0.SelfAttention", bias, causal(len(written)))
        found["decoder"].append(weights)
        x = x + out
        y = norm(x, f"{here}.1.layer_norm")
        out, weights = attention(y, memory, f"{here}.1.EncDecAttention", 0)
        found["cross"].append(weights)
        x = x + out
        x = x + feed(norm(x, f"{here}.2.layer_norm"), f"{here}.2.DenseReluDense")
    last = norm(x, "decoder.final_layer_norm")
    return memory, last, last / math.sqrt(12) @ p.get("lm_head.weight", p["shared.weight"]).T, found


READ = [[3, 4, 5, 1], [6, 7, 1], [5, 3, 4, 5, 3, 4, *[9] * 9, 1]]
WRITTEN = [[0, 8, 9], [0, 10, 11, 8, 9, 5, 6, 7, 8, 9, 10, 11, 3, 4, 5, 6], [0]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_plain_t5_gives_the_same(model, side):
    ids, mask = padded(READ, side, fill=7)
    written, shown = padded(WRITTEN, side, fill=7)
    found = model(ids, mask, written, shown)
    trace = model.trace(READ, target=WRITTEN)
    assert isinstance(trace, Seq2SeqTrace)
    assert len(trace) == 3
    for number, (one, other) in enumerate(zip(READ, WRITTEN, strict=True)):
        memory, last, logits, weights = plain_t5(tied(arrays_of(CONFIG)), one, other)
        np.testing.assert_allclose(model.unembed(last, norm=False), logits, atol=1e-10)
        real, seen = mask[number] == 1, shown[number] == 1
        for array, kept, expected in (
            (found.encoder_last_hidden_state[number], real, memory),
            (found.last_hidden_state[number], seen, last),
            (found.logits[number], seen, logits),
        ):
            np.testing.assert_allclose(array[kept], expected, atol=1e-10)
            assert not array[~kept].any()
        pair = trace[number]
        parts = (pair.encoder.attentions, pair.decoder.attentions, pair.cross_attentions)
        for name, mine in zip(weights, parts, strict=True):
            for expected, array in zip(weights[name], mine, strict=True):
                np.testing.assert_allclose(array[0], expected, atol=1e-11)


@pytest.mark.parametrize("edited", [False, True])
def test_padding_in_a_trace_is_0(model, edited):
    """Padding is 0 (in scores -inf), even if an edit adds 1 to every activation."""
    trace = model.trace(READ, target=WRITTEN)
    if edited:
        more = {name: lambda x: x + 1 for name in trace.names()}
        trace = model.trace(READ, target=WRITTEN, edit=more)
    lengths = {"encoder": [len(row) for row in READ], "decoder": [len(row) for row in WRITTEN]}
    for name in trace.names():
        array, side = trace[name], name.partition(".")[0]
        keys = lengths["encoder" if "cross_attn" in name else side]
        for number in range(3):
            if name.endswith(("attn_scores", "pattern")):
                empty = -np.inf if name.endswith("scores") else 0
                assert (array[number, :, lengths[side][number] :] == empty).all(), name
                assert (array[number, ..., keys[number] :] == empty).all(), name
            else:
                own = keys if name.endswith(("cross_attn.hook_k", "cross_attn.hook_v")) else None
                size = (own or lengths[side])[number]
                assert not array[number, size:].any(), name


def test_a_pair_of_texts(model):
    trace = model.trace("the cat sat", target="die katze")
    assert trace.encoder.tokens == ["the", "cat", "sat", "</s>"]
    assert trace.decoder.tokens == ["<pad>", "die", "katze"]
    assert trace.decoder.offsets == [(0, 0), (0, 3), (4, 9)]
    assert trace.decoder.special == [True, False, False]
    same = model.trace([[3, 4, 5, 1]], target=[[0, 8, 9]])
    np.testing.assert_equal(dict(trace), dict(same))
    plain = model.trace("the cat sat")
    assert isinstance(plain, qkv.Trace)
    np.testing.assert_equal(dict(plain), dict(trace.encoder))


def test_head_view_shows_the_same_for_a_pair_and_its_arrays(model, tmp_path):
    trace = model.trace("the cat sat", target="die katze")
    one = qkv.head_view(trace)
    other = qkv.head_view(
        encoder_attention=trace.encoder.attentions,
        decoder_attention=trace.decoder.attentions,
        cross_attention=trace.cross_attentions,
        encoder_tokens=trace.encoder.tokens,
        decoder_tokens=trace.decoder.tokens,
    )
    shown, expected = (
        [(text["weights"], text["tokens"]) for text in payload_in(view.data)["texts"]]
        for view in (one, other)
    )
    assert shown == expected
    several = model.trace(["the cat sat", "a"], target=["die katze", "ein hund"])
    assert qkv.head_view(several[0]).data.count('"tokens"') == other.data.count('"tokens"')
    with pytest.raises(ValueError, match=r"2 pairs; pass one of them, for example trace\[0\]"):
        qkv.head_view(several)
    with pytest.raises(TypeError, match=r"trace\.encoder or trace\.decoder"):
        qkv.show(trace)
    view = qkv.show(trace.decoder)
    assert view.tokens == ["<pad>", "die", "katze"]
    view.to_html(tmp_path / "view.html")
    assert "katze" in (tmp_path / "view.html").read_text(encoding="utf-8")


def test_layers_of_a_pair_that_were_not_kept(model):
    trace = model.trace("the cat", target="die katze", layers=0)
    assert (trace.encoder.num_layers, trace.num_layers) == (2, 3)
    with pytest.raises(KeyError, match=r"holds cross_attn\.pattern only for layer 0 of 3 layers"):
        _ = trace.cross_attentions
    assert ("cross_attn.pattern", -1) not in trace


def test_a_notebook_shows_both_sides_of_a_pair(model):
    shown = model.trace("the cat", target="die katze")._repr_html_()
    for part in ("trace.encoder", "the cat", "trace.decoder", "die katze"):
        assert part in shown
    assert "blocks.{0..2}.cross_attn.hook_pattern</td><td>(1, 3, 3, 3)</td>" in shown


def test_many_texts_are_read_in_parts(model):
    texts = ["the cat", "cat", "the cat the cat"]
    whole = model.trace(texts)
    for name, array in model.trace(texts, batch_size=2).items():
        np.testing.assert_allclose(array, whole[name], atol=1e-12)
    assert [len(trace) for trace in model.trace_stream(texts, batch_size=2)] == [2, 1]
    with pytest.raises(ValueError, match=r"trace: .* computes logits only for the decoder's text"):
        model.trace(texts, logits=True)
    with pytest.raises(ValueError, match=r"trace_stream: .* the decoder's text: add target, as in"):
        model.trace_stream(texts, logits=True)
    with pytest.raises(ValueError, match="batch_size is for texts without a target"):
        model.trace("the cat", target="die katze", batch_size=2)
    with pytest.raises(ValueError, match="2 texts and 1 targets"):
        model.trace(["the", "cat"], target=["die"])


def test_the_names_of_a_pair(model):
    trace = model.trace("the cat", target="die katze")
    names = trace.names()
    assert len(names) == len(set(names))
    for name in (
        *("encoder.hook_embed", "decoder.hook_embed", "encoder.1.attn.hook_pattern"),
        *("decoder.2.attn.hook_q", "decoder.2.cross_attn.hook_pattern", "decoder.0.hook_resid_mid"),
        *("decoder.0.hook_cross_attn_out", "decoder.0.hook_resid_mid_cross"),
        *("decoder.ln_final.hook_normalized", "encoder.1.hook_mlp_out"),
    ):
        assert name in names
        assert name in trace
    assert trace["cross_attn.pattern", -1] is trace["decoder.2.cross_attn.hook_pattern"]
    assert trace["encoder.0.attn.hook_q"] is trace.encoder["q", 0]
    for name in ("pattern", "decoder.3.attn.hook_q", ("pattern", 0), ("cross_attn.pattern", 3)):
        assert name not in trace
        with pytest.raises(KeyError, match=r"names begin with|there is no layer 3"):
            trace[name]
    assert trace["pattern", -1, "cross_attn"] is trace["cross_attn.pattern", 2]
    assert list(trace.keys()) == names
    assert all(array is trace[name] for name, array in trace.items())
    assert dict(trace).keys() == trace.keys()
    with pytest.raises(ValueError, match="read-only"):
        trace["cross_attn.pattern", 0][0] = 0
    with pytest.raises(KeyError, match=r"such as decoder\.0\.attn\.hook_pattern"):
        trace["decoder.0.attn.hook_patern"]
    mid = trace["decoder.1.hook_resid_mid"] + trace["decoder.1.hook_cross_attn_out"]
    np.testing.assert_allclose(trace["decoder.1.hook_resid_mid_cross"], mid, atol=1e-12)
    post = mid + trace["decoder.1.hook_mlp_out"]
    np.testing.assert_allclose(trace["decoder.1.hook_resid_post"], post, atol=1e-12)


def test_a_trace_of_a_pair_keeps_only_selected_activations(model):
    asked = ["pattern", "decoder.hook_embed", "encoder.1.hook_resid_post", "hook_cross_attn_out"]
    trace = model.trace("the cat", target="ein hund", names=asked, layers=[-1])
    assert sorted(trace.names()) == [
        "decoder.2.attn.hook_pattern",
        "decoder.2.cross_attn.hook_pattern",
        "decoder.2.hook_cross_attn_out",
        "decoder.hook_embed",
        "encoder.1.attn.hook_pattern",
        "encoder.1.hook_resid_post",
    ]
    asked = [("pattern", 0), ("cross_attn.pattern", -1), ("pattern", 1, "cross_attn")]
    trace = model.trace("the cat", target="ein hund", names=asked)
    assert sorted(trace.names()) == [
        "decoder.0.attn.hook_pattern",
        "decoder.1.cross_attn.hook_pattern",
        "decoder.2.cross_attn.hook_pattern",
        "encoder.0.attn.hook_pattern",
    ]
    with pytest.raises(KeyError, match="no layer 3: the model has 3"):
        model.trace("the cat", target="die", names=("pattern", 3))
    only = model.trace("the cat", target="ein hund", names="decoder.2.cross_attn.hook_pattern")
    assert only.names() == ["decoder.2.cross_attn.hook_pattern"]
    assert only.num_layers == 3
    kept = model.trace(["the cat", "a"], target=["die", "ein hund"], top_k=2)
    assert kept["decoder.0.cross_attn.top_weights"].shape == (2, 3, 3, 2)
    whole = model.trace(["the cat", "a"], target=["die", "ein hund"])
    best = np.sort(whole["cross_attn.pattern", 0])[..., ::-1][..., :2]
    np.testing.assert_allclose(kept["cross_attn.top_weights", 0], best, atol=1e-6)
    assert kept[0]["decoder.0.cross_attn.received"].shape == (1, 3, 3)
    assert kept[0]["decoder.0.cross_attn.lse"].shape == (1, 3, 2)
    with pytest.raises(KeyError, match=r"no 'patern'.*pattern"):
        model.trace("the cat", target="die", names="patern")
    with pytest.raises(ValueError, match="no layer 3: the model has 3"):
        model.trace("the cat", target="die", layers=3)


def test_attention_inputs_of_a_pair_reproduce_its_weights(model):
    trace = model.trace(READ, target=WRITTEN)
    for layer in (0, 2, -1):
        for inputs, expected in (
            (trace.cross_attention_inputs(layer), trace["cross_attn.pattern", layer]),
            (trace.decoder.attention_inputs(layer), trace.decoder["pattern", layer]),
            (trace.encoder.attention_inputs(layer % 2), trace.encoder["pattern", layer % 2]),
        ):
            found = qkv.attention(**inputs, return_weights=True)[1]
            np.testing.assert_allclose(found, expected, atol=1e-12)
    pair = trace[1]
    found = qkv.attention(**pair.cross_attention_inputs(1), return_weights=True)[1]
    np.testing.assert_allclose(found, pair["cross_attn.pattern", 1], atol=1e-12)


def test_a_pair_is_saved_and_read_again(model, tmp_path):
    trace = model.trace(READ, target=WRITTEN)
    trace.save(tmp_path / "pair.safetensors")
    again = qkv.Trace.load(tmp_path / "pair.safetensors")
    assert isinstance(again, Seq2SeqTrace)
    np.testing.assert_equal(dict(again), dict(trace))
    assert again.encoder.tokens == trace.encoder.tokens
    assert again.decoder.lengths.tolist() == [3, 16, 1]
    for layer in range(3):
        mine, theirs = (one.cross_attention_inputs(layer) for one in (again, trace))
        np.testing.assert_equal(mine, theirs)
        found = qkv.attention(**again.decoder.attention_inputs(layer), return_weights=True)[1]
        np.testing.assert_allclose(found, trace.decoder["pattern", layer], atol=1e-12)
    (tmp_path / "other.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a trace of an encoder-decoder"):
        Seq2SeqTrace.load(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="is not a trace that qkv saved"):
        qkv.Trace.load(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError):
        Seq2SeqTrace.load(tmp_path / "none")


def test_errors_of_a_pair_point_to_encoder_and_decoder(model):
    pair = model.trace(READ[0], target=WRITTEN[0])
    either = r"read trace\.encoder\.tokens or trace\.decoder\.tokens$"
    with pytest.raises(AttributeError, match=either):
        pair.tokens  # noqa: B018
    with pytest.raises(AttributeError, match=r"for cross-attention trace\.cross_attentions$"):
        pair.attentions  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'tokns'"):
        pair.tokns  # noqa: B018
    assert copy.deepcopy(pair).names() == pair.names()
    for view in (qkv.show, qkv.walk, qkv.plot_shift, lambda trace: qkv.plot_shift([trace])):
        with pytest.raises(TypeError, match=r"encoder-decoder; pass trace\.encoder"):
            view(pair)
    for a, b in ((pair, pair), (pair.encoder, pair)):
        with pytest.raises(TypeError, match="compare: this trace comes from an encoder"):
            qkv.compare(a, b, word="cat")


def test_encode_pools_the_encoder(model):
    texts = ["the cat sat", "a dog", "the cat sat"]
    found = model.encode(texts)
    for text, vector in zip(texts, found, strict=True):
        memory, *_ = plain_t5(tied(arrays_of(CONFIG)), model.tokenize(text).ids, [0])
        np.testing.assert_allclose(vector, memory.mean(0), atol=1e-10)


def greedy(tensors, ids, count):
    """Generate greedily without a cache: each token is computed from all tokens before it."""
    written = [0]
    for _ in range(count):
        _, _, logits, _ = plain_t5(tensors, ids, written)
        written.append(int(logits[-1].argmax()))
        if written[-1] == 1:
            break
    return written[1:]


def test_generate_matches_a_plain_t5(tmp_path):
    tensors = with_own_output(seed=21)  # this model writes short texts
    model = load(t5(tmp_path, tensors=tensors), dtype="float64")
    expected = [greedy(tensors, row, 12) for row in READ]
    found = model.generate(READ, max_new_tokens=12)
    assert [one.ids for one in found] == expected
    alone = [model.generate(row, max_new_tokens=12).ids for row in READ]
    assert alone == expected
    assert len({tuple(row) for row in expected}) == 3
    assert len({len(row) for row in expected}) > 1


def test_generated_text_does_not_begin_with_the_prompt(tmp_path):
    model = load(t5(tmp_path, tensors=with_own_output(seed=2)), dtype="float64")
    found = model.generate("the cat sat", max_new_tokens=6, trace=True)
    assert isinstance(found, Generated)
    assert found.prompt == "the cat sat"
    assert not found.startswith("the cat")
    assert found == " ".join(WORDS[token] for token in found.ids if token > 2)
    assert len(found.split()) > 2
    trace = found.trace
    assert isinstance(trace, Seq2SeqTrace)
    assert trace.encoder.tokens == ["the", "cat", "sat", "</s>"]
    assert trace.decoder.ids == [0, *found.ids[:-1]]
    for number in range(len(found.ids)):
        looked = found.looked_at(number)
        assert [weights.shape for weights in looked] == [(3, 4)] * 3
        np.testing.assert_array_equal(looked[1], trace["cross_attn.pattern", 1][0, :, number])
    logits = model([[3, 4, 5, 1]], None, [trace.decoder.ids]).logits[0]
    assert logits.argmax(-1).tolist() == found.ids
    np.testing.assert_allclose(found.logits, logits.max(-1), atol=1e-10)
    for begin, end in trace.decoder.offsets:
        assert 0 <= begin <= end <= len(found)
    with pytest.raises(IndexError, match="`token` is 6"):
        found.looked_at(6)
    with pytest.raises(TypeError, match=r"^looked_at: `token` is None; pass the number of a"):
        found.looked_at(None)
    with pytest.raises(ValueError, match="trace=True"):
        model.generate("the cat", max_new_tokens=2).looked_at(0)
    streamed = model.generate("the cat sat", max_new_tokens=6, stream=True)
    assert "".join(streamed) == found


def test_the_command_keeps_prompt_and_answer_apart(tmp_path):
    from click.testing import CliRunner

    from qkv.cli import main

    folder = t5(tmp_path, tensors=with_own_output(seed=19))
    texts = ["the cat sat", "a dog"]
    found = load(folder).generate(texts, max_new_tokens=5)
    command = ["generate", *texts, "--model", str(folder), "--max-new-tokens", "5"]
    answer = CliRunner().invoke(main, command)
    pairs = [f"{text}\n{new}" for text, new in zip(texts, found, strict=True)]
    assert answer.output == "\n\n".join(pairs) + "\n"


def test_steps_of_unlike_lengths(model):
    """In one step, rows at different positions have different relative biases."""
    body = model.design.build(model.parameters)
    ids, _ = padded(WRITTEN, fill=7)
    lengths = np.array([len(row) for row in WRITTEN])
    caches, _, _ = first_step(
        body, PackedIds.of([np.array(row) for row in READ]), EditedRun(), [[]] * 3
    )
    body.step(ids, caches, lengths)
    found = body.step(np.array([[8, 9], [10, 11], [3, 4]]), caches, np.array([2, 1, 2]))
    for number, more in enumerate(([8, 9], [10], [3, 4])):
        _, last, _, _ = plain_t5(tied(arrays_of(CONFIG)), READ[number], WRITTEN[number] + more)
        np.testing.assert_allclose(found[number, : len(more)], last[-len(more) :], atol=1e-10)


def test_keys_of_the_other_text_are_computed_once(model):
    body = model.design.build(model.parameters)
    caches, ids, _ = first_step(body, PackedIds.of([np.array(READ[0])]), EditedRun(), [[]])
    before = [(cache.key, cache.value) for cache in caches]
    for _ in range(3):
        body.step(ids, caches)
    assert [(cache.key, cache.value) for cache in caches] == before
    assert [cache.lengths.tolist() for cache in caches] == [[3]] * 3


def test_an_untied_head_is_used_where_the_files_have_one(tmp_path, model):
    def untied(tensors):
        tensors["lm_head.weight"] = 2 * tensors["shared.weight"]

    other = load(t5(tmp_path / "other", change=untied), dtype="float64")
    given = ([[3, 4, 1]], None, [[0, 8]])
    np.testing.assert_allclose(other(*given).logits, 2 * model(*given).logits, atol=1e-10)
    for name, one in (("tied", model), ("untied", other)):
        one.save(tmp_path / name)
        again = load(tmp_path / name)
        np.testing.assert_array_equal(again(*given).logits, one(*given).logits)


@pytest.mark.parametrize("names", [["encoder"], ["encoder", "decoder"]])
def test_tables_that_are_repeated(tmp_path, model, names):
    def repeated(tensors):
        tied(tensors)
        for name in names:
            tensors[f"{name}.embed_tokens.weight"] = tensors["shared.weight"].copy()

    def instead(tensors):
        repeated(tensors)
        del tensors["shared.weight"]

    def another(tensors):
        repeated(tensors)
        tensors["encoder.embed_tokens.weight"][3, 3] += 1

    given = ([[3, 4, 1]], None, [[0, 8]])
    for change in (repeated, instead):
        other = load(t5(tmp_path / change.__name__, change=change), dtype="float64")
        np.testing.assert_array_equal(other(*given).logits, model(*given).logits)
    refused(t5(tmp_path / "another", change=another), "encoder.embed_tokens.weight differs from")


def test_an_encoder_alone_is_a_model_like_any_other(tmp_path, model):
    config = {"architectures": ["T5EncoderModel"]}
    tensors = {n: a for n, a in arrays_of(CONFIG).items() if n.startswith(("shared", "encoder"))}
    alone = load(t5(tmp_path / "alone", config=config, tensors=tensors), dtype="float64")
    assert not isinstance(alone, Seq2SeqModel)
    found = alone([READ[0]]).last_hidden_state
    np.testing.assert_array_equal(found, model([READ[0]], None, [[0]]).encoder_last_hidden_state)
    with pytest.raises(ValueError, match="does not predict"):
        alone.generate("the cat")


def test_rows_without_a_token(model):
    found = model([[3, 4], [5, 6]], [[1, 1], [0, 0]], [[0, 8], [0, 8]], [[0, 0], [1, 1]])
    assert not found.last_hidden_state[0].any()
    assert not found.encoder_last_hidden_state[1].any()
    assert np.isfinite(found.logits).all()
    empty = model(np.zeros((0, 3), int), None, np.zeros((0, 2), int))
    assert empty.logits.shape == (0, 2, 20)


def test_ids_that_do_not_fit(model):
    for given, error, message in (
        (([[3]],), ValueError, "decoder_input_ids are missing"),
        (([[3]], None, [[0], [0]]), ValueError, "input_ids have 1 rows and decoder_input_ids.*2"),
        (([[3]], None, [[[0]]]), ValueError, r"decoder_input_ids have shape \(1, 1, 1\)"),
        (([[3]], None, [[0.0]]), TypeError, "decoder_input_ids are float64"),
        (([[3]], None, [[20]]), ValueError, "no token 20"),
        (([[3]], None, [[0]], [[2]]), ValueError, "decoder_attention_mask holds numbers other"),
    ):
        with failing(given, error, message), pytest.raises(error, match=message):
            model(*given)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("relative_attention_num_buckets", 3),
        ("relative_attention_max_distance", 4),
        ("decoder_start_token_id", 20),
        ("decoder_start_token_id", -1),
        ("num_decoder_layers", 0),
        ("feed_forward_proj", "gated-tanh"),
        ("is_encoder_decoder", False),
        ("is_decoder", True),
        ("d_kv", 0),
        ("num_heads", 10**12),
    ],
)
def test_a_config_that_makes_no_sense(tmp_path, key, value):
    refused(t5(tmp_path, config={key: value}, tensors=arrays_of(CONFIG)))


def test_the_start_that_generation_config_names(tmp_path):
    trace = load(t5(tmp_path, generation={"decoder_start_token_id": 3})).trace("the", target="die")
    assert trace.decoder.ids == [3, 8]
    for value in (20, -1, "0", True):
        path = t5(tmp_path, generation={"decoder_start_token_id": value})
        with failing(value):
            refused(path, "decoder_start_token_id of ", " must be the id")


def test_words_of_a_sentencepiece_tokenizer(tmp_path):
    """The tokenizer is of T5's kind: its subwords contain a mark for the blank before them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    subwords = ["<pad>", "</s>", "<unk>", "▁the", "▁cat", "▁s", "at", "▁a", "▁d", "og", "▁die"]
    subwords += ["▁kat", "ze", "▁hun", "d", "▁", "s", "t", "a", "▁und"]
    tokenizer = Tokenizer(models.Unigram([(subword, -1.0) for subword in subwords], unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = [AddedToken(subword, special=True) for subword in subwords[:3]]
    tokenizer.add_special_tokens(special)
    folder = t5(tmp_path, tensors=with_own_output(seed=4))
    tokenizer.save(str(folder / "tokenizer.json"))
    model = load(folder)
    for prompt in ("the cat sat", "a dog"):
        found = model.generate(prompt, max_new_tokens=8, trace=True)
        shown = "".join(subwords[token] for token in found.ids if token > 2).replace("▁", " ")
        assert found == shown.removeprefix(" ")
        assert "".join(model.generate(prompt, max_new_tokens=8, stream=True)) == found
        offsets = found.trace.decoder.offsets[1:]
        for token, (begin, end) in zip(found.ids, offsets, strict=False):
            assert found[begin:end].strip() == subwords[token].strip("▁") or token < 3


# edits of both sides


ASKED, ANSWERED = [[3, 4, 5, 6, 1], [7, 1]], [[0, 8, 9], [0, 10, 11, 12, 13]]


def test_an_edited_trace_of_pairs_matches_calls_for_each_pair(model):
    """A trace of two pairs equals `model(...)` of each pair alone."""
    rng = np.random.default_rng(0)
    array = rng.standard_normal((2, 5, 3, 5)).astype(np.float32)
    asked = {
        "encoder.0.attn.hook_v": np.abs,
        ("cross_attn.pattern", 1): lambda weights: weights / 2,
        "decoder.blocks.2.cross_attn.hook_k": array,
        "decoder.hook_embed": lambda x: x + 1,
    }
    trace = model.trace(ASKED, target=ANSWERED, logits=True, edit=asked, ablate=[(1, 2)])
    plain = model.trace(ASKED, target=ANSWERED)
    assert set(trace.names()) == {*plain.names(), "decoder.logits"}
    assert trace.encoder.changed["ablate"] == [(1, 2)]
    for number in range(2):
        own = {**asked}
        size = len(ASKED[number])
        own["decoder.blocks.2.cross_attn.hook_k"] = array[number : number + 1, :size]
        found = model([ASKED[number]], None, [ANSWERED[number]], edit=own, ablate=[(1, 2)]).logits
        np.testing.assert_allclose(trace[number]["decoder.logits"], found, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(trace["cross_attn.k", 2][1, :2], array[1, :2])
    np.testing.assert_allclose(trace["cross_attn.pattern", 1].sum(-1)[0, :, :3], 0.5, rtol=1e-5)


def test_hide_masks_encoder_positions_for_both_sides_whatever_the_padding(model, tmp_path):
    trace = model.trace(ASKED, target=ANSWERED, hide=[1, (0, 2)])
    for layer in range(2):
        weights = trace.encoder["pattern", layer]
        assert not weights[..., 1].any()
        assert not weights[:, :, 0, 2].any()
        assert weights[0, :, 1, 2].all()
    for weights in trace.cross_attentions:
        assert not weights[..., 1].any()
        assert weights[0, :, :3, 2].all()
    trace.save(tmp_path / "trace")
    loaded = qkv.Trace.load(tmp_path / "trace")
    assert loaded.encoder.changed == {"hide": [1, (0, 2)]}
    for one in (trace, trace[0], trace[1], loaded, loaded[1]):
        _, weights = qkv.attention(**one.cross_attention_inputs(0), return_weights=True)
        np.testing.assert_allclose(weights, one["cross_attn.pattern", 0], atol=1e-6)
    ids, mask = padded(ASKED, "left", 6)
    written, shown = (np.roll(array, 1, axis=1) for array in padded(ANSWERED, width=6))
    given = []

    def look(x):
        given.append(x.copy())
        return x * 2

    edit = {("cross_attn.pattern", 0): look, "decoder.1.hook_resid_mid": look}
    found = model(ids, mask, written, shown, hide=[2], edit=edit).logits
    assert given[0].shape == (2, 3, 6, 6)
    assert given[1].shape == (2, 6, 12)
    real = shown.astype(bool)[:, None, :, None] & mask.astype(bool)[:, None, None]
    real[:, :, :, 2] = False
    assert ((given[0] != 0) == real).all()
    assert (given[1].any(-1) == shown.astype(bool)).all()
    for row in range(2):
        position = 2 - (6 - len(ASKED[row]))
        options = {"hide": [position]} if position >= 0 else {}
        alone = model([ASKED[row]], None, [ANSWERED[row]], edit=edit, **options).logits[0]
        np.testing.assert_allclose(found[row, shown[row] == 1], alone, rtol=1e-4, atol=1e-5)


def test_edits_of_two_texts_that_do_not_fit(model):
    for name, error, said in (
        (("resid_post", 0), KeyError, "`edit` has .*: names begin with 'encoder.*' or '"),
        ("decoder.3.hook_resid_post", KeyError, "`edit` has 'decoder.3.hook_resid_post'"),
        ("decoder.0.cross_attn.hook_k", ValueError, r"whose shape is \(2, 5, 3, 5\) here"),
        ("decoder.0.attn.hook_pattern", ValueError, r"whose shape is \(2, 3, 5, 5\) here"),
        ("decoder.0.cross_attn.hook_pattern", ValueError, r"whose shape is \(2, 3, 5, 5\) here"),
        ("encoder.hook_embed", ValueError, r"whose shape is \(2, 5, 12\) here"),
    ):
        with failing(name, error, said), pytest.raises(error, match=f"^.?trace: .*{said}"):
            model.trace(ASKED, target=ANSWERED, edit={name: np.ones((2, 7))})
