"""Tests of GGUF files against transformers: token ids, hidden states and logits."""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import BertWordPieceTokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import qkv
from models.gguf_files import CONTROL, NORMAL, gguf, smollm2, typed
from models.odd_texts import ODD, WORDS, odd_texts
from parity.sentences import sentences_of_the_docs
from parity.support import close
from rows import sample
from training import numbers, readme


def test_the_numbers_of_smollm2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.modeling_utils.is_accelerate_available", lambda: True)
    path = smollm2()
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name).eval()
    ours = qkv.load("smollm2")
    for text in (
        "The capital of France is",
        "a b a b a b 12 x",
        "<|im_start|>user\nHi<|im_end|>\n",
    ):
        ids = ours.tokenize(text).ids[None]
        with torch.no_grad():
            expected = theirs(torch.tensor(ids), output_hidden_states=True)
        found = ours.trace(text, logits=True)
        for layer in range(len(ours.design.layers)):
            if layer:
                close(found["resid_post", layer - 1], expected.hidden_states[layer], 2e-5)
        close(found["logits"], expected.logits, 2e-5)


def test_the_perplexity_of_smollm2_in_int8() -> None:
    text = " ".join(sentences_of_the_docs(100))
    smollm2()
    one, other = qkv.load("smollm2"), qkv.load("smollm2", dtype="int8")
    ids = one.tokenize(text).ids[:2048]
    assert len(ids) == 2048
    parts = [*sample(ids.reshape(4, -1))]
    losses = [
        np.mean([model.losses(part).astype(float).mean() for part in parts])
        for model in (one, other)
    ]
    assert 0 < abs(losses[1] - losses[0]) < 0.008


QUESTIONS = (
    *("What is the capital of France?", "Who wrote Hamlet?", "Name three colours.", "Hi!"),
    *("What is 2 + 3?", "Translate 'good morning' into French.", "Why is the sky blue?"),
    *("Write a line about the sea.", "¿Dónde está la biblioteca?", "List two animals 🙂"),
)


def test_the_answers_of_smollm2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare 20 tokens of ten answers with those of the same dequantized weights."""
    monkeypatch.setattr("transformers.modeling_utils.is_accelerate_available", lambda: True)
    path = smollm2()
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name).eval()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = qkv.load("smollm2")
    for question in sample(QUESTIONS):
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt"
        )
        with torch.no_grad():
            out = theirs.generate(**prompt, max_new_tokens=20, do_sample=False)[0]
        answer = ours.chat(messages, max_new_tokens=20)
        expected = out[prompt["input_ids"].shape[1] :].tolist()
        assert answer.ids[: len(expected)] == expected[: len(answer.ids)], question
        assert abs(len(answer.ids) - len(expected)) <= (answer.finish_reason == "eos"), question


TEXT = "Attention weighs the values of other tokens. A query is compared with every key, and the "


def test_the_blocks_of_smollm2_are_multiplied_nearly_as_floats() -> None:
    """Compare logits and answers of int16 vectors with those of float32 vectors."""
    plain, blocks = qkv.load("smollm2"), qkv.load("smollm2", dtype="int8")
    for text in (TEXT * 8, "<|im_start|>user\nHi<|im_end|>\n", "12 * 3 ="):
        expected, found = (model.trace(text, logits=True)["logits"][0] for model in (plain, blocks))
        assert np.abs(found - expected).max() < 0.02
        assert (found.argmax(-1) == expected.argmax(-1)).all()
    for question in sample(QUESTIONS[:4]):
        messages = [{"role": "user", "content": question}]
        one, other = (model.chat(messages, max_new_tokens=20) for model in (plain, blocks))
        assert one.ids == other.ids, question
    # one token at a time gives the logits of all tokens at once, because the sums are the same
    parts = blocks.generate(TEXT, max_new_tokens=4)
    assert parts.ids == plain.generate(TEXT, max_new_tokens=4).ids


MEMORY = """
import gc
from pathlib import Path
import numpy as np, qkv
from qkv.models import _loading
from qkv.models.files import gguf_tokenizer, read_gguf

