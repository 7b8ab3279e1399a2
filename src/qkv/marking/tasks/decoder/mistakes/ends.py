"""The ways to get a decoder wrong before, between and after its layers."""

from __future__ import annotations

import numpy as np

from qkv.marking.mistake import Mistake, mended, mistake
from qkv.marking.tasks.attention.steps import softmax
from qkv.marking.tasks.decoder.mistakes.layer import LONELY
from qkv.marking.tasks.decoder.steps import rms_norm

_HEAD = 'logits = norm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T'

ENDS = (
    *mended(
        _HEAD,
        mistake(
            "decoder-final-norm",
            "the last norm is missing: model.norm stands before the logits",
            "the sizes of the logits are those of the last word vectors",
            {"final_norm": lambda x, norm: x},
        ),
        nudge=LONELY,
        where="what comes after the last layer",
    ),
    mistake(
        "decoder-probabilities",
        "probabilities come out, or their logarithms; the task asks for logits, without softmax",
        "the largest of a row is the same word; a temperature would be applied after softmax",
        {"head": lambda x, embed: softmax(x @ embed.T)},
        {"head": lambda x, embed: np.log(softmax(x @ embed.T))},
        remedy="return logits",
        where="the return statement",
        nudge="Add up a row of the output.",
    ),
    mistake(
        "decoder-embedding-scaled",
        "the word vectors are multiplied by the root of their size; Llama's are not",
        "the layers' parts count too little beside them",
        {"embed": lambda table, ids: table[ids] * table.shape[1] ** 0.5},
        remedy='x = weights["model.embed_tokens.weight"][ids]',
        nudge=LONELY,
        where="the line that looks the words up",
    ),
    mistake(
        "decoder-layers",
        "not every layer is run once, in the order of their numbers",
        "a layer is left out, or one is run twice, or they run backwards",
        {"layers": lambda n: range(1)},
        {"layers": lambda n: [0] * n},
        {"layers": lambda n: [n - 1] * n},
        {"layers": lambda n: reversed(range(n))},
        {"layers": lambda n: range(1, n)},
        remedy='for layer in range(config["num_hidden_layers"]): ...',
        nudge="Print the layer's number inside the loop, and the name of a weight that it reads.",
        where="the loop over the layers",
    ),
)
# of a model that has a matrix of its own for the logits
UNTIED = (
    *mended(
        'head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])',
        mistake(
            "decoder-head-tied",
            "the table of embeddings makes the logits, though this file has lm_head.weight",
            'right where config["tie_word_embeddings"] is true, and the file has no lm_head.weight',
            {"tables": lambda embeddings, head: (embeddings, embeddings)},
            nudge="Print the names of the weights: is there one that no line of yours reads?",
            kind="fragile",
        ),
        mistake(
            "decoder-head-embeds",
            "words are looked up in lm_head.weight, which is for the logits alone",
            "right where both are one table",
            {"tables": lambda embeddings, head: (head, head)},
            nudge="Which of the two tables is the first step's, and which the last one's?",
        ),
        mistake(
            "decoder-tables-exchanged",
            "lm_head.weight looks the words up, and the embeddings make the logits: they have"
            " changed places",
            "right where both are one table",
            {"tables": lambda embeddings, head: (head, embeddings)},
            nudge="Which of the two tables is the first step's, and which the last one's?",
        ),
        where="the first line and the last: which table does each of them read?",
    ),
    *mended(
        'eps, theta = config["rms_norm_eps"], config["rope_theta"]',
        mistake(
            "decoder-written-down",
            "a number is written down, where config says it: eps of the norms, theta of the"
            " rotation, or how many heads or layers there are",
            "right for models of one config alone",
            {"normalize": lambda x, eps: rms_norm(x, 1e-6)},
            {"speeds": lambda base, d, width: 500.0 ** (-np.arange(0, d, 2) / d)},
            {"layers": lambda n: range(2)},
            {"counts": lambda heads, groups: (4, 2)},
        ),
        nudge="Which numbers stand in your code that are in config too?",
        where="the numbers in the code, and the defaults of parameters",
        kind="fragile",
    ),
)

LAST_ROW = Mistake(
    "decoder-last-row",
    "it gives the logits after the last word alone, (V,); the task asks for those after each"
    " word, (T, V)",
    "learning needs the rows of all places, and decoder(ids, ...)[-1] is one number",
    "return logits  # (T, V), and decoder(...)[-1] where the last is wanted",
    nudge="Print the shape of the output for three words.",
    where="the return statement",
)

# of a decoder that gives the logits after the last word alone
LAST = (
    mistake(
        "decoder-last-place",
        "the row of logits that comes out is not the last one",
        "it guesses a word that is there already",
        {"rows": lambda logits: logits[0]},
        {"rows": lambda logits: logits[max(-2, -len(logits))]},
        remedy="return logits[-1]",
        nudge="Which row of x knows about all the words?",
        where="the return statement",
    ),
)
