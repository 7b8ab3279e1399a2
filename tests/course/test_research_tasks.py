"""Run each call of the page about research tasks, and count the tasks as the page does."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from models.gguf_files import write_llama
from models.small_models import CONFIGS, write_small

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "research-tasks.md").read_text("utf-8")
KINDS = ("one call", "a few lines", "no")
ROWS = re.findall(r"^\| (.*?) \| (one call|a few lines|no) \| (.*) \|$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the page's calls use."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folder = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(DOCS)
        names: dict[str, Any] = {}
        exec(code, names)
    names["t5"] = names["qkv"].load(write_small(folder / "t5", CONFIGS["t5"]))
    config = CONFIGS["gpt_oss"] | {"vocab_size": 20_000}
    names["experts"] = names["qkv"].load(write_small(folder / "experts", config))
    names["run"], names["gguf"] = folder, folder / "model.gguf"
    names["model"].save(folder / "snapshots" / "step-00000004")
    write_llama(names["gguf"])
    return names


def test_the_page_counts_its_tasks() -> None:
    counts = Counter(how for _, how, _ in ROWS)
    assert len(ROWS) == 123 == PAGE.count("\n| ") - 2 * PAGE.count("\n| task | how | call |\n")
    one, few, no = (counts[how] for how in KINDS)
    said = f"Of the 123 tasks, {one} are one call, {few} take a few lines, and {no} cannot be done."
    assert said in " ".join(PAGE.split())


CALLS = {task: call for task, how, call in ROWS if how == "one call"}


@pytest.mark.parametrize("task", CALLS)
def test_one_call_does_the_task(task: str, names: dict[str, Any]) -> None:
    code = CALLS[task]
    assert code[0] == code[-1] == "`"
    assert eval(code.strip("`"), names) is not None
