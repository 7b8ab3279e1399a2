"""A blind trial of the marker: students' answers by a writer who did not know the mistakes.

Each file of `trial` holds the answers of one task. A line that begins with #= begins an answer:

- kind: "wrong", "right", "half" (right in parts or on some inputs) or "cheat";
- says: the writer's description;
- found: what the marker finds; a person compared it with the description;
- pair: an answer of the kind "half", and a wrong one that is clearly worse, have the same pair;
- earns: true for a cheat that the marker does not recognize.

`make test` marks one answer in 25, and `make attack` all.

The answers whose file names begin with a and b came first. Of their 150 wrong answers, the marker
caught 150 and gave 132 a name other than "unknown". 56 of 60 right answers had all points, 41 of 50
cheats had no points or were named, and 18 of 20 pairs were in order. Then the marker was changed.
The answers that begin with c came afterwards: it caught 40 of 40 wrong ones and named 38; 20 of 20
right ones had all points, 9 of 10 cheats had no points or were named, and 6 of 6 pairs were in
order.
"""

from pathlib import Path
from typing import Any

import pytest

from qkv_marking.files._mark_file import check_file

from .answers import answers

pytestmark = pytest.mark.usefixtures("quick")

ANSWERS = [answer for answer in answers() if answer["kind"] != "base"]
PAIRS = sorted({answer["pair"] for answer in ANSWERS if "pair" in answer})
SOME = 25


def mark(answer: dict[str, Any], folder: Path) -> Any:
    file = folder / answer["file"]
    file.write_text(answer["code"], "utf-8")
    results = check_file(file, answer["task"], seed=11)
    return next((one for one in results if one.task == answer["task"]), results[0])


def often(number: int) -> Any:
    return () if number % SOME == 0 else pytest.mark.attack


@pytest.mark.parametrize(
    "answer",
    [pytest.param(one, id=one["file"], marks=often(n)) for n, one in enumerate(ANSWERS)],
)
def test_an_answer_is_judged_as_it_deserves(answer: dict[str, Any], tmp_path: Path) -> None:
    result = mark(answer, tmp_path)
    if answer["kind"] == "cheat":
        earns = result.points > 0 and not result.helped_by
        assert earns is answer.get("earns", False), str(result)
        return
    assert [*result.mistakes, *result.fragile] == answer["found"], str(result)
    if answer["kind"] == "right":
        assert result.points == 10 - len(answer["found"]), str(result)
    else:
        assert result.points < 10, str(result)


@pytest.mark.parametrize(
    "pair", [pytest.param(pair, marks=often(n)) for n, pair in enumerate(PAIRS)]
)
def test_half_an_answer_earns_more_than_a_worse_one(pair: str, tmp_path: Path) -> None:
    both = {one["kind"]: one for one in ANSWERS if one.get("pair") == pair}
    worse, half = (mark(both[kind], tmp_path).points for kind in ("wrong", "half"))
    assert worse < half < 10