def megabytes(*names):
    with open("/proc/self/status") as status:
        rows = dict(line.split(":") for line in status)
    return sum(int(rows[name].split()[0]) / 1000 for name in names)

path = {path!r}
tokenizer = _loading._of_parts(gguf_tokenizer(read_gguf(Path(path))))
qkv.load("books-decoder").generate("a", max_new_tokens=2)  # all modules
before = megabytes("RssAnon"), megabytes("RssFile")
del tokenizer
gc.collect()
model = qkv.load(path, dtype="int8")
loaded = megabytes("RssAnon")
for number in range(100):
    model.generate("The capital of France is", max_new_tokens=2)
    if number == 0:
        first = megabytes("RssAnon")
model.sha256
model.trace("The capital of France is", logits=True)
model.gradient("The capital of France is", of=(-1, " Paris"), at=[("resid_pre", 29)])
gc.collect()
after = megabytes("RssAnon"), megabytes("RssFile")
print(loaded - before[0], first - before[0], sum(after) - sum(before))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says it so")
def test_a_model_in_blocks_holds_its_weights_once() -> None:
    path = smollm2()
    code = [sys.executable, "-c", MEMORY.format(path=str(path))]
    run = subprocess.run(code, capture_output=True, text=True, check=True)
    size = path.stat().st_size / 1e6
    loaded, first, after = map(float, run.stdout.split())
    assert 0.7 * size < loaded < 1.3 * size
    assert first < 1.3 * size  # nothing is packed at the first request
    assert after < 1.3 * size


# a WordPiece; test_gguf_ids.py tests the other kinds of tokenizers

FILES = ("README.md", "CONTRIBUTING.md", "docs/models.md")
CORPUS = [Path(__file__).parents[2].joinpath(name).read_text("utf-8") for name in FILES]
CORPUS += [" ".join([WORDS, *ODD])] * 5
START = "tokenizer.ggml."


def write_tokenizer(path: Path, case: str, values: dict[str, Any]) -> None:
    """Write the file of a small model with a tokenizer; `values` are keys of tokenizer.ggml."""
    architecture, cls, config = MODELS[case]
    model = random_model(cls, {**config, "vocab_size": len(values["tokens"])})
    write_model(path, architecture, model, None, {f"{START}{k}": v for k, v in values.items()})


@pytest.mark.parametrize("lower", [True, False])
def test_the_ids_of_a_bert(lower: bool, tmp_path: Path) -> None:
    """The original tokenizer gives the ids, because transformers reads no BERT from GGUF files."""
    theirs = BertWordPieceTokenizer(lowercase=lower)
    theirs.train_from_iterator(CORPUS, vocab_size=900, show_progress=False)
    known = theirs.get_vocab()
    words = sorted(known, key=known.get)
    (tmp_path / "vocab.txt").write_text("\n".join(words), "utf-8")
    theirs = transformers.BertTokenizer(vocab=known, do_lower_case=lower)

    def phantom(word: str) -> str:  # the spelling of llama.cpp's converter
        if word.startswith("[") and word.endswith("]"):
            return word
        return word[2:] if word.startswith("##") else f"\u2581{word}"

    values = {
        "model": "bert",
        "tokens": [*map(phantom, words)],
        "token_type": [CONTROL if len(w) > 2 and w[0] == "[" else NORMAL for w in words],
        "unknown_token_id": known["[UNK]"],
        "seperator_token_id": known["[SEP]"],
        "padding_token_id": known["[PAD]"],
        "cls_token_id": known["[CLS]"],
        "mask_token_id": known["[MASK]"],
    }
    write_tokenizer(tmp_path / "small.gguf", "bert", values)
    model = qkv.load(tmp_path / "small.gguf")
    texts = odd_texts(2000, ("[MASK]", "[SEP]"))
    for text in texts:
        assert model.tokenize(text).ids.tolist() == theirs(text)["input_ids"], repr(text)
    ids, segments, _ = model.tokenizer.pair("the cat", "a dog")
    pair = theirs("the cat", "a dog")
    assert (ids.tolist(), segments.tolist()) == (pair["input_ids"], pair["token_type_ids"])


