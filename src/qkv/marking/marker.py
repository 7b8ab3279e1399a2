"""Mark a student's function for a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import whole_number
from qkv.marking.draws import seeded
from qkv.marking.functions import is_stub, takes_tensors
from qkv.marking.outcome import name_of
from qkv.marking.result import CheckResult

if TYPE_CHECKING:
    from qkv.marking.tasks import Task


def check(
    function: Any,
    signature: str = "qkv",
    task: str = "attention",
    *,
    seed: int = 0,
) -> CheckResult:
    """Mark your own function: which mistake does it make, or is it right?

    The function runs on small inputs, the smallest first. Its results are compared with the right
    results and with the results of each known mistake. Its output is not shown, and its warnings
    are ignored. `qkv check --list` prints the tasks, and the function or values for each.

    An attention function also gets masks, if it takes them: a mask (`mask`, `attn_mask` or
    `attention_mask`, (L, S): bool, True = may attend, or 0 and -inf to add if the function fails on
    bool; adding True and False to the scores is wrong), a causal mask (`is_causal` or `causal`),
    `q_offset`, and `num_heads`.

    Args:
        function: the function or class for the task, or a tuple of values if `qkv check --list`
            names values. For `"attention"`: arrays in, array out (or `(out, weights)`). It is
            called with float64 arrays of two dimensions, with integers, with batches, and with
            scores of 1000.
        signature: of an attention function; `"qkv"`: function(query (L, d), key (S, d),
            value (S, dv)) -> (L, dv); `"x,w_q,w_k,w_v"`: function(x (T, D), w_q (D, d), w_k (D, d),
            w_v (D, dv)) -> (T, dv), with `num_heads` weights of (D, heads * size). Other tasks have
            one signature each.
        task: the name of a task, or of the function that the task expects.
        seed: draws the inputs; 0 for inputs that are the shortest to print. To mark a class, choose
            a seed that no student can know in advance.

    Returns:
        A `CheckResult`: true if nothing is wrong; print it for the words. It has separate lists for
        mistakes, for code that is right only until numbers get large or a row sees nothing, and for
        code that is correct but follows another convention.

    Raises:
        TypeError: `function` cannot be called, or does not take these arrays.
        ValueError: an unknown task or signature, or a seed below 0.

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
        (way,) = chosen.ways  # the argument was left out
    if way not in chosen.ways:
        known = " or ".join(f'"{name}"' for name in chosen.ways if name) or "left out"
        raise ValueError(f"check: signature is {signature!r}, for {task} it must be {known}")
    if chosen.values:
        return _values(function, chosen)
    if not callable(function):
        raise TypeError(
            f"check: function is a {type(function).__name__}, which cannot be called: write"
            " check(my_attention), without brackets after its name"
        )
    whole_number(seed, call="check", name="seed", least=0)
    if is_stub(function):
        message = f"{name_of(function)}: nothing is filled in yet."
        return CheckResult(message, ("returns-nothing",), points=0, task=chosen.name)
    with seeded(seed), np.errstate(all="ignore"):  # wrong formulas overflow and divide by zero
        return chosen.mark(takes_tensors(function), way)


def _values(things: Any, task: Task) -> CheckResult:
    """Mark values: an array or a mapping, or a tuple of them."""
    values = things if isinstance(things, tuple) else (things,)
    if len(values) != len(task.values):
        names = ", ".join(task.values)
        raise TypeError(
            f"check: task {task.name!r} marks {len(task.values)} values, and {len(values)} were"
            f" given: check(({names}), task={task.name!r})"
        )
    with np.errstate(all="ignore"):
        return task.mark(values, "")


def task_of(name: str) -> Task:
    """Return the task of this name, or of the function of this name; a ValueError names all tasks.

    >>> task_of("many_heads").name
    'heads'
    """
    from qkv.marking.tasks import TASKS  # imported here, so that `import qkv` is quick

    for task in TASKS.values():
        if name == task.name or (name in task.looks_for and not task.by_name):
            return task
    raise ValueError(f"check: task {name!r} is unknown: choose from {', '.join(TASKS)}")
