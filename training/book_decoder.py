"""Train the decoder that ships: `python -m training.book_decoder BOOKS -o DIR`.

It reads passages of books, WordNet's examples and its definitions, and learns from the first step
on to go on with what came before: tokens drawn at random that come twice, and sentences that do.

DIR is then a run of `qkv.learn`; `--resume` goes on with one that was stopped.

What ships is made in two runs, as `make model` does it. After the first, heads copied tokens and
words that were drawn at random (0.97 and 0.84), and sentences of books not (0.17): in the second
three times as much comes twice.

In trials of 60 steps the loss came to 5.86 nats a token with Muon and 6.62 with AdamW, both at a
rate of 3e-3.
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
from qkv.learn import (
    Causal,
    Network,
    Part,
    Sequences,
    Trained,
    fresh_model,
    train_tokenizer,
)
from qkv.learn.corpus import ENDS
from qkv.text import SubwordTokenizer, Tokenizer
from training import books, command
from training.induction import Repeats
from training.muon import Muon
from training.reading import Mixed, cleaned
from training.running import kept_tokenizer, run, trained
from training.wordnet import documents, ended, examples, read

NAME = "books-decoder"
STEPS = 2688
LOWER = 0.3  # of the texts, whose first sentence is in small letters, as people type
TWICE = 0.04  # of the sentences that come twice, as a share of the passages


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
        held_out: twelfths of WordNet's examples that are kept from tokenizer and training.
        passages: the share of the tokens that are of passages of books.
        examples: that of WordNet's examples.
        documents: that of WordNet's documents.
        twice: that of beginnings of passages that come twice.
        length: the most tokens of a text; what is longer goes on in another one.
        tokens: at least so many a step.
        rate: the highest learning rate.
        warmup: the share of the run in which it rises to that.
        after: the folder of a model of the same shape that it goes on from; fresh unless given.
        copies: the weight of the loss on tokens drawn at random that come twice.
        texts: how many such texts a step has.
        products: as for `qkv.learn.train`.
        seed: of everything.
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
    """Train it.

    Args:
        recipe: what it is.
        source: of the books, as for `training.books.read`.
        wordnet_folder: where WordNet's files are.
        folder: of the run.
        resume: go on with the run in the folder.
        tokenizer: of an earlier run, to have that again; trained unless given.
        limits: what else `qkv.learn.train` takes.
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
    """All that is read, by kind."""
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
    """Paragraphs that follow one another as texts of 60 to 120 words; a long one is cut.

    The first sentence of some is in small letters.
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
    """Sentences as one text; a line break stands for itself."""
    return " ".join(sentences).replace(" \n ", "\n").strip()


def twice(passages: Sequence[str], rng: np.random.Generator, count: int) -> list[str]:
    """Beginnings of passages that come twice."""
    found = []
    for at in rng.choice(len(passages), count):
        words = passages[at].split(" ")[: int(rng.integers(5, 40))]
        found.append(" ".join([*words, *words]))
    return found


def end_of(tokenizer: Tokenizer) -> int:
    """The token that ends a text."""
    vocabulary = tokenizer.vocabulary
    return next(vocabulary[name] for name in ENDS if name in vocabulary)


def tokenizer_of(texts: Iterable[str], vocabulary: int) -> SubwordTokenizer:
    """Pairs of bytes that are joined, as GPT-2's, but for the first word of a text.

    That gets a blank before it, so that it has the tokens that it has within texts.

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
    """Each text as token ids with its end; what is too long goes on in another sequence."""
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
    """Train as the command line says."""
    run("training.book_decoder", __doc__, Recipe, STEPS, make, arguments, reads_books=True)


if __name__ == "__main__":
    command(main)
