"""Tests of requests that schemathesis generates from /openapi.json: allowed requests and others."""

import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from models.small_models import CONFIGS, write_small
from models.support import cross_encoder
from models.tasks.test_chat import TEMPLATE

from .conftest import serve

GOOD = schemathesis.GenerationMode.POSITIVE
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]
EXAMPLES = 60
SEED = int(os.environ.get("QKV_ATTACK") or 13)
ROUTES = [
    *("POST /v1/embeddings", "POST /v1/completions", "POST /v1/chat/completions"),
    *("POST /v1/rerank", "POST /v2/rerank", "POST /v1/trace"),
    *("GET /", "GET /v1/models", "GET /v1/models/{name}"),
    *("GET /healthz", "GET /readyz", "GET /metrics"),
    *("POST /embed", "POST /rerank", "POST /tokenize", "POST /", "GET /info", "GET /health"),
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    """The schema of a server whose model, a small decoder, supports all routes except rerank."""
    folder = write_small(tmp_path_factory.mktemp("decoder"), CONFIGS["gpt2"])
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with serve("--model", folder) as it:
        yield schemathesis.openapi.from_url(f"{it.url}/openapi.json")


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    """The schema of a server with a cross-encoder, because other models cannot rank documents."""
    model = cross_encoder(tmp_path_factory.mktemp("model") / "ranks").path
    with serve("--model", model) as it:
        yield schemathesis.openapi.from_url(f"{it.url}/openapi.json")


def test_every_route_is_described(api: BaseSchema) -> None:
    assert {one.ok().label for one in api.get_all_operations()} == set(ROUTES)


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_conforms_to_its_schema(api: BaseSchema, route: str) -> None:
    assert answers(api, route)


def test_a_ranking_conforms_to_its_schema(ranking: BaseSchema) -> None:
    for route in ("POST /v1/rerank", "POST /v2/rerank", "POST /rerank"):
        assert 200 in answers(ranking, route)


def answers(api: BaseSchema, route: str) -> set[int]:
    """Send generated requests, check each answer against the schema, and return the statuses."""
    seen: set[int] = set()
    [operation] = [one.ok() for one in api.get_all_operations() if one.ok().label == route]
    print(f"{route}: seed {SEED}, {EXAMPLES} examples of each kind")
    modes = list(schemathesis.GenerationMode) if operation.method == "post" else [GOOD]
    for mode in modes:

        @seed(SEED)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            derandomize=False,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            seen.add(case.call_and_validate(checks=CHECKS).status_code)

        check()
    return seen
