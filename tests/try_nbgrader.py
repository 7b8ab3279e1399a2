"""Take a lesson through nbgrader: release it, hand in notebooks, grade them and return feedback.

.venv-nbgrader/bin/python tests/try_nbgrader.py build/nbgrader
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LESSON = "3-one-function"
RIGHT = """def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)"""
ANSWERS = {  # a student's softmax and attention, and the points of both
    "right": (
        RIGHT,
        "def attention(q, k, v):\n"
        "    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v",
        [10, 10],
    ),
    "wrong": (
        RIGHT.replace("np.exp(x - x.max(axis=-1, keepdims=True))", "x"),
        "def attention(q, k, v):\n    ...",
        [4, 0],
    ),
}


def main() -> None:
    """Try the course in a copy of its folder."""
    # nbgrader starts the program `alembic`, which is beside Python
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as work:
        course = Path(work, "course")
        (course / "source").mkdir(parents=True)
        given = Path(sys.argv[1])
        shutil.copy(given / "nbgrader_config.py", course)
        shutil.copytree(given / "source" / LESSON, course / "source" / LESSON)
        nbgrader(course, "generate_assignment", LESSON)
        released = read(course / "release" / LESSON / f"{LESSON}.ipynb")
        stubs = [cell for cell in released["cells"] if "stub" in cell["metadata"].get("tags", [])]
        assert [text(cell).split("(")[0] for cell in stubs] == ["def softmax", "def attention"]
        assert all(text(cell).endswith("...") for cell in stubs)
        assert "HIDDEN" not in json.dumps(released)
        assert "seed=" not in json.dumps(released)
        assert "np.exp(scores - scores.max" not in json.dumps(released)
        for student, (*answers, _) in ANSWERS.items():
            for stub, answer in zip(stubs, answers, strict=True):
                stub["source"] = answer
            path = course / "submitted" / student / LESSON / f"{LESSON}.ipynb"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(released), encoding="utf-8")
        nbgrader(course, "autograde", LESSON, "--create")
        nbgrader(course, "generate_feedback", LESSON)
        nbgrader(course, "export", "--to", "grades.csv")
        for student, (*_, points) in ANSWERS.items():
            assert grades(course, student) == points, (student, grades(course, student))
        page = (course / "feedback" / "wrong" / LESSON / f"{LESSON}.html").read_text("utf-8")
        assert "the scores are divided by their sum, but softmax first takes exp" in page
        assert "wrong" in (course / "grades.csv").read_text("utf-8")
    print(f"nbgrader: {LESSON} was released, and {len(ANSWERS)} notebooks were graded and returned")


def nbgrader(course: Path, *arguments: str) -> None:
    """Run a command of nbgrader in the folder of a course."""
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(command, cwd=course, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\n{' '.join(command)}: status {done.returncode}")


def read(path: Path) -> dict:
    """Read a notebook."""
    return json.loads(path.read_text("utf-8"))


def text(cell: dict) -> str:
    """Return the source of a cell."""
    return "".join(cell["source"])


def grades(course: Path, student: str) -> list[float]:
    """Read the points of a student's tasks from the gradebook."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "qkv") as book:
        graded = book.find_submission_notebook(LESSON, LESSON, student).grades
        points = {grade.name: grade.score for grade in graded}
    return [points["softmax"], points["batched-attention"]]


if __name__ == "__main__":
    main()
