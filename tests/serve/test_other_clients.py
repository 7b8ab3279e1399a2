"""Tests of many clients, each in a process of its own, and of the documentation's table of clients.

A client must get the results of the model, and errors as exceptions of its own.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import distribution, distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from models.decoders import writer
from models.tasks.test_chat import ASKED, PROMPT, with_template
from qkv.serve.settings import Settings

from .client_programs import CLIENTS, USES, Client
from .conftest import ENVIRONMENT, inside, keys_in, output_of
from .test_open_webui import VERSION

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
OPENAI_2 = Path(sys.prefix) / "openai-2"  # the Makefile installs it
KEY = "a-key-of-this-test"
TEXTS = ["The cat sat on the mat.", "I sat on the bank of the river.", "Money"]
QUERY, DOCUMENTS = "the cat sat", ["a dog ran", "the cat", "the mat"]
SAID = "sat on the mat"
GIVEN: dict[str, list[Any]] = {
    "vectors": [TEXTS],
    "ranking": [QUERY, DOCUMENTS],
    "chat": [ASKED],
    "completions": [PROMPT],
}
# What the server refuses, and words of the error.
REFUSED: dict[str, tuple[list[Any], str]] = {
    "vectors": ([[""]], "pass a text, a list of texts, a list of token ids"),
    "ranking": (["", ["a"]], "rerank: query"),
    "chat": ([[{"role": "user", "content": "a" * 200}]], "chat/completions: "),
}
# Run each function of the client's code, then the first function with a wrong key, and with an
# argument that the server refuses.
PROGRAM = """
import json
import sys

import numpy as np

(encoder, decoder, ranker), key, uses, refused = json.loads(sys.argv[1])
{code}
uses = {{name: arguments for name, arguments in uses.items() if name in globals()}}
found = {{name: globals()[name](key, *arguments) for name, arguments in uses.items()}}
(name, arguments), errors = next(iter(uses.items())), []
for with_key, given in ((key, refused[name]), ("wrong", arguments)):
    try:
        globals()[name](with_key, *given)
    except Exception as error:
        kind = type(error)
        package = kind.__module__.partition(".")[0]
        errors.append([f"{{package}}.{{kind.__name__}}", str(error)])
print(json.dumps([found, errors]))
"""


@pytest.fixture(scope="module")
def servers(ranker: qkv.Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The addresses of an encoder, a decoder that says `SAID`, and a ranker, which need a key."""
    folder = tmp_path_factory.mktemp("servers")
    decoder = with_template(writer(folder / "decoder", PROMPT, SAID))
    settings = Settings(keys=keys_in(folder, KEY))
    with ExitStack() as stack:
        yield [
            f"http://127.0.0.1:{stack.enter_context(inside(model, settings)).port}"
            for model in (qkv.load("minilm"), decoder, ranker)
        ]


def run_client(client: Client, servers: list[str], folder: Path) -> Any:
    """Run a client's code in a process that may only connect to this machine."""
    program = folder / "program.py"
    program.write_text(PROGRAM.format(code=client.code))
    uses = {use: GIVEN[word] for use, word in USES.items()}
    refused = {use: REFUSED[word][0] for use, word in USES.items() if word in REFUSED}
    given = json.dumps([servers, KEY, uses, refused])
    environment = ENVIRONMENT | ({"PYTHONPATH": str(OPENAI_2)} if client.second else {})
    command = [sys.executable, HERE / "offline.py", program, given]
    return json.loads(output_of(*command, env=environment, cwd=folder).splitlines()[-1])


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gets_the_results_of_the_model(
    name: str, servers: list[str], ranker: qkv.Model, tmp_path: Path
) -> None:
    client = CLIENTS[name]
    found, errors = run_client(client, servers, tmp_path)
    vectors = qkv.load("minilm").encode(TEXTS)
    for use, result in found.items():
        if use == "embeddings":
            assert np.abs(np.array(result) - vectors).max() < 1e-6
        elif use == "short_embeddings":
            kept = vectors[:, :64].astype(np.float64)
            kept /= np.sqrt((kept**2).sum(1, keepdims=True))
            assert np.abs(np.array(result) - kept).max() < 1e-6
        elif use == "ranking":
            expected = [[one["corpus_id"], one["score"]] for one in ranker.rank(QUERY, DOCUMENTS)]
            np.testing.assert_allclose(result, expected, atol=1e-6)
        elif use.endswith("_stream"):
            assert "".join(result) == SAID
            assert sum(map(bool, result)) > 1
        else:
            assert result == SAID
    assert set(found) == set(re.findall(rf"^def ({'|'.join(USES)})\(key, ", client.code, re.M))
    (invalid, why), (unauthorized, what) = errors
    assert (invalid, unauthorized) == (client.invalid, client.unauthorized)
    assert REFUSED[USES[next(iter(found))]][1] in why
    assert "the key of this request is wrong" in what


def test_the_table_of_clients_is_true() -> None:
    """Each row has the version with which the client was tried, and the uses of its program.

    The installed version may be newer, but not of another series.
    """
    expected, second = [], {one.name: one.version for one in distributions(path=[str(OPENAI_2)])}
    for name, client in CLIENTS.items():
        package, tried = client.package.split()
        words = {word: None for use, word in USES.items() if f"def {use}(" in client.code}
        expected.append(f"| {name} | {package} {tried} | {', '.join(words)} |")
        installed = second[package] if client.second else distribution(package).version
        now, then = (tuple(map(int, one.split(".")[:2])) for one in (installed, tried))
        series = 1 if then[0] else 2
        assert now >= then, package
        assert now[:series] == then[:series], package
    expected.append(f"| Open WebUI | {VERSION} (only its requests) | vectors, ranking, chat |")
    rows = re.findall(r"^\| [A-Z][^|]*\| [^|]*\d\.\d[^|]*\|[^|]*\|", PAGE, re.M)
    assert rows == expected
