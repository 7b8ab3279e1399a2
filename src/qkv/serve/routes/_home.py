"""`GET /`: a page for editing the model's computation, with a `curl` command for each route."""

import asyncio
import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse

from qkv.models.run import is_plain, scale_in
from qkv.see.page.html import about_model, document
from qkv.see.page.play import SERVED, served_page
from qkv.serve.guard import HEALTH
from qkv.serve.routes._chat import chats

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


@router.get(
    "/",
    summary="The live page for this model, with a `curl` command for each route",
    response_class=HTMLResponse,
)
async def home(request: Request) -> HTMLResponse:
    """Return the page."""
    state = request.app.state
    address = f"{request.url.scheme}://{request.headers['host']}"
    routes = routes_of(state.routes, state.model, address, key=state.settings.keys is not None)
    if getattr(state, "page", None) is None:
        state.page = await asyncio.to_thread(page_of, state.model)
    return HTMLResponse(state.page.replace("</main>", f"{routes}</main>", 1), headers=_HEADERS)


def page_of(model: Any) -> str:
    """Return the live page if the model reads texts, else a page that describes the model."""
    if not model.can("text") or model.tokenizer is None:
        return document(model.name, about_model(model), "auto")
    layers = range(model.num_layers)
    scales = [scale_in(model.network, layer) for layer in layers]
    # The script of the page supports only plain layers that divide scores by sqrt(head size).
    plain = all(
        is_plain(model.network, n)
        and math.isclose(scales[n][1] * math.sqrt(model.layers[n].attn.d_query), 1)
        for n in layers
    )
    return served_page(model, scales, plain=plain)


def routes_of(routes: Sequence[APIRoute], model: Any, address: str, *, key: bool) -> str:
    """Return the HTML list of routes; `key` says whether the server requires a key."""
    parts = [
        f"<h2><code>{escape(route)}</code></h2><p>{escape(words)}</p><pre>{escape(command)}</pre>"
        for route, words, command in commands(routes, model, address, key=key)
    ]
    asks = "<p>Requests need the key: the commands read it from QKV_KEY.</p>" if key else ""
    kind = escape(str(model.config.get("model_type", "model")))
    return (
        f'<style>{_STYLE}</style><details class="routes"><summary>Ask {escape(model.name)} from a '
        f"program</summary><p>{kind}, {model.num_layers} layers of {model.num_heads} heads, "
        f"vectors of {model.dim} numbers, served by qkv. All routes with inputs and answers: "
        f'<a href="docs">docs</a></p>{asks}{"".join(parts)}</details>'
    )


def commands(
    routes: Sequence[APIRoute], model: Any, address: str, *, key: bool
) -> list[tuple[str, str, str]]:
    """Return each route except the page, with its summary and a `curl` command.

    >>> import qkv
    >>> from qkv.serve.routes import _about
    >>> rows = commands(_about.router.routes, qkv.load("random"), "http://localhost", key=False)
    >>> rows[0]
    ('GET /v1/models', 'The model that is served.', 'curl http://localhost/v1/models')
    """
    rows = []
    for route in routes:
        if route.path == "/":
            continue
        (method,) = route.methods or {"GET"}
        path = route.path.replace("{name:path}", quote(model.name))
        extra = (route.openapi_extra or {}).get("requestBody")
        body = extra and extra["content"]["application/json"]["example"]
        lines = [f"curl {'-N ' * bool(body and body.get('stream'))}{address}{path}"]
        if key and route.path not in HEALTH:
            lines.append('-H "Authorization: Bearer $QKV_KEY"')
        if body:
            lines += ["-H 'Content-Type: application/json'", f"-d '{json.dumps(body)}'"]
        words = f"{route.summary}.{refusal_reason(route.path, model)}"
        rows.append((f"{method} {path}", words, " \\\n  ".join(lines)))
    return rows


def refusal_reason(path: str, model: Any) -> str:
    """Return the reason why the route refuses this model, or an empty string."""
    if path == "/v1/completions" and not model.can("generate"):
        return f" {model.name} does not predict the next token: the route refuses it."
    if path == "/v1/chat/completions" and not chats(model):
        return f" {model.name} has no chat template, so this route does not accept the model."
    if path.endswith("/rerank") and not (model.can("rank") and model.tokenizer):
        return f" {model.name} does not rank documents: the route refuses it."
    return ""
