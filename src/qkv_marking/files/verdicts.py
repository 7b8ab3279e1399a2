"""Verdicts on files whose functions were not called."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from qkv.files import StrPath
from qkv_marking._check_function import task_of
from qkv_marking._errors import frames_of, in_words, sentence, words_of
from qkv_marking._mistake import Mistake, look_up
from qkv_marking._outcome import PrintFlood
from qkv_marking._raised import find_cause, key_of
from qkv_marking._result import CheckResult
from qkv_marking.files._source import NOTEBOOK
from qkv_marking.tasks import TASKS, Task

_LONGEST = 1000  # the maximum length of a list of names
_MAX_FILES = 5  # the maximum number of files in a sentence
# The kinds of files that students hand in by mistake.
_KINDS = {
    **dict.fromkeys((".zip", ".rar", ".7z", ".gz", ".tgz", ".tar"), "an archive: unpack it"),
    **dict.fromkeys((".doc", ".docx", ".odt", ".rtf"), "a document of a word processor"),
    ".pdf": "a PDF document",
}
_BINARY = (b"PK\x03\x04", b"%PDF", b"Rar!", b"7z\xbc\xaf", b"\x1f\x8b", b"\xd0\xcf\x11\xe0")


def not_marked(key: str, shows: str, task: str | None, **names: str) -> CheckResult:
    """Return a verdict with 0 points that states the reason.

    Args:
        key: the name of a table in mistakes.toml.
        shows: the effect of the mistake.
        task: the name of the task, or of its function.
        names: values for the placeholders in the texts. The default value of the placeholder {it}
            is the name of the task, or "the file" if `task` is None.
    """
    task = None if task is None else task_of(task).name
    return _verdict(look_up(key, shows, **{"it": task or "the file", **names}), task)


def _verdict(mistake: Mistake, task: str | None) -> CheckResult:
    says, shows = f"{mistake.says}.", sentence(f"It shows: {mistake.shows}")
    message = "\n".join([says, shows, f"Correction: {mistake.hint[-1]}"])
    key, hint = mistake.key, mistake.hint
    return CheckResult(message, (key,), says={key: says}, points=0, task=task, hint=hint)


def report_error(error: BaseException, file: str, task: str | None) -> CheckResult:
    """Report that a file caused an error in the marker itself."""
    return not_marked("not-marked", f"{_line(error, file)}{in_words(error)}", task)


def report_unmarked(error: Exception, file: str, task: str | None) -> CheckResult:
    """Report the reason why a file or a folder could not be marked."""
    if Path(file).is_dir():
        return not_marked("nothing-handed-in", describe_found([file]), task)
    key = "unreadable" if isinstance(error, OSError) else "not-marked"
    return not_marked(key, in_words(error), task, it="the file")


def kind_of_file(path: StrPath) -> str:
    """Describe a file that is neither Python nor a notebook; "" if it may be Python."""
    with suppress(OSError), open(path, "rb") as file:
        start = file.read(8)
        known = _KINDS.get(Path(path).suffix.lower(), "")
        if start.startswith(_BINARY):
            return known or "an archive or a document"
        return known if start else ""
    return ""


def describe_found(paths: Sequence[str]) -> str:
    """Say which files were handed in, if none of them is Python or a notebook."""
    found = []
    for path in map(Path, paths):
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [str(one) for one in below if one.is_file() and not one.name.startswith(".")]
        if not files:
            found.append(f"the folder {path.name or path} is empty")
        for file in files[:_MAX_FILES]:
            kind = kind_of_file(file)
            found.append(Path(file).name + (f", which is {kind}" if kind else ""))
    more = f", and {len(found) - _MAX_FILES} more" if len(found) > _MAX_FILES else ""
    return f"this was found: {'; '.join(found[:_MAX_FILES])}{more}"


def of_error(error: BaseException, file: str) -> CheckResult:
    """Report an error that a file raised when it ran."""
    key = key_of(error, "file-raises")
    if isinstance(error, SyntaxError):
        about_letters = "codec can't decode", "encoding declaration", "unknown encoding"
        key = "not-a-notebook" if file.lower().endswith(NOTEBOOK) else "syntax-error"
        if any(words in words_of(error) for words in about_letters):
            key = "not-utf-8"
    elif isinstance(error, ImportError):
        key = "import-error"
    elif isinstance(error, PrintFlood):
        key = "prints-too-much"
    shows = f"{_line(error, file)}{in_words(error)}"
    cause = find_cause(error) if isinstance(error, NameError | AttributeError) else None
    if cause is not None:
        return _verdict(replace(cause, shows=shows), None)
    return not_marked(key, shows, None, file=Path(file).name)


def _line(error: BaseException, file: str) -> str:
    """Return "line 3: " if line 3 of the file raised an error; return "" if no line is known."""
    if isinstance(error, SyntaxError):
        return ""  # the message of a syntax error already names the line
    lines = [frame.lineno for frame in frames_of(error) if frame.filename == file]
    return f"line {lines[-1]}: " if lines else ""


def join_names(names: Iterable[str]) -> str:
    """Sort and join names, and shorten a very long list; return "nothing" for an empty list."""
    text = ", ".join(sorted(names)) or "nothing"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def names_of(task: Task) -> str:
    """Join the names that a task looks for, for example "softmax or Softmax"."""
    return " or ".join(task.looks_for)


def no_function(defined: Iterable[str]) -> CheckResult:
    """Report a file that defines none of the tasks' functions."""
    tasks = [task for task in TASKS.values() if not task.by_name]
    expected = ", ".join(name for task in tasks for name in task.looks_for[:1])
    shows = f"it defines {join_names(defined)}; the tasks look for {expected}"
    return not_marked("no-function", shows, None)
