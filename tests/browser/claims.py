"""Each kind of claim that the live page makes, with the test that decides whether it is true.

`CLAIMS` maps a CSS selector to the texts that its elements may have. A text has a decider, which
compares the text with the library in float64, or the name of a test that decides all texts of the
selector. `check` reads everything that the page shows: a text without an entry is an error.
"""

import json
import random
import re
import traceback
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from playwright.sync_api import Page

import qkv
from qkv.models import Model
from qkv.see.views.play import MAX_TOKENS
from qkv.text import Tokenized
from qkv.text.tokenized import plain_tokens
from qkv.trace import Trace

from .engine import shares
from .outcome import is_percent

NEAR = 2e-5  # the page computes in float32
MAX_HEADS = 50  # of a map: of a larger map, only so many heads are decided
SURE = 0.1  # the page is "not sure" of a guess with a lower probability
DATA = Path(qkv.__file__).parent / "data"
Decide = Callable[..., None]


@dataclass
class Seen:
    """The page's state, and the library's numbers for it.

    Attributes:
        model: the model of the open side of the page, in float64.
        state: the state in the address of the page.
    """

    model: Model
    state: dict[str, Any]

    @property
    def edits(self) -> list[dict[str, Any]]:
        return self.state["edits"]

    @cached_property
    def read(self) -> Tokenized:
        return self.model.tokenize(self.state["text"])

    def cut(self, tokens: Sequence[Any]) -> list[Any]:
        """Return the tokens that the model reads of a long text."""
        most = min(self.model.max_seq_length, MAX_TOKENS)
        if len(tokens) <= most:
            return list(tokens)
        last = sum(self.read.special[-1:])  # whether the tokenizer adds a token at the end
        return [*tokens[: most - last], *tokens[len(tokens) - last :]]

    @cached_property
    def ids(self) -> list[int]:
        return self.cut([int(id) for id in self.read.ids])

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens that the model reads after the edits, in readable form."""
        plain = self.cut(plain_tokens(self.read.tokens, list(self.read.special)))
        names = [
            re.sub("^ +| +$", lambda blanks: "\u2423" * len(blanks[0]), name) for name in plain
        ]
        for edit in self.edits:
            if edit["op"] == "swap":
                names[edit["token"]] = edit["with"].strip("\u0120\u2581")
        return names

    def trace(self, *more: dict[str, Any], plain: bool = False) -> Trace:
        """Run the text with the page's edits (or, if `plain`, without them) and with `more`."""
        edits = [*([] if plain else self.edits), *more]
        return _traced(self.model, tuple(self.ids), json.dumps(edits))

    def shares(self, *more: dict[str, Any], plain: bool = False) -> np.ndarray:
        """Return the probabilities at the position of the guess."""
        logits = self.trace(*more, plain=plain)["logits"][0]
        return shares(logits[[self.state["position"]]])[0]

    def patterns(self, **which: Any) -> np.ndarray:
        trace = self.trace(**which)
        return np.array([trace["pattern", layer][0] for layer in range(self.model.num_layers)])

    @property
    def gaps(self) -> list[int]:
        """The positions of gaps."""
        return [t for t, name in enumerate(self.tokens) if name == self.model.mask]

    @property
    def at_gap(self) -> bool:
        return not self.model.generates and self.state["position"] in self.gaps

    @property
    def heads(self) -> int:
        return self.model.num_layers * self.model.num_heads

    def row(self, query: int) -> np.ndarray:
        return self.patterns()[self.state["layer"], self.state["head"], query]


@lru_cache(maxsize=64)  # a trace of every activation is large
def _traced(model: Model, ids: tuple[int, ...], edits: str) -> Trace:
    return model.trace(list(ids), logits=True, edit=json.loads(edits))


@cache
def names_of(model: Model) -> np.ndarray:
    """Return the vocabulary as the page writes predicted words."""

    def name(id: int) -> str:
        if not model.generates:
            return model.tokenizer.token(id)
        text = model.decode([id])
        if "\ufffd" in text:
            return "part of a character"
        if id in model.eos_ids:
            return "end of text"
        if text and not text.strip("\n"):
            return "new line"
        text = (text.strip(" ") or "\u2423" * len(text)).replace("\n", "\u23ce")
        return "".join(map(mark, text.replace("\t", "\u21e5")))

    def mark(letter: str) -> str:
        unseen = unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp", "Cs")
        return f"\u27e8{ord(letter):x}\u27e9" if unseen else letter

    return np.array([name(id) for id in range(len(model.tokenizer.vocabulary))], object)


# ---- deciders


def is_share(shown: str, value: float) -> bool:
    return is_percent(shown, value, NEAR)


def has_share(seen: Seen, word: str, share: str, probabilities: np.ndarray) -> None:
    ids = np.flatnonzero(names_of(seen.model) == word)
    assert any(is_share(share, probabilities[id]) for id in ids), (word, share)


def is_first(seen: Seen, word: str, share: str, probabilities: np.ndarray) -> None:
    has_share(seen, word, share, probabilities)
    best = names_of(seen.model)[probabilities >= probabilities.max() - NEAR]
    assert word in best, (word, best)


def sure(seen: Seen, says: bool) -> None:
    assert says == (seen.shares().max() >= SURE - 5e-4) or abs(seen.shares().max() - 0.0995) < NEAR


