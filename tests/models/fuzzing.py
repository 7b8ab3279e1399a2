"""Models whose files are damaged at random; `test_fuzz.py` runs this module in a subprocess.

    python -m models.fuzzing FOLDER CASES [SEED]

Without a seed, the cases are the same in every run.

Each damaged model is loaded and run on ids and on a text. Either qkv raises a `ValueError` or
`FileNotFoundError` with a message of one line, or the model matches its files. If the model matches
its files, its arrays equal the arrays that the safetensors library reads. If `plain.py` has a
float64 model for the config, the vectors are close to those of this plain model.
"""

import faulthandler
import json
import random
import resource
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from qkv.models import load

from .plain import plain_bert_of, plain_gpt2, plain_llama
from .small_models import CONFIGS, write_small
from .support import Folder

SECONDS = 20  # time limit of a case; most cases take 0.01 s
MEMORY = 6 * 2**30  # limit of the address space in bytes; libraries use most of it
# each thread of a library takes part of the address space
ONE_THREAD = dict.fromkeys(("QKV_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
IDS = [[2, 4, 5, 6, 9, 3]]
TEXT = "the cat sat on the mat."
PLAIN = {"bert": plain_bert_of, "gpt2": plain_gpt2, "llama": plain_llama}
HARMFUL = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 30, 31, 1000, 2**31, 2**32, 2**53 + 1, 2**62, 2**63),
    *(2**64, -(2**63), 10**30, 10**309, 10**400, 0.0, -0.5, 0.5, 1e-320, 1e39, 1e308),
    float("nan"),
    *(float("inf"), "", "a", "gelu", "relu", "F16", "BF16", "F64", "I32", "\0", "\n", "\ud800"),
    *("../x", "x" * 3000, [], [0], [[]], {}, {"a": 1}, "absolute", "mean", "bert", "llama"),
    *("linear", "yarn", "sliding_attention", "full_attention", [None], "Regex", "(a*)*$"),
]


def folders(home):
    """Write small models of several families, one sharded, one with sentence-transformers files."""
    bert = Folder(home / "bert")
    bert.write()
    modules = bert.sentence({"pooling_mode_mean_tokens": True}, normalize=True, limit=12)
    prompts = {"prompts": {"query": "the cat"}, "default_prompt_name": "query"}
    bert.json("config_sentence_transformers.json", prompts)
    kind = {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    bert.json("modules.json", [*modules[:2], kind, *modules[2:]])
    bert.json("2_Dense/config.json", {"in_features": 12, "out_features": 5, "bias": False})
    bert.weights("2_Dense/model.safetensors", {"linear.weight": np.ones((5, 12), np.float32)})
    Folder(home / "shards").shards("model-0.safetensors", "model-1.safetensors")
    for name in ("gpt2", "llama", "gemma2", "modernbert"):
        write_small(home / name, CONFIGS[name])
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
    write_small(home / "scaled", {**CONFIGS["llama"], "rope_scaling": scaled})
    for path in home.iterdir():
        config = json.dumps({"eos_token_id": 3, "do_sample": True, "temperature": 0.5})
        (path / "generation_config.json").write_text(config)
    return sorted(home.iterdir())


def damaged(draw, name, raw, other):
    """Return damaged bytes of a file; `other` holds bytes of a file to splice in."""
    safetensors = name.endswith(".safetensors")
    kinds = ["flip", "cut", "out", "in", "twice", "splice"]
    kind = draw(st.sampled_from(kinds + ["json"] * (4 if safetensors else 10)))
    if kind == "json" and safetensors and len(raw) > 8:
        length = int.from_bytes(raw[:8], "little")
        header = changed(draw, raw[8 : 8 + length])
        size = draw(st.sampled_from([len(header)] * 8 + [0, len(header) - 1, 2**40, 2**64 - 1]))
        return size.to_bytes(8, "little") + header + raw[8 + length :]
    if kind == "json" and not safetensors:
        return changed(draw, raw)
    # in a weights file, the header matters most
    end = min(len(raw), 8 + int.from_bytes(raw[:8], "little")) if safetensors else len(raw)
    end = draw(st.sampled_from([end, len(raw)]))
    start = draw(st.integers(0, max(end - 1, 0)))
    stop = start + draw(st.integers(0, 40))
    if kind == "cut":
        return raw[:start]
    if kind == "out":
        return raw[:start] + raw[stop:]
    if kind == "twice":
        return raw[:stop] + raw[start:]
    if kind == "in":
        return raw[:start] + draw(st.binary(max_size=8)) + raw[start:]
    if kind == "splice":
        place = draw(st.integers(0, max(len(other) - 1, 0)))
        return raw[:start] + other[place : place + stop - start] + raw[stop:]
    flipped = bytearray(raw)
    for place in draw(st.lists(st.integers(0, max(end - 1, 0)), min_size=1, max_size=4)):
        if place < len(flipped):
            flipped[place] ^= 1 << draw(st.integers(0, 7))
    return bytes(flipped)


def changed(draw, raw):
    """Return JSON with one value changed, removed, swapped, renamed or deeply nested."""
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):  # earlier damage made it unreadable
        return raw
    places = list(inner(values))
    if not places:
        return raw
    random.Random(0).shuffle(places)  # the first entry is drawn most often
    holder, key = places[draw(st.integers(0, len(places) - 1))]
    value = holder[key]
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    kind = draw(st.sampled_from(["harm", "harm", "near", "gone", "swap", "name", "deep"]))
    if kind == "gone":
        del holder[key]
    elif kind == "swap":
        other, place = places[draw(st.integers(0, len(places) - 1))]
        copy = json.loads(json.dumps(value))
        holder[key], other[place] = other[place], copy
    elif kind == "name" and isinstance(holder, dict):
        del holder[key]
        names = ["", "x", "hidden_size", f"{key}x", key[1:]]
        holder[draw(st.sampled_from(names))] = value
    elif kind == "near" and number:
        holder[key] = draw(st.sampled_from([value + 1, value - 1, value * 2, value / 2, -value]))
    elif kind == "deep":
        depth = draw(st.sampled_from([10, 130, 1500]))
        mark = json.dumps("here it is")
        holder[key] = "here it is"
        return json.dumps(values).replace(mark, "[" * depth + "]" * depth).encode()
    else:
        holder[key] = draw(st.sampled_from(HARMFUL))
    return json.dumps(values).encode()


