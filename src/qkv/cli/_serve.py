"""`qkv serve`, which serves a model over HTTP."""

import click

from qkv.cli._options import cache_dtype_option, dtype_option, encoder_option
from qkv.cli._output import say


@click.command()
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
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A host name that clients use for this server; may be given repeatedly.",
)
@click.option(
    "--api-key-file",
    "key_file",
    metavar="F",
    help="A file with an API key on each line, read again when it changes.",
)
@click.option("--no-key", is_flag=True, help="Answer requests that have no API key.")
def serve(
    model: str | None,
    dtype: str | None,
    cache_dtype: str | None,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    key_file: str | None,
    no_key: bool,
) -> None:
    """Serve a model over HTTP, with OpenAI's routes for embeddings and completions.

    Without --host, only this machine can reach the server. With --host, you must also give
    --allow-host, and --api-key-file or --no-key. GET / shows the routes; Ctrl-C ends the server.
    """
    from qkv.extras import need

    need("fastapi", "serve")
    from qkv.models import load
    from qkv.serve.app import run
    from qkv.serve.guard import host_name, is_loopback
    from qkv.serve.key_file import Keys
    from qkv.serve.settings import Settings

    if no_key and key_file is not None:
        raise click.UsageError("--no-key and --api-key-file cannot be combined: choose one")
    if not is_loopback(host):
        if key_file is None and not no_key:
            raise click.UsageError(
                f"other machines can reach --host {host}: give --api-key-file, or --no-key"
            )
        if not hosts:
            raise click.UsageError(
                f"other machines can reach --host {host}: give --allow-host with the host name "
                "of their URLs"
            )
    for name in hosts:
        try:
            host_name(name)
        except ValueError:
            raise click.UsageError(
                f"--allow-host {name!r}: give a host name or an IP address (IPv6 in [brackets])"
            ) from None
    keys = None if key_file is None else Keys(key_file)
    used = load(model, dtype=dtype, cache_dtype=cache_dtype)
    settings = Settings(host=host, port=port, allowed_hosts=hosts, keys=keys)
    run(used, settings, lambda address: say(f"{used.name} at {address} (Ctrl-C ends it)"))
