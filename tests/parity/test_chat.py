"""Tests of chat templates and of `chat` against transformers, on ten templates."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import qkv
from chat_templates import ASKED, CONVERSATIONS, SPECIAL, SYSTEM, TEMPLATES

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False},
    {"tools": [{"type": "function", "function": {"name": "<f>", "description": "ü"}}]},
    {"documents": [{"title": "ä", "text": "b"}]},
    {"date_string": "1 May 2020", "bos_token": "[BOS]"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small random Llama with all templates, which are named."""
    home = tmp_path_factory.mktemp("llama")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    first = made.token_to_id("<s>")
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", first)]
    )
    made.save(str(home / "tokenizer.json"))
    rows = [{"name": name, "template": template} for name, template in TEMPLATES.items()]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": rows, **NAMED}
    (home / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,
        bos_token_id=first,
        eos_token_id=[made.token_to_id("</s>"), *range(0, 256, 37)],
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(home)
    return home


def result(apply: Any, *args: Any, **options: Any) -> Any:
    """Return what a function returns, or "refused" if it raises an error."""
    try:
        return apply(*args, **options)
    except Exception:
        return "refused"


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_equal_those_of_transformers(name: str, folder: Path) -> None:
    ours, theirs = qkv.load(folder).tokenizer, AutoTokenizer.from_pretrained(folder)
    counts = {"refused": 0, "equal": 0}
    for messages in CONVERSATIONS.values():
        for options in OPTIONS:
            for prompted in (False, True):
                given = {"chat_template": name, "add_generation_prompt": prompted, **options}
                text = result(ours.apply_chat_template, messages, tokenize=False, **given)
                assert text == result(theirs.apply_chat_template, messages, tokenize=False, **given)
                ids = result(ours.apply_chat_template, messages, **given)
                assert ids == result(
                    theirs.apply_chat_template, messages, return_dict=False, **given
                )
                counts["refused" if ids == "refused" else "equal"] += 1
    assert counts["equal"] >= 20
    assert bool(counts["refused"]) == (name in ("Llama 2", "Mistral", "Gemma"))


@pytest.mark.parametrize("where", ["string", "file", "files", "map", "none"])
def test_sources_of_templates(where: str, folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(folder / name)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMED}
    if where in ("string", "file"):
        settings["chat_template"] = TEMPLATES["Zephyr"]
    if where in ("file", "files"):
        (tmp_path / "chat_template.jinja").write_text(TEMPLATES["Llama 3"], encoding="utf-8")
    if where == "files":
        (tmp_path / "additional_chat_templates").mkdir()
        path = tmp_path / "additional_chat_templates" / "tool_use.jinja"
        path.write_text("{{ tools | tojson }}é{{ bos_token }}", encoding="utf-8")
    if where == "map":
        settings = {"chat_template": TEMPLATES["Gemma"], "eos_token": "</s>"}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = qkv.load(tmp_path).tokenizer, AutoTokenizer.from_pretrained(tmp_path)
    assert ours.chat_template == theirs.chat_template
    for tools in (None, [{"name": "f"}]):
        text = result(ours.apply_chat_template, [ASKED], tokenize=False, tools=tools)
        assert text == result(theirs.apply_chat_template, [ASKED], tokenize=False, tools=tools)
        assert (text == "refused") == (where == "none")


@pytest.mark.parametrize("name", TEMPLATES)
def test_greedy_answers_equal_those_of_transformers(name: str, folder: Path) -> None:
    """Compare 20 tokens of three answers in a conversation that keeps its cache."""
    model, tokenizer = qkv.load(folder), AutoTokenizer.from_pretrained(folder)
    model.tokenizer.chat_template = TEMPLATES[name]
    theirs = LlamaForCausalLM.from_pretrained(folder).eval()
    messages = [SYSTEM, ASKED][name == "Gemma" :]
    for turn in ("And 世界 🙂?", "Why?", ""):
        options = {"chat_template": name, "add_generation_prompt": True}
        prompt = tokenizer.apply_chat_template(messages, return_tensors="pt", **options)
        with torch.no_grad():
            out = theirs.generate(**prompt, max_new_tokens=20, do_sample=False)[0]
        expected = out[prompt["input_ids"].shape[1] :].tolist()
        answer = model.chat(messages, max_new_tokens=20)
        assert answer.ids == expected
        said = expected[: len(expected) - (answer.finish_reason == "eos")]
        assert answer == tokenizer.decode(said, skip_special_tokens=True)
        assert model.conversation.ids == out[:-1].tolist()
        messages = [*messages, {"role": "assistant", "content": str(answer)}]
        messages.append({"role": "user", "content": turn})
