"""Tests of `qkv chat`: messages from a pipe and a terminal, commands, and rejected models."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qkv
from models.decoders import END, EOS, POSITIONS, gpt2, ids_of
from processes import MINUTE, state, until
from qkv.models import Model, tasks
from qkv.text._chat_template import render

from .test_cli import refused, run

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
CHAT = "the cat"
PROMPT = f"u:{CHAT}{END}a:"


def talker(folder: Path, text: str, **options: Any) -> str:
    """Return the folder of a model that predicts the n-th token of a text after position n."""
    script = (ids_of(text) + [EOS] * POSITIONS)[:POSITIONS]
    gpt2(folder, script=script, **options)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


def rest(*messages: dict[str, str]) -> int:
    """Return the number of free positions after a conversation."""
    said = "".join(f"{m['role'][0]}:{m['content']}{END}" for m in messages)
    return POSITIONS - len(ids_of(f"{said}a:"))


def talk(folder: str, *lines: str, options: tuple[str, ...] = ()) -> Any:
    stdin = "".join(f"{line}\n" for line in lines).encode()
    return run("chat", "--model", folder, *options, stdin=stdin)


@pytest.fixture
def answers(tmp_path: Path) -> str:
    """Return the folder of a model that answers CHAT with " Miau, 世!"."""
    return talker(tmp_path / "talker", "-" * (len(ids_of(PROMPT)) - 1) + "Miau, \u4e16!")


@pytest.fixture
def random(tmp_path: Path) -> str:
    gpt2(tmp_path / "random", seed=24, eos_token_id=[*range(0, 256, 3)])
    (tmp_path / "random" / "chat_template.jinja").write_text(TEMPLATE)
    return str(tmp_path / "random")


def test_messages_from_a_pipe(answers: str) -> None:
    result = talk(answers, CHAT)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Miau, \u4e16!\n", "")
    assert talk(answers, "", " ", CHAT).stdout == "Miau, \u4e16!\n"
    assert talk(answers).stdout == ""


def test_the_cache_in_16_bits(answers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    answer_prompt = tasks.answer_prompt

    def spy(model: Model, *arguments: Any, **options: Any) -> Any:
        seen.append(str(model.cache_dtype))
        return answer_prompt(model, *arguments, **options)

    monkeypatch.setattr(tasks, "answer_prompt", spy)
    assert talk(answers, CHAT).stdout == "Miau, \u4e16!\n"
    assert talk(answers, CHAT, options=("--cache-dtype", "float16")).stdout == "Miau, \u4e16!\n"
    assert seen == ["None", "float16"]


def test_each_message_is_rendered_once(answers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = []

    def counted(template: str, variables: Any) -> str:
        rendered.append([message["content"] for message in variables["messages"]])
        return render(template, variables)

    monkeypatch.setattr("qkv.text._chat_template.render", counted)
    assert talk(answers, CHAT, "the").exit_code == 0
    assert rendered == [[CHAT], [CHAT, "Miau, \u4e16!", "the"]]


def test_the_conversation_goes_on(tmp_path: Path) -> None:
    folder = talker(tmp_path / "talker", "".join(f"a{n} b{END}" for n in range(10, 60)))
    model, messages, expected = qkv.load(folder), [], []
    for content in ("system", "a", "the", "x"):
        messages.append({"role": "user" if messages else "system", "content": content})
        if len(messages) > 1:
            expected.append(str(model.chat(messages, max_new_tokens=9)))
            messages.append({"role": "assistant", "content": expected[-1]})
    saved = tmp_path / "chat.json"
    lines = ("a", "the", "x", f"/save {saved}", "/new", "a", f"/save {saved}2")
    result = talk(folder, *lines, options=("--system", "system"))
    told = [f"wrote {n} messages to {path}" for n, path in ((7, saved), (3, f"{saved}2"))]
    said = [*expected, told[0], "This is a new conversation.", expected[0], told[1]]
    assert result.stdout == "".join(f"{line}\n" for line in said)
    assert json.loads(saved.read_text("utf-8")) == messages
    assert json.loads(Path(f"{saved}2").read_text("utf-8")) == messages[:3]


def test_hide_answers_again_without_a_word(random: str, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    result = talk(random, CHAT, "/hide the", f"/save {saved}", "x")
    model = qkv.load(random)
    asked = {"role": "user", "content": CHAT}
    plain, hidden = (
        model.chat([asked], hide=hide, max_new_tokens=rest(asked)) for hide in ((), ["the"])
    )
    assert plain != hidden
    messages = [asked, {"role": "assistant", "content": str(hidden)}]
    assert json.loads(saved.read_text("utf-8")) == messages
    messages.append({"role": "user", "content": "x"})
    last = model.chat(messages, max_new_tokens=rest(*messages))
    assert last == ""
    none = "The model gave no answer."
    assert result.stdout == f"{plain}\n{hidden}\nwrote 2 messages to {saved}\n{none}\n"


def test_look_shows_the_words_of_the_answer(answers: str) -> None:
    shown = talk(answers, CHAT, "/look").stdout
    assert shown.startswith("Miau, \u4e16!\ntalker, ")
    [weights] = [part for part in shown.split("\n\n") if part.startswith("Weights of layer")]
    lines = weights.partition("scale 0.00")[0].splitlines()
    names = [line.split()[0] for line in lines if line[:1] not in " W1"]
    assert names == ["Miau", ",", "\u4e16", "\u4e16", "\u4e16", "!"]


def test_why_a_word_of_the_answer(answers: str) -> None:
    shown = talk(answers, CHAT, "/why Miau").stdout
    assert "Why Miau?" in shown
    result = talk(answers, CHAT, "/why zebra")
    assert "/why needs a word of the last answer" in result.stderr


def test_sampling_settings_of_the_model_are_used(tmp_path: Path) -> None:
    settings = {"do_sample": True, "top_k": 1, "temperature": 5.0}
    folder = tmp_path / "model"
    gpt2(folder, seed=7, eos_token_id=None, generation=settings)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    model = qkv.load(folder)
    asked = {"role": "user", "content": CHAT}
    greedy = model.chat([asked], max_new_tokens=rest(asked))
    assert talk(str(folder), CHAT).stdout == f"{greedy}\n"
    (folder / "generation_config.json").write_text(json.dumps(settings | {"top_k": 0}))
    assert talk(str(folder), CHAT).stdout != f"{greedy}\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["/nothing"],
            "there is no command /nothing: use /look, /why WORD, /hide WORD, /save FILE, /new",
        ),
        (["/"], "there is no command /: use /look"),
        (["/look"], "there is no answer yet: write a message first"),
        (["/why x"], "there is no answer yet: write a message first"),
        (["/hide the"], "there is no answer yet: write a message first"),
        (["/hide"], "/hide needs a word"),
        (["/save"], "/save needs a file"),
        (["/save /nowhere/at/all.json"], "the folder /nowhere/at does not exist"),
        (
            ["x" * 200],
            f"talker takes at most {POSITIONS} tokens including the answer: write a shorter "
            "message, or "
            "begin a new conversation with /new",
        ),
    ],
)
def test_refused_lines(lines: list[str], said: str, answers: str) -> None:
    line = refused(talk(answers, *lines), "chat")
    assert said in line


def test_refused_words_and_models(answers: str, tmp_path: Path) -> None:
    result = talk(answers, CHAT, "/hide dog")
    assert (result.exit_code, result.stdout) == (2, "Miau, \u4e16!\n")
    assert "dog" in result.stderr
    gpt2(tmp_path / "gpt2", seed=1)
    assert "gpt2 has no chat template: choose a" in refused(talk(str(tmp_path / "gpt2")), "chat")
    assert "random does not predict the next" in refused(talk("random"), "chat")


def test_the_default_model(monkeypatch: pytest.MonkeyPatch, answers: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("QKV_MODEL", raising=False)
    monkeypatch.setattr("qkv.models.files.find.find_spec", lambda package: None)  # not installed
    assert "smollm2" in refused(run("chat"), "chat")
    monkeypatch.setenv("QKV_MODEL", answers)
    assert run("chat", stdin=CHAT.encode()).stdout == "Miau, \u4e16!\n"


SLOW = """
import fcntl, sys, termios, time
from itertools import count
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from qkv.models.network.transformer import Transformer
step, steps = Transformer.step, count(1)
def slow(*args, **options):
    if next(steps) == 20:  # until Ctrl-C, in the first answer
        time.sleep(600)
    return step(*args, **options)