def place(seen: Seen, where: str | None) -> None:
    """Decide the words for the position of the guess."""
    number = re.fullmatch(r" at gap (\d+)", where or "")
    if number:
        assert seen.gaps.index(seen.state["position"]) == int(number[1]) - 1
    elif where:
        assert where.startswith(" after ") == seen.model.generates
        assert not seen.at_gap
    elif not seen.edits:
        assert seen.at_gap
        assert len(seen.gaps) == 1


PHRASES = {
    "hide": "without ",
    "ablate": "without (?:the heads of layer|head) ",
    "swap": " (?:in place of|masked)",
    "causal": "later words hidden",
    "mask": "hidden",
    "scale": "temperature|scores times",
    "row": "your weights",
}


def cause(seen: Seen, text: str) -> None:
    """Decide the words for the reader's changes."""
    told = text.lower()
    if short := re.search("with (this change|these changes)", told):
        assert (len(seen.edits) > 1) == (short[1] == "these changes")
        return
    for edit in seen.edits:
        assert re.search(PHRASES.get(edit["op"], " at |with "), told), (edit, text)
    heads = {f"{e['layer']}.{e['head']}" for e in seen.edits if e["op"] == "ablate" and "head" in e}
    assert set(re.findall(r"without head (\d+\.\d+)", told)) == heads
    hidden = sum(e["op"] == "hide" for e in seen.edits)
    assert hidden or re.search("without (?!head |the heads)", told) is None


def best_guess(seen: Seen, how: str, where: str | None, word: str, share: str) -> None:
    assert not seen.edits
    is_first(seen, word, share, seen.shares())
    sure(seen, how == "Best guess")
    place(seen, where)


def no_change(seen: Seen, why: str, where: str | None, least: str) -> None:
    cause(seen, why)
    place(seen, where)
    far = np.abs(seen.shares() - seen.shares(plain=True)).max()
    assert far <= (NEAR if least == "every" else 1e-3 + NEAR)


def says(seen: Seen, unsure: str | None, why: str, word: str, share: str, **more: Any) -> None:
    """Decide the guess after the changes, and before them if it was another, or less or more."""
    cause(seen, why)
    place(seen, more["where"])
    sure(seen, not unsure)
    is_first(seen, word, share, seen.shares())
    is_first(seen, more.get("was", word), more["before"] or share, seen.shares(plain=True))
    assert word != more.get("was")


def nowhere(seen: Seen) -> None:
    assert seen.state["position"] is None


def guessed(seen: Seen, word: str, unsure: str | None, share: str) -> None:
    is_first(seen, word, share, seen.shares())
    guess_share(seen, unsure, share)


def guess_share(seen: Seen, unsure: str | None, share: str) -> None:
    best = seen.shares().max()
    assert is_share(share, best)
    assert bool(unsure) == (best < SURE) or abs(best - SURE) < NEAR


def looks_most(seen: Seen, who: str, list: str, where: str, off: str | None) -> None:
    query = line_begin(seen, who, where)
    row = seen.patterns()[:, :, query].mean((0, 1))
    named = named_in(list)
    least = 1.0
    for name, share in named:
        near = weights_near(seen, row, name, share)
        assert near, (name, share)
        least = min(least, *near)
    end = query + 1  # of the word at the query
    while seen.tokens[end : end + 1] and seen.tokens[end].startswith("##"):
        end += 1
    left_out = {*range(query, end), *seen.gaps, *np.flatnonzero(seen.read.special)}
    for t in {*range(len(row))} - left_out:
        text = own_text(seen, t)
        if re.search(r"[^\W_]", text) and not any(text in name for name, _ in named):
            assert row[t] <= least + NEAR, text
    for name in re.split(", ", (off or "").removeprefix("; hidden: ")):
        assert not name or any(e["op"] == "hide" for e in seen.edits)


def named_in(said: str) -> list[tuple[str, str]]:
    """Split a list of words with their weights."""
    return re.findall(r"(?:^|, )(.+?) (under 0\.1%|[\d.]+%)", said)


def weights_near(seen: Seen, row: np.ndarray, name: str, share: str) -> list[float]:
    """Return the weights of the words of this name that the page may write as this share."""
    text, offsets = seen.state["text"], seen.read.offsets
    return [
        row[first : last + 1].sum()
        for first in range(len(row))
        for last in range(first, min(first + 12, len(row)))
        if sum(seen.read.special[first : last + 1]) == 0
        and _same(name, "".join(seen.tokens[first : last + 1]), text, offsets, first, last)
        and is_share(share, row[first : last + 1].sum())
    ]


def own_text(seen: Seen, token: int) -> str:
    """Return the text of a token: the reader's, or the word that the reader put in its place."""
    if any(edit["op"] == "swap" and edit["token"] == token for edit in seen.edits):
        return seen.tokens[token].removeprefix("##")
    return seen.state["text"][slice(*seen.read.offsets[token])].strip()


def _same(name: str, joined: str, text: str, offsets: Any, first: int, last: int) -> bool:
    """Return whether tokens are the word that the page names."""
    own = text[offsets[first][0] : offsets[last][1]].strip()
    if name == "the gap":
        return own in ("_", "[MASK]") and first == last
    return name == own or name.lower() == joined.replace("##", "").lower()


