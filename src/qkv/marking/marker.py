"""Mark somebody's own function as a task asks for it."""

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
    """Mark somebody's own function: which mistake did it make, or is it right?

    It is run on small inputs, smallest first, and what it gives is compared with the right answer
    and with what each known mistake would give. What it prints is not shown; its warnings are
    ignored. `qkv check --list` prints the tasks with what is to be written for each.

    An attention function is given masks too, if it takes them: a mask (`mask`, `attn_mask` or
    `attention_mask`, (L, S): bool, True = may attend, or if it is not made for that 0 and -inf to
    add; to add True and False as they are is wrong), a causal mask (`is_causal` or `causal`),
    `q_offset`, and `num_heads`.

    Args:
        function: what was written for the task, a function or a class, or a tuple of values where
            `qkv check --list` names values. For `"attention"`: arrays
            in, array out (or `(out, weights)`). It is called with float64 arrays of two dimensions,
            with integers, with batches, and with scores of 1000.
        signature: of attention; `"qkv"`: function(query (L, d), key (S, d), value (S, dv)) ->
            (L, dv); `"x,w_q,w_k,w_v"`: function(x (T, D), w_q (D, d), w_k (D, d), w_v (D, dv)) ->
            (T, dv), with `num_heads` weights of (D, heads * size). Other tasks have their own.
        task: the name of a task, or of the function that it asks for.
        seed: draws the inputs; 0 for those that are the shortest to print. Whoever marks a class
            may choose one that nobody can know in advance.

    Returns:
        A `CheckResult`: true where nothing is wrong; print it for the words. What is wrong, what
        is right only until numbers get large or a row sees nothing, and what is right but another
        habit than the field's are kept apart. What a task asks for is no habit.

    Raises:
        TypeError: `function` cannot be called, or not with these arrays.
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
        (way,) = chosen.ways  # it was left out
    if way not in chosen.ways:
        known = " or ".join(f'"{name}"' for name in chosen.ways if name) or "left out"
        raise ValueError(f"check: signature is {signature!r}, for {task} it must be {known}")
    if chosen.values:
        return _values(function, chosen)
    if not callable(function):
        raise TypeError(
            f"check: function is a {type(function).__name__}, it must be something to call:"
            " check(my_attention), without brackets after its name"
        )
    whole_number(seed, call="check", name="seed", least=0)
    if is_stub(function):
        said = f"{name_of(function)}: nothing is filled in yet."
        return CheckResult(said, ("returns-nothing",), points=0, task=chosen.name)
    with (
        seeded(seed),
        np.errstate(all="ignore"),
    ):  # wrong formulas overflow and divide by zero: that is the point
        return chosen.mark(takes_tensors(function), way)


def _values(things: Any, task: Task) -> CheckResult:
    """The verdict on values: an array or a mapping, or a tuple of them."""
    given = things if isinstance(things, tuple) else (things,)
    if len(given) != len(task.values):
        names = ", ".join(task.values)
        raise TypeError(
            f"check: task {task.name!r} marks {len(task.values)} values, and {len(given)} were"
            f" given: check(({names}), task={task.name!r})"
        )
    with np.errstate(all="ignore"):
        return task.mark(given, "")


def task_of(name: str) -> Task:
    """The task of this name, or whose function has it; a ValueError that names all tasks if none.

    >>> task_of("many_heads").name
    'heads'
    """
    from qkv.marking.tasks import TASKS  # here, so that `import qkv` is quick

    for task in TASKS.values():
        if name == task.name or (name in task.looks_for and not task.by_name):
            return task
    raise ValueError(f"check: there is no task {name!r}: the tasks are {', '.join(TASKS)}")
