"""Tests of sending arrays and other objects to a student's process and back."""

import numpy as np
import pytest

from qkv_marking import check, check_file
from qkv_marking.files.wire import MAX_VALUES, Packer, unpack

pytestmark = pytest.mark.usefixtures("quick")


def there_and_back(thing, known=lambda _: None):
    return unpack(Packer(known).pack(thing), lambda number, came: (number, came))


@pytest.mark.parametrize(
    "thing",
    [
        *(None, True, 3, -0.5, "text"),
        *(np.zeros((0, 3), np.float32), np.array(2.5), np.array([[True, False]])),
        np.array([np.nan, np.inf, 1e-300]),
        np.arange(6, dtype=">i4").reshape(2, 3)[:, ::-1],
        *((1, (2.0, [3])), [], {"k": np.eye(2), 3: None}),
        *(np.float32(0.1), np.int64(7), np.bool_(True)),
    ],
)
def test_values_survive_the_round_trip(thing):
    came = there_and_back(thing)
    assert type(came) is type(thing)
    np.testing.assert_equal(came, thing)
    if isinstance(thing, np.ndarray | np.generic):
        assert (came.dtype, came.shape) == (thing.dtype, thing.shape)


def test_unsendable_objects_become_a_number_and_a_type():
    number, came = there_and_back(abs, lambda _: 7)
    assert (number, came.kind, came.calls) == (7, "builtin_function_or_method", True)
    number, came = there_and_back(1j, lambda _: 8)
    assert (number, came.kind, came.calls) == (8, "complex", False)
    assert unpack({"r": 9}, lambda number, came: (number, came)) == (9, None)


def test_an_array_of_objects_is_not_read():
    with pytest.raises(ValueError, match="is not numeric"):
        unpack({"a": ["|O", [1], ""], "r": None}, lambda number, came: came)


def test_oversized_values_are_not_packed():
    with pytest.raises(MemoryError):
        Packer(lambda _: None).pack(np.broadcast_to(1.0, (MAX_VALUES + 1,)))
    itself = []
    itself.append(itself)
    told = Packer(lambda _: 1).pack(itself)  # no endless recursion
    assert told["r"] == 1


# each function gets the same verdict in a file as in this process
WAYS = {
    "a list of lists": """
def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).tolist()""",
    "in place": """
def softmax(x):
    x -= x.max(-1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(-1, keepdims=True)
    return x""",
    "one array each time": """
held = {}
def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    out = held.setdefault(x.shape, np.zeros(x.shape))
    out[...] = e / e.sum(-1, keepdims=True)
    return out""",
    "views of one array": """
held = np.zeros(100)
def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    held[:x.size] = (e / e.sum(-1, keepdims=True)).ravel()
    return held[:x.size].reshape(x.shape)""",
    "a cache that is written to": """
def step(x, cache, w_q, w_k, w_v):
    cache = [[], []] if cache is None else cache
    out = []
    for row in x:
        cache[0].append(row @ w_k)
        cache[1].append(row @ w_v)
        k, v = np.array(cache[0]), np.array(cache[1])
        s = k @ (row @ w_q) / np.sqrt(k.shape[1])
        e = np.exp(s - s.max())
        out.append(e / e.sum() @ v)
    return np.array(out), cache""",
    "an object as cache": """
class Cache:
    def __init__(self, d, dv):
        self.k, self.v = np.zeros((0, d)), np.zeros((0, dv))
def step(x, cache, w_q, w_k, w_v):
    cache = cache or Cache(w_k.shape[1], w_v.shape[1])
    out = []
    for row in x:
        cache.k = np.vstack([cache.k, row @ w_k])
        cache.v = np.vstack([cache.v, row @ w_v])
        s = cache.k @ (row @ w_q) / np.sqrt(cache.k.shape[1])
        e = np.exp(s - s.max())
        out.append(e / e.sum() @ cache.v)
    return np.array(out), cache""",
    "weights taken away": """
def decoder(ids, weights, config):
    table = weights.pop('model.embed_tokens.weight')
    return table[ids] @ table.T""",
    "a name that is nowhere": """
def softmax(x):
    return np.exp(x) / totl""",
    "an axis that is not there": """
def softmax(x):
    return x.sum(axis=5)""",
    "an integer table": """
def softmax(x):
    out = np.zeros(x.shape, int)
    out += x
    return out""",
    "prints": """
def softmax(x):
    print('one', 2)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)""",
    "weights of a class": """
class SelfAttention:
    def __init__(self, embed_dim, num_heads):
        if embed_dim % num_heads: raise ValueError('no')
        rng = np.random.default_rng(0)
        self.w = {n: rng.normal(size=(embed_dim,) * 2) / embed_dim**.5 for n in 'qkvo'}
    def __call__(self, x):
        return x @ self.w['v'] @ self.w['o']""",
}
TASKS = {"step": "kv-cache", "decoder": "decoder", "SelfAttention": "self-attention-class"}


MORE = {
    *("weights taken away", "one array each time", "a cache that is written to"),
    *("an axis that is not there", "an integer table"),
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.attack if way in MORE else []) for way in WAYS]
)
def test_a_function_in_a_file_gets_the_in_process_verdict(file, way):
    path = file(f"import numpy as np\n{WAYS[way]}\n")
    (result, *_) = check_file(path)
    space = {"__name__": "mine"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    (name,) = (name for name in space if name in TASKS or name == "softmax")
    here = check(space[name], task=TASKS.get(name, "softmax"))
    for part in ("points", "mistakes", "fragile", "conventions", "hint", "message"):
        assert getattr(result, part) == getattr(here, part), part
    assert result.example.keys() == here.example.keys()


def test_the_line_that_raised_is_told(file):
    source = "import numpy as np\ndef softmax(x):\n    y = x + 1\n    return y @ np.ones(7)"
    (result,) = check_file(file(source))
    assert "in line 4: return y @ np.ones(7)" in result.message


def test_parameters_are_reported_verbatim(file):
    parameters = "(q, k, v, /, mask=0.0, *, is_causal=False, more)"
    (result,) = check_file(file(f"def attention{parameters}:\n    return q"))
    assert result.mistakes == ("wrong-parameters",)
    assert f"it is attention{parameters}" in result.message
