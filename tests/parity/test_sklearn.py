"""Tests of `TextEncoder` in scikit-learn."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

import qkv
from qkv.integrations import sklearn as module
from qkv.integrations.sklearn import TextEncoder

ANIMALS = ["the cat sat", "a dog ran", "the cat and the dog", "a cat on the mat", "dogs run", "cat"]
MONEY = [
    "the bank",
    "a loan of money",
    "money in the bank",
    "the fee",
    "pay the loan",
    "a bank fee",
]
TEXTS, KINDS = ANIMALS + MONEY, [0] * len(ANIMALS) + [1] * len(MONEY)


def expected(**options: Any) -> np.ndarray:
    found: np.ndarray = qkv.load("books").encode(TEXTS, **options)
    return found


def test_vectors_are_those_of_encode() -> None:
    for given in (TEXTS, tuple(TEXTS), np.array(TEXTS), pd.Series(TEXTS), iter(TEXTS)):
        np.testing.assert_array_equal(TextEncoder("books").transform(given), expected())
    options = {"truncate_dim": 7, "normalize_embeddings": True, "prompt": "the "}
    found = TextEncoder("books", **options).fit_transform(TEXTS, KINDS)
    np.testing.assert_array_equal(found, expected(**options))


def test_params() -> None:
    encoder = TextEncoder("books", truncate_dim=7)
    assert encoder.get_params() == {
        "model": "books",
        "prompt_name": None,
        "prompt": None,
        "normalize_embeddings": None,
        "truncate_dim": 7,
        "batch_size": 32,
    }
    assert encoder.set_params(truncate_dim=5, model="random") is encoder
    assert encoder.transform(TEXTS).shape == (12, 5)
    with pytest.raises(ValueError, match="Invalid parameter 'width'"):
        encoder.set_params(width=3)
    assert repr(encoder) == "TextEncoder(model='random', truncate_dim=5)"


def test_clone() -> None:
    encoder = TextEncoder("books", normalize_embeddings=True).fit(TEXTS)
    copy = clone(encoder)
    assert copy is not encoder
    assert type(copy) is TextEncoder
    assert copy.get_params() == encoder.get_params()
    np.testing.assert_array_equal(copy.transform(TEXTS), encoder.transform(TEXTS))


def test_a_pickle_has_no_weights(tmp_path: Path) -> None:
    """A pickle without weights is read by a process that has not loaded the model."""
    encoder = TextEncoder("books", truncate_dim=7)
    vectors = encoder.fit_transform(TEXTS)
    data = pickle.dumps(encoder)
    assert len(data) < 1000
    (tmp_path / "encoder.pickle").write_bytes(data)
    program = (
        "import pickle, sys, numpy as np\n"
        "encoder = pickle.load(open('encoder.pickle', 'rb'))\n"
        "np.save('vectors.npy', encoder.transform(['the cat sat']))\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, env={**os.environ})
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), vectors[:1], atol=1e-6)


def test_models_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module._load.cache_clear()
    loaded, load = [], qkv.load
    monkeypatch.setattr(module, "load", lambda name: loaded.append(name) or load(name))
    encoder = TextEncoder("random")
    for one in (encoder, clone(encoder), pickle.loads(pickle.dumps(encoder))):
        one.transform(TEXTS)
    assert loaded == ["random"]
    module._load.cache_clear()


def test_names_of_features() -> None:
    encoder = TextEncoder("books", truncate_dim=3)
    found = encoder.get_feature_names_out()
    assert found.dtype == object
    assert found.tolist() == ["textencoder0", "textencoder1", "textencoder2"]
    width = qkv.load("books").get_embedding_dimension()
    assert len(TextEncoder("books").get_feature_names_out()) == width


@pytest.mark.parametrize("given", [TEXTS, pd.Series(TEXTS, index=range(100, 112))])
def test_set_output(given: Any) -> None:
    encoder = TextEncoder("books", truncate_dim=3).set_output(transform="pandas")
    for table in (encoder.fit(given).transform(given), encoder.fit_transform(given)):
        assert isinstance(table, pd.DataFrame)
        assert table.columns.tolist() == encoder.get_feature_names_out().tolist()
        assert table.index[0] == (0 if given is TEXTS else 100)
        np.testing.assert_array_equal(table.to_numpy(), expected(truncate_dim=3))
    encoder.set_output(transform="default")
    assert isinstance(encoder.transform(given), np.ndarray)


def pipeline() -> Pipeline:
    steps = [("texts", TextEncoder("books")), ("scale", StandardScaler())]
    return Pipeline([*steps, ("classes", LogisticRegression())])


def test_pipeline() -> None:
    model = pipeline().fit(TEXTS, KINDS)
    by_hand = StandardScaler().fit_transform(expected())
    other = LogisticRegression().fit(by_hand, KINDS)
    np.testing.assert_allclose(model.predict_proba(TEXTS), other.predict_proba(by_hand), atol=1e-6)
    names = model[:-1].get_feature_names_out()
    assert names[0] == "textencoder0"
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(TEXTS), model.predict(TEXTS))


def test_grid_search_in_two_processes() -> None:
    grid = {"texts__truncate_dim": [2, 16], "texts__normalize_embeddings": [None, True]}
    found = [
        GridSearchCV(pipeline(), grid, cv=3, n_jobs=jobs, error_score="raise").fit(TEXTS, KINDS)
        for jobs in (1, 2)
    ]
    scores = [one.cv_results_["mean_test_score"] for one in found]
    np.testing.assert_allclose(scores[0], scores[1])
    assert found[0].best_params_ == found[1].best_params_
    assert len(found[1].predict(TEXTS)) == 12


def test_columns_of_a_table() -> None:
    table = pd.DataFrame({"title": TEXTS, "text": TEXTS[::-1], "length": [*map(len, TEXTS)]})
    columns = [
        ("title", TextEncoder("books", truncate_dim=2), "title"),
        ("text", TextEncoder("books", truncate_dim=3), "text"),
        ("rest", "passthrough", ["length"]),
    ]
    made = ColumnTransformer(columns)
    found = made.fit_transform(table)
    vectors = expected()
    np.testing.assert_allclose(found[:, :2], vectors[:, :2], atol=1e-6)
    np.testing.assert_allclose(found[:, 2:5], vectors[::-1, :3], atol=1e-6)
    assert made.get_feature_names_out()[-1] == "rest__length"
    both = FeatureUnion([("a", TextEncoder("books")), ("b", TextEncoder("random"))])
    assert both.fit_transform(TEXTS).shape == (12, vectors.shape[1] + 8)


def test_tables_numbers_and_single_strings_are_refused() -> None:
    table = pd.DataFrame({"title": TEXTS})
    encoder = TextEncoder("books")
    for given in (table, np.array(TEXTS)[:, None]):
        for call in (encoder.fit, encoder.transform):
            with pytest.raises(ValueError, match=r"TextEncoder: X is a table \(12, 1\)"):
                call(given)
    with pytest.raises(TypeError, match="TextEncoder: text 1 is int"):
        encoder.fit(["a", 3])
    with pytest.raises(TypeError, match="TextEncoder: `texts` is one str"):
        encoder.transform("the cat sat")


def test_it_needs_no_fit() -> None:
    encoder = TextEncoder("books")
    try:
        check_is_fitted(encoder)
    except NotFittedError:
        pytest.fail("it has nothing to learn")
    tags = get_tags(encoder)
    assert not tags.requires_fit
    assert tags.input_tags.string
    assert not tags.input_tags.two_d_array


def test_unknown_names_of_the_module_raise_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Encoder'"):
        module.Encoder  # noqa: B018  # asking for it is what fails
