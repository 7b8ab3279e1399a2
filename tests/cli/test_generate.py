"""Tests of `qkv generate`: streamed text, several prompts, JSON, and rejected arguments."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import qkv
from models.decoders import POSITIONS, gpt2, writer
from qkv.attend import KVCache
from qkv.cli import main

from .test_cli import qkv_process, refused, run

PROMPT = "Say: "
TEXT = "the other day, \u4e16\u754c!"


@pytest.fixture
def writes(tmp_path: Path) -> str:
    """Return the folder of a model that continues PROMPT with TEXT."""
    writer(tmp_path / "writer", PROMPT, TEXT)
    return str(tmp_path / "writer")


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("random")
    gpt2(folder, seed=1, eos_token_id=None)
    return str(folder)


def test_the_prompt_and_what_follows_are_printed(writes: str) -> None:
    result = run("generate", PROMPT, "--model", writes)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{PROMPT}{TEXT}\n", "")


def test_generate_in_a_separate_process(writes: str) -> None:
    done = qkv_process("generate", PROMPT, "--model", writes)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"{PROMPT}{TEXT}\n"


def test_a_stream_of_ascii_gets_a_mark_for_other_letters(writes: str) -> None:
    plain = CliRunner(charset="ascii").invoke(main, ("generate", PROMPT, "--model", writes))
    assert plain.exit_code == 0
    assert plain.stdout_bytes == f"{PROMPT}the other day, ??!\n".encode()


def test_the_generated_text_is_printed_incrementally(
    writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("click.echo", lambda text, **_: shown.append(text))
    run("generate", PROMPT, "--model", writes)
    assert shown == [PROMPT, "the", " other", " day,", " \u4e16", "\u754c", "!", "\n"]


def test_several_prompts(random: str) -> None:
    prompts = ["the cat", "t", "A longer one"]
    result = run("generate", *prompts, "--model", random, "--max-new-tokens", "12")
    model = qkv.load(random)
    expected = [prompt + model.generate(prompt, max_new_tokens=12) for prompt in prompts]
    assert result.stdout == "\n\n".join(expected) + "\n"


def test_every_option_reaches_the_model(random: str) -> None:
    given = {"max_new_tokens": 9, "temperature": 1.4, "top_k": 7, "top_p": 0.8, "seed": 5}
    flags = [word for k, v in given.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    result = run("generate", "the cat", "--model", random, *flags)
    expected = qkv.load(random).generate("the cat", **given)
    assert result.stdout == f"the cat{expected}\n"
    assert run("generate", "the cat", "--model", random, *flags[:-1], "6").stdout != result.stdout


@pytest.mark.parametrize("option", ["--seed", "--top-k", "--top-p"])
def test_sampling_options_need_a_temperature(option: str, random: str) -> None:
    line = refused(run("generate", "the cat", "--model", random, option, "1"), "generate")
    assert "pass a temperature above 0" in line


def test_an_error_comes_before_any_text(random: str, tmp_path: Path) -> None:
    long = ("--max-new-tokens", str(POSITIONS))
    line = refused(run("generate", "A", "B", "--model", random, *long), "generate")
    assert f"set max_new_tokens to at most {POSITIONS - 1}" in line
    assert "prompt 1 is empty" in refused(run("generate", "A", "", "--model", random), "generate")
    model = gpt2(tmp_path / "wild", seed=0)
    bias = model.parameters["blocks.1.mlp.up_proj.bias"].copy()
    bias[:] = np.inf
    model.parameters["blocks.1.mlp.up_proj.bias"] = bias
    model.save(tmp_path / "wild")
    with np.errstate(all="ignore"):
        result = run("generate", "A", "B", "--model", str(tmp_path / "wild"))
    assert "not finite" in refused(result, "generate", code=1)


CONTROLS = "a\x1b[31mb\x07 \x9b2J\r\x7f\x00\u202e\tc\nd \xa0\u4e16"


@pytest.fixture
def wild(tmp_path: Path) -> str:
    """Return the folder of a model that writes control characters."""
    writer(tmp_path / "wild", PROMPT, CONTROLS)
    return str(tmp_path / "wild")


def test_a_pipe_gets_the_text_unchanged(wild: str) -> None:
    piped = run("generate", PROMPT, "--model", wild)
    assert piped.stdout_bytes.decode() == f"{PROMPT}{CONTROLS}\n"
    result = run("generate", PROMPT, "--model", wild, "--json")
    assert json.loads(result.stdout)["texts"][0]["text"] == CONTROLS


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of one's own is asked of Unix")
def test_control_characters_are_escaped_on_a_terminal(wild: str) -> None:
    program = "import sys; from qkv.cli import main; main(['generate', *sys.argv[1:]])"
    ours, theirs = os.openpty()
    done = subprocess.run(
        [sys.executable, "-c", program, PROMPT, "--model", wild],
        stdout=theirs,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0
    shown = os.read(ours, 1000).decode().replace("\r\n", "\n")  # a terminal ends lines with \r\n
    os.close(theirs)
    os.close(ours)
    assert shown == PROMPT + r"a\x1b[31mb\x07 \x9b2J\r\x7f\x00\u202e" + "\tc\nd \xa0\u4e16\n"


def test_stop(writes: str) -> None:
    result = run("generate", PROMPT, "--model", writes, "--stop", "zzz", "--stop", " day")
    assert result.stdout == f"{PROMPT}the other\n"


def test_json(writes: str) -> None:
    result = run("generate", PROMPT, PROMPT, "--model", writes, "--json", "--max-new-tokens", "3")
    assert result.stdout.count("\n") == 1
    data = json.loads(result.stdout)
    assert data["model"] == "writer"
    found = qkv.load(writes).generate(PROMPT, max_new_tokens=3)
    row = {"prompt": PROMPT, "text": found, "ids": found.ids, "finish_reason": "length"}
    assert data["texts"] == [row, row]


def test_refused(writes: str, random: str) -> None:
    assert "PROMPT" in refused(run("generate"), "generate")
    line = refused(run("generate", "hi", "--model", "random"), "generate")
    assert "does not predict the next token" in line
    for flags, words in (
        (["--temperature", "-1"], "temperature"),
        (["--top-k", "0"], "top_k"),
        (["--top-p", "2"], "top_p"),
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--max-new-tokens", "x"], "max-new-tokens"),
        (["--stop", ""], "stop"),
        (["--max-new-tokens", "1000"], f"at most {POSITIONS}"),
    ):
        assert words in refused(run("generate", "hi", "--model", random, *flags), "generate")
    assert "is empty" in refused(run("generate", "", "--model", random), "generate")


def test_a_model_in_blocks(tmp_path: Path) -> None:
    from models.gguf_files import llama_tensors, write_llama

    path = tmp_path / "small.gguf"
    kinds = {name: "Q8_0" for name, array in llama_tensors().items() if array.ndim == 2}
    write_llama(path, kinds=kinds)
    result = run("generate", "the cat", "--model", str(path), "--dtype", "int8")
    assert result.stdout == f"the cat{qkv.load(path, dtype='int8').generate('the cat')}\n"


def test_the_cache_in_16_bits(random: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    append = KVCache._put

    def put(cache: KVCache, *arguments: Any) -> dict[str, Any]:
        found = append(cache, *arguments)
        seen.append(found["key"].dtype.name)
        return found

    monkeypatch.setattr(KVCache, "_put", put)
    result = run("generate", "the cat", "--model", random, "--cache-dtype", "bfloat16")
    assert result.exit_code == 0
    assert set(seen) == {"bfloat16"}
    for kind, model, said in (
        ("int8", random, "'int8' is not one of"),
        ("float16", "books", "does not apply to books"),
    ):
        assert said in refused(
            run("generate", "a", "--model", model, "--cache-dtype", kind), "generate"
        )


def test_types_that_a_model_cannot_have(writes: str) -> None:
    line = refused(run("generate", PROMPT, "--model", writes, "--dtype", "int4"), "generate")
    assert "'int4' is not one of" in line
