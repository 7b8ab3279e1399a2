"""Train the included decoder: `python -m training.book_decoder BOOKS -o DIR`.

The decoder reads passages of books. It also reads the examples and definitions of WordNet. From the
first step on, the decoder also learns to copy: some texts contain random tokens or sentences twice.

DIR becomes a run of `qkv.learn`; `--resume` continues a stopped run.

`make model` makes the shipped decoder in two runs. After the first run, the best induction score
was 0.97 on random tokens and 0.84 on random words, but only 0.17 on sentences of books. So the
second run has three times as much repeated text as the first run.

In trials of 60 steps at a rate of 3e-3, the loss reached 5.86 nats per token with Muon, and 6.62
with AdamW.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.learn import Causal, Network, Part, Sequences, Trained, fresh_model, train_tokenizer
from qkv.learn._corpus import ENDS
from qkv.text import SubwordTokenizer, Tokenizer
from training import books, command
from training.induction import Repeats
from training.muon import Muon
from training.reading import Mixed, cleaned
from training.running import kept_tokenizer, run, trained
from training.wordnet import documents, ended, examples, read

NAME = "books-decoder"
STEPS = 2688
LOWER = 0.3  # in this share of texts, the first sentence is in lower case, as people type
TWICE = 0.04  # share of the passages that repeat a sentence


@dataclass(frozen=True)
class Recipe:
    """The sizes of the model and the settings of its training.

    Attributes:
        layers: the number of layers.
        heads: Hq, the query heads of each layer.
        kv_heads: Hkv, the key and value heads that the query heads share.
        dim: D, the size of the vectors.
        hidden: F, the size of the MLP's hidden layer.
        vocabulary: V, the maximum number of tokens in the vocabulary.
        held_out: how many of the twelve parts of WordNet's examples are held out from the tokenizer
            and from training.
        passages: the share of tokens from passages of books.
        examples: the share of tokens from WordNet's examples.
        documents: the share of tokens from WordNet's documents.
        twice: the share of tokens from texts in which the beginning of a passage occurs twice.
        length: the maximum number of tokens of a text; a longer text is split.
        tokens: the minimum number of tokens in a step.
        rate: the highest learning rate.
        warmup: the share of the run in which the rate rises.
        after: the folder of a model of the same shape to start from; random weights by default.
        copies: the weight of the loss on random tokens that occur twice.
        texts: the number of texts with repeated random tokens in a step.
        products: as for `qkv.learn.train`.
        seed: the seed of all random draws.
    """

    layers: int = 5
    heads: int = 6
    kv_heads: int = 2
    dim: int = 192
    hidden: int = 512
    vocabulary: int = 8192
    held_out: int = 1
    passages: float = 0.82
    examples: float = 0.1
    documents: float = 0.05
    twice: float = 0.03
    length: int = 128
    tokens: int = 4096
    rate: float = 4e-3
    warmup: float = 0.02
    copies: float = 0.1
    texts: int = 6
    after: str = ""
    products: str = "bfloat16"
    seed: int = 0

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Return the config.json of the model, a Llama."""
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


