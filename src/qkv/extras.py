"""Import optional packages; if one is missing, raise an error that names the extra to install."""

import importlib
from types import ModuleType


def need(module: str, extra: str) -> ModuleType:
    """Import `module`; if it is missing, raise an error that names the qkv extra to install.

    >>> need("json", "plot").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        package = module.partition(".")[0]
        raise ImportError(
            f"this needs {package}, which is not installed: {install(extra)}"
        ) from error


def install(extra: str) -> str:
    """Return the commands that install an extra: one for a clone of qkv, one for a wheel.

    >>> install("plot")
    "pip install '.[plot]' in a clone of qkv, or pip install 'WHEEL[plot]' with qkv's wheel file"
    """
    return (
        f"pip install '.[{extra}]' in a clone of qkv, "
        f"or pip install 'WHEEL[{extra}]' with qkv's wheel file"
    )