Transformer.step = slow
from qkv.cli import main
main(["chat", *sys.argv[1:]])
"""


class Terminal:
    """A pseudo-terminal in which the first answer of `qkv chat` never ends."""

    def __init__(self, *args: str) -> None:
        self.ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SLOW, *args],
            env={**os.environ, "PYTHONIOENCODING": "utf-8", "TERM": "dumb", "NO_COLOR": "1"},
            **{"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True},
        )
        os.close(theirs)

    def write(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def until(self, text: str) -> str:
        """Return what is shown, up to a text."""
        shown = b""
        while text.encode() not in shown:
            ready, _, _ = select.select([self.ours], [], [], MINUTE)
            assert ready, f"{text!r} did not follow {shown!r}"
            shown += os.read(self.ours, 1)
        return shown.decode(errors="replace").replace("\r\n", "\n")

    def sleeps(self) -> None:
        """Wait until the process sleeps, so that `input` is in the call that a signal ends."""
        if Path("/proc").exists():
            until(lambda: state(self.process.pid), "it sleeps", lambda now: now == "S")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    folder = talker(
        tmp_path / "talker",
        "-" * (len(ids_of(PROMPT)) - 1) + " one \x1b[31mtwo three four" + " go on" * 20,
    )
    opened = Terminal("--model", folder)
    yield opened
    opened.process.kill()
    opened.process.wait()
    os.close(opened.ours)


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of one's own is asked of Unix")
def test_a_conversation_on_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    assert "talker: /help lists the commands, and Ctrl-D ends" in terminal.until("> ")
    terminal.write(f"{CHAT}\n")
    shown = terminal.until(" three")
    assert "one \\x1b[31mtwo three" in shown
    assert "\x1b[31m" not in shown
    terminal.write("\x03")
    terminal.until("> ")
    saved = tmp_path / "chat.json"
    terminal.write(f"/save {saved}\n")
    terminal.until("wrote 2 messages")
    question, answer = json.loads(saved.read_text("utf-8"))
    assert question == {"role": "user", "content": CHAT}
    assert answer["role"] == "assistant"
    assert answer["content"].startswith(" one \x1b[31mtwo three")
    assert len(answer["content"]) < 60
    terminal.until("> ")
    terminal.write("/nothing\n")
    assert "qkv chat: there is no command /nothing: use /look, /why" in terminal.until("> ")
    terminal.write("/help\n")
    assert "/look, /why WORD, /hide WORD, /save FILE, /new, /help; Ctrl-C stops" in terminal.until(
        "> "
    )
    terminal.write("half a line")
    terminal.until("half a line")
    terminal.sleeps()  # Python misses a Ctrl-C just before `input` waits again
    terminal.write("\x03")
    assert "Ctrl-D ends the conversation." in terminal.until("> ")
    terminal.write("/new\n")
    terminal.until("This is a new conversation.")
    terminal.until("> ")
    terminal.write("\x04")
    assert terminal.process.wait(MINUTE) == 0
