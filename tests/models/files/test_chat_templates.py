"""Tests of chat templates in a model's files: reading, precedence, saving, and broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import qkv

from ..decoders import END, gpt2
from ..support import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gpt2(tmp_path / "model", seed=1)
    return tmp_path / "model"


def configure(folder: Path, **values: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def template_of(folder: Path) -> Any:
    return qkv.load(folder).tokenizer.chat_template


def test_sources_of_templates(folder: Path) -> None:
    assert template_of(folder) is None
    configure(folder, chat_template="one")
    assert template_of(folder) == "one"
    rows = [{"name": "default", "template": "one"}, {"name": "rag", "template": "two"}]
    configure(folder, chat_template=rows)
    assert template_of(folder) == {"default": "one", "rag": "two"}
    configure(folder, chat_template=rows[:1])
    assert template_of(folder) == "one"
    (folder / "chat_template.jinja").write_text("é from a file", encoding="utf-8")
    assert template_of(folder) == "é from a file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert template_of(folder) == {"default": "é from a file", "tool_use": "tools"}
    (folder / "chat_template.jinja").unlink()
    assert template_of(folder) == {"tool_use": "tools"}


def test_named_tokens(folder: Path) -> None:
    def named() -> Any:
        return qkv.load(folder).tokenizer.named_tokens

    assert named() == {}
    configure(folder, eos_token=END, bos_token={"content": "<s>"}, pad_token=None)
    assert named() == {"bos_token": "<s>", "eos_token": END}
    configure(folder, eos_token=END)
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": "x", "unk_token": "?"})
    )
    assert named() == {"eos_token": END, "unk_token": "?"}
    configure(folder, eos_token=END, added_tokens_decoder={"3": {"content": "%"}})
    assert named() == {"eos_token": END}


def test_saved_models_keep_their_templates(folder: Path, tmp_path: Path) -> None:
    model, saved = qkv.load(folder), tmp_path / "saved"
    model.tokenizer.chat_template = {"default": "{{ eos_token }}é", "rag": "two"}
    model.tokenizer.named_tokens = {"eos_token": END}
    model.save(saved)
    again = qkv.load(saved).tokenizer
    assert again.chat_template == {"default": "{{ eos_token }}é", "rag": "two"}
    assert again.named_tokens == {"eos_token": END}
    model.tokenizer.chat_template = "one"
    model.save(saved)
    assert template_of(saved) == "one"
    qkv.load(folder).save(saved)
    assert template_of(saved) is None
    configure(folder, chat_template="in the config", eos_token=END, model_max_length=9)
    qkv.load(folder).save(saved)
    assert template_of(saved) == "in the config"
    assert json.loads((saved / "tokenizer_config.json").read_text())["model_max_length"] == 9
    model.tokenizer.chat_template = {"../x": "one"}
    with pytest.raises(ValueError, match=r"the chat template '\.\./x' cannot be a file name"):
        model.save(saved)


@pytest.mark.parametrize("value", [3, ["one"], [{"name": "a"}], [{"name": 1, "template": "b"}], {}])
def test_broken_templates(value: Any, folder: Path) -> None:
    configure(folder, chat_template=value)
    with pytest.raises(qkv.ModelError, match=r"tokenizer_config.json: chat_template is .* it must"):
        qkv.load(folder)


def test_a_template_outside_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "chat_template.jinja").symlink_to(tmp_path / "secret")
    refused(folder, "is a link to a file outside the folder")
