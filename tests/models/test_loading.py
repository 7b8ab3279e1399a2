"""A model whose files hold nothing of the head that its config names."""

import numpy as np
import pytest

import qkv

from .small_models import CONFIGS, arrays_of, save_file, write_small


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


def test_a_tied_head_of_which_the_files_have_another_matrix(tmp_path):
    """In its place, beside it, or the same again."""
    config = {**CONFIGS["llama"], "tie_word_embeddings": True}
    folder = write_small(tmp_path / "model", config)
    ids, arrays = [[5, 6, 7]], arrays_of(config)
    table = arrays["embed_tokens.weight"]
    first = qkv.load(folder)(ids).logits

    def logits_with(**others):
        save_file({**arrays, **others}, folder / "model.safetensors")
        model = qkv.load(folder)
        model.save(tmp_path / "copy")
        found = model(ids).logits
        np.testing.assert_array_equal(qkv.load(tmp_path / "copy")(ids).logits, found)
        return found

    np.testing.assert_array_equal(logits_with(**{"lm_head.weight": table.copy()}), first)
    np.testing.assert_array_equal(logits_with(**{"lm_head.weight": -2 * table}), -2 * first)
    del arrays["embed_tokens.weight"]
    np.testing.assert_array_equal(logits_with(**{"lm_head.weight": table}), first)
