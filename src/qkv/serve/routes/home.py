"""`GET /`: the page in which a reader changes what the model does, and a command for each route."""

from __future__ import annotations

import asyncio
import json
import math
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from qkv.models.vision import VisionModel
from qkv.see.page.about import about_model
from qkv.see.page.html import document
from qkv.see.page.served import SERVED, served_page
from qkv.serve.edits import is_plain, scale_in

router = APIRouter()

_HEADERS = {
    "Content-Security-Policy": f"{SERVED}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_STYLE = """
:root { color-scheme: light dark; }
body { background: light-dark(#fff, #12161c); color: light-dark(#14181f, #eef1f5); }
.routes { margin: 1rem auto; max-width: 62rem; padding: 0 1rem; font-size: 1rem; line-height: 1.5; }
.routes summary { min-height: 44px; line-height: 44px; cursor: pointer; }
.routes h2 { font-size: 1rem; margin: 1.5rem 0 .4rem; overflow-wrap: anywhere; }
.routes a { color: inherit; }
.routes pre { border: 1px solid #8a94a3; border-radius: 6px; padding: .8rem 1rem; overflow-x: auto;
  font: .85rem/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
"""
_TEXT = "I sat on the bank of the river."


@router.get(
    "/", summary="A page that asks the model, and how to ask it", response_class=HTMLResponse
)
async def home(request: Request) -> HTMLResponse:
    """A page for people."""
    state = request.app.state
    address = f"{request.url.scheme}://{request.headers['host']}"
    routes = routes_of(state.model, address, key=state.settings.key is not None)
    if getattr(state, "page", None) is None:
        state.page = await asyncio.to_thread(page_of, state.model)
    return HTMLResponse(state.page.replace("</main>", f"{routes}</main>", 1), headers=_HEADERS)


def page_of(model: Any) -> str:
    """The page of a model that reads texts; of another its name, and what is said of it."""
    if isinstance(model, VisionModel) or model.tokenizer is None:
        return document(model.name, about_model(model), "auto")
    layers = range(model.num_layers)
    scales = [scale_in(model, layer) for layer in layers]
    plain = all(is_plain(model, n) and _is_usual(scales[n][1], model.layers[n]) for n in layers)
    return served_page(model, scales, plain=plain)


def _is_usual(scale: float, layer: Any) -> bool:
    """Whether scores are divided by the root of the head size, as the page says."""
    return math.isclose(scale * math.sqrt(layer.attn.d_query), 1)


def routes_of(model: Any, address: str, *, key: bool) -> str:
    """What stands under the page: each route of a server at an address, with a key or none."""
    parts = [
        f"<h2><code>{escape(route)}</code></h2><p>{escape(words)}</p><pre>{escape(command)}</pre>"
        for route, words, command in commands(model, address, key=key)
    ]
    asks = "<p>Requests need the key: the commands read it from QKV_KEY.</p>" if key else ""
    kind = escape(str(model.config.get("model_type", "model")))
    return (
        f'<style>{_STYLE}</style><details class="routes"><summary>Ask {escape(model.name)} from a '
        f"program</summary><p>{kind}, {model.num_layers} layers of {model.num_heads} heads, "
        f"vectors of {model.dim} numbers, served by qkv. Every route with what it takes and gives: "
        f'<a href="docs">docs</a></p>{asks}{"".join(parts)}</details>'
    )


def commands(model: Any, address: str, *, key: bool) -> list[tuple[str, str, str]]:
    """Each route with what it is for and a command that asks it.

    >>> import qkv
    >>> commands(qkv.load("random"), "http://localhost:8080", key=False)[0][2].split()[:2]
    ['curl', 'http://localhost:8080/v1/embeddings']
    """

    def curl(route: str, body: dict[str, Any] | None = None, more: str = "") -> str:
        lines = [f"curl {more}{address}{route}"]
        if key:
            lines.append('-H "Authorization: Bearer $QKV_KEY"')
        if body is not None:
            lines += ["-H 'Content-Type: application/json'", f"-d '{json.dumps(body)}'"]
        return " \\\n  ".join(lines)

    found = [
        (
            "POST /v1/embeddings",
            "A vector for each text, as OpenAI's clients ask for it.",
            curl("/v1/embeddings", {"input": [_TEXT, "The bank charged a fee."]}),
        )
    ]
    if model._body.generates:
        asked = {"prompt": "The bank of the river", "max_tokens": 16, "stream": True}
        words = "Text that goes on from a prompt, word by word as it comes."
        found.append(("POST /v1/completions", words, curl("/v1/completions", asked, "-N ")))
    last = model.num_layers - 1
    return [
        *found,
        (
            "POST /v1/trace",
            "What each word looks at: the weights of layers and heads.",
            curl("/v1/trace", {"input": _TEXT, "layers": [last], "heads": [0]}),
        ),
        ("GET /v1/models", "The model that is served.", curl("/v1/models")),
        ("GET /metrics", "Requests, seconds and what waits, for Prometheus.", curl("/metrics")),
        ("GET /healthz", "Whether the server is alive.", curl("/healthz")),
    ]
