"""What can be said of a file before, or without, a call of its functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType

from qkv.marking.errors import frames_of, in_words, sentence, words_of
from qkv.marking.files.notebook import SUFFIX
from qkv.marking.marker import task_of
from qkv.marking.raised import known
from qkv.marking.result import CheckResult
from qkv.marking.tasks import TASKS, Task

_LONGEST = 1000  # letters of a list of names

# what is wrong, in words; a nudge; where to look; what mends it
_SAID = MappingProxyType(
    {
        "syntax-error": (
            "the file is not Python",
            "Run it with python: the line that it names, or the one before, has something missing.",
            "the line that is named: brackets, colons, quotes, indentation",
            "python {file} says the same, and runs when it is mended",
        ),
        "not-a-notebook": (
            "the file is not a Jupyter notebook",
            "Does Jupyter open it?",
            "the file itself: did a download or a copy stop halfway?",
            "save it from Jupyter again, in format 4",
        ),
        "not-utf-8": (
            "the file is not text in UTF-8",
            "In which encoding does your editor save it?",
            "the editor's settings: encoding of this file",
            "save it as UTF-8",
        ),
        "import-error": (
            "the file imports something that is not there",
            "Can you import it in this Python?",
            "the import statements",
            "use NumPy and the standard library, or install what is missing",
        ),
        "file-raises": (
            "the file raises an error as it is read, before any function is called",
            "Run it with python: where does it stop?",
            "what stands outside of functions",
            'move what only tries things out below: if __name__ == "__main__":',
        ),
        "asks-for-input": (
            "{it} asks for input, and there is nobody to answer",
            "What does it do if nobody is at the keyboard?",
            "the calls of input()",
            "take what is needed as a parameter",
        ),
        "exits": (
            "{it} ends the program",
            "What would happen to somebody who imports it?",
            "the calls of sys.exit, exit, quit or os._exit",
            "return the result, or raise an error",
        ),
        "endless-loop": (
            "{it} does not come back",
            "Which loop has a condition that never becomes false?",
            "the while loops, and functions that call themselves",
            "for step in range(n): ...  # ends whatever happens inside",
        ),
        "process-died": (
            "{it} takes its process down",
            "Which line calls what is not Python?",
            "what is called from compiled code, and how much memory it asks for",
            "give arrays the sizes of the inputs, not fixed ones",
        ),
        "out-of-memory": (
            "{it} asks for more memory than there is",
            "How many numbers does your largest array have?",
            "the line that makes the largest array",
            "give arrays the sizes of the inputs, not fixed ones",
        ),
        "not-marked": (
            "the marker failed on {it}: it has no points, which says nothing about the code",
            "Does the file change what it imports, or give back objects with methods of its own?",
            "what reaches out of the functions: assignments to np or sys, special methods, os",
            "return plain arrays, and leave libraries and the process as they are",
        ),
        "unreadable": (
            "{it} cannot be read",
            "Can you open it, and does it hold what you wrote?",
            "the file itself: its permissions, or where a link leads",
            "hand in the file itself, with your code in it",
        ),
        "nothing-handed-in": (
            "there is no Python file and no notebook in the folder",
            "What are your files called?",
            "the names of the files: those of Python end in .py, notebooks in .ipynb",
            "hand in a file whose name ends in .py or .ipynb",
        ),
        "answered-by-library": (
            "a library answers {it} for you",
            "Which line would be left if you had NumPy alone?",
            "the calls of the library that are named",
            "write what the library does yourself, with NumPy",
        ),
        "missing-function": (
            "the file has no {name}",
            "What is it called in the file, in capital and small letters?",
            "the name behind def or class, at the margin",
            "{signature}",
        ),
        "not-a-function": (
            "{name} is there, and is nothing to call",
            "What is assigned to that name last?",
            "the lines that begin with {name} =",
            "{signature}",
        ),
        "wrong-parameters": (
            "{name} takes other parameters than the task gives",
            "Compare its def with the signature of the task.",
            "the line of def {name}",
            "{signature}",
        ),
        "no-function": (
            "the file has nothing that a task asks for",
            "What are your functions called?",
            "the names behind def and class, at the margin; qkv check --list has those looked for",
            "def softmax(x, axis=-1): ...",
        ),
    }
)


def not_marked(key: str, shows: str, task: str | None, **names: str) -> CheckResult:
    """No points, and why: a key of the table above, how it shows, and of which task."""
    task = None if task is None else task_of(task).name
    names = {"it": task or "the file", **names}
    says, *hint = (text.format_map(names) for text in _SAID[key])
    return _verdict(key, says, shows, task, hint)


def _verdict(key: str, says: str, shows: str, task: str | None, hint: Sequence[str]) -> CheckResult:
    *_, remedy = hint
    lines = [f"{says}.", sentence(f"It shows: {shows}"), f"What mends it: {remedy}"]
    return CheckResult("\n".join(lines), (key,), points=0, task=task, hint=tuple(hint))


def failed(error: BaseException, file: str, task: str | None) -> CheckResult:
    """What a file made the marker raise, outside of any call of a function."""
    return not_marked("not-marked", f"{_line(error, file)}{in_words(error)}", task)


def unmarked(error: Exception, task: str | None) -> CheckResult:
    """Why a file, or a folder that was handed in, could not be marked at all."""
    key = "unreadable" if isinstance(error, OSError) else "not-marked"
    if isinstance(error, IsADirectoryError):
        key = "nothing-handed-in"
    return not_marked(key, in_words(error), task, it="the file")


def of_error(error: BaseException, file: str) -> CheckResult:
    """What a file raised as it was read."""
    key = "file-raises"
    if isinstance(error, SyntaxError):
        about_letters = "codec can't decode", "encoding declaration", "unknown encoding"
        key = "not-a-notebook" if file.lower().endswith(SUFFIX) else "syntax-error"
        if any(words in words_of(error) for words in about_letters):
            key = "not-utf-8"
    elif isinstance(error, ImportError):
        key = "import-error"
    elif isinstance(error, SystemExit):
        key = "exits"
    elif isinstance(error, EOFError):
        key = "asks-for-input"
    elif isinstance(error, MemoryError):
        key = "out-of-memory"
    shows = f"{_line(error, file)}{in_words(error)}"
    named = known(error) if isinstance(error, NameError | AttributeError) else None
    if named is not None:
        return _verdict(named.key, named.says, shows, None, named.hint)
    return not_marked(key, shows, None, file=Path(file).name)


def _line(error: BaseException, file: str) -> str:
    """Where in the file: the innermost line of it."""
    if isinstance(error, SyntaxError):
        return ""  # it says so itself
    lines = [frame.lineno for frame in frames_of(error) if frame.filename == file]
    return f"line {lines[-1]}: " if lines else ""


def listed(names: Iterable[str]) -> str:
    """Names in a row, of very many the first; "nothing" where there is none."""
    shown = ", ".join(sorted(names)) or "nothing"
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def names_of(task: Task) -> str:
    """The names a task looks for, as in "softmax or Softmax"."""
    return " or ".join(task.looks_for)


def no_function(defined: Iterable[str]) -> CheckResult:
    """A file whose names no task looks for."""
    tasks = [task for task in TASKS.values() if not task.by_name]
    known = ", ".join(name for task in tasks for name in task.looks_for[:1])
    there = listed(defined)
    return not_marked("no-function", f"it defines {there}; the tasks look for {known}", None)
