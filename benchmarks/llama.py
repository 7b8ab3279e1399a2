"""A model with the shape of a small Llama (135 million parameters): a prompt, then new tokens."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.bert import operations
from benchmarks.common import LOOSE, Row, Way, faster, share_of_reading, timed
from benchmarks.models import in_float64, in_transformers, in_type, largest, random_model
from benchmarks.parts import parts
from benchmarks.peers import if_compiled, torch

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
PROMPT, WRITTEN = 512, 128
KIND, PEERS = "AutoModelForCausalLM", "transformers|transformers, compiled"


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield two table rows: the first for reading a prompt, the second for generation.

    For the first row, the models compute the logits of 512 prompt tokens. For the second row, they
    generate 128 new tokens after a prompt of 16 tokens.
    """
    config = CONFIG | {"num_hidden_layers": max(1, 30 // shrink)}
    if shrink > 8:
        config |= {"vocab_size": 1000}
    model = random_model(config)
    theirs = in_transformers(model, KIND)
    ids = np.random.default_rng(0).integers(3, config["vocab_size"], (1, max(8, PROMPT // shrink)))
    yield reading(model, theirs, ids)
    yield writing(model, theirs, ids[:, :16], max(4, WRITTEN // shrink))


def reading(model: qkv.Model, theirs, ids: np.ndarray) -> Row:
    """Make the table row for a forward pass that returns the logits of every token."""
    error = largest(in_float64(model, "logits", KIND)(ids))
    given = None if theirs is None else torch().from_numpy(ids)
    work = operations(model, [ids.size]) + 2.0 * ids.size * model.parameters["embed.weight"].size
    compiled = theirs and torch().compile(theirs, dynamic=False)
    call = theirs and if_compiled(lambda: compiled(given).logits.numpy())
    ways = {
        "qkv": Way(lambda: model(ids).logits, error, operations=work),
        "transformers": theirs
        and Way(lambda: theirs(given).logits.numpy(), error, operations=work),
        "transformers, compiled": timed(call, error, operations=work),
    }
    return Row(
        f"a prompt of {ids.shape[1]} tokens",
        ways,
        (faster(PEERS, 1.5, 1.9),),
        parts=lambda: parts(lambda: model(ids)),
        rounds=5,
    )


def writing(model: qkv.Model, theirs, ids: np.ndarray, count: int) -> Row:
    """Make the table row for greedy generation.

    The first tokens must equal the tokens that the model generates in float64. In bfloat16 tokens
    may differ, so the error is that of the prompt's logits.
    """
    half = in_type(model, "bfloat16")
    apart = largest(in_float64(model, "logits", KIND)(ids))(half(ids).logits)
    compiled = theirs and if_compiled(continued(theirs, ids, count, compiled=True))
    exact = in_transformers(model, KIND, "float64")
    truth = (
        continued(exact, ids, min(count, 8))()
        if exact
        else written(in_type(model, "float64"), ids, min(count, 8))
    )

    def error(found: list[int]) -> float:
        """Return 0 if the first tokens equal the tokens generated in float64, else 1."""
        return float(list(found[: len(truth)]) != truth)

    def cost(size: int) -> float:
        """Return the number of bytes to read from memory for all new tokens.

        For each new token, the model reads all weights, and the keys and values of all earlier
        tokens.
        """
        layer = 2 * 3 * 64 * size  # the bytes of the keys and values of a token
        seen = sum(range(ids.shape[1], ids.shape[1] + count))
        weights = sum(array.size for array in model.parameters.values()) * size
        return float(count * weights + seen * layer * model.num_layers)

    ways = {
        "qkv": Way(lambda: written(model, ids, count), error, reads=cost(4)),
        "qkv, bfloat16": Way(
            lambda: written(half, ids, count), lambda _: apart, LOOSE["bfloat16"], reads=cost(2)
        ),
        "transformers": theirs and Way(continued(theirs, ids, count), error, reads=cost(4)),
        "transformers, compiled": timed(compiled, error, reads=cost(4)),
    }
    goals = (faster(PEERS, 2.0), share_of_reading(0.75), share_of_reading(0.60, "qkv, bfloat16"))
    return Row(f"{count} tokens after {ids.shape[1]}", ways, goals, rounds=3)


def written(model: qkv.Model, ids: np.ndarray, count: int) -> list[int]:
    """Return the ids of the generated tokens."""
    return [int(token) for token in model.generate(ids[0], max_new_tokens=count).ids]


def continued(model, ids: np.ndarray, count: int, *, compiled: bool = False):
    """Return a call in which transformers generates the same tokens."""
    given = torch().from_numpy(ids)
    options = {"attention_mask": torch().ones_like(given), "max_new_tokens": count}
    if compiled:  # transformers compiles the step of one token, for a cache of fixed size
        from transformers import CompileConfig

        config = CompileConfig(mode="default", dynamic=False)
        config._compile_all_devices = True
        options |= {"cache_implementation": "static", "compile_config": config}
    model.generation_config.eos_token_id = None  # so that no text ends early
    return lambda: model.generate(given, do_sample=False, **options)[0, ids.shape[1] :].tolist()
