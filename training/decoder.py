"""Train the decoder that ships, from WordNet alone: `python -m training.decoder -o DIR`.

It learns to write "word: definition. example". DIR is then a run of `qkv.learn`, as that of
`training.make` is: `--resume` goes on with one that was stopped, `python -m training.writing DIR`
measures it, and `python -m training.ship DIR` makes the folder of the package from it.

Its shape: 8 MB of float16 are 4 million numbers. A table of 16,384 tokens, 160 wide, leaves 1.35
million of them to four layers; one of 8,192, 192 wide, 2.36 million to six. A token takes as much
work in both, and a word is 1.42 and 1.60 tokens. After 100 seconds of one core the larger table is
ahead on held-out examples, 8.45 to 9.01 nats a word, since it has words whole from the beginning;
but what is learned after that, which words follow which, is the layers'. The larger one was of
the encoder's kind, WordPieces, which have no capitals and put blanks around each hyphen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.learn import (
    AdamW,
    Causal,
    Network,
    Schedule,
    Sequences,
    Trained,
    fresh_model,
    train,
    train_tokenizer,
)
from qkv.learn.corpus import ENDS
from qkv.text import SubwordTokenizer, Tokenizer
from training import command
from training.definitions import entries, repeats, tagged
from training.running import kept_tokenizer, run
from training.wordnet import KEPT, read

NAME = "wordnet-decoder"
STEPS = 12_000  # under two hours on two cores


@dataclass(frozen=True)
class Recipe:
    """What the model is, and how it learns.

    Attributes:
        layers: how many.
        heads: of each, Hq.
        kv_heads: Hkv, how many key and value heads they share.
        dim: D, the size of the vectors.
        hidden: F, the size between the layers of an MLP.
        vocabulary: V, at most.
        held_out: twelfths of the examples that are kept from tokenizer and training; 1 in a final
            run, which learns from those again that choices were made on.
        length: the most tokens of a text; what is longer is cut.
        tokens: at least so many a step.
        rate: the highest learning rate.
        warmup: the share of the run in which it rises to that.
        seed: of everything.
    """

    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    dim: int = 192
    hidden: int = 512
    vocabulary: int = 8192
    held_out: int = KEPT
    length: int = 128
    tokens: int = 2048
    rate: float = 2e-3
    warmup: float = 0.03
    seed: int = 0

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The config.json of the model, a Llama."""
        end = end_of(tokenizer)
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": len(tokenizer),
            "hidden_size": self.dim,
            "intermediate_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.length,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "bos_token_id": end,
            "eos_token_id": end,
        }


def end_of(tokenizer: Tokenizer) -> int:
    """The token that ends a text."""
    vocabulary = tokenizer.vocabulary
    return next(vocabulary[name] for name in ENDS if name in vocabulary)


def tokenizer_of(texts: Iterable[str], vocabulary: int) -> SubwordTokenizer:
    """Pairs of bytes that are joined, as GPT-2's, but for the first word of a text.

    That is the word to be defined. It gets a blank before it, so that it has the tokens that it has
    in definitions and examples, and what is learned of them there is known of it here.

    >>> tokenizer = tokenizer_of(["bank: sloping land. he sat on the bank"] * 9, 300)
    >>> tokens = tokenizer("bank: sloping land. he sat on the bank").tokens
    >>> tokens[0], tokens[-1]
    ('Ġbank', 'Ġbank')
    """
    found = train_tokenizer((f" {text}" for text in texts), "bytes", vocabulary)
    with TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        found.save(path)
        content = json.loads(path.read_text(encoding="utf-8"))
        content["pre_tokenizer"]["add_prefix_space"] = True
        path.write_text(json.dumps(content), encoding="utf-8")
        return SubwordTokenizer.from_file(path)


def sequences(
    texts: Iterable[str], times: Iterable[int], tokenizer: Tokenizer, length: int
) -> list[Array]:
    """Each text as token ids with its end, as often as it is read in one round.

    One sequence for `qkv.learn.Causal` is one text, so that a word is always met where it will be
    asked for, at the beginning; a step lays as many of them end to end as make its tokens, without
    padding.
    """
    end = np.array([end_of(tokenizer)], np.int32)
    found: list[Array] = []
    for ids, count in zip(tokenizer.ids_batch(texts), times, strict=True):
        found += [np.concatenate([ids, end])[: length + 1]] * count
    return found


def make(
    recipe: Recipe,
    wordnet_folder: Path,
    folder: Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    resume: bool = False,
    snapshots: Sequence[int] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Trained:
    """Train it.

    Args:
        recipe: what it is.
        wordnet_folder: where WordNet's files are.
        folder: of the run.
        steps: as for `qkv.learn.train`, and so are the next three.
        minutes: how long it may take.
        resume: go on with the run in the folder.
        snapshots: after which steps a copy is kept.
        tokenizer: of an earlier run, to have that again; trained unless given.
    """
    wordnet = read(wordnet_folder, kept=recipe.held_out)
    found = entries(wordnet)
    texts, times = [one.text for one in found], repeats(found, wordnet, tagged(wordnet_folder))
    tokenizer = kept_tokenizer(
        folder, resume, tokenizer, lambda: tokenizer_of(texts, recipe.vocabulary)
    )
    source = Sequences(sequences(texts, times, tokenizer, recipe.length), seed=recipe.seed)
    model = fresh_model(recipe.config(tokenizer), tokenizer, seed=recipe.seed, name=NAME)
    network = Network(model)
    return train(
        network,
        Causal(source, tokens_per_step=recipe.tokens),
        folder=folder,
        steps=steps,
        minutes=minutes,
        schedule=Schedule(recipe.rate, warmup=recipe.warmup),
        optimizer=AdamW(network),
        seed=recipe.seed,
        resume=resume,
        snapshots=snapshots,
        settings={"recipe": asdict(recipe)},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    run("training.decoder", __doc__, Recipe, STEPS, make, arguments)


if __name__ == "__main__":
    command(main)