# small models of each architecture

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WINDOWED = {**GROUPED, "head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32}
GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 96}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]}
LONG |= {"long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "attention_factor": 1.25}
LONG |= {"original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
# For each case: GGUF's architecture, the class of transformers, and the config.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", GROUPED),
    "llama, tied": ("llama", "LlamaForCausalLM", {**GROUPED, "tie_word_embeddings": True}),
    "llama, biases": (
        "llama",
        "LlamaForCausalLM",
        {**GROUPED, "attention_bias": True, "mlp_bias": True, "rope_theta": 5e5},
    ),
    "llama, linear": ("llama", "LlamaForCausalLM", {**GROUPED, "rope_scaling": LINEAR}),
    "llama, yarn": ("llama", "LlamaForCausalLM", {**GROUPED, "rope_scaling": YARN}),
    "llama, llama3": ("llama", "LlamaForCausalLM", {**GROUPED, "rope_scaling": LLAMA3}),
    "mixtral": ("llama", "MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", GROUPED),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 32}),
    "qwen3moe": (
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        {**GROUPED, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", GROUPED),
    "olmo3": (
        "olmo2",
        "Olmo3ForCausalLM",
        {**GROUPED, "sliding_window": 8, "num_hidden_layers": 4},
    ),
    "phi3": ("phi3", "Phi3ForCausalLM", {**GROUPED, "sliding_window": 8}),
    "phi3, longrope": (
        "phi3",
        "Phi3ForCausalLM",
        {**GROUPED, "rope_scaling": LONG, "original_max_position_embeddings": 16},
    ),
    "phi3, partial": ("phi3", "Phi3ForCausalLM", {**GROUPED, "partial_rotary_factor": 0.5}),
    "gemma": ("gemma", "GemmaForCausalLM", {**GROUPED, "head_dim": 32}),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", {**WINDOWED, "final_logit_softcapping": 3.0}),
    "gemma3": ("gemma3", "Gemma3ForCausalLM", WINDOWED),
    "gemma3, linear": ("gemma3", "Gemma3ForCausalLM", {**WINDOWED, "rope_scaling": LINEAR}),
    "gpt2": ("gpt2", "GPT2LMHeadModel", GPT2),
    "starcoder2": ("starcoder2", "Starcoder2ForCausalLM", {**GROUPED, "use_bias": True}),
    "bert": ("bert", "BertModel", SIZES),
    "nomic-bert": ("nomic-bert", "NomicBertModel", SIZES),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", {**GROUPED, "num_hidden_layers": 5}),
    "llama-embed": ("llama-embed", "LlamaModel", {**GROUPED, "is_causal": False}),
    "granite": (
        "granite",
        "GraniteForCausalLM",
        {**GROUPED, "attention_multiplier": 0.3, "embedding_multiplier": 2.0}
        | {"residual_multiplier": 0.7, "logits_scaling": 3.0},
    ),
    "olmo": ("olmo", "OlmoForCausalLM", {**GROUPED, "clip_qkv": 1.5}),
    "stablelm": ("stablelm", "StableLmForCausalLM", {**GROUPED, "use_qkv_bias": True}),
    "stablelm, norms of heads": (
        "stablelm",
        "StableLmForCausalLM",
        {**GROUPED, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    "phi2": ("phi2", "PhiForCausalLM", GROUPED),
    "phi2, whole rotation": ("phi2", "PhiForCausalLM", {**GROUPED, "partial_rotary_factor": 1.0}),
    "stablelm, whole rotation": (
        "stablelm",
        "StableLmForCausalLM",
        {**GROUPED, "partial_rotary_factor": 1.0},
    ),
    "gptneox": ("gptneox", "GPTNeoXForCausalLM", SIZES),
    "gptneox, whole rotation": ("gptneox", "GPTNeoXForCausalLM", {**SIZES, "rotary_pct": 1.0}),
    "gptneox, in turn": (
        "gptneox",
        "GPTNeoXForCausalLM",
        {**SIZES, "use_parallel_residual": False, "rotary_emb_base": 500, "rotary_pct": 0.5},
    ),
    "bloom": ("bloom", "BloomForCausalLM", {**SIZES, "n_layer": 2, "n_head": 4}),
    "falcon": ("falcon", "FalconForCausalLM", SIZES),
    "falcon, two norms": (
        "falcon",
        "FalconForCausalLM",
        {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon, one norm": (
        "falcon",
        "FalconForCausalLM",
        {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2}
        | {"num_ln_in_parallel_attn": 1},
    ),
    "gemma-embedding": (
        "gemma-embedding",
        "Gemma3TextModel",
        {**WINDOWED, "num_hidden_layers": 7, "use_bidirectional_attention": True},
    ),
    "eurobert": ("eurobert", "EuroBertModel", GROUPED),
    "modern-bert": (
        "modern-bert",
        "ModernBertModel",
        {**SIZES, "num_hidden_layers": 4, "local_attention": 8},
    ),
}
ENCODERS = ("bert", "nomic-bert", "modern-bert", "eurobert", "llama-embed", "gemma-embedding")
KEYS = {  # The keys of the metadata, and the attributes of configs.
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "use_parallel_residual": "use_parallel_residual",
    "attention.clamp_kqv": "clip_qkv",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def _kv_heads(config: Any) -> int:
    """Return the number of key heads, which Falcons say in their own ways."""
    if getattr(config, "multi_query", False) and not config.new_decoder_architecture:
        return 1
    heads = config.num_attention_heads
    return getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", heads)


def random_model(kind: str, config: dict[str, Any]) -> Any:
    """Return a model of transformers in which every parameter is random."""
    cls = getattr(transformers, kind)
    torch.manual_seed(0)
    model = cls(cls.config_class(**config)).eval()
    for name, parameter in model.named_parameters():
        around = (
            1.0
            if "norm" in name.lower() and name.endswith("weight") and parameter.ndim == 1
            else 0.0
        )
        if "Gemma" in kind:
            around = 0.0
        parameter.data = torch.randn_like(parameter) * 0.15 + around
    return model


def metadata(architecture: str, config: Any) -> dict[str, Any]:
    """Return the metadata that describes a config, as llama.cpp's converter writes it."""
    values = {key: getattr(config, name, None) for key, name in KEYS.items()}
    for name in ("norm_epsilon", "layer_norm_epsilon", "norm_eps"):
        if hasattr(config, name):
            values["attention.layer_norm_epsilon"] = getattr(config, name)
    if architecture in ENCODERS:
        values |= {"attention.causal": False, "pooling_type": 1}
    if architecture == "gpt2":
        values["feed_forward_length"] = config.n_inner
    if architecture == "olmo":
        values["attention.layer_norm_epsilon"] = 1e-5
    if architecture == "gemma-embedding":
        values["attention.sliding_window"] = config.to_dict()["sliding_window"]
    if architecture == "modern-bert":
        values["attention.sliding_window"] = config.local_attention
        values["attention.sliding_window_pattern"] = 3
    if architecture in ("falcon", "bloom"):
        values |= {"feed_forward_length": 4 * config.hidden_size, "context_length": 2048}
        values["attention.head_count_kv"] = _kv_heads(config)
    ids = {"bos": config.bos_token_id, "eos": config.eos_token_id, "padding": config.pad_token_id}
    values |= {f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()}
    heads, dim = config.num_attention_heads, config.hidden_size
    size = getattr(config, "head_dim", None) or dim // heads
    if size != dim // heads:
        values |= {"attention.key_length": size, "attention.value_length": size}
    rope = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in rope:
        if architecture != "olmo2":
            values["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if rope:
        turned = int(size * rope.get("partial_rotary_factor", 1))
        values |= {"rope.freq_base": float(rope["rope_theta"]), "rope.dimension_count": turned}
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn", "longrope"):
        values |= {"rope.scaling.type": kind, "rope.scaling.factor": rope.get("factor")}
        values["rope.scaling.attn_factor"] = rope.get("attention_factor")
        limit = rope.get("original_max_position_embeddings")
        values["rope.scaling.original_context_length"] = limit
    return {key: value for key, value in values.items() if value is not None}


def write_model(
    path: Path, architecture: str, model: Any, kind: str | None, more: dict[str, Any] | None = None
) -> None:
    """Write a model's file; replace its weights by those that the file holds.

    The names come from the package gguf, and the layouts are those of llama.cpp's converter. With
    `kind`, all matrices of blocks have this type. `more` is other metadata.
    """
    config = model.config
    arch = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**metadata(architecture, config), **(more or {})}.items():
        full = key if key.startswith(("tokenizer.", "general.")) else f"{architecture}.{key}"
        writer.add_key_value(full, *typed(value))

    def add(name: str, array: np.ndarray) -> np.ndarray:
        """Write a tensor, and return the values that the file holds."""
        block = kind and array.ndim > 1 and re.match(r"blk\.(?!.*(inp|norm)\.)", name)
        which = gguf.GGMLQuantizationType[kind if block else "F32"]
        raw = gguf.quants.quantize(np.ascontiguousarray(array, np.float32), which)
        writer.add_tensor(name, raw, raw_dtype=which)
        return gguf.quants.dequantize(raw, which).reshape(array.shape)

    stacked: dict[tuple[str, str], list[np.ndarray]] = {}
    state = model.state_dict()
    if architecture == "nomic-bert":  # the names in its files are those of the first version
        model.save_pretrained(path.parent / "original")
        state = load_file(path.parent / "original" / "model.safetensors")
    skipped = {"lm_head.weight"} if config.tie_word_embeddings else set()
    with torch.no_grad():
        for name, parameter in state.items():
            array = parameter.numpy()
            if name in skipped or "pooler" in name or name.endswith(("_ids", "inv_freq")):
                continue
            layer = next(iter(re.findall(r"\.(\d+)\.", name)), "")
            if ".norms." in name:  # llama.cpp stacks the norms of all heads
                stacked.setdefault((layer, name.split(".")[4][0]), []).append(array)
                continue
            if "mlp.experts." in name:  # transformers joins the gate and the up-projection
                if name.endswith("down_proj"):
                    held = add(f"blk.{layer}.ffn_down_exps.weight", array)
                else:
                    both = np.split(array, 2, axis=1)
                    ends = ("gate", "up")
                    both = [
                        add(f"blk.{layer}.ffn_{e}_exps.weight", a)
                        for e, a in zip(ends, both, strict=True)
                    ]
                    held = np.concatenate(both, axis=1)
            else:
                short = name.removeprefix("transformer.") if architecture == "bloom" else name
                theirs = names.get_name(short, try_suffixes=(".weight", ".bias"))
                if theirs is None and name.endswith("mlp.gate.weight"):
                    theirs = f"blk.{layer}.ffn_gate_inp.weight"
                assert theirs, name
                there, back = layouts(architecture, theirs, config)
                held = back(add(theirs, there(array)))
            parameter.copy_(torch.tensor(held))
    for (layer, kind_of_head), arrays in stacked.items():
        add(f"blk.{layer}.attn_{kind_of_head}_norm.weight", np.stack(arrays))
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":  # llama.cpp writes the factors by which speeds shrink
        scaled = model.model.rotary_emb.inv_freq.numpy()
        size = 2 * len(scaled)
        plain = rope["rope_theta"] ** -(np.arange(0, size, 2) / size)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    for end in ("long", "short") if rope.get("rope_type") == "longrope" else ():
        factors = np.array(rope[f"{end}_factor"], np.float32)
        writer.add_tensor(f"rope_factors_{end}.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


PERMUTED = ("llama", "llama-embed", "smollm3", "granite", "olmo")
GROUPED_BY_HEAD = ("gptneox", "bloom", "falcon")


def layouts(architecture: str, name: str, config: Any) -> tuple[Any, Any]:
    """Return functions that convert a tensor to the layout of GGUF, and back."""
    if architecture in PERMUTED and re.search(r"attn_[qk]\.", name):
        heads = config.num_attention_heads if "attn_q" in name else config.num_key_value_heads

        def there(array: np.ndarray) -> np.ndarray:
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            return halves.swapaxes(1, 2).reshape(array.shape)

        def back(array: np.ndarray) -> np.ndarray:
            pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
            return pairs.swapaxes(1, 2).reshape(array.shape)

        return there, back
    if architecture in GROUPED_BY_HEAD and "attn_qkv" in name:
        heads, kv_heads = config.num_attention_heads, _kv_heads(config)
        share = heads // kv_heads

        def there(array: np.ndarray) -> np.ndarray:
            groups = array.reshape(kv_heads, share + 2, -1, *array.shape[1:])
            parts = groups[:, :-2], groups[:, -2], groups[:, -1]
            return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])

        def back(array: np.ndarray) -> np.ndarray:
            units = array.reshape(heads + 2 * kv_heads, -1, *array.shape[1:])
            order = [
                unit
                for n in range(kv_heads)
                for unit in (*range(n * share, (n + 1) * share), heads + n, heads + kv_heads + n)
            ]
            return units[order].reshape(array.shape)

        return there, back
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return lambda array: array + np.float32(1), lambda array: array - np.float32(1)
    if architecture == "gpt2" and re.search(r"blk.*(attn_qkv|attn_output|ffn_\w+)\.weight", name):
        return lambda array: array.T, lambda array: array.T
    return lambda array: array, lambda array: array


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (case, kind)
        for case in MODELS
        for kind in (None, "Q8_0", "Q4_1")
        if case[0] != "n" or not kind
    ],
)
def test_a_small_model(case: str, kind: str | None, tmp_path: Path) -> None:
    architecture, cls, values = MODELS[case]
    theirs = random_model(cls, copy.deepcopy(values))
    path = tmp_path / "small.gguf"
    write_model(path, architecture, theirs, kind)
    ids = np.random.default_rng(0).integers(3, 96, (2, 40))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids), output_hidden_states=True)
    model = qkv.load(path)
    found = model(ids)
    close(found.last_hidden_state, expected.hidden_states[-1], 2e-5)
    if model.head is not None:
        close(found.logits, expected.logits, 2e-5)
    close(model.trace(ids).hidden_states[1], expected.hidden_states[1], 2e-5)
    if kind:
        blocks = qkv.load(path, dtype="int8")
        close(blocks(ids).last_hidden_state, expected.hidden_states[-1], 1e-3)
        for name, array in model.parameters.items():
            np.testing.assert_array_equal(blocks.parameters[name], array)
    model.save(tmp_path / "saved")
    again = getattr(transformers, cls).from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        same = again(torch.tensor(ids), output_hidden_states=True)
    close(same.hidden_states[-1], expected.hidden_states[-1], 2e-5)


