"""Tests of the attention head that `show` displays first for ordinary sentences.

For at least 23 of 24 sentences, this head must have a link of weight 0.1 or more between two
content words. The positions of these words must not explain the link: in shuffled sentences, the
mean weight at the same distance must be at most 0.4.
"""

import random
import re

import numpy as np
import pytest

from qkv.models import Model, load
from qkv.see import show
from qkv.see.analysis._words import content
from qkv.trace import Trace

# Both lists were written before the rule. The second list was used only after the rule was final.
FIRST = [
    "The dog chased the cat up the tree.",
    "She poured the milk into a tall glass and drank it slowly.",
    "My brother repairs old bicycles in the garage on weekends.",
    "The court found the company guilty of tax fraud.",
    "Rain fell all night and the streets were flooded by morning.",
    "He plays the violin in the city orchestra.",
    "Scientists discovered water under the surface of the moon.",
    "We missed the last train home because the bus was late.",
    "The baker sells fresh bread and cakes every morning.",
    "A small boat drifted across the lake while the children slept.",
    "The teacher asked the students to read the first chapter of the book.",
    "Prices rose sharply after the government raised the tax on fuel.",
    "The pilot landed the plane safely in heavy fog.",
    "Please close the window before you leave the room.",
    "The surgeon removed the tumor and stitched the wound.",
    "Birds build their nests in spring.",
    "The king's army crossed the mountains and attacked the town at dawn.",
    "I forgot my umbrella at the office, so I got wet on the way home.",
    "The spider spun a web between two branches.",
    "Her grandmother taught her how to knit a woolen scarf.",
    "The new phone has a better camera but its battery dies quickly.",
    "Farmers harvest wheat at the end of the summer.",
    "The player kicked the ball into the goal in the final minute of the match.",
    "Smoke rose from the chimney of the old farmhouse on the hill.",
]
SECOND = [
    "The lawyer questioned the witness for three hours.",
    "Snow covered the roofs of the village.",
    "They bought a used car from a dealer across the street.",
    "The chef chopped the onions and fried them in butter.",
    "Our flight to London was delayed by a storm.",
    "The museum keeps its oldest paintings in a dark room without windows.",
    "A nurse gave the patient an injection to ease the pain.",
    "The wolf howled at the moon.",
    "Most voters wanted lower taxes and better schools.",
    "The carpenter built a table from oak and polished it for days.",
    "When the music stopped, the dancers bowed to the audience.",
    "He wrote a long letter to his sister but never sent it.",
    "The river overflowed its banks and ruined the crops.",
    "Bees carry pollen from one flower to another.",
    "The old bridge could not bear the weight of the truck.",
    "I would rather drink tea than coffee.",
    "The soldiers marched through the desert without food or water.",
    "Her new novel is about a detective who solves a murder on an island.",
    "The judge sentenced the thief to two years in prison.",
    "Children were playing football in the park after school.",
    "The engine of the ship broke down in the middle of the ocean.",
    "Gold is heavier than silver.",
    "The company hired forty engineers to design a faster computer chip.",
    "After dinner we walked along the beach and watched the sun set behind the hills.",
]


@pytest.fixture(scope="module")
def books() -> Model:
    return load("books")


def by_word(trace: Trace, layer: int, head: int) -> tuple[list[str], np.ndarray]:
    """Return a text's words and punctuation marks, and one head's weights between them."""
    spans: list[list[int]] = []
    for position, token in enumerate(trace.tokens):
        if not trace.special[position]:
            spans[-1].append(position) if token.startswith("##") else spans.append([position])
    pattern = trace.pattern(layer, head).astype(np.float64)
    table = np.array([[pattern[np.ix_(a, b)].sum() / len(a) for b in spans] for a in spans])
    return ["".join(trace.tokens[i].removeprefix("##") for i in span) for span in spans], table


def opens_well(model: Model, text: str) -> bool:
    """Return True for a strong link that positions do not explain; also print the headline."""
    shuffled = []
    for seed in range(6):
        shuffled.append(re.findall(r"\w+", text))
        random.Random(seed).shuffle(shuffled[-1])
    traces = model.trace([text, *map(" ".join, shuffled)], names=["pattern"])
    view = show(traces[0])
    layer, head = view.head.layer, view.head.head
    words, table = by_word(traces[0], layer, head)
    flags, _ = content(words, [False] * len(words))
    joined = flags[:, None] & flags & np.array([[a != b for b in words] for a in words])
    i, j = np.unravel_index(np.where(joined, table, 0).argmax(), table.shape)
    usual = np.mean(
        [np.diagonal(by_word(traces[k], layer, head)[1], j - i).mean() for k in range(1, 7)]
    )
    print(f"{view.sentence:55} strongest {table[i, j]:.2f}, usual {usual:.2f}: {text}")
    return bool(table[i, j] >= 0.1 and usual <= 0.4)


@pytest.mark.parametrize("sentences", [FIRST, SECOND], ids=["first", "second"])
def test_a_view_opens_on_links_unexplained_by_position(sentences: list[str], books: Model) -> None:
    assert len(sentences) == 24
    assert sum(opens_well(books, text) for text in sentences) >= 23


def test_the_same_text_opens_alike_from_a_trace_and_from_arrays(books: Model) -> None:
    trace = books.trace(FIRST[0])
    headline = show(FIRST[0], model=books).sentence
    assert show(trace).sentence == headline
    assert show(trace.attentions, tokens=trace.tokens).sentence == headline
