"""Tests of the files for operators in docs/serving.md: systemd, Kubernetes and Prometheus."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.cli import main
from qkv.models.files.find import shipped_models
from qkv.serve.app import GRACE, routes
from qkv.serve.guard import HEALTH
from qkv.serve.settings import Settings

from .conftest import Served, inside, keys_in, serve, wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
[UNIT] = re.findall(r"^```ini\n(.*?)^```$", PAGE, re.M | re.S)
CLUSTER, SCRAPE, RULES = [
    [*import_module("yaml").safe_load_all(block)]
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
]
PATHS = {route.path for route in routes()}
BASE, MINILM, LEAST = 400, 91, 1259  # megabytes of the page's sum
KEYED = {"Authorization": "Bearer second"}


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    [deployment, _] = CLUSTER
    return dict(deployment["spec"]["template"]["spec"])


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["containers"]
    return dict(found)


@pytest.fixture(scope="module")
def options(container: dict[str, Any]) -> dict[str, Any]:
    """The options of `qkv serve` in the Deployment, as the command reads them."""
    with main.commands["serve"].make_context("serve", [*container["args"]]) as context:
        return context.params


@pytest.fixture(scope="module")
def served(
    container: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, Path]]:
    """A server with the arguments of the Deployment, and the folder with its keys.

    As Kubernetes does for a Secret, the key file is a link into a linked folder.
    """
    folder = tmp_path_factory.mktemp("keys")
    (folder / "first").mkdir()
    keys_in(folder / "first", "first\nsecond\n")
    (folder / "..data").symlink_to("first")
    (folder / "keys").symlink_to("..data/keys")
    others = {
        "--model": shipped_models()["books"],
        "--port": "0",
        "--host": "127.0.0.1",
        "--api-key-file": str(folder / "keys"),
    }
    split = [argument.partition("=") for argument in container["args"]]
    with serve(*(f"{name}={others.get(name, value)}" for name, _, value in split)) as server:
        yield server, folder


@pytest.fixture(scope="module")
def metrics(served: tuple[Served, Path]) -> str:
    """What `/metrics` prints to Prometheus, which asks the address of the pod."""
    server, _ = served
    with server.client(headers={"Host": "10.1.2.3:8080"}) as client:
        assert client.get("/metrics").status_code == 401
        client.post("/v1/embeddings", json={"input": "a"}, headers=KEYED)
        answer = client.get("/metrics", headers=KEYED)
    assert answer.status_code == 200
    return answer.text


def test_the_memory_limit_is_the_sum_on_the_page(options: dict[str, Any]) -> None:
    memory = Settings.memory // 2**20
    said = f"For a MiniLM of {MINILM} MB and `--max-memory {memory}M`, the sum is"
    assert f"{said} {BASE} + {MINILM} + 3 · {memory} = {LEAST:,} MB" in PAGE
    assert BASE + MINILM + 3 * memory == LEAST
    assert f"\n- {BASE} MB for Python" in PAGE
    assert "\n- three times `--max-memory`: the bodies and answers" in PAGE
    assert f"key/value caches of {Settings.stream_tokens:,} tokens" in PAGE
    assert options["max_memory"] == Settings.memory


# systemd


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT)
    return parser


def test_the_unit_starts_the_server_with_enough_memory_and_time() -> None:
    found = unit()
    assert found.sections() == ["Unit", "Service", "Install"]
    service = found["Service"]
    program, verb, *arguments = shlex.split(service["ExecStart"])
    assert (Path(program).name, verb) == ("qkv", "serve")
    with main.commands["serve"].make_context("serve", arguments) as context:
        memory = context.params["max_memory"] // 2**20
        assert Path(context.params["model"]).name == "minilm"
    assert BASE + MINILM + 3 * memory <= int(service["MemoryMax"].removesuffix("M")) == 1300
    assert int(service["TimeoutStopSec"]) > GRACE


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if (program := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed, which checks the unit")
    start = unit()["Service"]["ExecStart"].split()[0]
    file = tmp_path / "qkv.service"
    file.write_text(UNIT.replace(start, sys.executable))  # the program must exist
    run = subprocess.run([program, "verify", str(file)], capture_output=True, text=True, timeout=60)
    said = [line for line in run.stderr.splitlines() if "qkv.service" in line]
    assert (run.returncode, said) == (0, [])


# Kubernetes


def test_the_deployment_fits_the_server(
    pod: dict[str, Any], container: dict[str, Any], options: dict[str, Any]
) -> None:
    [port] = container["ports"]
    assert port["containerPort"] == options["port"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in HEALTH & PATHS  # needs neither a key nor a host name
        assert asked["port"] == port["name"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    _, duration = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] >= GRACE + int(duration)
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    memory = int(resources["limits"]["memory"].removesuffix("Mi"))
    assert LEAST <= memory == 1300
    assert int(resources["limits"]["cpu"]) == options["threads"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
    assert options["model"].startswith(mounted["models"] + "/")
    assert options["api_key_file"] == f"{mounted['keys']}/keys"
    [secret] = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert f"secret generic {secret['secretName']} --from-file=keys=" in PAGE
    assert secret["defaultMode"] & 0o027 == 0
    for variable in container["env"]:
        assert variable["name"] == "HF_HUB_OFFLINE"
    image = (Path(__file__).parents[2] / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["qkv", "serve"]' in image
    assert f"EXPOSE {options['port']}" in image


def test_clients_of_the_service_are_allowed(served: tuple[Served, Path]) -> None:
    deployment, service = CLUSTER
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    [port] = service["spec"]["ports"]
    assert port["targetPort"] == template["spec"]["containers"][0]["ports"][0]["name"]
    name, space = (service["metadata"][key] for key in ("name", "namespace"))
    names = [name, f"{name}.{space}", f"{name}.{space}.svc", f"{name}.{space}.svc.cluster.local"]
    server, _ = served
    with server.client(headers=KEYED) as client:
        for host in (*names, f"{names[-1]}.", f"{name}:{port['port']}", "10.1.2.3:8080"):
            assert client.get("/v1/models", headers={"Host": host}).status_code == 200, host
        for host in ("example.org", "11.1.2.3", "svc", "evil.default"):
            assert client.get("/v1/models", headers={"Host": host}).status_code == 403, host
        assert f"http://{names[2]}`" in PAGE


def test_a_changed_secret_is_read_again(served: tuple[Served, Path], metrics: str) -> None:
    server, folder = served
    (folder / "next").mkdir()
    keys_in(folder / "next", "third\nsecond\n")
    (folder / "..new").symlink_to("next")
    (folder / "..new").rename(folder / "..data")  # as Kubernetes replaces all files at once
    with server.client() as client:
        for key, expected in (("third", 200), ("second", 200), ("first", 401)):
            answer = client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == expected, key


# Prometheus


def test_prometheus_finds_the_pods(container: dict[str, Any]) -> None:
    [[job]] = [document["scrape_configs"] for document in SCRAPE]
    assert job["metrics_path"] in PATHS
    labels = CLUSTER[0]["spec"]["template"]["metadata"]["labels"]
    kept = {row["source_labels"][0]: row["regex"] for row in job["relabel_configs"]}
    assert kept == {
        "__meta_kubernetes_pod_label_app": labels["app"],
        "__meta_kubernetes_pod_container_port_name": container["ports"][0]["name"],
    }
    [discovery] = job["kubernetes_sd_configs"]
    assert discovery["namespaces"]["names"] == [CLUSTER[0]["metadata"]["namespace"]]


FUNCTIONS = {"sum", "rate", "absent", "or"}


def test_each_metric_of_an_alert_exists(metrics: str) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("the metrics of the process need /proc")
    lines = [line for line in metrics.splitlines() if not line.startswith("#")]
    known = {re.split(r"[{ ]", line)[0] for line in lines}
    labels = set(re.findall(r'[{,](\w+)="', metrics)) | {"job"}
    [[group]] = [document["groups"] for document in RULES]
    [[job]] = [document["scrape_configs"] for document in SCRAPE]
    assert len(group["rules"]) == 5
    for rule in group["rules"]:
        assert rule.keys() == {"alert", "expr", "for", "annotations"}
        text = re.sub(r"\[\d+m\]", "", rule["expr"])
        chosen = re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', text)
        assert {label for label, _ in chosen} <= labels, rule["alert"]
        for label, value in chosen:
            if label == "route":
                assert set(value.split("|")) <= PATHS
            if label == "job":
                assert value == job["job_name"]
        names = set(re.findall(r"[a-z]\w*", re.sub(r"\{.*?\}", "", text))) - FUNCTIONS
        assert names, rule["alert"]
        assert names <= known, rule["alert"]
    memory = next(rule["expr"] for rule in group["rules"] if rule["alert"] == "QkvMemory")
    assert memory.endswith("> 0.9 * 1300 * 1024 * 1024")


def test_the_metrics_of_alerts_change(metrics: str) -> None:
    assert "\nqkv_ready 1.0\n" in metrics
    assert "\nqkv_oldest_seconds 0.0\n" in metrics
    [memory] = re.findall(r"^process_resident_memory_bytes (\S+)$", metrics, re.M)
    assert 10**7 < float(memory) < BASE * 2**20

    with inside(qkv.load("random")) as other:
        assert other.worker.oldest_seconds == 0
        with other.held():
            wait_until(lambda: other.worker.oldest_seconds > 0, "a request waits")
        wait_until(lambda: other.worker.oldest_seconds == 0, "no request waits")
