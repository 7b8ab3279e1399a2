"""Tests of docs/serving.md: its blocks of code run against real servers."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path

import pytest
from substitutions import filled

import qkv
from qkv.cli import main
from qkv.serve._memory import FREE
from qkv.serve._streams import QUANTUM
from qkv.serve.app import routes
from qkv.serve.guard import PIECE
from qkv.serve.settings import Settings

from .conftest import ENVIRONMENT, Served, app_client, output_of, serve
from .test_keys import BODIES

HERE = Path(__file__).parent
PAGE = filled((HERE.parents[1] / "docs" / "serving.md").read_text(encoding="utf-8"))
ADDRESS = "http://127.0.0.1:8080"
# Each block of code: its language, its code, and the output that follows it on the page, if any.
BLOCKS = re.findall(
    r"^```(python|sh)\n(.*?)^```\n(?:\n```(?:text|json)\n(.*?)^```\n)?", PAGE, re.M | re.S
)
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
SMALL = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the blocks run; it contains key.txt."""
    path = tmp_path_factory.mktemp("documentation")
    (path / "key.txt").write_text("the-key-of-this-page\n")
    return path


@pytest.fixture(scope="module")
def decoder() -> Iterator[Served]:
    with serve("--model", "books-decoder") as it:
        yield it


@pytest.fixture(scope="module")
def keyed(folder: Path) -> Iterator[Served]:
    with serve("--api-key-file", folder / "key.txt") as it:
        yield it


def first_line(block: tuple[str, str, str]) -> str:
    return next(line for line in block[1].splitlines() if line.strip()).strip()[:60]


@pytest.mark.parametrize("block", BLOCKS, ids=first_line)
def test_a_block_prints_what_is_shown(
    block: tuple[str, str, str], folder: Path, request: pytest.FixtureRequest
) -> None:
    language, code, shown = block
    name = "decoder" if "completions" in code else "keyed" if "key.txt" in code else "served"
    server: Served = request.getfixturevalue(name)
    assert ADDRESS in code
    code = code.replace(ADDRESS, server.url)
    if language == "python":
        program = folder / "_program.py"
        program.write_text(code)
        command = [sys.executable, HERE / "offline.py", program]
    else:
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed, and the page calls it")
        command = ["sh", "-e", "-c", code]
    printed = output_of(*command, cwd=folder, env=ENVIRONMENT)
    if not shown:
        assert printed.strip()
        assert not printed.startswith('{"error"')
        return
    assert NUMBER.sub("#", printed.strip()) == NUMBER.sub("#", shown.strip())
    found = [float(number) for number in NUMBER.findall(printed)]
    assert found == pytest.approx([float(one) for one in NUMBER.findall(shown)], abs=SMALL)


def test_the_page_has_each_client() -> None:
    code = "".join(block[1] for block in BLOCKS)
    for name in ("curl", "openai", "langchain_openai", "llama_index", "chromadb", "/v1/trace"):
        assert name in code
    assert len(BLOCKS) == len(re.findall(r"^```(?:python|sh)$", PAGE, re.M))


def test_every_command_and_option_exists() -> None:
    commands = re.findall(r"^\$ (qkv .*)$", PAGE, re.M)
    commands += re.findall(r"ExecStart=\S*/(qkv .*)$", PAGE, re.M)
    assert len(commands) > 3
    for command in commands:
        _, verb, *arguments = shlex.split(command)
        known = {name for parameter in main.commands[verb].params for name in parameter.opts}
        assert {word for word in arguments if word.startswith("-")} <= known, command
    options = {name for parameter in main.commands["serve"].params for name in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= options


def test_the_tables_of_routes_and_keys_are_those_of_the_server() -> None:
    def named(keys: Iterable[str]) -> str:
        return ", ".join(f"`{key}`" for key in keys)

    shown = [
        f"| `{method} {route.path.replace('{name:path}', 'NAME')}` | {route.summary} |"
        for route in routes()
        for method in route.methods or ()
    ]
    assert re.findall(r"^\| `(?:GET|POST) .*$", PAGE, re.M) == shown
    expected = [f"| `{path}` | {named(body.model_fields)} |" for path, body in BODIES.items()]
    assert re.findall(r"^\| `/.*\| `model`.*$", PAGE, re.M) == expected


@pytest.mark.parametrize("name", ["random", "books-decoder"])
def test_the_page_lists_every_route_and_says_which_the_model_refuses(name: str) -> None:
    model = qkv.load(name)
    with app_client(model) as client:
        page = unescape(client.get("/").text)
        for route in routes():
            [method] = route.methods or ()
            place = route.path.replace("{name:path}", name)
            if place == "/":
                continue
            assert f"<code>{method} {place}</code>" in page
            command = re.search(rf"curl (?:-N )?http://127.0.0.1{re.escape(place)}[^<]*", page)
            sent = re.search(r"-d '(.*)'", command[0])
            body = None if sent is None else json.loads(sent[1])
            status = client.request(method, place, json=body).status_code
            refuses = f"{route.summary}. {name} " in page
            assert status == (400 if refuses else 200), place
    assert f"{name} does not rank documents: the route refuses it." in page
    assert f"{name} has no chat template, so this route does not accept the model." in page
    writes = f"{name} does not predict the next token: the route refuses it." not in page
    assert writes == (name == "books-decoder")


def test_the_limits_are_those_of_the_server() -> None:
    settings = Settings()
    rows = re.findall(r"^\| (`?[a-z][^|]*) \| ([\d,]+)(?: MiB)? \|", PAGE, re.M)
    said = [int(number.replace(",", "")) for _, number in rows]
    mib = 2**20
    assert said == [
        *(settings.body // mib, settings.inputs, settings.tokens, settings.new_tokens),
        *(settings.tokens, settings.edits, settings.sources, settings.answer // mib),
        settings.memory // mib,
        *(settings.waiting, settings.connections, settings.half_sent, settings.unread),
    ]
    unwrapped = " ".join(PAGE.split())
    assert f"a request waits at most {settings.gather * 1000:g} ms for other requests" in unwrapped
    assert mib == PIECE
    assert settings.waiting < settings.connections
    assert f"not counting the first {FREE // 2**10} KiB of each" in unwrapped
    assert f"client_max_body_size {settings.body // mib}m;" in unwrapped
    assert f"completions together hold up to {settings.stream_tokens:,} tokens" in unwrapped
    assert f"has generated {QUANTUM} tokens with it" in unwrapped
    assert settings.streams == 4
    assert "the next token of up to four completions" in unwrapped
