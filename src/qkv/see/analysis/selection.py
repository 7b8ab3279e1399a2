"""The choice of the head that a view shows first, and the reason for the choice."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from qkv._argument_errors import invalid, value_error
from qkv.see.analysis._interventions import Removal
from qkv.see.analysis.head_weights import Heads, Index, Indices
from qkv.see.analysis.measures import OF_POSITIONS, STANDS_OUT, Link, weights_from

ASKED = "it was requested"
_LEAST = 0.05  # Links with smaller weights are not compared.
_WEAK = 0.1  # If all links between content words are below this weight, other links may be shown.


class Notation(NamedTuple):
    """The notation of heads ("head 3.1"), shares ("14%") and differences of shares in a view."""

    head: str
    share: Callable[[float], str]
    points: Callable[[float], str]


def percent(share: float) -> str:
    """Write a probability or a weight as a percentage, in the format of the live page.

    >>> [percent(share) for share in (0.138, 0.0731, 0.0004, 0.0)]
    ['14%', '7.3%', 'under 0.1%', '0%']
    """
    part = 100 * share
    if 0 < part < 0.1:
        return "under 0.1%"
    return f"{part:.1f}%" if 0 < part < 9.95 else f"{part:.0f}%"


TERMINAL = Notation("layer {}, head {}", "{:.2f}".format, "{:.2f}".format)
PAGE = Notation("head {}.{}", percent, lambda share: f"{100 * share:.0f} percentage points")

Asked = tuple[Index, Index]  # The layer and the head that the caller chose.
Side = tuple[Heads, Sequence[int]]  # The heads of one text, and the positions of one word.
# A function that removes one head after another and returns the head with the largest effect on the
# guess at a gap. The function's arguments limit the search to a layer and a head.
Removing = Callable[[Index, Index], Removal | None]


@dataclass(frozen=True)
class ChosenHead:
    """The head to show, and the reason for the choice.

    Attributes:
        layer: the layer.
        head: the head.
        link: the head's strongest link; None if the head has no link. If the head was chosen for
            its effect on the guess at a gap, this is the link with the largest weight among the
            links whose query is the gap.
        reason: a clause that says why this head is shown; a sentence may follow the clause.
        stands_out: whether the head stands out from all others; None if the caller chose the head.
        headline: a sentence with further information about the head; may be empty.
    """

    layer: int
    head: int
    link: Link | None
    reason: str
    stands_out: bool | None = None
    headline: str = ""

    @property
    def where(self) -> str:
        """Name the head in words."""
        return f"layer {self.layer}, head {self.head}"


def rank_heads(
    seen: Heads, layers: Indices = None, queries: Indices = None, keys: Indices = None
) -> list[Link]:
    """Return the strongest link of each head, sorted by how far it exceeds the usual weight.

    A link joins two different content words, or the requested positions. The usual weight is the
    larger of two numbers: twice the head's average weight for words at the same distance, and the
    head's average weight on the same key from other words. Links that are not above the usual
    weight are sorted by weight. If one of a link's two averages is 0.4 or more, the link is sorted
    last. Ties go to the lowest layer, then the lowest head.
    """
    links = []
    for layer in seen.layers if layers is None else layers:
        best = zip(*seen.best_links(layer, queries, keys), strict=True)
        for head, (weight, query, key) in enumerate(best):
            if weight > 0:
                cell = int(query), int(key)
                usual = seen.usual(layer, head, *cell)
                links.append(Link(layer, head, *cell, float(weight), usual))
    return sorted(
        links, key=lambda link: (not link.of_positions, link.above, link.weight), reverse=True
    )


def other_heads(seen: Heads, links: list[Link], chosen: ChosenHead, one_link: bool) -> list[Link]:
    """Choose up to 5 links that stand out, in heads other than `chosen`.

    No two of the chosen links join the same two words, and none joins the two words of `chosen`. If
    `one_link` is true, the caller requested a single pair of words. Then each of `links` joins
    these two words, and each is in a different head. In this case, choose up to 8 links, even if
    they do not stand out.
    """
    pairs = {(chosen.link.query, chosen.link.key)} if chosen.link else set()
    others = []
    for link in links:
        pair, head = (link.query, link.key), (link.layer, link.head)
        counts = one_link or (link.stands_out and not seen.untrained and pair not in pairs)
        if counts and head != (chosen.layer, chosen.head):
            pairs.add(pair)
            others.append(link)
    return others[: 8 if one_link else 5]


def choose_head(
    seen: Heads,
    layer: Index = None,
    head: Index = None,
    *,
    queries: Indices = None,
    keys: Indices = None,
    removing: Removing | None = None,
    written: Notation = TERMINAL,
) -> tuple[ChosenHead, list[Link]]:
    """Choose the head to show first, by the rule that all views share.

    The function returns `(head, ranked links)`.

    For a text with a gap, choose the head whose removal changes the guess most; the function
    `removing` finds this head. Without a gap, or if positions were requested, choose the head whose
    strongest link is furthest above the usual weight. If this link exceeds the usual weight by less
    than 0.1, or the model is untrained, the headline says that no head stands out.

    `layer` and `head` restrict the choice to a layer or a head. `queries` and `keys` restrict the
    links to those that lead from these queries to these keys. If a requested head has no link
    between content words, its largest link to any word is shown.

    Raises:
        IndexError: `layer` or `head` is out of range; the message names the range.
    """
    layer, head = checked_head(seen, layer, head)
    links = rank_heads(seen, None, queries, keys)
    within = (link for link in links if layer in (None, link.layer) and head in (None, link.head))
    best = next(within, None)
    of_word = queries is not None or keys is not None
    if of_word and best is None:
        raise value_error(
            "no head attends from this query to this key: the key is masked, or its "
            "weight is 0 or was not kept"
        )
    if layer is not None and head is not None:
        if not of_word and (best is None or best.weight < _WEAK):
            best = _any_link(seen, layer, head) or best
        return ChosenHead(layer, head, best, ASKED), links
    nothing = _none(layer, head, seen.untrained)
    removal = None if of_word or removing is None else removing(layer, head)
    if removal is not None and removal.layer in seen.layers:
        return _at_gap(seen, removal, (layer, head), written), links
    if best is None:
        first = min(seen.layers) if layer is None else layer
        reason = (
            f"it is the first of {scope_of(seen, layer, head)}, and no content word attends to "
            "another in any of them"
        )
        headline = f"{nothing}: no content word attends to another."
        return ChosenHead(first, head or 0, None, reason, False, headline), links
    reason = _why(seen, best, scope_of(seen, layer, head), of_word)
    headline, stands_out = "", best.stands_out and not seen.untrained
    if not stands_out and not (queries and keys):
        query, key = seen.queries.name_of(best.query), seen.keys.name_of(best.key)
        least = f", less than {written.points(STANDS_OUT)} above the usual weight"
        below = "" if seen.untrained else least
        headline = (
            f"{nothing}: the strongest {'of these links' if of_word else 'content link'} is "
            f"{query} → {key}, {written.share(best.weight)} "
            f"({written.head.format(best.layer, best.head)}){below}."
        )
    return ChosenHead(best.layer, best.head, best, reason, stands_out, headline), links


def _none(layer: Index, head: Index, untrained: bool) -> str:
    """Say that no head of the requested layers and heads stands out."""
    which = "No head" if layer is None else f"No head of layer {layer}"
    none = f"{which} stands out" if head is None else f"Head {head} stands out in no layer"
    return f"{none} in this sentence" + untrained * ", because the model is untrained"


def _at_gap(seen: Heads, removal: Removal, indices: Asked, written: Notation) -> ChosenHead:
    """Describe the head that was found by removal, and its link from the gap."""
    nothing, head = _none(*indices, seen.untrained), indices[1]
    [query] = seen.queries.rows_of([removal.position])
    row = np.nan_to_num(seen.row(removal.layer, removal.head, query))
    key = int(row.argmax())
    usual = seen.usual(removal.layer, removal.head, query, key)
    link = Link(removal.layer, removal.head, query, key, float(row[key]), usual)
    where = written.head.format(removal.layer, removal.head)
    among = scope_of(seen, removal.layers[0] if len(removal.layers) == 1 else None, head)
    if 1 < len(removal.layers) < len(seen.layers):
        among = f"the heads of layers {span(removal.layers)}"
    moved = f"without it, {written.share(removal.moved)} of the probability goes to other words"
    gap, looked = seen.queries.name_of(query), seen.keys.name_of(key)
    reason = f"among {among}, removing this head changes the guess at {gap} most: {moved}"
    if removal.stands_out and not seen.untrained:
        beside = {-1: ", the word before it", 0: ", itself", 1: ", the word after it"}
        position = beside.get(key - query, "") if usual[0] >= OF_POSITIONS else ""
        headline = (
            f"Removing {where} changes the guess most: {removal.word}, "
            f"{written.share(removal.before)} → {written.share(removal.after)}. In that head, "
            f"{gap} attends most to {looked}{position}: {written.share(link.weight)}."
        )
        return ChosenHead(removal.layer, removal.head, link, reason, True, headline)
    below = "" if seen.untrained else f", below the threshold of {written.share(STANDS_OUT)}"
    headline = (
        f"{nothing}: the head whose removal changes the guess most is {where}; {moved}{below}."
    )
    return ChosenHead(removal.layer, removal.head, link, reason, False, headline)


def key_of(seen: Heads, layer: int, head: int, query: int) -> int:
    """Return the key of a query's largest link.

    If all links are below 0.1, return the key with the query's largest weight.
    """
    links = (link for link in rank_heads(seen, [layer], [query]) if link.head == head)
    best = next(links, None)
    if best is not None and best.weight >= _WEAK:
        return best.key
    return int(np.nan_to_num(seen.row(layer, head, query)).argmax())


def _any_link(seen: Heads, layer: int, head: int) -> Link | None:
    """Return the head's largest weight between a content word and any other word."""
    words, keys = (np.flatnonzero(axis.is_word).tolist() for axis in (seen.queries, seen.keys))
    links = [*rank_heads(seen, [layer], words), *rank_heads(seen, [layer], None, keys)]
    of_head = (link for link in links if link.head == head)
    return max(of_head, key=lambda link: link.weight, default=None)


