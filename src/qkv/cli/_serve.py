"""`qkv serve`, which serves a model over HTTP."""

import re

import click

from qkv.cli._options import cache_dtype_option, dtype_option, encoder_option
from qkv.cli._output import say
from qkv.serve.settings import Settings

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
_LEAST = 2**24  # The minimum of --max-memory in bytes.


def _bytes_in(context: click.Context, parameter: click.Parameter, size: str) -> int:
    """Parse a size such as 512M, 512MB or 0.5GiB; K, M and G are powers of 1,024."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMG])(?:i?B)?", size.strip(), re.IGNORECASE)
    count = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if count < _LEAST:
        raise click.BadParameter(f"the size is {size!r}; pass at least 16M, such as 512M or 2G")
    return count


@click.command(context_settings={"auto_envvar_prefix": "QKV_SERVE"})
@encoder_option
@dtype_option
@cache_dtype_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address of the server.")
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port; 0 for any free port.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="PATTERN",
    help="A host name by which clients reach this server, an ending such as *.svc, a network such "
    "as 10.0.0.0/8, or * for any host (needs --api-key-file); may be repeated.",
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="A site whose pages may send requests, such as https://example.org; may be repeated.",
)
@click.option(
    "--name", help="The model name to report in responses. Default: the model's own name."
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="The number of threads for computing. Default: QKV_NUM_THREADS, or all cores.",
)
@click.option(
    "--api-key-file",
    metavar="F",
    help="A file with one API key per line; the server reads the file again when it changes.",
)
@click.option("--no-key", is_flag=True, help="Answer requests without an API key.")
@click.option(
    "--max-waiting",
    default=Settings.waiting,
    show_default=True,
    type=click.IntRange(1, Settings.connections - 1),
    help="Answer new requests with status 429 while this many requests are already waiting.",
)
@click.option(
    "--max-tokens",
    default=Settings.tokens,
    show_default=True,
    type=click.IntRange(1),
    help="The maximum number of tokens in a request.",
)
@click.option(
    "--max-memory",
    default=f"{Settings.memory // 2**20}M",
    show_default=True,
    metavar="SIZE",
    callback=_bytes_in,
    help="The maximum memory for request bodies and for responses waiting to be sent, such as 512M "
    "or 2G.",
)
def serve(
    model: str | None,
    dtype: str | None,
    cache_dtype: str | None,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    name: str | None,
    threads: int | None,
    api_key_file: str | None,
    no_key: bool,
    max_waiting: int,
    max_tokens: int,
    max_memory: int,
) -> None:
    """Serve a model over HTTP, with OpenAI's routes for embeddings and completions.

    By default, only this machine can reach the server. To serve other machines, pass --host and
    --allow-host, and either --api-key-file or --no-key. GET / lists the routes; Ctrl-C stops the
    server.

    Each option can also be set by an environment variable, such as QKV_SERVE_PORT for --port.
    Separate the patterns in QKV_SERVE_ALLOW_HOST with spaces.
    """
    from qkv.extras import need

    need("fastapi", "serve")
    from qkv.models import load
    from qkv.ops.kernel import set_num_threads
    from qkv.serve.app import run
    from qkv.serve.guard import ANY, host_pattern, is_loopback
    from qkv.serve.key_file import Keys

    if no_key and api_key_file is not None:
        raise click.UsageError("--no-key and --api-key-file cannot be combined: choose one")
    if not is_loopback(host):
        if api_key_file is None and not no_key:
            raise click.UsageError(
                f"other machines can reach a server on --host {host}; pass --api-key-file, "
                "or --no-key"
            )
        if not allow_host:
            raise click.UsageError(
                f"other machines can reach a server on --host {host}; pass --allow-host with the "
                "host name that their URLs contain"
            )
    for pattern in allow_host:
        try:
            host_pattern(pattern)
        except ValueError:
            raise click.UsageError(
                f"--allow-host is {pattern!r}; pass a host name, an IP address (IPv6 in "
                "[brackets]), an ending such as *.svc, or a network such as 10.0.0.0/8"
            ) from None
    if ANY in allow_host and api_key_file is None:
        raise click.UsageError(
            "--allow-host '*' lets the pages of every site send requests: also pass --api-key-file"
        )
    for origin in allow_origin:
        if not re.fullmatch(r"https?://[^/?#\s*]+", origin):
            raise click.UsageError(
                f"--allow-origin is {origin!r}; pass a scheme and a host, such as https://example.org"
            )
    if threads is not None:
        set_num_threads(threads)
    settings = Settings(
        host=host,
        port=port,
        allowed_hosts=allow_host,
        origins=allow_origin,
        name=name,
        keys=None if api_key_file is None else Keys(api_key_file),
        waiting=max_waiting,
        tokens=max_tokens,
        memory=max_memory,
        body=min(Settings.body, max_memory // 4),
        answer=min(Settings.answer, max_memory // 4),
    )
    used = load(model, dtype=dtype, cache_dtype=cache_dtype)
    run(used, settings, lambda address: say(f"{name or used.name} at {address} (Ctrl-C ends it)"))