def inner(values):
    """Yield every entry of a JSON value, at any depth, as its container and its key."""
    if isinstance(values, dict | list):
        for key in list(values) if isinstance(values, dict) else range(len(values)):
            yield values, key
            yield from inner(values[key])


def sound(message):
    """Return whether a message is one printable line of limited length."""
    return message.isprintable() and 0 < len(message) < 3000


def attempt(action):
    """Return the result of an action, or None after an error with a readable message."""
    try:
        return action()
    except (ValueError, FileNotFoundError) as error:
        message = str(error)
    assert sound(message), ascii(message)[:4000]
    return None


def check(path):
    """Load and run the model in a folder; return whether it could be loaded."""
    model = attempt(lambda: load(path))
    if model is None:
        return False
    values = json.loads((path / "config.json").read_text("utf-8"))
    stored = read_by_the_library(path)
    ours = model._weights.to_files()
    for name, array in ours.items():
        theirs = stored[name if name in stored else next(n for n in stored if n.endswith(name))]
        # in the file, an array's name may begin with a prefix
        np.testing.assert_array_equal(array.ravel(), theirs.ravel().astype(array.dtype))
    found = attempt(lambda: model(IDS).last_hidden_state)
    for call in (model.trace, model.encode, model.tokenize):
        attempt(lambda call=call: call(TEXT))
    plain = PLAIN.get(values["model_type"])
    if found is not None and plain is not None:
        compare(found, plain, stored, values)
    return True


def read_by_the_library(path):
    """Return all tensors as safetensors reads them; it must accept every file that qkv accepts."""
    from safetensors.numpy import load_file

    files = [path / "model.safetensors"]
    if not files[0].is_file():
        files = sorted(path.glob("*.safetensors"))
    return {name: array for file in files for name, array in load_file(file).items()}


def compare(found, plain, stored, values):
    """Compare with the plain model, if it supports the config and the numbers are not too large."""
    with np.errstate(all="ignore"):
        if any(not (np.abs(array) < 1e3).all() for array in stored.values()):
            return
        try:
            expected = plain(stored, values, IDS[0])
        except KeyError:
            return
        if np.isfinite(expected).all() and np.abs(expected).max() < 1e6:
            bound = 2e-3 * max(1, np.abs(expected).max())
            assert np.abs(found[0] - expected).max() <= bound, values


def main(home, cases, number=None):
    """Check `cases` damaged models; print how many were refused and how many were loaded."""
    home = Path(home)
    originals = folders(home / "whole")
    broken = home / "broken"
    counts = {True: 0, False: 0}

    @(seed(number) if number is not None else lambda case: case)
    @settings(
        max_examples=cases,
        derandomize=number is None,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def case(data):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        chosen = data.draw(st.sampled_from(originals))
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(chosen, broken)
        files = sorted(path for path in broken.rglob("*") if path.is_file())
        files += [broken / "config.json"] * 4
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 2, 3]))):
            file = data.draw(st.sampled_from(files))
            other = data.draw(st.sampled_from(files)).read_bytes()
            file.write_bytes(damaged(data.draw, file.name, file.read_bytes(), other))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            counts[check(broken)] += 1

    case()
    faulthandler.cancel_dump_traceback_later()
    print(f"{counts[False]} refused, {counts[True]} read")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    main(sys.argv[1], *map(int, sys.argv[2:]))
