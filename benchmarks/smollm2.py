"""SmolLM2 from a GGUF file of Q4_1 and Q8_0 blocks: a prompt, new tokens, loading and memory.

`qkv` converts the blocks to float32; `qkv, int8` and llama.cpp multiply the blocks themselves. The
error is the largest deviation of a logit, relative to the largest logit of the prompt. Memory is
the peak of a process that loads the model and answers a question.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

import qkv
from benchmarks import llama
from benchmarks.bert import operations
from benchmarks.common import (
    Row,
    Way,
    at_most,
    faster,
    memory_at_most,
    other_measure,
    per_second,
    share_of_peak,
    share_of_reading,
)
from benchmarks.memory import ROOT
from benchmarks.models import in_float64, largest
from benchmarks.peers import needs, threads
from qkv.models.files.find import find_model

NAME, PEER = "smollm2", "llama.cpp"
DTYPES = {"qkv": None, "qkv, bfloat16": "bfloat16", "qkv, int8": "int8"}
BLOCKS = 96_576_768  # the bytes of all weights in the file
PARAMETERS = 134_515_008
# name -> (the allowed error, the bytes of all weights, the bytes of a number in the cache); in
# blocks of 32 numbers, `qkv, int8` rounds vectors to int16, and llama.cpp rounds them to int8
ABOUT = {
    "qkv": (1e-4, 4 * PARAMETERS, 4),
    "qkv, bfloat16": (0.2, 2 * PARAMETERS, 2),
    "qkv, int8": (5e-3, BLOCKS, 4),
    PEER: (0.2, BLOCKS, 2),
}
JUDGED = 20_000  # the number of tokens of the documentation for the perplexity
QUESTION = "What is the capital of France?"
CHAT = "from qkv.cli import main; main(['chat', *{!r}], standalone_mode=False)"
PROGRAMS = {
    "memory of qkv chat": CHAT.format([]),
    "memory of qkv chat, bfloat16": CHAT.format(["--dtype", "bfloat16"]),
    "memory of qkv chat, int8": CHAT.format(["--dtype", "int8"]),
    "memory of llama.cpp": (
        "import sys; from benchmarks.smollm2 import llama_cpp;"
        " said = [{'role': 'user', 'content': sys.stdin.read()}];"
        " llama_cpp().create_chat_completion(said, temperature=0.0, max_tokens=64)"
    ),
}
TAIL = "\nfrom benchmarks.memory import resident\nprint(f'\\n{resident()[1]}')"


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield the rows for a prompt of 512 tokens, for 128 tokens after 16, and for loading."""
    loaders: dict[str, Any] = {
        name: partial(qkv.load, NAME, dtype=dtype) for name, dtype in DTYPES.items()
    }
    loaders[PEER] = usable()
    models = {name: load() for name, load in loaders.items() if callable(load)}
    model = models["qkv"]
    text = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    ids = np.array(model.tokenize(text[: 8 * JUDGED // shrink]).ids[: JUDGED // shrink])
    prompt, count = ids[: max(16, llama.PROMPT // shrink)], max(4, llama.WRITTEN // shrink)
    truth = in_float64(model, "logits", llama.KIND)(prompt[None])[0]  # (T, V)
    apart, also = {}, {}
    for name, one in models.items():
        one = loaders[name](logits_all=True) if name == PEER else one
        apart[name] = largest(truth)(logits(one, prompt))
        parts = [losses(one, ids[k : k + 512]) for k in range(0, len(ids) - 1, 512)]
        also[name] = {"perplexity": float(np.exp(np.concatenate(parts).mean()))}

    def ways(call: Callable[[str, Any], Any], error, **options) -> dict[str, Way | str | None]:
        """Make a way of each model; an option is a function of the model's name."""
        return {
            name: load
            if not callable(load)
            else Way(
                partial(call, name, models[name]),
                lambda result, name=name: max(apart[name], error(result)),
                ABOUT[name][0],
                **{key: of(name) for key, of in options.items()},
            )
            for name, load in loaders.items()
        }

    def missed(given: np.ndarray, count: int = 1) -> Callable[[list[int]], float]:
        """Return by how much the logit of the first new token is below the largest logit."""
        exact, most = truth[len(given) - 1], float(np.abs(truth).max())
        return lambda found: (
            float(exact.max() - exact[found[0]]) / most if len(found) == count else np.inf
        )

    work = operations(model, [prompt.size]) + 2.0 * model.parameters["embed.weight"].size
    yield Row(
        f"a prompt of {prompt.size} tokens",
        ways(
            lambda _, one: new_tokens(one, prompt, 1),
            missed(prompt),
            also=lambda name: lambda _: also[name],
            operations=lambda name: 0 if ABOUT[name][1] == BLOCKS else work,
            dtype=lambda name: DTYPES.get(name) or "float32",
        ),
        (
            *(per_second("tokens", prompt.size, name) for name in loaders),
            faster(PEER, 5.0, way="qkv, int8"),
            share_of_peak(None),
            other_measure("perplexity", "qkv, int8", relative_to="qkv", most=1.005),
        ),
        rounds=5,
    )
    some = prompt[:16]

    def reads(name: str) -> float:
        """Return the bytes to read for all new tokens: weights, and earlier keys and values."""
        _, weights, size = ABOUT[name]
        seen = sum(range(some.size, some.size + count))
        return float(count * weights + seen * 2 * 3 * 64 * size * model.num_layers)

    yield Row(
        f"{count} tokens after {some.size}",
        ways(lambda _, one: new_tokens(one, some, count), missed(some, count), reads=reads),
        (
            *(per_second("tokens", count, name) for name in loaders),
            faster(PEER, 1.25, 2.0, way="qkv, int8"),
            share_of_reading(0.75),
            share_of_reading(0.60, "qkv, bfloat16"),
            share_of_reading(None, "qkv, int8"),
        ),
        rounds=5,
    )
    skipped = () if callable(loaders[PEER]) else ("memory of llama.cpp",)
    yield Row(
        "loading from a warm disk cache",
        ways(lambda name, _: loaders[name](), lambda one: missed(some)(new_tokens(one, some, 1))),
        (
            *(at_most(1.0, name) for name in DTYPES),
            memory_at_most(250e6, "memory of qkv chat, int8"),
        ),
        {name: partial(memory_of, name) for name in PROGRAMS if name not in skipped},
        rounds=5,
    )


def new_tokens(model: Any, ids: np.ndarray, count: int) -> list[int]:
    """Return the most likely next tokens, by qkv or by llama.cpp."""
    if isinstance(model, qkv.Model):
        return list(model.generate(ids, max_new_tokens=count).ids)
    model.reset()  # otherwise it keeps the keys and values of the same prompt
    return list(islice(model.generate(ids.tolist(), temp=0.0), count))


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """Return the logits of every token, (T, V)."""
    if isinstance(model, qkv.Model):
        return model(ids[None]).logits[0]
    model.reset()
    model.eval(ids.tolist())
    return model.scores[: ids.size]


def losses(model: Any, ids: np.ndarray) -> np.ndarray:
    """Return the cross-entropy of each token except the first, (T - 1,)."""
    if isinstance(model, qkv.Model):
        return model.losses(ids)
    scores = logits(model, ids)[:-1].astype(np.float64)
    top = scores.max(axis=1)
    return (
        top + np.log(np.exp(scores - top[:, None]).sum(axis=1)) - scores[range(len(top)), ids[1:]]
    )


def llama_cpp(**options: Any) -> Any:
    """Load the model in llama.cpp."""
    from llama_cpp import Llama

    options |= {"n_threads": threads(), "n_threads_batch": threads(), "verbose": False}
    return Llama(str(find_model(NAME, None)), n_ctx=1024, n_batch=512, **options)


@needs("llama_cpp")
def usable() -> Callable[..., Any] | str:
    """Return the loader of llama.cpp, or the reason why it is not timed.

    A build for another processor ends its process, so another process tries first.
    """
    try:
        memory_of("memory of llama.cpp")
    except subprocess.CalledProcessError as error:
        return f"not run: its process ended with {error.returncode}"
    return llama_cpp


def memory_of(name: str) -> float:
    """Return the peak memory of a process that loads the model and answers a question."""
    command = [sys.executable, "-c", PROGRAMS[name] + TAIL]
    options = {"stderr": subprocess.DEVNULL, "text": True, "check": True, "cwd": ROOT}
    ran = subprocess.run(command, input=QUESTION + "\n", stdout=subprocess.PIPE, **options)
    return float(ran.stdout.splitlines()[-1])