def _why(seen: Heads, link: Link, among: str, of_word: bool) -> str:
    """Explain why the head of this link is shown."""
    query, key = seen.queries.name_of(link.query), seen.keys.name_of(link.key)
    at_distance, on_key = link.usual
    which = f"its weight from {query} to {key}" if of_word else "its link between two content words"
    usual = f"the average weight from other words to {key} is {on_key:.2f}"
    if seen.other_keys is None:
        usual = f"the average weight at this distance is {at_distance:.2f}, and {usual}"
    if link.stands_out and not seen.untrained:
        return (
            f"{which} stands out most among {among}: its weight is {link.weight:.2f}. In this "
            f"head, {usual}"
        )
    return (
        f"among {among}, {which} is furthest above the usual weight, although no link stands out. "
        f"In this head, {usual}"
    )


def scope_of(seen: Heads, layer: Index, head: Index) -> str:
    """Name the heads from which a view chose, for example "all heads of layer 3"."""
    if layer is not None:
        return f"all heads of layer {layer}"
    every = list(seen.layers) == list(range(max(seen.layers) + 1))
    layers = "all layers" if every else f"the traced layers ({', '.join(map(str, seen.layers))})"
    return f"{layers} and heads" if head is None else f"head {head} of {layers}"


def contrasting_head(a: Side, b: Side, layer: Index = None, head: Index = None) -> ChosenHead:
    """Choose the head in which the attention of a word differs most between two texts.

    The excess of a link is its weight minus the usual weight (see `rank_heads`), at least 0. For
    each link of a head, compute the absolute difference between the link's excess in one text and
    the link's excess in the other text. Half the sum of these numbers is the head's difference
    between the texts. If several heads have the largest difference, their weights are compared in
    the same way. Ties go to the lowest layer, then the lowest head.

    The chosen head stands out if, for at least one of its links, the excess over the usual weight
    differs by 0.1 or more between the two texts. No head of an untrained model stands out.

    Raises:
        IndexError: `layer` or `head` is out of range; the message names the range.
    """
    (heads_a, rows_a), (heads_b, rows_b) = a, b
    layer, head = checked_head(heads_b, layer, head)
    heads = heads_among(heads_a, layer, head)
    among = scope_of(heads_a, layer, head)
    trained = not (heads_a.untrained or heads_b.untrained)
    if None not in (layer, head):
        return ChosenHead(*heads[0], None, ASKED)
    pairs = {
        at: [(way(heads_a, *at, rows_a), way(heads_b, *at, rows_b)) for way in (_above, _looks)]
        for at in heads
    }
    chosen = max(pairs, key=lambda at: [_apart(*both) for both in pairs[at]])
    (one, other), both = pairs[chosen]
    link = max((abs(one.get(k, 0.0) - other.get(k, 0.0)) for k in {**one, **other}), default=0.0)
    stands_out = trained and link >= STANDS_OUT
    if stands_out:
        reason = (
            f"among {among}, the word's links in this head differ most between the two texts. For "
            "each link, only the weight above the head's usual weight for such links is compared"
        )
    else:
        reason = (
            f"among {among}, the word's weights in this head differ most between the two texts: "
            f"{_apart(*both):.2f} of the weight is on other words"
        )
    return ChosenHead(*chosen, None, reason, stands_out)


