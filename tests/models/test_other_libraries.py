"""Tests of arguments of other libraries: each is an error that names the alternative."""

import re

import pytest

import qkv
from qkv.models._other_libraries import GENERATING, LOADING
from rows import failing


def test_an_argument_of_another_library_says_what_to_do() -> None:
    generate = qkv.load("books-decoder").generate
    assert "computes only on the CPU: omit this argument" in LOADING["device"]
    assert "pass max_new_tokens" in GENERATING["max_length"]
    for call, asked, table in (("load", "random", LOADING), ("generate", "bank:", GENERATING)):
        ask = qkv.load if call == "load" else generate
        for name, way_out in table.items():
            said = re.escape(f"{call}: unknown argument {name}: {way_out}")
            with failing(call, name), pytest.raises(TypeError, match=f"^{said}"):
                ask(asked, **{name: 3})


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="unknown argument revison: the nearest are revision"):
        qkv.load("random", revison="main")
    with pytest.raises(TypeError, match=r"argument a\\nb: choose from name_or_path, rev"):
        qkv.load("random", **{"a\nb": 1})
    with pytest.raises(TypeError, match=r"^generate: .*token: the nearest are max_new_"):
        qkv.load("books-decoder").generate("bank:", max_new_token=3)