def line_begin(seen: Seen, who: str, where: str) -> int:
    """Decide the name of the query and the heads of the lines; return the query's position."""
    heads = re.fullmatch(r"averaged over all (\d+) heads", where)
    assert heads
    assert int(heads[1]) == seen.heads
    assert who == (
        "the last word" if seen.model.generates else "the gap" if seen.at_gap else "the word"
    )
    position: int = seen.state["position"]
    return position


def legend(seen: Seen, who: str, where: str, sink: str | None = None) -> None:
    position = line_begin(seen, who, where)
    if not seen.model.generates:
        assert not sink
        return
    row = seen.patterns()[:, :, position].mean((0, 1))
    before = [len(seen.state["text"][:stop].split()) for _, stop in seen.read.offsets][: len(row)]
    words = [t for t, name in enumerate(seen.tokens) if re.search(r"[^\W_]", name)]
    own = [t for t in words if before[t] <= 1]  # one word of the page, or several
    others = [row[[u for u in words if before[u] == before[t]]].sum() for t in {*words} - {*own}]
    if sink:
        assert row[own].sum() >= max((row[t] for t in words if t not in own), default=0) - NEAR
    elif own[:1] == [0] and len(own) == 1:
        assert row[0] <= max(others, default=0) + NEAR


def no_lines(seen: Seen, off: str | None = None) -> None:
    position = seen.state["position"]
    if seen.state["view"] != "story" and position is not None:
        row = seen.patterns()[:, :, position].mean((0, 1))
        words = [t for t, name in enumerate(seen.tokens) if re.search(r"[^\W_]", name)]
        others = set(words) - {position, *seen.gaps} - set(np.flatnonzero(seen.read.special))
        assert len(others) < 3 or max(row[[*others]]) <= NEAR


def word_row(seen: Seen, word: str, **more: Any) -> None:
    """Decide a row of the table of words."""
    has_share(seen, word, more["now"], seen.shares())
    if more["before"]:
        has_share(seen, word, more["before"], seen.shares(plain=True))
    assert bool(more["before"]) == bool(seen.edits)
    if more["mark"]:
        four = [
            set(names_of(seen.model)[np.argsort(-seen.shares(plain=plain), kind="stable")[:4]])
            for plain in (more["mark"] == "lost", more["mark"] != "lost")
        ]
        assert word in four[0]
        assert word not in four[1] or (names_of(seen.model) == word).sum() > 1


def words_title(seen: Seen, kind: str, where: str) -> None:
    assert (kind == "What follows") == seen.model.generates
    assert seen.at_gap == where.startswith(("the gap", "gap"))


def added(seen: Seen, first: str, last: str | None) -> None:
    """Decide the names of the tokens that the tokenizer adds."""
    assert (seen.tokens[0], seen.read.special[0]) == (first, True)
    assert last is None or (seen.tokens[-1], seen.read.special[-1]) == (last, True)


def tokens_counted(seen: Seen, tokens: str, size: str) -> None:
    assert int(tokens) == len(seen.ids)
    assert size == f"{seen.model.dim:,}"


def names(seen: Seen, here: str) -> None:
    """Decide the name of the token that the story follows."""
    assert any(_alike(seen, name, here) for name in seen.tokens)


def best_match(seen: Seen, top: str | None) -> None:
    """Decide the key with the highest score of a query of the open head."""
    scores = seen.trace()["attn_scores", seen.state["layer"]][0, seen.state["head"]]
    near = scores >= scores.max(-1, keepdims=True) - 1e-3
    assert top is None or any(
        _alike(seen, seen.tokens[key], top) for key in np.argwhere(near)[:, 1]
    )


def story_lines(seen: Seen, who: str, list: str, layer: str, head: str) -> None:
    """Decide the lines of one query in one head."""
    rows = [q for q, name in enumerate(seen.tokens) if _alike(seen, name, who)]
    pattern = seen.patterns()[int(layer), int(head)]
    assert any(all(weights_near(seen, pattern[q], *one) for one in named_in(list)) for q in rows)


@cache
def roles_of(model: Model) -> dict[str, list[Any]]:
    file = DATA / model.name / "roles.json"
    if file.exists():
        return json.loads(file.read_bytes())
    return json.loads((DATA.parent / "see" / "page" / "roles.json").read_bytes())[model.name]


POSITIONS = {
    "previous": "word before",
    "next": "word after",
    "same": "same word",
    "first": "start of the text",
    "last": "end of the text",
    "induction": "word after an earlier occurrence of the same word",
}
KINDS = {
    "possessive": "my, his, her",
    "article": "a, an, the",
    "preposition": "in, on, of",
    "auxiliary": "is, has, will",
}


def usually(role: str) -> str:
    if role in POSITIONS:
        return f"usually attends to the {POSITIONS[role]}"
    hidden = role.startswith("hidden ")
    one, other = (
        KINDS.get(kind, f"the {kind}") for kind in role.removeprefix("hidden ").split(" to ")
    )
    if hidden:
        return f"a gap in place of {one} usually attends to {other}"
    return f"{one} usually attend{'s' * one.startswith('the ')} to {other}"


def heads_counted(seen: Seen, head: str, heads: str) -> None:
    assert head == f"{seen.state['layer']}.{seen.state['head']}"
    assert int(heads) == seen.heads


