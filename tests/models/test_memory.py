"""Tests that weights are in memory once, as small as their dtype, and are packed on loading."""

import os
import re
import subprocess
import sys

import pytest

import qkv
from qkv.models import load
from qkv.ops.kernel import VARIANTS

from .small_models import CONFIGS, write_small
from .test_bfloat16 import config_of, numbers_of

packing_module = sys.modules["qkv.ops.packing"]
native = pytest.mark.skipif(not VARIANTS, reason="the kernel was not built")
DIM, HIDDEN, LAYERS, VOCABULARY = 512, 1536, 4, 4000
# Prints the megabytes of weights in memory: after loading, the first request and the hundredth.
PROGRAM = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import ml_dtypes, qkv

def megabytes():
    found, of_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if "-" in name and not name.endswith(":"):
            of_file = line.endswith("model.safetensors")
        elif name == "Anonymous:" or (name == "Rss:" and of_file):
            found += int(values[0]) * 1024 / 1e6
    return found

folder, kind = sys.argv[1:]
qkv.load("random").trace("I")
warm = qkv.load(folder + "-warm", dtype=kind if kind != "None" else None)
warm.generate([1, 2], max_new_tokens=3)
warm([[1, 2, 3]])  # imports numpy.ma, which takes 8 MB if it has to be compiled
before = megabytes()
model = qkv.load(folder, dtype=kind if kind != "None" else None)
print(megabytes() - before)
for count in range(100):
    if count < 90:
        model([[1 + count % 9, 2, 3]])
    else:
        model.generate([1, 2], max_new_tokens=4)
    if count in (0, 99):
        print(megabytes() - before)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a folder with models of 18 million parameters, by the dtype of their files."""
    home = tmp_path_factory.mktemp("models")
    sizes = {"hidden_size": DIM, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS}
    config = {**CONFIGS["llama"], **sizes, "num_attention_heads": 8, "num_key_value_heads": 8}
    config = {**config, "vocab_size": VOCABULARY, "tie_word_embeddings": False}
    small = {**config, "num_hidden_layers": 1, "vocab_size": 100}
    for name, given in {"float32": config, "float32-warm": small}.items():
        folder = write_small(home / name, given, spread=0.02)
        (folder / "tokenizer.json").unlink()
        for kind in ("float16", "bfloat16", "int8"):
            load(folder).save(home / name.replace("float32", kind), dtype=kind)
    return home


@native
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc/self/smaps")
@pytest.mark.parametrize(
    ("stored", "kind", "allowed"),
    [
        ("bfloat16", None, 2.6),
        ("bfloat16", "bfloat16", 2.6),
        ("float16", None, 2.6),
        ("float16", "bfloat16", 2.6),
        ("float32", "bfloat16", 2.6),
        ("float32", "int8", 2.6),
        ("bfloat16", "int8", 2.6),
        ("int8", "int8", 1.3),
        ("float32", None, 4.6),
        ("int8", None, 4.6),
    ],
)
def test_weights_are_in_memory_once(folders, stored, kind, allowed):
    command = [sys.executable, "-c", PROGRAM, str(folders / stored), str(kind)]
    two = os.environ | {"QKV_NUM_THREADS": "2"}  # each thread has buffers of its own
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=two)
    assert run.returncode == 0, run.stderr
    parameters = LAYERS * (4 * DIM**2 + 3 * DIM * HIDDEN) + 2 * VOCABULARY * DIM
    found = [float(line) * 1e6 / parameters for line in run.stdout.split()]
    assert len(found) == 3
    assert max(found) < allowed, found
    assert found[0] > 0.5  # so it is packed already
    if stored == kind == "int8":
        size = (folders / stored / "model.safetensors").stat().st_size
        assert max(found) * parameters < 1.3 * size


@native
@pytest.mark.parametrize("kind", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("name", [*CONFIGS, "joined"])
def test_the_first_request_packs_nothing(name, kind, tmp_path, monkeypatch):
    monkeypatch.delenv("QKV_BACKEND", raising=False)
    # decoding steps multiply matrices of the same input at once if their sizes allow it
    sizes = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = {**CONFIGS["llama"], **sizes} if name == "joined" else config_of(name)
    path = write_small(tmp_path / "model", config, spread=0.25)
    packed, seen = packing_module._pack_into, []

    def spy(into, weight, *more):
        seen.append(weight.shape)
        packed(into, weight, *more)

    monkeypatch.setattr(packing_module, "_pack_into", spy)
    # copies of other tests' weights may end, and copies that lie beside them would end too
    monkeypatch.setattr(packing_module, "_packed", packing_module._PackedCopies())
    # otherwise small matrices lie side by side by chance
    monkeypatch.setattr(packing_module, "_SHELF", 1 << 12)
    model = load(path, dtype=kind)
    assert seen
    seen.clear()
    numbers_of(model)
    if model.generates:
        model.generate([2, 4, 5], max_new_tokens=3)
    assert not seen


def test_an_error_for_lack_of_memory_says_how_much_is_needed(tmp_path, monkeypatch):
    path = write_small(tmp_path / "model", CONFIGS["llama"])

    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr(qkv.models._loading, "read_weights", no_memory)
    needs = r"^load: not enough memory: model has .* parameters, about [\d.]+ MB with dtype={}: "
    with pytest.raises(MemoryError, match=needs.format(None)) as error:
        load(path)
    assert re.search(r"pass dtype='bfloat16' \(about [\d.]+ MB\)$", str(error.value))
    with pytest.raises(MemoryError, match=needs.format("'bfloat16'")) as error:
        load(path, dtype="bfloat16")
    assert str(error.value).endswith(
        "use a smaller model, or a GGUF file in Q4_0 with dtype='int8'"
    )
