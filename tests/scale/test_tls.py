"""Tests that a cluster with TLS, made as in docs/scale.md, rejects strangers."""

import re
import shlex
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
OPENSSL = shutil.which("openssl")


def made_in(folder: Path) -> None:
    """Run the page's three commands."""
    commands = re.findall(r"^\$ (openssl .*)$", PAGE, flags=re.M)
    assert len(commands) == 3
    folder.mkdir()
    for command in commands:
        subprocess.run(
            shlex.split(command), cwd=folder, check=True, capture_output=True, timeout=60
        )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of our cluster's files and of a stranger's files, made the same way."""
    if OPENSSL is None:
        pytest.skip("openssl, which makes the certificates, is not installed")
    base = tmp_path_factory.mktemp("tls")
    for name in ("ours", "theirs"):
        made_in(base / name)
    return base / "ours", base / "theirs"


@pytest.fixture(scope="module")
def cluster(folders: tuple[Path, Path]) -> Iterator[tuple[Any, Any]]:
    """Yield the cluster that docs/scale.md describes, and its `Security`.

    Only two settings differ from docs/scale.md: the address of the dashboard, and the folder of the
    certificate files.
    """
    from distributed import LocalCluster

    code = re.search(r"^files = .*?require_encryption=True\)$", PAGE, flags=re.M | re.S)
    assert code is not None
    source = re.sub(r'"(\w+\.pem)"', lambda name: repr(str(folders[0] / name[1])), code[0])
    names: dict[str, Any] = {}
    exec(f"from distributed import Security\n{source}", names)
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        protocol="tls://",
        security=names["security"],
        dashboard_address="127.0.0.1:0",
    ) as made:
        yield made, names["security"]


def test_a_client_with_the_certificate_files_can_compute(cluster: tuple[Any, Any]) -> None:
    from distributed import Client

    made, security = cluster
    assert made.scheduler_address.startswith("tls://")
    with Client(made.scheduler_address, security=security) as client:
        assert client.submit(sum, [1, 2]).result(timeout=60) == 3
        workers = list(client.scheduler_info()["workers"])
    assert len(workers) == 2
    assert all(address.startswith("tls://") for address in workers)


def test_the_documented_configuration_lets_a_client_connect(
    cluster: tuple[Any, Any], folders: tuple[Path, Path]
) -> None:
    import dask
    from distributed import Client

    [written] = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.S)
    settings = yaml.safe_load(written.replace("/home/me", str(folders[0])))
    settings = dask.config.merge(dask.config.config, settings)
    with dask.config.set(settings), Client(cluster[0].scheduler_address) as client:
        assert client.submit(sum, [1, 2]).result(timeout=60) == 3


@pytest.mark.parametrize("stranger", ["plain", "no certificate", "another authority", None])
@pytest.mark.parametrize("who", ["scheduler", "worker"])
def test_a_stranger_is_not_let_in(
    cluster: tuple[Any, Any], folders: tuple[Path, Path], stranger: str | None, who: str
) -> None:
    """The only answer is a refusal; a client with a certificate, who is no stranger, gets another.

    Therefore, if the cluster let a stranger in, the stranger would get an answer too.
    """
    made = cluster[0]
    worker = next(iter(made.workers.values()))
    address = made.scheduler_address if who == "scheduler" else worker.worker_address
    host, _, port = address.removeprefix("tls://").partition(":")
    context = ssl.create_default_context(cafile=str(folders[0] / "ca.pem"))
    context.check_hostname = False
    if stranger in ("another authority", None):
        own = folders[0 if stranger is None else 1]
        context.load_cert_chain(own / "cert.pem", own / "key.pem")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        if stranger == "plain":
            connection.sendall(bytes(64))
            assert _answer(connection)[:1] in (b"", b"\x15")  # no bytes, or a TLS alert
            return
        refused = pytest.raises(ssl.SSLError, match=r"(?i)alert")
        with (
            nullcontext() if stranger is None else refused,
            context.wrap_socket(connection) as secure,
        ):
            assert _answer(secure) or stranger


def _answer(connection: socket.socket) -> bytes:
    """Return the first bytes from Dask, which sends before the client does."""
    try:
        return connection.recv(64)
    except ConnectionError:
        return b""
