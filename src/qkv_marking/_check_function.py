"""Check a student's function for a task."""

from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import whole_number
from qkv_marking._library_calls import Watch, answers, withhold_points
from qkv_marking._outcome import Elsewhere, is_stub, name_of, takes_tensors
from qkv_marking._result import CheckResult

if TYPE_CHECKING:
    from qkv_marking.tasks import Task


def check(
    function: Any, signature: str = "qkv", task: str = "attention", *, seed: int = 0
) -> CheckResult:
    """Check your own function: find its mistakes, or confirm that it is right.

    The function runs on small inputs, smallest first. Its results are compared with the right
    results and with the results of each known mistake. The function's printed output and warnings
    are hidden. `qkv check --list` prints all tasks, and the functions or values that belong to each
    task.

    An attention function is also tested with these options, if the function has parameters for
    the options (L is the number of queries, S is the number of keys):

    - `mask`, `attn_mask` or `attention_mask`: bool (L, S), True = may attend. If the function fails
      on a bool mask, the next test uses a float mask of 0 and -inf, which the function must add to
      the scores. Adding a bool mask to the scores is a mistake.
    - `is_causal` or `causal`: a causal mask.
    - `q_offset` and `num_heads`.

    If a function of qkv, torch or another library computes the answer, your function gets no
    points, and `helped_by` names that library function.

    A finding reports a mistake, fragile code, or correct code that follows an unusual convention.
    Fragile code fails for large numbers or fully masked rows.

    Args:
        function: the function or class for the task; for a task about values, a tuple of these
            values. An attention function takes arrays and returns an array or `(out, weights)`. The
            tests use two-dimensional float64 arrays, integers, batches, and scores of 1000.
        signature: the signature of an attention function. `"qkv"`: function(query (L, d),
            key (S, d), value (S, dv)) -> (L, dv). `"x,w_q,w_k,w_v"`: function(x (T, D),
            w_q (D, d), w_k (D, d), w_v (D, dv)) -> (T, dv). If the function has a parameter
            `num_heads`, the projections have shape (D, heads * size). Here T is the number of
            tokens; D, d and dv are the sizes of the vectors. Other tasks have only one signature.
        task: the name of a task, or of the function that the task expects.
        seed: the random seed of the inputs; with 0, many inputs are short and easy to read. To mark
            your students' functions, choose a seed that they do not know in advance.

    Returns:
        A `CheckResult`. `bool(result)` is True if nothing is wrong, and `print(result)` shows the
        verdict.

    Raises:
        TypeError: `function` cannot be called, or does not take these arrays.
        ValueError: the task or signature is unknown, or the seed is negative.

    >>> def mine(q, k, v):
    ...     scores = q @ k.T / np.sqrt(q.shape[-1])
    ...     weights = np.exp(scores) / np.exp(scores).sum()
    ...     return weights @ v
    >>> result = check(mine)
    >>> result.passed, result.mistakes, result.fragile
    (False, ('softmax-whole-matrix',), ('softmax-no-max',))
    >>> print(result.message.splitlines()[0])
    mine: softmax runs over the whole matrix, not over each row.
    """
    chosen = task_of(task)
    way = signature.replace(" ", "") if isinstance(signature, str) else signature
    if way == "qkv" and len(chosen.ways) == 1:
        (way,) = chosen.ways  # by default, use the task's only signature
    if way not in chosen.ways:
        known = " or ".join(f'"{name}"' for name in chosen.ways if name) or "left out"
        raise ValueError(f"check: signature is {signature!r}; for {task} it must be {known}")
    if chosen.values:
        return _values(function, chosen)
    if not callable(function):
        raise TypeError(
            f"check: `function` has type {type(function).__name__}, which cannot be called:"
            " write check(my_attention), without () after the name"
        )
    whole_number(seed, call="check", name="seed", least=0)
    if is_stub(function):
        key, says = "returns-nothing", "nothing is filled in yet."
        message = f"{name_of(function)}: {says}"
        return CheckResult(message, (key,), says={key: says}, points=0, task=chosen.name)
    from qkv_marking._engine import use_seed  # imported here, so that pytest starts fast

    # wrong formulas overflow and divide by zero
    with use_seed(seed), np.errstate(all="ignore"):
        if chosen.may_use or isinstance(function, Elsewhere):  # the other process records the calls
            return chosen.mark(takes_tensors(function), way)
        watch = Watch()
        result = chosen.mark(watch.wrap(takes_tensors(function)), way)
    return withhold_points(result, answers(watch.called, chosen.name))


def _values(things: Any, task: "Task") -> CheckResult:
    """Check a student's values: an array, a mapping, or a tuple of arrays and mappings."""
    values = things if isinstance(things, tuple) else (things,)
    if len(values) != len(task.values):
        names = ", ".join(task.values)
        raise TypeError(
            f"check: task {task.name!r} marks {len(task.values)} values, but {len(values)} were"
            f" given: call check(({names}), task={task.name!r})"
        )
    with np.errstate(all="ignore"):
        return task.mark(values, "")


def task_of(name: str) -> "Task":
    """Return a task by its name or by the name of its function.

    >>> task_of("many_heads").name
    'heads'
    """
    from qkv_marking.tasks import TASKS  # imported here, so that pytest starts fast

    for task in TASKS.values():
        if name == task.name or (name in task.looks_for and not task.by_name):
            return task
    raise ValueError(f"check: task {name!r} is unknown: choose from {', '.join(TASKS)}")
