"""The routes of the server.

Each file except `about` has one route, and the code that reads the request and computes the answer.
"""

from qkv.serve.routes import (
    _about,
    _chat,
    _completions,
    _embeddings,
    _home,
    _rerank,
    _tei,
    _trace_route,
)

ROUTERS = [
    file.router
    for file in (_home, _embeddings, _completions, _chat, _trace_route, _rerank, _tei, _about)
]
