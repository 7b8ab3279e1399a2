"""The command `qkv info`: versions, backends and models."""

import os
import platform
from importlib import import_module

import click

from qkv._visible import visible
from qkv.cli._options import json_option
from qkv.cli._output import print_json, tell

NO_KERNEL = """\
the native kernel was not built, so qkv computes with NumPy. To build the kernel from source,
install a C++17 compiler (GCC 10 or newer, or clang). To see why the build of the kernel failed,
run this command in the source folder: QKV_NEED_KERNEL=1 pip install ."""


@click.command()
@click.option("--model", metavar="NAME", help="Load this model and describe it.")
@json_option
def info(model: str | None, as_json: bool) -> None:
    """Print the version, the backend, the number of threads, and each model with its folder."""
    import numpy as np

    from qkv.models import load, places
    from qkv.models.files.find import DEFAULT, WRITER
    from qkv.ops.kernel import BACKENDS, backend, compiled, get_num_threads

    about = {
        "version": import_module("qkv").__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "backend": backend(),
        "backends": list(BACKENDS),
        "float16": "computed in float32",
        "bfloat16": _about_bfloat16(),
        "threads": get_num_threads(),
        "default_model": os.environ.get("QKV_MODEL") or DEFAULT,
        "default_decoder": os.environ.get("QKV_MODEL") or WRITER,
    }
    if model is not None:
        used = load(model)
        about |= {
            "model": used.name,
            "layers": used.num_layers,
            "heads": used.num_heads,
            "vector_size": used.dim,
            "most_tokens": used.max_seq_length,
        }
    if as_json:
        models = [
            {"name": name, "place": source, "folder": None if folder is None else str(folder)}
            for name, source, folder in places()
        ]
        print_json({**about, "models": models})
        return
    for name, value in about.items():
        tell(f"{name.replace('_', ' '):16}{visible(_in_words(value))}")
    if compiled is None:
        click.echo(NO_KERNEL)
    click.echo("models")
    for name, source, folder in places():
        tell(visible(f"  {name}: {source}"))
        tell(visible(f"      {folder if folder is not None else 'not found'}"))
    click.echo("  random: an untrained model for lessons, made on request")


def _about_bfloat16() -> str:
    from qkv.ops.kernel import compiled, variant

    chosen = variant()
    if compiled is None or chosen is None:
        return "computed in float32: NumPy does not multiply bfloat16"
    way = compiled.variants()[chosen][1]
    given = [
        f"{name}={os.environ[name]}" for name in ("QKV_AMX", "QKV_BACKEND") if os.environ.get(name)
    ]
    reason = "the environment has " + " and ".join(given) if given else compiled.about_bfloat16()
    return f"computed {'in' if way == 'float32' else 'by'} {way}: {reason}"


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    return "no limit" if value is None else str(value)
