"""Lines of a view in the terminal: what it is of, its head, its links, what moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.see.analysis import findings
from qkv.see.analysis.findings import Link, Movement
from qkv.see.analysis.heads import Heads
from qkv.see.analysis.selection import Head
from qkv.see.draw.terminal import Screen, bar, grid, prose, strongest
from qkv.trace import Trace

if TYPE_CHECKING:
    from rich.text import Text


def heading(screen: Screen, trace: Trace) -> Text:
    """Which model, and the tokens; of a long text the first ones."""
    from rich.text import Text

    tokens, most = trace.tokens, 60
    name = f"{screen.safe(trace.model)}, " if trace.model else ""
    count = "1 token" if len(tokens) == 1 else f"{len(tokens)} tokens"
    line = Text(f"{name}{count}: ", style="bold")
    line.append(" ".join(screen.safe(token) for token in tokens[:most]), style="not bold")
    if len(tokens) > most:
        line.append(f" and {len(tokens) - most} more", style="dim not bold")
    return line


def note_lines(screen: Screen, notes: Sequence[str]) -> Iterator[Text]:
    """What a reader should know of the tokens."""
    for line in notes:
        yield from prose(screen, line, "dim")


def title(text: str, explained: str = "") -> Text:
    """The title of a part, with what it means."""
    from rich.text import Text

    line = Text(text, style="bold")
    if explained:
        line.append(f" ({explained})", style="dim not bold")
    return line


def head_lines(screen: Screen, heads: Heads, head: Head, top: float = 1.0) -> Iterator[Text]:
    """The weights of one head as a grid; of a long text its links and the keys that got most."""
    tokens, keys = heads.query_names, heads.key_names
    where = f"layer {head.layer}, head {head.head}"
    place = heads.layers.index(head.layer)
    if heads.weights:
        weights = heads.weights[place][head.head]
        yield title(f"Weights of {where}", "each row: what this token looks at; a row sums to 1")
        yield from grid(
            screen,
            weights,
            tokens,
            keys,
            hidden=heads.hidden(head.layer, head.head),
            score=heads.between_content(weights),
            top=top,
        )
        return
    from rich.text import Text

    top_k = heads.summary[place].indices.shape[2]
    yield title(f"Links of {where}", f"the {top_k} largest weights of each query were kept")
    yield from link_lines(
        screen, heads, findings.strongest_links(heads, head.layer, head.head, 10), ""
    )
    yield Text()
    yield title("What was looked at most", "weight received from all tokens")
    received = heads.summary[place].received[head.head]
    shown = sorted(strongest(received, 10), key=lambda key: -received[key])
    width = screen.fit([keys[key] for key in shown], 3, 16)
    for key in shown:
        line = Text("  " + screen.cut(keys[key], width), style="bold")
        yield line.append(f" {received[key]:9.2f}", style="not bold")


def link_lines(
    screen: Screen,
    heads: Heads,
    links: Sequence[Link],
    form: str = "  --layer {} --head {:<3} ",
    usual: bool = False,
) -> Iterator[Text]:
    """A line for each link: where it is, from which token to which, and its weight."""
    from rich.text import Text

    tokens, keys = heads.query_names, heads.key_names
    width = screen.fit([tokens[link.query] for link in links], 3, 16)
    wide = screen.fit([keys[link.key] for link in links], 3, 16)
    for link in links:
        line = Text(form.format(link.layer, link.head) or "  ")
        line.append(screen.cut(tokens[link.query], width))
        line.append(screen.plain(" → ") + screen.cut(keys[link.key], wide))
        line.append(f" {link.weight:.2f}")
        yield line.append(f"  usually {max(link.usual):.2f}" if usual else "", style="dim")


def bar_lines(screen: Screen, heads: Heads, links: Sequence[Link]) -> Iterator[Text]:
    """Links as lines from token to token, the longer the larger the weight."""
    from rich.text import Text

    width = screen.fit([heads.query_names[link.query] for link in links], 3, 16)
    wide = screen.fit([heads.key_names[link.key] for link in links], 3, 16)
    room = screen.room(24, beside=width + wide + 11)
    for link in links:
        line = Text("  " + screen.cut(heads.query_names[link.query], width), style="bold")
        line.append(f" {link.weight:.2f} ", style="not bold")
        line.append(bar(screen, link.weight, room))
        line.append(screen.plain(" → ") + screen.cut(heads.key_names[link.key], wide))
        yield line


def movement_lines(screen: Screen, heads: Heads, movement: Movement) -> Iterator[Text]:
    """Each word's cosine between before and after, with a bar for what is missing to 1."""
    from rich.text import Text

    words = [i for i, special in enumerate(heads.special) if not special] or list(
        range(len(heads.tokens))
    )
    distance = 1 - movement.cosine
    most = 20
    shown = [words[i] for i in strongest(distance[words], most)]
    yield title("How far each word moved", "from its row in the token table to its last vector")
    width = screen.fit([heads.tokens[i] for i in shown], 5, 16)
    longest = max(1.0, float(np.nanmax(distance[words], initial=1.0)))
    bars = screen.room(20, beside=width + 27)
    heading = "1 - cosine" if longest == 1 else f"1 - cosine, to {longest:.2f}"
    yield Text(f"{'':{width}}  cosine  {screen.cut(heading, bars):{bars}} length", style="dim")
    for i in shown:
        line = Text(screen.cut(heads.tokens[i], width), style="bold")
        line.append(f" {movement.cosine[i]:7.3f}  ", style="not bold")
        line.append(bar(screen, float(distance[i]) / longest, bars))
        line.append(
            f" {movement.static_length[i]:6.2f}"
            + screen.plain(" → ")
            + f"{movement.contextual_length[i]:.2f}",
            style="not bold dim",
        )
        yield line
    if len(shown) < len(words):
        yield Text(f"Shown: the {len(shown)} of {len(words)} that moved furthest.", style="dim")


def row(screen: Screen, token: str, width: int, weight: float) -> Text:
    """A token and a weight."""
    from rich.text import Text

    return Text(f"{screen.cut(token, width)} {weight:.2f}  ")


def side_by_side(screen: Screen, sides: list[list[Text]]) -> Iterator[Text]:
    """Two lists of lines beside each other, headed A and B; below each other where it is narrow."""
    from itertools import zip_longest

    from rich.text import Text

    half = 2 + max((line.cell_len for line in sides[0]), default=0)
    if half + 3 + max((line.cell_len for line in sides[1]), default=0) > screen.width:
        for name, lines in zip("AB", sides, strict=True):
            yield Text(name, style="bold")
            yield from lines
        return
    yield Text("A".ljust(half + 1) + "B", style="bold")
    for left, right in zip_longest(*sides):
        line = left.copy() if left is not None else Text()
        line.append(" " * (half + 1 - line.cell_len))
        yield line.append_text(right) if right is not None else line
