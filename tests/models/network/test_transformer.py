"""Tests of layers with shared parameters, against a model with a copy for each layer."""

from dataclasses import replace

import numpy as np

from qkv.models import load
from qkv.models.network.batch import PackedIds
from qkv.models.network.design import Design

from ..small_models import CONFIGS, write_small


def unshared(parameters, same_as):
    """Return the parameters with a separate copy for each layer."""
    found = {name: array for name, array in parameters.items() if "blocks." not in name}
    for layer, first in enumerate(same_as):
        prefix = f"blocks.{first}."
        for name, array in parameters.items():
            if name.startswith(prefix):
                found[f"blocks.{layer}.{name.removeprefix(prefix)}"] = array.copy()
    return found


def test_shared_layers_equal_copies_and_sum_their_gradients(tmp_path):
    model = load(write_small(tmp_path, CONFIGS["albert"]), dtype=np.float64)
    design = model.design
    assert isinstance(design, Design)
    assert design.same_as == (0, 0, 2)
    parameters = dict(model.parameters)
    assert {name.split(".")[1] for name in parameters if "blocks." in name} == {"0", "2"}
    ids, positions, cu = np.array([3, 7, 5, 9, 4]), np.array([0, 1, 2, 0, 1]), np.array([0, 3, 5])
    shared = design.build(parameters)
    alone = replace(design, same_as=()).build(unshared(parameters, design.same_as))
    (rows, saved), (expected, kept) = (
        one.run(PackedIds(ids, cu, positions), save=True) for one in (shared, alone)
    )
    # A copy of a weight may have another memory layout. Some BLAS libraries then add the products
    # in another order.
    np.testing.assert_allclose(rows, expected, rtol=1e-12, atol=1e-12)
    grad = np.random.default_rng(0).standard_normal(rows.shape)
    found, each = shared.backward(grad, saved), alone.backward(grad, kept)
    assert np.abs(each["blocks.1.mlp.up_proj.weight"]).max() > 1e-3
    assert found.keys() == parameters.keys() - {name for name in parameters if "head" in name}
    for name, array in found.items():
        names = {name, name.replace("blocks.0.", "blocks.1.")}
        total = sum(each[one] for one in names)
        np.testing.assert_allclose(array, total, rtol=1e-12, atol=1e-12, err_msg=name)