# Other cases that transformers reads from GGUF files: it ignores head_dim, windows, soft caps, the
# scaling of rotary positions and biases in the metadata.
@pytest.mark.parametrize("kind", [None, "Q8_0"])
@pytest.mark.parametrize(
    "case", ["llama", "llama, tied", "qwen2", "gpt2", "starcoder2", "bloom", "falcon", "stablelm"]
)
def test_a_file_that_transformers_reads(
    case: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.modeling_utils.is_accelerate_available", lambda: True)
    architecture, cls, values = copy.deepcopy(MODELS[case])
    values |= {"n_inner": 256, "n_positions": 1024} if case == "gpt2" else {}
    more = {"tokenizer.ggml.tokens": [f"t{n}" for n in range(96)], "general.name": "small"}
    path = tmp_path / "small.gguf"
    write_model(path, architecture, random_model(cls, values), kind, more)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name).eval()
    ids = np.random.default_rng(0).integers(3, 96, (2, 40))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids), output_hidden_states=True)
    found = qkv.load(path)(ids)
    close(found.logits, expected.logits, 2e-5)
    close(found.last_hidden_state, expected.hidden_states[-1], 2e-5)


def test_the_readme_shows_what_smollm2_prints() -> None:
    smollm2()
    text = readme.PLACE.read_text(encoding="utf-8")
    assert "--model smollm2\n...\n" in text
    assert numbers.alike(readme.written(text), text, rounded=True), f"regenerate: {numbers.AGAIN}"
