"""`why` for a text of 20 words with SmolLM2: its numbers beside one `predict` for each run."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import Row, Way

TEXT = "The old man who lives in the house by the sea told me that the capital of France is called"


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for the effects of all words, the layers of one word, and the links to it."""
    try:
        model = qkv.load("smollm2")
    except (FileNotFoundError, ImportError):
        return
    found = model.why(TEXT)
    length, word = len(found.tokens), found.words.index("France")
    keys = [range(*span) for span in found.spans]
    passes = {
        "effects": sum(length - key.start for key in keys) + len(keys),
        "from_layer": model.num_layers * (length - keys[word].start),
        "links": model.num_layers * model.num_heads,
    }

    def share(hide: list) -> float:
        return dict(model.predict(TEXT, top_k=1000, hide=hide)[0]).get(found.answer, 0.0)

    whole = share([])
    alone = {
        "effects": lambda: np.array([whole - share([*key]) for key in keys]),
        "from_layer": None,
        "links": None,
    }
    for name, options in (
        ("effects", {}),
        ("from_layer", {"words": [word], "from_layer": word}),
        ("links", {"words": [word], "links": 5}),
    ):
        expected = alone[name] and alone[name]()

        def error(view: qkv.see.Why, expected: np.ndarray | None = expected) -> float:
            return 0.0 if expected is None else float(np.abs(view.effects - expected).max())

        ways = {"qkv": Way(lambda options=options: model.why(TEXT, **options), error)}
        if alone[name]:
            ways["a predict a word"] = Way(alone[name], lambda _: 0.0)
        yield Row(f"why, 20 words, {name}: {passes[name]} token passes", ways, ())