def in_legend(seen: Seen, said: str, number: str) -> None:
    """Decide a line below the map: how many heads have this role."""
    roles = [usually(role) for role, _ in roles_of(seen.model).values()]
    own = seen.heads - len(roles) if said == "mixed" else roles.count(said)
    assert own == int(number)


def closest(seen: Seen, vocabulary: str, word: str, share: str) -> None:
    assert vocabulary == f"{len(seen.model.embedding.table):,}"
    is_first(seen, word, share, seen.shares())


def moved(seen: Seen, layer: int, head: int) -> float:
    """Return the share of a head's weight that the changes moved away from its keys."""
    lost = (seen.patterns(plain=True) - seen.patterns())[layer, head]
    return float(np.maximum(lost, 0).sum(-1).mean())


def in_head(seen: Seen, layer: str, head: str, **more: Any) -> None:
    """Decide a head of the map: its role, and the effect of its removal or of the changes."""
    at = int(layer), int(head)
    known, role = roles_of(seen.model).get(f"{layer}.{head}"), more["role"]
    if role:
        assert role == (usually(known[0]) if known else "mixed")
    if known and role:
        assert seen.gaps or not known[0].startswith("hidden ")
    off = any(e["op"] == "ablate" and (e["layer"], e.get("head", at[1])) == at for e in seen.edits)
    assert bool(more["removed"]) == off
    if more["moved"]:
        before = seen.shares()
        after = seen.shares({"op": "ablate", "layer": at[0], "head": at[1]})
        assert is_share(more["moved"], np.abs(after - before).sum() / 2)
        is_first(seen, more["word"], more["from_"], before)
        has_share(seen, more["word"], more["to"], after)
    if more["differ"]:
        assert is_share(more["differ"], moved(seen, *at))


def why_head(seen: Seen, before: str | None, layer: str, head: str, **more: Any) -> None:
    """Decide the reason for the open head of a text with a gap: it changes the guess most."""
    assert bool(before) == bool(seen.edits)
    at = int(layer), int(head)
    gap = next(t for t, name in enumerate(seen.read.tokens) if name == seen.model.mask)
    plain = Seen(seen.model, seen.state | {"edits": [], "position": gap})
    moved = {
        (i, j): np.abs(plain.shares({"op": "ablate", "layer": i, "head": j}) - plain.shares()).sum()
        for i in range(seen.model.num_layers)
        for j in range(seen.model.num_heads)
    }
    assert moved[at] >= max(moved.values()) - NEAR
    if more.get("word"):
        is_first(plain, more["word"], more["from_"], plain.shares())
        removed = plain.shares({"op": "ablate", "layer": at[0], "head": at[1]})
        has_share(plain, more["word"], more["to"], removed)
        row = plain.patterns()[(*at, gap)]
        assert any(
            is_share(more["most"], row[a:b].sum())
            for a in range(len(row))
            for b in range(a, len(row) + 1)
        )


def looks_at(seen: Seen, said: str) -> None:
    """Decide the sentences about rows of a head: the largest weight of each, and its key."""
    for row in re.finditer(ROW, said):
        weights = seen.patterns()[int(row["layer"]), int(row["head"])]
        rows = [q for q, name in enumerate(seen.tokens) if _alike(seen, name, row["query"])]
        assert rows, row["query"]
        if row["key"] is None:
            assert any(weights[q].max() == 0 for q in rows)
            continue
        assert any(
            is_share(row["share"], weights[q].max())
            and any(
                k == q if row["key"] == "itself" else _alike(seen, seen.tokens[k], row["key"])
                for k in np.flatnonzero(weights[q] >= weights[q].max() - NEAR)
            )
            for q in rows
        ), (row[0], [weights[q].max() for q in rows])


def _alike(seen: Seen, name: str, shown: str) -> bool:
    shown = re.sub(r" \(\d+\)$", "", shown)  # the position of one of several equal tokens
    return shown == name or (
        name == seen.model.mask and shown.lower().startswith(("the gap", "gap"))
    )


def bits(seen: Seen, temperature: str, before: str | None, now: str | None) -> None:
    """Decide the temperature of attention and, if there is a text, the entropy of the chosen row."""
    scale = [edit["value"] for edit in seen.edits if edit["op"] == "scale"]
    usual = 1 / np.sqrt(seen.model.dim / seen.model.num_heads)
    assert abs(float(temperature) - (usual / scale[-1] if scale else 1)) < 0.006
    assert (now is None) == (not seen.tokens)
    if now is None:
        return
    query = seen.state["query"] or 0
    for shown, plain in ((before, True), (now, False)):
        row = seen.patterns(plain=plain)[seen.state["layer"], seen.state["head"], query]
        entropy = -(row[row > 0] * np.log2(row[row > 0])).sum()
        assert shown is None or abs(float(shown.replace("\u2212", "-")) - entropy) < 0.0051


def badge(seen: Seen, name: str, layers: str, heads: str) -> None:
    own = (seen.model.name, seen.model.num_layers, seen.model.num_heads)
    assert (name, int(layers), int(heads)) == own


def no_changes(seen: Seen) -> None:
    assert not seen.edits


def changes(seen: Seen) -> None:
    assert seen.edits


def story_reason(seen: Seen, said: str) -> None:
    kept = json.loads((DATA / seen.model.name / "stories.json").read_bytes())["stories"]
    [story] = [one for one in kept if one["reason"] == said]
    text = seen.state["text"].replace("_", seen.model.mask or "")
    assert text == story["sentence"]
    ops = {edit["op"] for edit in seen.edits}
    assert ops == {"ablate"} if story["ablate"] else ops == {"hide"}


