"""A scan of all heads over 10,000 sentences: eight measures, and ten top texts for each measure.

With torch, the model returns all weights (`output_attentions=True`, eager attention), and torch
measures the weights as `qkv.circuits.scan_heads` does. For torch, the texts are sorted by length
within each thousand texts, and run in batches of the fastest size. Both libraries start from texts,
with the same tokenizer, or from ids. The memory is the peak memory of a whole process, including
the interpreter and the model; the process reads its texts from a file. The error is the largest
difference from a scan in float64, over all means and all top values. Entropies are in nats.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from benchmarks.common import Goal, Row, Way, faster
from benchmarks.memory import ROOT, resident
from benchmarks.models import in_type, random_model
from benchmarks.peers import fastest, needs, torch
from qkv.circuits import HeadScan, scan_heads

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
}
# the number of texts; fewer for the larger model, which takes 0.1 s per text
COUNT, FEW = 10_000, 500
TOP = 10
WINDOW = 1024  # the number of texts that are sorted together for torch
BATCHES = (4, 8, 16, 32, 64)  # batch sizes that torch tries; the fastest one is then measured
MAX_BYTES = 300e6  # bytes
NAMES = ("previous", "next", "same", "first", "last", "induction", "entropy", "strongest")


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for the encoder that comes with qkv, and for a random model of GPT-2's shape."""
    from benchmarks.texts import sentences

    encoder = qkv.load()

    def texts(count: int, longest: int) -> list[str]:
        return sentences(count, lambda text: len(encoder.tokenize(text)), longest=longest)

    with tempfile.TemporaryDirectory() as folder:
        many = texts(max(40, COUNT // shrink), encoder.max_seq_length or 0)
        memory = Goal("memory of the process", lambda row: row["memory"][OURS], "B", most=MAX_BYTES)
        yield row("The shipped encoder", encoder, many, Path(folder), memory)
        decoder = random_model(GPT2 if shrink == 1 else GPT2 | {"n_layer": 2, "n_embd": 96})
        ids = [encoder.tokenize(text).ids.tolist() for text in texts(max(20, FEW // shrink), 200)]
        yield row("GPT-2's shape", decoder, ids, Path(folder))


OURS, TORCH = "memory of the process: qkv", "memory of the process: torch"


def row(name: str, model: qkv.Model, texts: list[Any], home: Path, *goals: Goal) -> Row:
    """Make a row with the time and the memory of both libraries on the same texts.

    The memory of each library is measured in a separate process.
    """
    folder, file = home / model.name, home / f"{model.name}.jsonl"
    model.save(folder)
    file.write_text("".join(f"{json.dumps(text)}\n" for text in texts), encoding="utf-8")
    truth = found_in(scan_heads(in_type(model, "float64"), texts, NAMES, TOP))

    def error(found: Any) -> float:
        both = zip(found_in(found), truth, strict=True)
        return max(float(np.abs(one - other).max()) for one, other in both)

    peer = in_torch(folder)
    ways = {
        "qkv": Way(partial(scan_heads, model, texts, NAMES, TOP), error),
        "torch": peer and Way(partial(torch_scan, *peer, texts, best(*peer, texts)), error),
    }
    memory = {OURS: partial(alone, "qkv", folder, file)}
    if peer:
        memory[TORCH] = partial(alone, "torch", folder, file)
        less = Goal("less memory", lambda row: row["memory"][TORCH] / row["memory"][OURS])
        goals = (less, *goals)
    return Row(
        f"{name}, {len(texts):,} texts", ways, (faster("torch", 2.0), *goals), memory, rounds=3
    )


def found_in(found: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean scores (names, layers, heads) and the largest scores of a scan.

    The argument `found` is the result of qkv or the result of torch.
    """
    if not isinstance(found, HeadScan):
        return found
    means = np.array([found.scores[name] for name in NAMES])
    examples = np.zeros((*means.shape, TOP))
    for name, layer, head in np.ndindex(means.shape):
        own = [one.value for one in found.examples(NAMES[name], layer, head)]
        examples[name, layer, head, : len(own)] = own
    return means, examples


@needs("transformers")
def in_torch(folder: Path) -> tuple[Any, qkv.Model]:
    """Return the transformers model without its output head, and the same model in qkv."""
    import transformers

    torch()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    return model.eval(), qkv.load(folder)


def best(model: Any, own: qkv.Model, texts: list[Any]) -> int:
    """Return the batch size that scans a sample of about 100 texts in the shortest time."""
    some = texts[:: max(1, len(texts) // 100)]
    return fastest({batch: partial(torch_scan, model, own, some, batch) for batch in BATCHES})


def torch_scan(
    model: Any, own: qkv.Model, texts: Iterable[Any], at_once: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the means (names, layers, heads), and the `TOP` largest values of each head."""
    library, rows = torch(), len(own.embedding.table)
    special = [own.tokenizer is not None and own.tokenizer.is_special(n) for n in range(rows)]
    special = library.tensor(special)
    sums = library.zeros((len(NAMES), own.num_layers, own.num_heads), dtype=library.float64)
    counts = np.zeros(len(NAMES))
    largest = library.zeros((*sums.shape, TOP))
    rest = iter(texts)
    while window := list(islice(rest, WINDOW)):
        if own.tokenizer is not None:
            window = [text.ids.tolist() for text in own.tokenizer.tokenize_batch(window)]
        window.sort(key=len, reverse=True)
        for first in range(0, len(window), at_once):
            values = torch_batch(model, window[first : first + at_once], special, counts)
            sums += values.sum((2, 4), dtype=library.float64)
            most = values.amax(4).permute(0, 1, 3, 2)
            largest = library.cat([largest, most], -1).topk(TOP, -1).values
    return sums.numpy() / np.maximum(counts, 1)[:, None, None], largest.numpy()


def torch_batch(model: Any, batch: list[list[int]], special: Any, counts: np.ndarray) -> Any:
    """Return the measures of each query (names, layers, B, heads, T); update `counts` in place."""
    library = torch()
    ends = library.tensor([len(ids) for ids in batch])
    keys = library.arange(len(batch[0]))
    there = keys < ends[:, None]  # (B, T)
    ids = library.zeros(there.shape, dtype=library.int64)
    ids[there] = library.tensor([one for text in batch for one in text])
    weights = model(input_ids=ids, attention_mask=there.long(), output_attentions=True).attentions
    same = (ids[:, :, None] == ids[:, None]) & there[:, :, None] & (keys < keys[:, None])
    text, query, key = same.nonzero(as_tuple=True)
    words = there & ~special[ids] & (keys > 0)
    counts += int(there.sum())
    counts[NAMES.index("induction")] += int(same.any(-1).sum()) - int(there.sum())
    shape = (len(NAMES), len(weights), len(batch), weights[0].shape[1], len(keys))
    found = library.zeros(shape)
    for layer, own in enumerate(weights):  # (B, H, T, T)
        rows = dict(zip(NAMES, found[:, layer], strict=True))
        rows["previous"][..., 1:] = own.diagonal(-1, 2, 3)
        rows["next"][..., :-1] = own.diagonal(1, 2, 3)
        rows["first"][...] = own[..., 0]
        rows["last"][...] = own[library.arange(len(batch)), :, :, ends - 1]
        places = own.permute(0, 2, 3, 1)  # (B, T, T, H)
        for name, shift in (("same", 0), ("induction", 1)):
            each = places[text, query, key + shift]
            rows[name].permute(0, 2, 1).index_put_((text, query), each, accumulate=True)
        rows["entropy"][...] = library.special.entr(own).sum(-1)
        rows["strongest"][...] = (own * words[:, None, None]).amax(-1)
    return found * there[:, None]


def alone(way: str, folder: Path, file: Path) -> float:
    """Return the peak memory in bytes of a process that scans the texts of a file."""
    command = [sys.executable, "-m", "benchmarks.scan", way, str(folder), str(file)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=ROOT)
    return float(answer.stdout.split()[-1])


def main() -> None:
    """Run the scan that the command line chooses, and print the peak memory."""
    way, folder, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        texts = map(json.loads, file)
        if way == "qkv":
            scan_heads(qkv.load(folder), texts, NAMES, TOP)
        else:
            torch_scan(*in_torch(Path(folder)), texts, 16)
    print(resident()[1])


if __name__ == "__main__":
    main()
