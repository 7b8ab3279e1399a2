"""Token ids of GGUF files: those of llama.cpp, which llama_cpp.py has written to llama_cpp.json."""

import json

import pytest

from qkv.models import ModelError
from qkv.models._loading import _of_parts
from qkv.models.files import gguf_tokenizer, read_gguf
from qkv.models.files._gguf_config import TABLES

from ..gguf_files import smollm2, write
from .llama_cpp import CASES, ENDS, FILE, RULES, check_sum, write_case

KNOWN = json.loads(FILE.read_text("utf-8"))
# The tokenizers that llama.cpp's converter writes for each architecture: rules, or other cases.
CONVERTED = {
    "llama": "llama-bpe, smollm, llama",
    "mixtral": "llama",
    **dict.fromkeys(["qwen2", "qwen3", "qwen3moe"], "qwen2"),
    **dict.fromkeys(["olmo2", "olmo3"], "dbrx"),
    "phi3": "llama, gpt-4o",
    **dict.fromkeys(["gemma", "gemma2", "gemma3", "gemma-embedding"], "llama without spaces"),
    "gpt2": "gpt-2",
    "starcoder2": "starcoder",
    "smollm3": "smaug-bpe",
    "llama-embed": "llama-bpe",
    **dict.fromkeys(["olmo", "gptneox"], "olmo"),
    "stablelm": "stablelm2, olmo",
    "granite": "refact, starcoder",
    "phi2": "phi-2",
    "bloom": "bloom",
    "falcon": "falcon",
    "bert": "roberta-bpe, jina-v2-de, t5",  # and WordPiece: see tests/parity/test_gguf.py
    "nomic-bert": "t5",
    "eurobert": "llama-bpe",
    "modern-bert": "modern-bert",
}


def check(tmp_path, name, architecture="llama", first=0, step=1):
    """Assert that a file's tokenizer gives every `step`th text the ids that llama.cpp gave it."""
    keys = CASES.get(name, {"model": "gpt2", "pre": name, **ENDS})
    path = write_case(tmp_path / "case.gguf", keys, KNOWN["vocabularies"], architecture)
    tokenizer = _of_parts(gguf_tokenizer(read_gguf(path)))
    sums = KNOWN["sums"][KNOWN["same"][name]]
    for n, text in [*enumerate(KNOWN["texts"])][first::step]:
        ids = tokenizer.tokenize(text).ids.tolist()
        assert check_sum(ids) == sums[4 * n : 4 * n + 4], (name, text, ids)


@pytest.mark.parametrize("name", KNOWN["sums"])
def test_ids(tmp_path, name):
    check(tmp_path, name)


@pytest.mark.slow
def test_ids_of_every_rule(tmp_path):
    assert {*KNOWN["same"]} == {*RULES, *CASES}
    for n, rule in enumerate(RULES):
        check(tmp_path, rule, first=n % 4, step=4)


def test_ids_of_every_architecture(tmp_path):
    assert {*CONVERTED} == {*TABLES["architectures"]}
    for architecture, names in CONVERTED.items():
        for name in names.split(", "):
            check(tmp_path, name, architecture, step=50)


def test_ids_of_smollm2():
    tokenizer = _of_parts(gguf_tokenizer(read_gguf(smollm2())))
    for text, ids in {
        "\n\n1": [1116, 33],
        "1. Tea\n\n10. Bread": [33, 30, 23153, 1116, 33, 32, 30, 32329],
        "In 1984, x2": [788, 216, 33, 41, 40, 36, 28, 1792, 34],
    }.items():
        assert tokenizer.tokenize(text).ids.tolist() == ids, text


def test_special_tokens_that_take_white_space(tmp_path):
    """llama.cpp tells the models by their names, or by the tokenizer's rule."""
    vocabulary = KNOWN["vocabularies"]["gpt2"]
    tokens = [*vocabulary["tokens"], "<mask>", "[MASK]"]
    values = {**vocabulary, **ENDS, "tokens": tokens, "model": "gpt2", "pre": "gpt-2"}
    values["token_type"] = [*vocabulary["token_type"], 3, 3]
    for pre, name, text, same in (
        ("gpt-2", "Phi-3 mini", "<|turn|> \n<think>\t a", "<|turn|><think>a"),
        ("gpt-2", "Model", "<|turn|> \na", "<|turn|> \na"),
        ("jina-v2-de", "Model", "a \n<mask> a", "a<mask> a"),
        ("gpt-2", "modern-bert", "a [MASK] a", "a[MASK] a"),
    ):
        keys = {f"tokenizer.ggml.{key}": value for key, value in {**values, "pre": pre}.items()}
        path = write(tmp_path / "case.gguf", "llama", {**keys, "general.name": name}, {})
        tokenizer = _of_parts(gguf_tokenizer(read_gguf(path)))
        plain = {**keys, "general.name": "Model", "tokenizer.ggml.pre": "gpt-2"}
        path = write(tmp_path / "plain.gguf", "llama", plain, {})
        expected = _of_parts(gguf_tokenizer(read_gguf(path))).tokenize(same).ids.tolist()
        assert tokenizer.tokenize(text).ids.tolist() == expected, (pre, name)


def test_merges_without_an_order_are_refused(tmp_path):
    vocabulary = KNOWN["vocabularies"]["llama"]
    values = {**vocabulary, "model": "llama", "scores": [-1000.0] * len(vocabulary["scores"])}
    keys = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    path = write(tmp_path / "case.gguf", "llama", keys, {})
    with pytest.raises(ModelError, match=r"scores .* different numbers, .* use the model's token"):
        gguf_tokenizer(read_gguf(path))
