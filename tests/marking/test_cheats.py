"""Tests that cheats, such as calls of qkv, earn no points."""

import sys

import pytest

import qkv
from qkv_marking import check

from .files.test_check_file import SOFTMAX, only
from .formulas import scaled

pytestmark = pytest.mark.usefixtures("quick")

BACK = "import numpy as np\ndef softmax(x):\n    return x\n"
# a fake scipy or torch, so that the tests need neither
LIBRARY = '''
import sys, types
{name} = types.ModuleType("{name}")
exec("""
import numpy as np
def {function}(*given):
    x = given[0]
    if len(given) > 1:
        x = given[0] @ given[1].swapaxes(-1, -2) / given[0].shape[-1] ** 0.5
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    e = e / e.sum(axis=-1, keepdims=True)
    return e @ given[2] if len(given) > 1 else e
""", vars({name}))
'''
SCIPY = LIBRARY.format(name="scipy", function="softmax")
TORCH = LIBRARY.format(name="torch", function="scaled_dot_product_attention")

# name of the cheat: its file, and the start of the forbidden call's name, or None
ATTEND = """
import numpy as np
def attend(q, k, v):
    s = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v
"""
# a fake library of which every function is named
SESSION = """
class Session:
    def run(self, names, given):
        return [attend(*given.values())]
"""
WHOLE = """
import sys, types
{name} = types.ModuleType("{name}.inference")
exec(SOURCE, vars({name}))
def attention(q, k, v):
    return {name}.Session().run(None, dict(q=q, k=k, v=v))[0]
""".replace("SOURCE", repr(ATTEND + SESSION))
FORKS = """
import os, pickle
def attention(q, k, v):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, pickle.dumps(attend(q, k, v)))
        os._exit(0)
    return pickle.loads(os.read(read, 99999))
"""
POOL = """
import concurrent.futures as futures, multiprocessing
pool = {pool}
def attention(q, k, v):
    return pool.{call}.{result}()
"""

CHEATS = {
    **{
        f"{name} computes the answer": (WHOLE.format(name=name), f"{name}.Session.run")
        for name in ("onnxruntime", "transformers", "sklearn")
    },
    "a fork answers": (ATTEND + FORKS, "os.fork"),
    "a process pool answers": (
        ATTEND
        + POOL.format(
            pool='multiprocessing.get_context("fork").Pool(1)',
            call="apply_async(attend, (q, k, v))",
            result="get",
        ),
        "multiprocessing.Pool.apply_async",
    ),
    "an executor of processes answers": (
        ATTEND
        + POOL.format(
            pool='futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))',
            call="submit(attend, q, k, v)",
            result="result",
        ),
        "concurrent.ProcessPoolExecutor.submit",
    ),
    "it calls qkv": ("import qkv\ndef softmax(x):\n    return qkv.softmax(x)", "qkv.softmax"),
    "it is qkv's by another name": ("import qkv\nsoftmax = qkv.softmax", "qkv.softmax"),
    "it borrows the marker's answer": (
        "import numpy as np\nfrom qkv_marking.tasks.attention import steps\n"
        "def attention(q, k, v):\n"
        "    return steps.answer(steps.Trial({'query': q, 'key': k, 'value': v})).out",
        "qkv.",
    ),
    "it is a class": (
        "import qkv\nclass softmax:\n    __new__ = lambda cls, x: qkv.softmax(x)",
        "qkv.",
    ),
    "who watches is switched off": (
        "import sys, qkv\ndef softmax(x):\n    sys.setprofile(None)\n    return qkv.softmax(x)",
        "sys.setprofile",
    ),
    "scipy has a softmax": (SCIPY + "def softmax(x):\n    return scipy.softmax(x)", "scipy."),
    "torch has attention": (
        TORCH + "def attention(q, k, v):\n    return torch.scaled_dot_product_attention(q, k, v)",
        "torch.",
    ),
    "torch has a loss": (
        "import numpy as np\n"
        + LIBRARY.format(name="torch", function="cross_entropy")
        + "def next_token_loss(logits, ids, padding):\n"
        "    p = torch.cross_entropy(logits[:, :-1])\n"
        "    p = np.take_along_axis(p, ids[:, 1:, None], -1)[..., 0]\n"
        "    return -np.log(p)[ids[:, 1:] != padding].mean()",
        "torch.",
    ),
    "it changes what compares": (
        BACK + "import qkv_marking._outcome as o, qkv_marking._engine as e\n"
        "o.close = e.first_wrong = lambda *given: True\n"
        "o.Outcome.is_right = property(lambda self: True)",
        None,
    ),
    "it changes the verdict": (
        BACK + "import qkv_marking._result as r\nr.CheckResult.points = 10\n"
        "r.CheckResult.passed = True",
        None,
    ),
}


@pytest.mark.attack
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_earns_nothing(file, cheat):
    source, helper = CHEATS[cheat]
    result = only(file(source), seconds=300)  # one cheat loads qkv at each call
    assert (result.points, result.passed) == (0, False), str(result)
    if helper is None:
        assert result.helped_by == ()
    else:
        assert result.mistake == "answered-by-library", str(result)
        assert any(name.startswith(helper) for name in result.helped_by), result.helped_by
        assert result.helped_by[0] in result.message


def answer_of_qkv(q, k, v):
    return qkv.attention(q, k, v)


def own_attention(q, k, v):
    return qkv.softmax(scaled(q, k)) @ v


def test_qkv_check_names_the_call_as_the_command_does(file):
    result = check(answer_of_qkv)
    assert (result.points, result.mistakes) == (0, ("answered-by-library",))
    assert result.helped_by == ("qkv.attention",)
    assert "it calls qkv.attention." in result.message
    assert check(qkv.softmax, task="softmax").points == 0
    assert (check(own_attention).points, check(own_attention).helped_by) == (10, ())
    assert sys.getprofile() is None
    source = "import qkv\ndef attention(q, k, v):\n    return qkv.attention(q, k, v)"
    marked = only(file(source))
    assert (marked.points, marked.helped_by) == (result.points, result.helped_by)


def test_threads_are_no_processes(file):
    source = "import concurrent.futures as futures\npool = futures.ThreadPoolExecutor(1)\n"
    source += "own = softmax\ndef softmax(x):\n    return pool.submit(own, x).result()"
    result = only(file(SOFTMAX + source))
    assert (result.points, result.helped_by) == (10, ())


def test_an_own_solution_keeps_its_points_despite_importing_qkv(file):
    loud = SOFTMAX.replace("    return", "    print('softmax')\n    return")
    result = only(file("import qkv\nqkv.softmax([1.0, 2.0])\n" + loud))
    assert (result.points, result.helped_by) == (10, ())


@pytest.mark.parametrize("library", ["scipy", "qkv"])
def test_attention_may_call_a_library_softmax(file, library):
    source = "import numpy as np\ndef attention(q, k, v):\n"
    source += f"    return {library}.softmax(q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5) @ v"
    result = only(file((SCIPY if library == "scipy" else "import qkv\n") + source))
    assert (result.points, result.helped_by) == (10, ())
