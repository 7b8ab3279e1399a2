"""`qkv chat`, a conversation with a model in the terminal."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from qkv._argument_errors import message as text_of
from qkv._visible import visible
from qkv.cli._options import cache_dtype_option, dtype_option
from qkv.cli._output import complain, console, tell, write
from qkv.extras import need
from qkv.files import replacing

if TYPE_CHECKING:
    from qkv.models import Model

PARTNER = "smollm2"  # the default model
MOST_NEW = 512  # the maximum number of tokens of an answer
WHOLE = 512  # if a conversation has more tokens, `/look` keeps only each token's largest weights

Messages = list[dict[str, str]]


@click.command()
@click.option(
    "--model",
    metavar="NAME",
    help="A model that was trained on conversations: a folder, a GGUF file, a short name "
    f"({PARTNER}) or a Hub id. Default: QKV_MODEL, else {PARTNER}.",
)
@click.option("--system", metavar="TEXT", help="Begin with this system message.")
@dtype_option
@cache_dtype_option
@click.pass_context
def chat(
    context: click.Context,
    model: str | None,
    system: str | None,
    dtype: str | None,
    cache_dtype: str | None,
) -> None:
    """Talk with a model.

    Each line is a message; the answer appears word by word. Ctrl-C stops an answer, and Ctrl-D
    ends the conversation. Lines from a pipe are messages too.

    \b
    /look        show what the words of the last answer attended to
    /hide WORD   answer again, with WORD masked
    /save FILE   write the messages to a JSON file
    /new         begin a new conversation
    /help        list these commands
    """  # noqa: D301 (\b tells click not to wrap the next lines)
    from qkv.models import load

    need("jinja2", "chat")
    chosen = None if model else os.environ.get("QKV_MODEL")
    used = load(model or (None if chosen else PARTNER), dtype=dtype)
    if not used.generates or getattr(used.tokenizer, "chat_template", None) is None:
        named = f"QKV_MODEL is {chosen:.200}, which" if chosen else used.name
        lacks = "has no chat template" if used.generates else "does not predict the next token"
        raise click.UsageError(
            f"{named} {lacks}: choose a model that was trained on conversations, for example with "
            f"--model {PARTNER}"
        )
    used.cache_dtype = cache_dtype
    conversation = _Conversation(used, system)
    on_terminal = sys.stdin is not None and sys.stdin.isatty()
    if on_terminal:
        tell(f"{visible(used.name)}: /help lists the commands, and Ctrl-D ends the conversation.")
    for line in _read_typed() if on_terminal else sys.stdin or ():
        try:
            conversation.take(line.rstrip("\r\n"))
        except (ValueError, LookupError, OSError, ArithmeticError) as error:
            if not on_terminal or isinstance(error, BrokenPipeError):
                raise
            complain(context.command_path, text_of(error))
        except KeyboardInterrupt:
            if not on_terminal:
                raise
            click.echo()


def _read_typed() -> Iterator[str]:
    """Yield the lines that the user types; Ctrl-C discards a line."""
    with suppress(ImportError):
        import readline  # noqa: F401 (`input` uses it, so that lines can be edited)
    while True:
        try:
            yield input("> " if sys.stdout.isatty() else "")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\nCtrl-D ends the conversation.")


class _Conversation:
    """The messages of a conversation, and the commands that change or show them."""

    def __init__(self, model: "Model", system: str | None) -> None:
        self.model, self.sampling = model, model.sampling
        self.start: Messages = [] if system is None else [{"role": "system", "content": system}]
        self.messages = [*self.start]
        self.commands: dict[str, Callable[[str], None]] = {
            "/look": self.look,
            "/why": self.why,
            "/hide": self.hide,
            "/save": self.save,
            "/new": self.new,
            "/help": self.help,
        }

    def take(self, line: str) -> None:
        """Answer a message, or run a command."""
        name, _, rest = line.partition(" ")
        if line.startswith("/"):
            if name not in self.commands:
                raise ValueError(f"there is no command {name:.40}: use {self.names()}")
            self.commands[name](rest)
        elif line.strip():
            self.answer([*self.messages, {"role": "user", "content": line}])

    def names(self) -> str:
        """List the commands."""
        given = {"/why": " WORD", "/hide": " WORD", "/save": " FILE"}
        return ", ".join(name + given.get(name, "") for name in self.commands)

    def answer(self, messages: Messages, **options: Any) -> None:
        """Write the answer to the last message; if the answer is stopped, keep its first part."""
        from qkv.models.tasks import answer_prompt

        tokenizer = self.model.reader.need_tokenizer()
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer.tokenize_prompt(text)
        limit = self.model.max_seq_length or sys.maxsize
        free = min(MOST_NEW, limit - len(prompt))
        if free < 1:
            raise ValueError(
                f"the conversation has {len(prompt)} tokens, but {visible(self.model.name)} "
                f"takes at most {limit} tokens including the answer: write a shorter message, "
                "or begin a new "
                "conversation with /new"
            )
        pieces = answer_prompt(
            self.model, prompt, stream=True, max_new_tokens=free, **self.sampling, **options
        )
        text = ""
        try:
            with closing(pieces):
                for piece in pieces:
                    text += piece
                    write(piece)
        finally:
            if text:
                self.messages = [*messages, {"role": "assistant", "content": text}]
        write("\n" if text else "The model gave no answer.\n")

    def last_answer(self) -> str:
        """Return the last answer, or raise an error if there is none."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise ValueError("there is no answer yet: write a message first")
        return self.messages[-1]["content"]

    def look(self, _: str) -> None:
        """Show the head that stands out in the last answer."""
        from qkv import see

        answer = self.last_answer().strip()
        tokenizer = self.model.reader.need_tokenizer()
        text = tokenizer.apply_chat_template(self.messages, tokenize=False)
        tokens: Any = tokenizer.tokenize_prompt(text)
        begin = text.rfind(answer)
        spans = enumerate(tokens.offsets)
        rows = [at for at, (a, b) in spans if a < begin + len(answer) and b > begin >= 0]
        if not rows:
            raise ValueError(
                "the chat template leaves out the last answer, so no weights can be shown"
            )
        options: dict[str, Any] = {"names": ["pattern"]}
        if len(tokens) > WHOLE:
            options = {"names": [], "top_k": 8}
        see.show(self.model.trace(tokens, **options), query=rows).print(console())

    def why(self, word: str) -> None:
        """Show what a word of the last answer loses without each word before it."""
        from qkv import see

        answer, word = self.last_answer(), word.strip()
        if not word or word not in answer:
            raise ValueError("/why needs a word of the last answer: write, for example, /why Paris")
        tokenizer, messages = self.model.reader.need_tokenizer(), self.messages[:-1]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        text += answer[: answer.index(word)]
        before = text.rstrip(" ")
        tokens = replace(tokenizer.tokenize_prompt(before), text=before)
        see.why(tokens, self.model, answer=text[len(before) :] + word).print(console())

    def hide(self, word: str) -> None:
        """Answer the last message again, with a word masked."""
        if not word.strip():
            raise ValueError("/hide needs a word: write, for example, /hide France")
        self.last_answer()
        self.answer(self.messages[:-1], hide=[word])

    def save(self, path: str) -> None:
        """Write the messages to a file."""
        if not path.strip():
            raise ValueError("/save needs a file: write, for example, /save chat.json")
        with replacing(path.strip()) as file:
            file.write(json.dumps(self.messages, indent=2, ensure_ascii=False).encode("utf-8"))
        tell(f"wrote {len(self.messages)} messages to {visible(path.strip())}")

    def new(self, _: str) -> None:
        """Begin a new conversation, with the same system message."""
        self.messages = [*self.start]
        tell("This is a new conversation.")

    def help(self, _: str) -> None:
        """List the commands."""
        tell(f"{self.names()}; Ctrl-C stops an answer, and Ctrl-D ends the conversation.")
