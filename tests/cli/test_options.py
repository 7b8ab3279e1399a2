"""Tests that each command has the options that help texts, pages and errors name for it."""

import re
from pathlib import Path

import click
import pytest

from qkv.cli import main

ROOT = Path(__file__).parents[2]
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?![\w-])")
_COMMAND = re.compile(rf"\bqkv ({'|'.join(main.commands)})\b((?:\\\n|[^`\n;|])*)")
# for some commands: the options that their help texts mention but that belong to other commands
_OTHERS = {"train": {"--model"}}


def has(verb: str) -> set[str]:
    """Return the options of a command."""
    found = {name for one in main.commands[verb].params for name in one.opts if name[:2] == "--"}
    return found | {"--help"}


def named(text: str) -> set[str]:
    """Return the options that a text names."""
    return set(_OPTION.findall(text))


def test_options_are_found_in_texts() -> None:
    assert named("give --top-k, or (--open); a--b, ---, --Ink, --x_y") == {"--top-k", "--open"}
    found = _COMMAND.findall('`qkv show "A." --html f` and $ qkv replay a \\\n  --open; --no')
    assert [(verb, named(rest)) for verb, rest in found] == [
        ("show", {"--html"}),
        ("replay", {"--open"}),
    ]


@pytest.mark.parametrize("verb", main.commands)
def test_help_of_a_command_names_only_its_own_options(verb: str) -> None:
    text = main.commands[verb].get_help(click.Context(main.commands[verb], info_name=verb))
    assert named(text) - has(verb) == _OTHERS.get(verb, set())


def test_main_help_names_only_existing_options() -> None:
    assert named(main.get_help(click.Context(main))) <= {"--help", "--version", "--debug"} | {
        option for _, rest in _COMMAND.findall(main.help or "") for option in named(rest)
    }


@pytest.mark.parametrize("kind", ["*.md", "docs/**/*.md", "src/**/*.py", "src/**/*.js"])
def test_commands_in_docs_and_source_use_existing_options(kind: str) -> None:
    texts = {path: path.read_text("utf-8") for path in ROOT.glob(kind)}
    assert texts
    found = [
        (str(path.relative_to(ROOT)), verb, option)
        for path, text in texts.items()
        for verb, rest in _COMMAND.findall(text)
        for option in named(rest) - has(verb)
    ]
    assert found == []