def change(seen: Seen, said: str) -> None:
    """Decide an entry of the list of changes: an edit of this kind exists."""
    kinds = {
        "hidden": {"hide", "mask", "causal"},
        "\u2192": {"swap"},
        "removed": {"ablate"},
        "temperature": {"scale"},
        "scores times": {"scale"},
        "set": {"row", "set"},
        "sees": {"mask"},
        "as in": {"patch"},
        "steered": {"add"},
        "plus": {"add"},
    }
    ops = {edit["op"] for edit in seen.edits}
    assert any(ops & kinds[word] for word in kinds if word in said), said


def unknown(seen: Seen, said: str) -> None:
    assert any(re.fullmatch(r"[\[<]unk[\]>]", name, re.IGNORECASE) for name in seen.tokens), said


def too_long(seen: Seen, tokens: str) -> None:
    assert int(tokens) == len(seen.ids) == min(seen.model.max_seq_length, MAX_TOKENS)


def no_gap(seen: Seen) -> None:
    assert not seen.model.generates
    assert not seen.gaps


def elsewhere(seen: Seen) -> None:
    assert seen.gaps
    assert not seen.at_gap


def changed_heads(seen: Seen, head: str, share: str) -> None:
    assert is_share(share, moved(seen, *map(int, head.split("."))))


def no_head_changed(seen: Seen) -> None:
    for layer in range(seen.model.num_layers):
        for head in range(seen.model.num_heads):
            assert moved(seen, layer, head) < 1e-3


def cosines(seen: Seen, said: str) -> None:
    """Decide the chart of a vector's similarity to the original, after each layer."""
    names_ = ["full_embed"] + [
        ("resid_post" if seen.model.generates else "normalized_resid_post", layer)
        for layer in range(seen.model.num_layers)
    ]
    for name, shown in zip(names_, re.findall(r" (\u2212?[\d.]+)(?:,|$)", said), strict=True):
        a, b = (seen.trace(plain=p)[name][0, seen.state["position"]] for p in (False, True))
        value = a @ b / np.sqrt((a @ a) * (b @ b))
        assert abs(float(shown.replace("\u2212", "-")) - value) < 6e-4


def broken(seen: Seen, off: str, word: str, was: str | None = None) -> None:
    """Decide the result of the game of removed heads."""
    heads = [e for e in seen.edits if e["op"] == "ablate" and "head" in e]
    kept = Seen(seen.model, seen.state | {"edits": [e for e in seen.edits if e not in heads]})
    assert int(off or 0) == len(heads)
    best, before = (names_of(seen.model)[x.shares().argmax()] for x in (seen, kept))
    if was:
        assert (best, before) == (word, was)
        assert word != was
    else:
        assert best == before == word


def one_head(seen: Seen, number: str | None = None) -> None:
    """Decide what the page says of its own search: whether one head is enough."""
    others = [e for e in seen.edits if not (e["op"] == "ablate" and "head" in e)]
    kept = Seen(seen.model, seen.state | {"edits": others})
    before = kept.shares().argmax()
    enough = any(
        kept.shares({"op": "ablate", "layer": layer, "head": head}).argmax() != before
        for layer in range(seen.model.num_layers)
        for head in range(seen.model.num_heads)
    )
    assert enough == (number is None)


def beat_first(seen: Seen, word: str, share: str) -> None:
    game = json.loads((DATA / "books" / "game.json").read_bytes())["sentences"]
    options = [seen.model.predict(text, 1)[0][0] for text, _ in game]
    assert any(word == own and is_share(share, p) for own, p in options)


def drawn(seen: Seen, word: str, share: str, temperature: str, own: str) -> None:
    has_share(seen, word, share, seen.shares())
    p = np.sort(seen.shares())[::-1][:40]
    heat = float(temperature)
    weights = p ** (1 / heat) if heat else (p == p.max()).astype(float)
    mine = seen.shares()[names_of(seen.model) == word]
    expected = (mine ** (1 / heat) if heat else (mine == p[0]).astype(float)) / weights.sum()
    assert any(is_share(own, value) for value in expected)


def always(seen: Seen, **more: Any) -> None:
    """Decide a text that is true of every sentence."""


def encoder(seen: Seen) -> None:
    assert not seen.model.generates


def decoder(seen: Seen) -> None:
    assert seen.model.generates


# ---- the list


def p(name: str = "share") -> str:
    return rf"(?P<{name}>under 0\.1%|\d+(?:\.\d)?%)"


