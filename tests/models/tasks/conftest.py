"""Small models of each kind, which the tests of a module share."""

import functools

import numpy as np
import pytest

from qkv.models import load

from ..small_models import CONFIGS, write_small


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """A function that makes the model of a kind in float64, once."""

    @functools.cache
    def made(kind):
        folder = tmp_path_factory.mktemp(kind)
        return load(write_small(folder, CONFIGS[kind]), dtype=np.float64)

    return made
