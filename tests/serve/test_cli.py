"""Tests of `qkv serve`: start-up errors, the API key, web pages and shutdown."""

import base64
import hashlib
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from html import escape
from pathlib import Path

import httpx
import pytest

from qkv.models.files.find import shipped_models
from serve.conftest import Served, wait_until


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `qkv serve` with arguments for which it ends by itself."""
    program = "from qkv.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--api-key-file, or --no-key"),
        (["--host", "0.0.0.0", "--no-key"], "--allow-host"),
        (["--host", "::", "--no-key"], "--allow-host"),
        (["--no-key", "--api-key-file", "key"], "cannot be combined"),
        (["--allow-host", "http://a.org"], "pass a host name, an IP address"),
        (["--allow-host", "*svc"], "an ending such as *.svc"),
        (["--allow-host", "*."], "an ending such as *.svc"),
        (["--allow-host", "10.0.0.1/8"], "a network such as 10.0.0.0/8"),
        (["--allow-host", "*"], "also pass --api-key-file"),
        (["--allow-origin", "a.org"], "such as https://example.org"),
        (["--allow-origin", "*"], "such as https://example.org"),
        (["--threads", "0"], "x>=1"),
        (["--max-waiting", "1000"], "1<=x<=999"),
        (["--max-tokens", "0"], "x>=1"),
        (["--max-memory", "5"], "at least 16M"),
        (["--max-memory", "1M"], "at least 16M"),
        (["--api-key-file", "no-such-file"], "no-such-file"),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--port", "70000"], "70000"),
        (["--cache-dtype", "int8"], "'int8' is not one of"),
        (["--cache-dtype", "float16"], "cache_dtype does not apply to books"),
        (["--dtype", "int4"], "'int4' is not one of"),
    ],
)
def test_invalid_arguments_print_a_one_line_error(arguments: list[str], said: str) -> None:
    answer = run(*arguments)
    assert answer.returncode == 2, answer.stderr
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert said in answer.stderr


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two words", b"good\ntwo words", b"\xff\xfe", b"a\x00b"]
)
def test_a_file_without_a_key_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    answer = run("--api-key-file", str(file))
    assert answer.returncode == 2
    assert f"{file} has " in answer.stderr
    assert ("a line that is not a key" if content.strip() else "no key") in answer.stderr


def test_environment_variables_replace_options(serving, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("open-sesame\n")
    for name, value in {
        "MODEL": "random",
        "ALLOW_HOST": "*.svc 10.0.0.0/8",
        "API_KEY_FILE": str(tmp_path / "key"),
        "MAX_TOKENS": "5",
        "NAME": "words",
        "THREADS": "1",
        "ALLOW_ORIGIN": "https://a.org",
        "MAX_MEMORY": "16M",
    }.items():
        monkeypatch.setenv(f"QKV_SERVE_{name}", value)
    server: Served = serving()
    with server.client(headers={"Authorization": "Bearer open-sesame"}) as client:
        for host, expected in ("a.svc", 200), ("10.1.1.1", 200), ("a.org", 403):
            answer = client.get("/v1/models", headers={"Host": host})
            assert answer.status_code == expected
        assert client.get("/v1/models").json()["data"][0]["id"] == "words"
        assert client.get("/v1/models", headers={"Origin": "https://a.org"}).status_code == 200
        assert client.post("/v1/embeddings", json={"input": "cat"}).status_code == 200
        long = client.post("/v1/embeddings", json={"input": [[5] * 3] * 2})
        assert "more than 5 tokens" in long.json()["error"]["message"]
        assert client.post("/v1/embeddings", content=b" " * (2**22 + 1)).status_code == 413


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = run("--port", str(port))
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in answer.stderr


def test_the_key_from_a_file_is_required(serving, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("open-sesame\n")
    server: Served = serving("--api-key-file", file)
    with server.client() as client:
        assert client.get("/v1/models").status_code == 401
        assert "QKV_KEY" in client.get("/").text
        headers = {"Authorization": "Bearer open-sesame"}
        assert client.get("/v1/models", headers=headers).status_code == 200
        assert client.get("/nothing", headers=headers).status_code == 404
        answer = client.delete("/v1/models", headers=headers)
        assert answer.status_code == 405
        assert "GET" in answer.headers["Allow"]


def test_a_key_file_that_others_may_write_draws_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("open-sesame\n")
    for mode, warns in (0o600, False), (0o644, False), (0o620, True), (0o602, True):
        file.chmod(mode)
        answer = run("--api-key-file", str(file), "--model", "no/such/folder")
        assert ("other users may write to" in answer.stderr) == warns
        assert "no/such/folder" in answer.stderr.splitlines()[-1]


def test_a_text_that_is_cut_leaves_no_line_in_the_log(serving) -> None:
    long = "the cat sat on the mat " * 100
    edit = {"op": "patch", "at": "z", "layer": 1, "from": long}
    server: Served = serving()
    with server.client() as client:
        asked = {"input": long, "top_k": 1, "edits": [edit]}
        assert client.post("/v1/trace", json=asked).status_code == 200
        assert client.post("/v1/embeddings", json={"input": long}).status_code == 200
        assert server.end() == 0
        assert server.process.stderr.read() == ""


def test_the_page_and_the_docs_load_nothing_from_other_hosts(served) -> None:
    with served.client() as client:
        page = client.get("/")
        assert "books" in page.text
        assert f"curl {served.url}/v1/embeddings" in page.text
        assert "About this model" in page.text
        for name in ("README.md", "LICENSE.wordnet"):
            text = (shipped_models()["books"] / name).read_text("utf-8").strip()
            assert escape(text) in page.text
        others = page.text.replace(served.url, "").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in others
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        docs = client.get("/docs").text
        assert "//" not in docs.replace("// ", "")
        for path in ("swagger-ui-bundle.js", "swagger-ui.css"):
            assert path in docs
            assert client.get(f"/static-offline-docs/{path}").status_code == 200
        policy = client.get("/docs").headers["Content-Security-Policy"]
        [script] = re.findall(r"<script>(.*?)</script>", docs, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert "default-src 'none'" in policy
        assert f"script-src 'self' 'sha256-{digest}'" in policy
        assert client.get("/static-offline-docs/../app.py").status_code in (403, 404)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0(serving, number: int) -> None:
    assert serving().end(number) == 0


def test_it_runs_with_standard_output_and_error_closed() -> None:
    with socket.socket() as held:
        # No other program gets this port meanwhile; the server, which sets this option too, may.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        program = f"exec {sys.executable} -c 'from qkv.cli import main; main()' serve --port {port}"
        process = subprocess.Popen(["sh", "-c", f"{program} >&- 2>&-"])

        def answers() -> bool:
            assert process.poll() is None
            with suppress(httpx.ConnectError):
                httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60, trust_env=False)
                return True
            return False

        try:
            wait_until(answers, "it answers")
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