WORD, WHERE = "(?P<word>.+?)", r"(?P<where> (?:after|at) .+?)?"
UNSURE = "(?P<unsure>Not sure )?"
FOR_GUESS = {
    rf"(?P<how>Best guess|Not sure){WHERE}: (?:the best guess is )?{WORD}, {p()}\.": best_guess,
    rf"(?P<why>.+?) (?P<least>every) probability stays the same{WHERE}\.": no_change,
    rf"(?P<why>.+?) (?P<least>no) probability moves by as much as 0\.1%{WHERE}\.": no_change,
    rf"{UNSURE}(?P<why>.+?):? it still says {WORD} \({p()}(?:, {p('before')} before)?\){WHERE}\.": says,
    rf"{UNSURE}(?P<why>.+?):? it says {WORD} \({p()}\) instead of (?P<was>.+?) \({p('before')}\){WHERE}\.": says,
    "There is no word yet: write a sentence.": nowhere,
}
OVER = r"(?P<where>averaged over all \d+ heads)"
HEAD = r"head (?P<layer>\d+)\.(?P<head>\d+)"
ROLE = (
    r"(?:, (?P<role>mixed|[^;%]*? usually attends? to [^;%]*?|usually attends to [^;%]*?))?"
    rf"(?:, removing it moves {p('moved')} of the probability; {WORD} {p('from_')} → {p('to')})?"
    rf"(?:, its weights differ by {p('differ')})?(?P<removed>, removed)?(?P<changed>, changed)?"
)
ROW = (
    r"(?P<query>[^ ].*?) attends to (?:none of the tokens shown|(?P<key>.+?):"
    rf" {p()}) \({HEAD}\)\."
)
UNNAMED_ROW = re.sub(r"\?P<\w+>", "?:", ROW) + " ?"
FIRST_BEFORE = "(?P<before>Before your changes: )?"
TYPED = r"A gap is a word that the model guesses\. Type it as ___, _ or \[MASK\], or as \? between words\."
ADDED = r"The tokenizer adds (?P<first>\S+) at the start(?: and (?P<last>\S+) at the end)? of every text\."
SINK = r"Many heads with nothing to add attend to the first word\."
OWN = ":not(.dare *, .story *)"  # these sentences show other states, or other heads
CLAIMS: dict[str, dict[str, Decide | str] | str] = {
    # the guess
    ".outcome-headline": FOR_GUESS,
    f".gap{OWN}@aria-label": {rf"the model's guess: {WORD}, (?P<unsure>not sure, )?{p()}": guessed},
    f".gap{OWN} small": {rf"(?P<unsure>not sure, )?{p()}": guess_share},
    ".gap .guess": "test_play_front.py::test_one_press_changes_the_guess_and_the_lines",
    # the lines above the sentence
    f".arcs{OWN}@aria-label": {
        rf"(?P<who>the gap|the last word|the word) attends most to (?P<list>.+), {OVER}(?P<off>; hidden: .+)?": looks_most,
        "(?:no lines|(?P<off>hidden: .+))": no_lines,
    },
    f".legend{OWN}": {
        "": no_lines,
        rf"A thicker line: more attention from (?P<who>.+), {OVER}\.(?P<sink> {SINK})?": legend,
    },
    ".big .w, .big .words": "test_play_front.py::test_one_press_changes_the_guess_and_the_lines",
    # the first screen
    ".front .read": "test_play_front.py::test_the_first_screen_says_what_the_model_has_read",
    ".typed .note": {TYPED: encoder},
    ":not([data-part=second]) > .unread .note": {
        rf"(?:{TYPED} )?{ADDED}": added,
        TYPED: encoder,
        "There is no gap: type ___ where the model should guess.": no_gap,
        r"The text is too long: the model reads only its first (?P<tokens>\d+) tokens\.(?: The gap is beyond .+)?": too_long,
        "(?P<said>The model does not know .+)": unknown,
    },
    ".drawn li": {rf"{WORD}{p()}drawn at (?P<temperature>[\d.]+): {p('own')}": drawn},
    ".share": "test_play_share.py::test_the_card_has_a_true_headline_for_each_kind_of_change",
    ".dare, .verdict": "test_play_share.py::test_a_dare_asks_first_and_then_answers",
    # the story
    ".story .say": {"There is no guess to explain: write a sentence first.": nowhere},
    ".story .telling": {
        r"The model cuts your sentence into (?P<tokens>\d+) tokens, and turns each into (?P<size>[\d,]+) numbers\. Press a word to follow it\.": tokens_counted,
        r"(?P<here>.+) has a query: what it seeks\. Each visible token has a key: what it offers\. Drag the query\.": names,
        r"Multiply matching numbers of query and key; the sum is the score\.(?: Watch (?P<top>.+), the best match\.)?": best_match,
        r"Softmax turns scores into weights, which sum to 100%\. Hide a word, and the other words get its weight\.": always,
        r"Each token also has a value\. The values, each multiplied by its weight, sum to the head's output\.": always,
        r"This is head (?P<head>\d+\.\d+), one of (?P<heads>\d+)\. Move the slider, and watch what each head attends to\.": heads_counted,
        r"In each layer, heads and an MLP add to the vector\. Move the slider to see the guess so far\.": always,
        rf"The last vector is compared with the vocabulary's (?P<vocabulary>[\d,]+) tokens\. Best match: {WORD}, {p()}\. Press a word to hide it\.": closest,
    },
    ".story .arcs@aria-label": {
        r"(?P<who>.+) attends most to (?P<list>.+), in head (?P<layer>\d+)\.(?P<head>\d+)(?:; hidden: .+)?": story_lines,
        "no lines|hidden: .+": always,
        rf"(?P<who>the gap|the last word|the word) attends most to (?P<list>.+), {OVER}(?P<off>; hidden: .+)?": looks_most,
    },
    ".story .gap": "test_play_story.py::test_the_slider_shows_the_guess_after_each_layer",
    ".picture": "test_play_story.py::test_each_step_shows_the_librarys_numbers",
    # the games
    ".break .say": {
        f"The model says {WORD}\\. Press a head to turn it off\\.": lambda seen, word: broken(
            seen, "", word
        ),
        rf"(?P<off>\d+) heads? off\. It still says {WORD}\.": broken,
        rf"Broken! (?P<off>\d+) heads? off: (?P<was>.+) has become {WORD}\.": broken,
        "Write a sentence with a gap first.": no_gap,
        "The guess is at another word: choose the gap in the lab first.": elsewhere,
        "Start a sentence first.": lambda seen: (decoder(seen), nowhere(seen)),
    },
    ".break > .note": {
        "The page is searching for its own answer …|": always,
        "The page has found an answer with one head.": one_head,
        r"The page has found an answer with (?P<number>\d+) heads\. Can you do it with fewer\?": one_head,
        r"The page has not found an answer with (?P<number>\d+) heads\.": one_head,
    },
    ".beat": "test_play_games.py::test_beat_the_model_counts_the_authors_words_for_both_over_equal_rounds",
    ".watch": "test_play_games.py::test_the_distance_inside_a_sense_is_shown_beside_the_distance_between_senses",
    # the lab
    ".badge": {
        r"(?P<name>.+) · (?P<layers>\d+) layers × (?P<heads>\d+) heads · computes on this page, offline": badge
    },
    ".cards": "test_play_cards.py::test_each_card_leads_the_page_and_tells_right_from_wrong",
    ".chips": "test_play_text.py::test_text_chip_and_button_agree_after_a_swap",
    ".acting .which": "test_play_page.py::test_words_are_hidden_masked_swapped_and_put_back",
    ".take": "test_play_text.py::test_the_page_says_that_a_file_address_works_only_locally",
    "[data-part=changes] .why": {
        "No changes yet. Your changes appear here; click one to undo it.": no_changes,
        "": changes,
        "(?P<said>.+)": story_reason,
    },
    ".changed button": {"Clear all": always, "(?P<said>.+)": change},
    # the temperature of attention, and the temperature at which a decoder draws words
    ".heat output:not([data-part=writing] *)": {
        r"(?P<temperature>[\d.]+)(?: the chosen row's entropy: (?:(?P<before>[\d.e−]+) → )?(?P<now>[\d.e−]+) bits)?": bits
    },
    "[data-part=writing] .heat output": {r"[\d.]+: at random|0: always the likeliest": decoder},
    "[data-part=steer]": "test_play_steer.py::test_a_vector_steers_and_its_strength_can_be_moved",
    "[data-part=writing] .instead, [data-part=writing] .written": "test_play_writing.py::test_a_token_shows_its_attention_and_its_alternatives",
    "[data-part=map] h3": {"The map of the model": always},
    "[data-part=map] > .note": {
        r"Each square is a head: rows are queries, columns are keys\.(?: Choose one to open it\.)?(?: The switch removes the chosen head; the sign says what a head usually does\.)?": always,
        "Weights now minus weights before: .+": changes,
        "No changes yet, so nothing differs.": no_changes,
        "No word is chosen: choose one in the sentence.": nowhere,
        r"The number is the share of the probability at (?P<here>.+) that would move to other words without this head \(total variation distance\)\.(?: \d+ of \d+ measured\.)?": always,
    },
    ".cell-head@aria-label": {HEAD + ROLE: in_head},
    ".cell-head, .power": "test_play_map.py::test_effects_of_removing_heads_match_the_library",
    ".role-list li": {r". (?P<said>.+): (?P<number>\d+) heads?": in_legend},
    ".paint": "test_play_head.py::test_links_can_be_masked_by_keyboard_and_by_buttons",
    "[data-part=links] > .note": {"Hide links of the chosen head, .+": always},
    ".shelf h3": {"Sentences to try ↓": always},
    ".model .chosen": "test_play_map.py::test_layers_go_upward_and_heads_say_their_roles",
    ".map-key, .scale": "test_play_map.py::test_effects_of_removing_heads_match_the_library",
    "[data-part=head] > h3": {
        HEAD.replace("head", "Head", 1)
        + r"(?: · (?P<role>usually .+?|.+? usually .+?))?(?P<removed> · removed: it adds nothing)?": lambda seen, **more: (
            in_head(seen, **more, moved=None, differ=None)
        )
    },
    "[data-part=head] > .why": {
        "You chose this head. Let the rule choose": always,
        rf"{FIRST_BEFORE}Removing {HEAD} changes the guess most: {WORD}, {p('from_')} → {p('to')}\. In that head, .+ attends most to .+: {p('most')}\.": why_head,
        rf"{FIRST_BEFORE}No head stands out in this sentence: the head whose removal changes the guess most is {HEAD}; without it, {p('most_moved')} of the probability goes to other words, below the threshold of 10%\.": why_head,
        rf"{FIRST_BEFORE}(?!Removing ).+": "test_play_rule.py::test_page_and_terminal_choose_the_same_head_and_say_the_same",
    },
    "[data-part=head] .head-words": {
        rf"(?P<said>(?:{UNNAMED_ROW})+)(?: And \d+ more\.)?": looks_at,
        "There are no tokens.": nowhere,
    },
    "[data-part=head], [data-part=before]": "test_play_head.py::test_lines_and_heat_map_match_the_trace",
    "[data-part=motion]": "test_play_motion.py::test_every_moment_matches_the_trace",
    "[data-part=steps]": "test_play_block.py::test_ribbons_are_as_wide_as_vectors_are_long",
    "[data-part=second]": "test_play_second.py::test_similarities_and_differences_match_the_library",
    # the result
    ".outcome-bars h3": {"(?P<kind>The model's words for|What follows) (?P<where>.+)": words_title},
    ".outcome-bars tbody tr": {
        rf"{WORD}\|\|(?:{p('before')}\|)?{p('now')}(?:\|(?P<mark>new|lost|))?": word_row
    },
    ".outcome-bars .outcome-legend": {
        r"before now · new: among the 4 likeliest words only now; lost: only before": always
    },
    ".outcome-more h4": {"How similar .+ is to the original|The heads that changed most": always},
    ".outcome-more .note": {
        "Hide a word or remove a head to see how far .+": no_changes,
        "The cosine between its vectors .+": always,
        "The share of attention weight that moved, .+": always,
        "No head changed visibly: .+": no_head_changed,
    },
    "[data-part=outcome] .outcome-heads button": {
        rf"Head (?P<head>\d+\.\d+)\|\|{p()}": changed_heads
    },
    "[data-part=outcome] .chart@aria-label": {"(?P<said>cosine with the original: .+)": cosines},
    "[data-part=outcome] .chart": "test_play_outcome.py::test_each_story_is_told_with_the_librarys_numbers",
}
# elements that name something and claim nothing
NAMES = "button, option, label, th, h2, .beside h3, .own h3, summary, textarea, .sr, .scale-name, .layer-name, .switches, .games .all, .trouble"
# texts whose parts are joined by "|"
PARTED = ".outcome-bars tbody tr, .outcome-heads button"

