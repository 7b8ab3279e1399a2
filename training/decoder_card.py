"""The card of the decoder that ships."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import qkv
from training.cards import heads_table
from training.writing import HEAD_SCORES, ROLE

CARD = """---
license: apache-2.0
language: en
pipeline_tag: text-generation
---

# WordNet decoder

A small Llama that comes with qkv: {layers} layers, {heads} query heads on {kv_heads} key and value
heads, vectors of {dim}, {vocabulary:,} tokens of bytes, {length} positions, {numbers:.1f} million
parameters in float16; RMSNorm, rotary positions, SwiGLU, and one table for both ends. It writes a
definition behind a word and a colon, and nothing else. What it writes sounds like a dictionary
and is often wrong: it is for looking into a model while it writes.

## Training

By `qkv.learn` alone, from WordNet 3.0 as Debian's `wordnet-base` has it: {steps:,} steps,
{tokens:,} tokens, {minutes:.0f} minutes. A text is "word: definition. example" for each word in
each of its senses, read once a round, and once more for each binary digit of how often people used
the word in that sense in WordNet's tagged texts. `make model MODEL=decoder` does it again, and
another processor rounds otherwise, so the numbers will be near these and not the same.

Recipe: {recipe}.

## What it writes

Behind "word:" for {words} common nouns (`training/nouns.txt`, with its rule), always the likeliest
token:

| of {words} texts | |
| --- | --- |
| pass: they end within 64 tokens, have four words and repeat no run of four tokens | {passing} |
| end | {end} |
| have four words | {long_enough} |
| repeat a run of four tokens | {repeat} |
| differ from each other | {differ} |
| stand word for word in a training text | {word_for_word} |
| have a definition that does | {definition_word_for_word} |
| have one of the word's own definitions | {own_definition} |
| have a head noun that stands above the word in WordNet | {head_noun} |
| the same of the dictionary's first definition of each word | {head_noun_of_the_dictionary} |
| the same of what it writes for the next word of the list | {head_noun_of_others} |

{shown}

On {examples:,} held-out examples behind their word and definition, those with
`int(sha256(sentence).hexdigest(), 16) % 12 == 0`, the loss is {loss:.3f} nats a token, perplexity
{perplexity:.1f}, or {word_loss:.3f} a word, perplexity {word_perplexity:.0f}. Choices were
made on those that leave 1, which {chosen}.

## What its heads do

*Copies*: {copies} tokens drawn at random come twice in the same order, and this is the mean weight,
in the second copy, on the token that stood behind the first copy of the present one (Olsson et al.
2022). The others are as `qkv.circuits.head_scores` has them, over the held-out texts. {induction}
The loss of a random token is {first:.2f} nats in the first copy and {second:.2f} in the second.

{heads_table}

## Licence

The model is under Apache-2.0, as qkv is. WordNet is copyright 2006 by Princeton University; its
licence is in LICENSE.wordnet.
"""


def card(found: Mapping[str, Any], model: qkv.Model, about: Mapping[str, Any]) -> str:
    """The card of a decoder, of what `training.writing` found and what its checkpoint says."""
    of, recipe = found["definitions"], about["settings"]["recipe"]
    copies = [
        f"{row['layer']}.{row['head']} ({row['copies']:.2f})"
        for row in found["heads"]
        if row["copies"] >= ROLE
    ]
    counts = {name: value for name, value in of.items() if name not in ("texts", "pass")}
    lost = {
        name: value for name, value in found["held_out"].items() if name not in ("words", "tokens")
    }
    return CARD.format(
        layers=model.num_layers,
        heads=model.num_heads,
        kv_heads=model.config["num_key_value_heads"],
        dim=model.dim,
        vocabulary=model.config["vocab_size"],
        length=model.max_seq_length,
        numbers=sum(array.size for array in model.parameters.values()) / 1e6,
        steps=about["step"],
        tokens=about["tokens"],
        minutes=about["seconds"] / 60,
        recipe=", ".join(f"{name} {value}" for name, value in recipe.items()),
        passing=of["pass"],
        **counts,
        chosen="it learned from after that"
        if recipe["held_out"] == 1
        else "were kept from it as well",
        shown="\n".join(f"- {one['word']}:{one['text']}" for one in found["shown"]),
        **lost,
        induction=f"An induction head ({ROLE} or more): {', '.join(copies)}."
        if copies
        else f"It has no induction head ({ROLE} or more).",
        copies=found["copying"]["tokens"],
        first=found["copying"]["first"],
        second=found["copying"]["second"],
        heads_table=heads_table(found["heads"], HEAD_SCORES),
    )