def make(
    recipe: Recipe,
    source: Path,
    wordnet_folder: Path,
    folder: Path,
    *,
    resume: bool = False,
    tokenizer: Tokenizer | None = None,
    **limits: Any,
) -> Trained:
    """Train the decoder.

    Args:
        recipe: the model's sizes and the training's settings.
        source: the source of the books, as for `training.books.read`.
        wordnet_folder: the folder of WordNet's files.
        folder: the folder of the run.
        resume: continue the run in the folder.
        tokenizer: the tokenizer of an earlier run; by default a new tokenizer is trained.
        limits: further arguments of `qkv.learn.train`.
    """
    kinds = texts(source, wordnet_folder, recipe)
    if recipe.after:
        tokenizer = SubwordTokenizer.from_file(Path(recipe.after) / "tokenizer.json")
    tokenizer = kept_tokenizer(
        folder,
        resume,
        tokenizer,
        lambda: tokenizer_of(
            [*kinds["passages"][::4], *kinds["examples"], *kinds["documents"][::4]],
            recipe.vocabulary,
        ),
    )
    mixed = Mixed(
        {
            name: Sequences(sequences(kind, tokenizer, recipe.length), seed=recipe.seed)
            for name, kind in kinds.items()
        },
        {name: getattr(recipe, name) for name in kinds},
    )
    if recipe.after:
        before = qkv.load(recipe.after, dtype=np.float32)
    else:
        before = fresh_model(recipe.config(tokenizer), tokenizer, seed=recipe.seed, name=NAME)
    network = Network(before)
    return trained(
        recipe,
        network,
        [
            Part(Causal(mixed, tokens_per_step=recipe.tokens)),
            Part(Repeats(len(tokenizer), recipe.length // 2, recipe.texts), recipe.copies),
        ],
        folder,
        Muon(network),
        resume=resume,
        products=recipe.products,
        **limits,
    )


def texts(source: Path, wordnet_folder: Path, recipe: Recipe) -> dict[str, list[str]]:
    """Return the training texts of each kind, keyed by the name of the kind."""
    rng = np.random.default_rng(recipe.seed)
    wordnet = cleaned(read(wordnet_folder, kept=recipe.held_out))
    passages = [text for _, found in books.read(source, ["train"]) for text in joined(found, rng)]
    return {
        "passages": passages,
        "examples": list(map(ended, examples(wordnet))),
        "documents": [f"{one}." for one in documents(wordnet)],
        "twice": twice(passages, rng, round(TWICE * len(passages))),
    }


def joined(passages: Iterable[Sequence[str]], rng: np.random.Generator) -> Iterator[str]:
    """Join consecutive paragraphs into texts, and cut long paragraphs.

    A text ends after a paragraph if it has 50 words or more, and after a sentence if it has 90 or
    more. The first sentence of some texts is put in lower case.
    """
    text: list[str] = []
    count = 0
    for passage in passages:
        for sentence in passage:
            if not text and rng.random() < LOWER:
                sentence = sentence.lower()
            text.append(sentence)
            count += len(sentence.split())
            if count >= 90:
                yield _laid_out(text)
                text, count = [], 0
        if count >= 50:
            yield _laid_out(text)
            text, count = [], 0
        elif text:
            text.append("\n")
    if text:
        yield _laid_out(text)


def _laid_out(sentences: Sequence[str]) -> str:
    """Join sentences into one text, and keep line breaks."""
    return " ".join(sentences).replace(" \n ", "\n").strip()


def twice(passages: Sequence[str], rng: np.random.Generator, count: int) -> list[str]:
    """Make texts that contain the beginning of a passage twice."""
    found = []
    for at in rng.choice(len(passages), count):
        words = passages[at].split(" ")[: int(rng.integers(5, 40))]
        found.append(" ".join([*words, *words]))
    return found


def end_of(tokenizer: Tokenizer) -> int:
    """Return the token that ends a text."""
    vocabulary = tokenizer.vocabulary
    return next(vocabulary[name] for name in ENDS if name in vocabulary)


def tokenizer_of(texts: Iterable[str], vocabulary: int) -> SubwordTokenizer:
    """Train a byte-level BPE tokenizer like GPT-2's.

    The tokenizer puts a blank before the first word of a text, so that a word has the same tokens
    at the beginning of a text and inside it.

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


def sequences(texts: Iterable[str], tokenizer: Tokenizer, length: int) -> list[Array]:
    """Return each text as token ids with an end token; split texts that are too long."""
    end = np.array([end_of(tokenizer)], np.int32)
    found: list[Array] = []
    for ids in tokenizer.ids_batch(texts):
        whole = np.concatenate([ids, end])
        found += [
            whole[begin : begin + length + 1]
            for begin in range(0, len(whole), length)
            if begin == 0 or len(whole) - begin > length // 4
        ]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with the settings of the command line."""
    run("training.book_decoder", __doc__, Recipe, STEPS, make, arguments, reads_books=True)


if __name__ == "__main__":
    command(main)