READ = r"""([claims, names, parted]) => {
  const root = document.querySelector(".qkv-view").shadowRoot;
  const found = [];
  const seen = (e) => e.checkVisibility({ visibilityProperty: true });
  const read = (e) => (e.matches(parted) ? [...e.children].map((one) => one.textContent).join("|") : e.textContent);
  const at = claims.map((claim) => claim.split("@"));
  for (const [i, [where, name]] of at.entries())
    for (const e of root.querySelectorAll(where))
      if (seen(e)) found.push([i, name ? e.getAttribute(name) ?? "" : read(e).trim()]);
  const own = at.filter(([, name]) => !name).map(([where]) => where).join(", ");
  for (const e of root.querySelectorAll("*")) {
    if (!seen(e) || e.closest(`style, ${names}, ${own}`)) continue;
    if ([...e.childNodes].some((one) => one.nodeType === 3 && /[\p{L}\p{N}]/u.test(one.data)))
      found.push([-1, `${e.closest("[data-part]")?.dataset.part}: ${e.parentElement?.className} > ${e.tagName}.${e.className}: ${e.textContent}`]);
  }
  return [new URL(root.querySelector(".whole").href).hash, found];
}"""


def check(page: Page, models: dict[str, Model], starts: dict[str, dict[str, Any]]) -> list[str]:
    """Decide each claim that the page shows; return those that are false or have no decider.

    Args:
        models: the models of the sides of the page, the first side first.
        starts: the first state of each side.
    """
    hash_, found = page.evaluate(READ, [list(CLAIMS), NAMES, PARTED])
    heads = [one for one in found if list(CLAIMS)[one[0]] == ".cell-head@aria-label"]
    if len(heads) > MAX_HEADS:  # each takes a run of the library
        left_out = random.Random(hash_).sample(heads, len(heads) - MAX_HEADS)
        found = [one for one in found if one not in left_out]
    fields = dict(parse_qsl(urlsplit(hash_).fragment, keep_blank_values=True))
    side = fields.pop("model", next(iter(models)))
    own = {name: value if name == "text" else json.loads(value) for name, value in fields.items()}
    own["edits"] = [edit for kept in own.get("edits", []) for edit in _split(kept)]
    seen = Seen(models[side], starts[side] | own)
    forms = list(CLAIMS.values())
    wrong = []
    for which, text in dict.fromkeys((which, text) for which, text in found):
        if which < 0:
            wrong.append(f"no entry of CLAIMS has this text: {text!r}")
        else:
            wrong += decide_by(seen, forms[which], list(CLAIMS)[which], text)
    return [f"{one} in {seen.state}" for one in wrong]


def _split(edit: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the masks of an entry "masks" of an address."""
    if edit["op"] != "masks":
        return [edit]
    where = {name: edit[name] for name in ("layer", "head") if name in edit}
    return [
        {"op": "mask", "query": query, "key": key} | where
        for query, first, last in edit["rows"]
        for key in range(first, last + 1)
    ]


def decide_by(seen: Seen, forms: dict[str, Decide | str] | str, where: str, text: str) -> list[str]:
    if isinstance(forms, str):
        return []
    for form, decide in forms.items():
        if match := re.fullmatch(form, text, re.DOTALL):
            try:
                if callable(decide):
                    decide(seen, **match.groupdict())
            except (AssertionError, LookupError, TypeError, ValueError) as error:
                *_, last = traceback.extract_tb(error.__traceback__)
                return [f"false: {where}: {text!r} ({last.line} {error!r})"]
            return []
    return [f"{where} has no form of this text: {text!r}"]
