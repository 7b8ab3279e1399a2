"""A model whose files hold nothing of the head that its config names."""

import numpy as np
import pytest

import qkv

from .families import CONFIGS, arrays_of, save_file, write_small


def test_a_model_without_the_tensors_of_its_head_goes_without(tmp_path):
    folder = write_small(tmp_path / "model", CONFIGS["llama"])
    whole = qkv.load(folder)
    arrays = arrays_of(CONFIGS["llama"])
    del arrays["lm_head.weight"]
    save_file(arrays, folder / "model.safetensors")
    with pytest.warns(UserWarning, match=r"names a head and there is no tensor lm_head\.weight"):
        model = qkv.load(folder)
    ids = [[5, 6, 7]]
    assert model(ids).logits is None
    np.testing.assert_array_equal(model(ids).last_hidden_state, whole(ids).last_hidden_state)
    with pytest.raises(ValueError, match="generate"):
        model.generate([5, 6], max_new_tokens=1)
