"""qkv as the attention of transformers models, compared with torch's fused attention."""

from collections.abc import Iterator

import numpy as np

from benchmarks import bert, llama
from benchmarks.bert import forward, operations
from benchmarks.common import Row, Way, faster
from benchmarks.models import in_float64, in_transformers, largest, random_model
from qkv.integrations.transformers import register

SHAPES = {
    "BERT-base, 6 of 12 layers": bert.CONFIG | {"num_hidden_layers": 6},
    "Llama of 135 M, 10 of 30 layers": llama.CONFIG | {"num_hidden_layers": 10},
}
LONGEST = 2048


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for one text of 512 tokens and one text of 2,048 tokens."""
    for name, config in SHAPES.items():
        config = config | {"max_position_embeddings": LONGEST, "vocab_size": 5000}
        if shrink > 8:
            config |= {"num_hidden_layers": 2, "vocab_size": 1000}
        model = random_model(config)
        exact, sdpa, inside = in_float64(model, "last_hidden_state"), in_transformers(model), None
        if sdpa is not None:
            register()
            inside = in_transformers(model)
            inside.set_attn_implementation("qkv")
        for length, least in ((512, 1.0), (LONGEST, 1.05)):
            ids = np.random.default_rng(0).integers(3, 1000, (1, length // shrink))
            error, work = largest(exact(ids)), operations(model, [ids.shape[1]])
            ways = {
                "qkv": inside and Way(forward(inside, ids), error, operations=work),
                "sdpa": sdpa and Way(forward(sdpa, ids), error, operations=work),
            }
            goals = (faster("sdpa", least),)
            yield Row(f"{name}, {ids.shape[1]} tokens", ways, goals, rounds=5)
