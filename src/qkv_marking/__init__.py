"""Find known mistakes in your own functions, and judge attention functions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qkv_marking._check_function import check
from qkv_marking._result import CheckResult

if TYPE_CHECKING:
    from qkv_marking.conformance.card import conform
    from qkv_marking.conformance.report import Report
    from qkv_marking.files._class_table import (
        ClassTable,
        add_grades,
        by_file,
        by_roster,
        files_in,
        read_roster,
    )
    from qkv_marking.files._feedback import write_feedback
    from qkv_marking.files._mark_file import check_file
    from qkv_marking.files._plan import Plan, plan_tasks
    from qkv_marking.files.junit_gradescope import write_gradescope, write_junit
    from qkv_marking.tasks import TASKS

__all__ = [
    "TASKS",
    "CheckResult",
    "ClassTable",
    "Plan",
    "Report",
    "add_grades",
    "by_file",
    "by_roster",
    "check",
    "check_file",
    "conform",
    "files_in",
    "plan_tasks",
    "read_roster",
    "write_feedback",
    "write_gradescope",
    "write_junit",
]

_WHERE = {
    "TASKS": "tasks",
    "Report": "conformance.report",
    "conform": "conformance.card",
    "check_file": "files._mark_file",
    "ClassTable": "files._class_table",
    "Plan": "files._plan",
    "plan_tasks": "files._plan",
    "add_grades": "files._class_table",
    "by_file": "files._class_table",
    "by_roster": "files._class_table",
    "files_in": "files._class_table",
    "read_roster": "files._class_table",
    "write_feedback": "files._feedback",
    "write_gradescope": "files.junit_gradescope",
    "write_junit": "files.junit_gradescope",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use, because each run of pytest loads this package."""
    if name in _WHERE:
        return getattr(import_module(f"qkv_marking.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'qkv_marking' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List all public names, even if they are not loaded yet."""
    return [*__all__]