def _looks(heads: Heads, layer: int, head: int, rows: Sequence[int]) -> dict[str, float]:
    """Return a word's weight on each key name, summed over all keys with this name."""
    return _by_name(heads, enumerate(weights_from(heads, layer, head, rows).tolist()))


def _above(heads: Heads, layer: int, head: int, rows: Sequence[int]) -> dict[str, float]:
    """Like `_looks`, but return how far a word's links exceed their usual weights."""
    weights = weights_from(heads, layer, head, rows)
    query = rows[0]
    links = (
        Link(layer, head, query, key, float(weights[key]), heads.usual(layer, head, query, key))
        for key in heads.content_keys(query)
        if weights[key] > _LEAST
    )
    return _by_name(heads, ((link.key, link.above) for link in links))


def _by_name(heads: Heads, weights: Iterable[tuple[int, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for key, weight in weights:
        sums[heads.keys.tokens[key]] += weight
    return sums


def _apart(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Compute the total variation distance between two sets of weights, keyed by token name.

    >>> _apart({"a": 0.5, "b": 0.5}, {"b": 0.5, "c": 0.5})
    0.5
    """
    return sum(abs(a.get(name, 0.0) - b.get(name, 0.0)) for name in {**a, **b}) / 2


def changed_head(
    a: Heads, b: Heads, without: Collection[tuple[int, int]], layer: Index, head: Index
) -> ChosenHead:
    """Choose the head whose weights differ most between two runs of one text.

    The difference is half the sum of the absolute changes of a query's weights, averaged over the
    queries. Heads that are ablated in at least one run (`without`) are not chosen. Ties go to the
    lowest layer, then the lowest head.

    Raises:
        IndexError: `layer` or `head` is out of range; the message names the range.
    """
    layer, head = checked_head(b, layer, head)
    heads = heads_among(a, layer, head)
    moved = {at: -1.0 if at in without else _elsewhere(a, b, *at) for at in heads}
    chosen = max(moved, key=lambda at: moved[at])
    reason = (
        f"among {scope_of(a, layer, head)}, this head's weights differ most between the two runs: "
        f"{max(moved[chosen], 0.0):.2f} of the weight moves to other keys"
    )
    return ChosenHead(*chosen, None, reason if None in (layer, head) else ASKED)


def _elsewhere(a: Heads, b: Heads, layer: int, head: int) -> float:
    """Compute the share of a head's weight that moves to other keys, averaged over queries."""
    x, y = (
        np.stack([seen.row(layer, head, query) for query in range(len(a.queries.tokens))])
        for seen in (a, b)
    )
    share = np.abs(x - y.astype(np.float64)).sum(axis=1).mean() / 2
    return float(np.nan_to_num(share, nan=-1.0))  # NaN must not count as the largest share


def heads_among(heads: Heads, layer: Index, head: Index) -> list[tuple[int, int]]:
    """Check a layer and a head, and list the heads to choose from, sorted by layer."""
    layer, head = checked_head(heads, layer, head)
    layers = heads.layers if layer is None else [layer]
    return list(product(layers, range(heads.count) if head is None else [head]))


def checked_head(heads: Heads, layer: Index, head: Index) -> tuple[Index, Index]:
    """Check a layer and a head; return both counted from 0.

    -1 stands for the last layer, and for the last head.

    Raises:
        IndexError: the layer or the head is out of range.
        ValueError: the trace holds no weights.
    """
    numbers = layer, head
    if heads.layers:
        layer = None if layer is None else heads.from_start(layer, of="layer")
        head = None if head is None else heads.from_start(head, of="head")
    if not heads.layers:
        raise value_error("this trace holds no weights: trace hook_pattern too")
    if layer is not None and layer not in heads.layers:
        raise invalid(
            IndexError, f"there is no layer {numbers[0]}: the layers are {span(heads.layers)}"
        )
    known = range(heads.count)
    if head is not None and head not in known:
        raise invalid(IndexError, f"there is no head {numbers[1]}: the heads are {span(known)}")
    return layer, head


def span(numbers: Sequence[int]) -> str:
    """Write a list of integers as text, such as `0 to 5` or `2, 4`.

    >>> span([0, 1, 2]), span([2, 4]), span([0])
    ('0 to 2', '2, 4', '0 only')
    """
    if len(numbers) == 1:
        return f"{numbers[0]} only"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
