"""Small models of each kind, shared by the tests of a module."""

import functools

import numpy as np
import pytest

from qkv.models import load

from ..small_models import CONFIGS, write_small


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """A function that makes the float64 model of a kind, once per module."""

    @functools.cache
    def made(kind):
        folder = tmp_path_factory.mktemp(kind)
        return load(write_small(folder, CONFIGS[kind]), dtype=np.float64)

    return made
