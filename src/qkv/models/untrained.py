"""Models with random weights: models with the sizes in a config, and small models for lessons."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, public_call
from qkv.arrays import Array, DType
from qkv.embed import TokenEmbedding
from qkv.layers import SelfAttention
from qkv.models.families import design_of
from qkv.models.families.lessons import LESSON, MAX_LENGTH
from qkv.models.files.names import Names, Storage
from qkv.models.files.read import ModelError
from qkv.models.files.sentence import Sentence
from qkv.models.model import Model
from qkv.models.network.design import Design
from qkv.text import Tokenizer, WordTokenizer

SPREAD = 0.02  # the standard deviation of the initial weights, as in BERT and GPT-2
_INTO_THE_STREAM = ("attn.out_proj.weight", "mlp.down_proj.weight")


@public_call("fresh_model")
def fresh_model(
    config: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
    *,
    seed: int = 0,
    name: str = "fresh",
    dtype: Any = np.float32,
) -> Model:
    """Create a model with the sizes in a config and with random weights from a seed.

    Weights are drawn from a normal distribution with standard deviation 0.02. The weights of norms
    are 1; biases and attention sinks are 0. In models with pre-norms, the output weights of each
    attention sublayer and each MLP are divided by the square root of the total number of these
    sublayers and MLPs, so that the sum of all outputs does not grow with the number of layers.

    Args:
        config: the contents of a config.json, with `model_type` and `architectures`.
        tokenizer: the model's tokenizer.
        seed: the seed of the weights.
        name: the name of the model.
        dtype: float32 or float64.

    Raises:
        ModelError: the family is unknown, or a value in the config is invalid.

    Source:
        Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.

    >>> config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50}
    >>> fresh_model({**config, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32})
    <Model fresh: gpt2, 2 layers, 4 heads, vectors of 16>
    """
    design, names = design_of(config, "fresh_model")
    if type(design) is not Design:
        kind = names.family.model_type
        raise invalid(
            ModelError,
            f"model_type is {kind}; pass the config of a text encoder or decoder, "
            "such as bert or gpt2",
        )
    parameters = first_weights(design, seed, np.dtype(dtype))
    tensor_names = {key: _tensor_name(names, design, key) for key in parameters}
    return Model(
        name=name,
        config=dict(config),
        design=design,
        weights=Storage(names, parameters, tensor_names=tensor_names),
        tokenizer=tokenizer,
    )


def first_weights(design: Design, seed: int, dtype: DType) -> dict[str, Array]:
    """Draw the initial parameters for training, keyed by name."""
    rng = np.random.default_rng(seed)
    quieter = 1 if design.norms == "after" else 1 / math.sqrt(2 * len(design.layers))
    parameters = {}
    for name, shape in design.shapes():
        if len(shape) > 1 and not name.endswith("_bias"):
            spread = SPREAD * (quieter if name.endswith(_INTO_THE_STREAM) else 1)
            parameters[name] = (rng.standard_normal(shape) * spread).astype(dtype)
        else:
            is_norm = "norm" in name and name.endswith(".weight")
            first = 1 - design.norm_offset if is_norm else 0
            parameters[name] = np.full(shape, first, dtype)
    return parameters


def _tensor_name(names: Names, design: Design, name: str) -> str:
    """Return the name of a parameter's tensor in files that transformers writes."""
    family = names.family
    theirs, _ = names.tensor_of(name)
    theirs = family.instead.get(theirs, theirs)
    inside = design.head is not None and theirs.startswith(family.body)
    return f"{family.prefix}{theirs}" if inside else theirs


LESSONS = (
    "The cat sat on the mat.",
    "I love you today.",
    "I sat on the bank of the river.",
    "The bank raised its interest rates.",
)


def random_model(
    texts: str | Iterable[str] = LESSONS,
    *,
    dim: int = 8,
    heads: int = 2,
    causal: bool = False,
    positions: bool = True,
    seed: int = 0,
    dtype: Any = np.float32,
) -> Model:
    """Create a model with one attention layer and with random weights from a seed.

    `WordTokenizer` splits the texts, `TokenEmbedding` embeds the words, sinusoidal positions are
    added, and `SelfAttention` computes the output. A word that is not in `texts` becomes `[UNK]`.
    The model has not learned anything, so its results have no meaning. Use the model to follow each
    step of the computation.

    Args:
        texts: the texts whose words become the vocabulary.
        dim: D, the size of the word vectors.
        heads: the number of heads.
        causal: whether a word sees only itself and the words before it.
        positions: whether sinusoidal positions are added.
        seed: the seed of the word vectors; the seed of the layer is `seed + 1`.
        dtype: float32 or float64.

    Raises:
        ValueError: `heads` does not divide `dim`, or `texts` contain no words.

    >>> model = random_model("The cat sat on the mat")
    >>> trace = model.trace("The cat sat on the mat")
    >>> trace.tokens, trace["embed"].shape, trace["pattern", 0].shape
    (['the', 'cat', 'sat', 'on', 'the', 'mat'], (1, 6, 8), (1, 2, 6, 6))
    """
    tokenizer = WordTokenizer(texts)
    embedding = TokenEmbedding(tokenizer, dim, seed=seed, dtype=dtype)
    attn = SelfAttention(dim, heads, seed=seed + 1, dtype=dtype)
    parameters = {"embed.weight": embedding.weight.copy()}
    parameters |= {f"blocks.0.attn.{name}": array for name, array in attn.parameters.items()}
    config = {
        "model_type": LESSON.model_type,
        "vocab_size": len(tokenizer),
        "hidden_size": dim,
        "num_attention_heads": heads,
        "causal": bool(causal),
        "positions": bool(positions),
        "seed": seed,
    }
    design, names = design_of(config, "random_model")
    return Model(
        name="random",
        config=config,
        design=design,
        weights=Storage(names, parameters),
        tokenizer=tokenizer,
        sentence=Sentence(max_seq_length=MAX_LENGTH),
    )
