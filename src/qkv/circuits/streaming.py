"""Activations of texts as they come, a few texts at a time: none of them is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array, shown
from qkv.circuits.reading import Read, batches, windows
from qkv.circuits.watching import room
from qkv.models.model import Model
from qkv.models.tasks.kept import layers_to_run, names_to_keep
from qkv.trace import Recorder
from qkv.trace.activations import activation


def sites(model: Model, names: Any, call: str, given: str) -> list[str]:
    """The full names of activations, each of which has a row for each token.

    Args:
        model: of one text at a time.
        names: as for `model.trace`.
        call: who is named in an error.
        given: the argument that an error names.

    Raises:
        KeyError: there is no such activation; the message has the nearest ones.
        ValueError: one of them has no row for each token, or there is none.

    >>> import qkv
    >>> sites(qkv.load("random"), ("z", 0), "cache", "names")
    ['blocks.0.attn.hook_z']
    """
    known = model.network.hook_names
    found = list(filter(names_to_keep(known, names=names, call=call), known))
    for name in found:
        if activation(name).axes[:2] != ("text", "token"):
            raise ValueError(
                f"{call}: {given} has {name}, which has no row for each token: name vectors, as "
                '("resid_post", 0) or ("z", 0)'
            )
    if not found:
        raise ValueError(f"{call}: {given} is empty: name activations, as ('resid_post', 0)")
    return found


def one_site(model: Model, name: Any, call: str, given: str) -> str:
    """The full name of one activation with a row for each token."""
    found = sites(model, [name], call, given)
    if len(found) > 1:
        raise ValueError(
            f"{call}: {given} is {shown(name)}, which names {len(found)} activations: give one "
            f'layer, as ("{name}", 0)'
        )
    return found[0]


def rows_of(
    model: Model, texts: Any, names: Sequence[str], call: str
) -> Iterator[tuple[list[Read], dict[str, Array]]]:
    """The activations of texts, those of like length together.

    Args:
        model: of one text at a time.
        texts: any iterable of texts, or of the ids of their tokens.
        names: the full names of activations.
        call: who is named in an error.

    Yields:
        Some texts, and by name their rows end to end, (their tokens, ...).
    """
    for window in windows(model, texts, call):
        for batch in batches(window, room(model)):
            yield batch, recorded(model, [text.ids for text in batch], names)


def recorded(model: Model, ids: Sequence[Array], names: Sequence[str]) -> dict[str, Array]:
    """The rows of texts that are run together, end to end; no layer above the last name is run."""
    keep = set(names).__contains__
    record = Recorder(keep)
    stop = layers_to_run(model.network.hook_names, keep)
    model.network.packed(ids, record=record, stop=stop)
    lengths = np.array([len(text) for text in ids])
    there = np.arange(lengths.max()) < lengths[:, None]  # (B, T)
    return {name: record.arrays[name][there] for name in names}
