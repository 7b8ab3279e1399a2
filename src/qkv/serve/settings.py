"""The settings of a server: its address, its keys, how it batches requests, and its limits."""

from dataclasses import dataclass

from qkv.serve.key_file import Keys


@dataclass(frozen=True)
class Settings:
    """The settings of one server, with their defaults.

    Attributes:
        host: the address where the server listens.
        port: the port; 0 for any free port.
        allowed_hosts: patterns for the names that the Host header may have, in addition to the
            names of this machine; see `qkv.serve.guard.host_pattern`.
        origins: the origins of other sites whose pages may send requests, such as
            "https://example.org".
        name: the model name to report in responses; None for the model's own name.
        keys: the API keys. A request sends one of them as `Authorization: Bearer ...`. None if
            requests do not need a key.
        connections: the maximum number of open connections.
        head: the maximum number of bytes of a request line and its headers.
        body: the maximum number of bytes of a request's body.
        memory: the maximum number of bytes of all bodies in memory, and of all answers waiting to
            be sent.
        inputs: the maximum number of texts of one request.
        tokens: the maximum number of tokens of one request, after its texts are truncated as in
            `encode`.
        edits: the maximum number of edits of a trace.
        sources: the maximum number of source texts of one trace. An edit can copy activations from
            a source text. Each source text needs its own forward pass.
        new_tokens: the maximum number of new tokens of one completion.
        answer: the maximum number of bytes of an answer that contains a trace, logprobs or an echo
            of the prompt.
        waiting: the maximum number of requests waiting to be computed. Each of them has an open
            connection, so a limit above `connections` would have no effect.
        batch_tokens: the approximate number of tokens in a batch.
        streams: the maximum number of streams that the server continues between two batches. The
            server computes one piece for each of these streams.
        stream_tokens: the approximate number of tokens that all streams together keep in memory.
            Above this number, some streams lose their caches. When such a stream continues, the
            server first recomputes the stream's earlier tokens.
        gather: the maximum number of seconds that a batch waits for more requests, if the server is
            busy.
        half_sent: the number of seconds within which a request must arrive in full.
        unread: the seconds after which the server disconnects a client that has not read the next
            piece of an answer; a piece is 1 MiB.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    allowed_hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    name: str | None = None
    keys: Keys | None = None
    connections: int = 1000
    head: int = 2**16
    body: int = 8 * 2**20
    memory: int = 256 * 2**20
    inputs: int = 2048
    tokens: int = 300_000
    edits: int = 2048
    sources: int = 16
    new_tokens: int = 4096
    answer: int = 64 * 2**20
    waiting: int = 512
    batch_tokens: int = 4096
    streams: int = 4
    stream_tokens: int = 16_384
    gather: float = 0.003
    half_sent: float = 10.0
    unread: float = 30.0
