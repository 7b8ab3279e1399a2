"""Tests of the plane: an eigendecomposition gives the same plane, and shifts do not change it."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from qkv.see.analysis.word_vectors import fit_plane


def by_eigenvectors(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, ...]:
    """Compute PCA as in textbooks, from one covariance matrix of both sets pooled.

    Each set is centred on its own mean before the sets are pooled.
    """
    sets = [part - part.mean(axis=0) for part in (before, after)]
    together = np.concatenate(sets)
    values, vectors = np.linalg.eigh(together.T @ together)
    axes = []
    for place in (-1, -2):
        axis = vectors[:, place]
        axes.append(axis * np.sign(axis[np.abs(axis).argmax()]))
    basis = np.stack(axes, axis=1)
    return sets[0] @ basis, sets[1] @ basis, values[[-1, -2]] / values.sum(), basis.T


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(2, 6))
def test_the_plane_agrees_with_eigenvectors_of_the_covariance(seed: int, n: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.normal(size=(2, n, size)) * np.arange(1, size + 1)
    for found, expected in zip(
        fit_plane(before, after), by_eigenvectors(before, after), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_translating_a_set_does_not_change_the_plane() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 6, 5))
    plane, moved = fit_plane(before, after), fit_plane(before + 100, after - 7)
    for a, b in zip(plane, moved, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_both_sets_shape_the_plane() -> None:
    before = np.array([[0.0, 0, 0], [0, 0, 10]])  # the vectors differ only along the third axis
    after = np.array([[0.0, 0, 0], [0, 4, 0]])  # the vectors differ only along the second axis
    plane = fit_plane(before, after)
    np.testing.assert_allclose(np.ptp(plane.original, axis=0), [10, 0], atol=1e-12)
    np.testing.assert_allclose(np.ptp(plane.contextual, axis=0), [0, 4], atol=1e-12)
    np.testing.assert_allclose(plane.explained, [100 / 116, 16 / 116])


def test_the_largest_loading_of_an_axis_is_positive() -> None:
    line = np.outer(np.arange(4.0), [1.0, -3.0, 2.0])
    assert fit_plane(line, line).original[0, 0] > 0  # the axis and `line` have opposite directions
    assert fit_plane(-line, -line).original[0, 0] < 0


@pytest.mark.parametrize(
    "vectors", [np.ones((1, 4)), np.ones((3, 1)), np.full((5, 3), 1e6) + 0.1, np.zeros((2, 2))]
)
def test_vectors_that_are_all_equal_have_no_direction(vectors: np.ndarray) -> None:
    plane = fit_plane(vectors, 2 * vectors)
    assert plane.explained.tolist() == [0, 0]
    assert not plane.original.any()
    assert not plane.contextual.any()
    assert plane.axes.tolist() == np.zeros((2, vectors.shape[1])).tolist()


def test_one_dimension_is_a_line() -> None:
    plane = fit_plane([[0.0], [2.0]], [[0.0], [4.0]])
    assert plane.original.tolist() == [[-1, 0], [1, 0]]
    assert plane.contextual.tolist() == [[-2, 0], [2, 0]]
    assert plane.explained.tolist() == [1, 0]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int64])
def test_any_type_of_number_is_computed_in_float64(kind: type) -> None:
    rng = np.random.default_rng(1)
    before = rng.integers(-5, 5, size=(2, 4, 3)).astype(kind)
    plane = fit_plane(*before)
    assert all(part.dtype == np.float64 for part in plane)
    for a, b in zip(plane, by_eigenvectors(*before.astype(np.float64)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize(
    ("original", "contextual", "said"),
    [
        (np.ones((2, 3)), np.ones((3, 3)), r"original has shape \(2, 3\) and contextual has shape"),
        (np.ones((2, 3)), np.ones((2, 4)), r"\(2, 4\)"),
        ([[np.nan, 1.0]], [[1.0, 1.0]], "original has NaN, infinity"),
        ([[1.0, 1.0]], [[np.inf, 1.0]], "contextual has NaN, infinity"),
        (np.ones(3), np.ones(3), r"original has shape \(3,\); pass one or more vectors"),
        (np.ones((0, 3)), np.ones((0, 3)), "one or more vectors"),
        (np.ones((3, 0)), np.ones((3, 0)), "one or more vectors"),
    ],
)
def test_invalid_vectors_are_refused(original: object, contextual: object, said: str) -> None:
    with pytest.raises(ValueError, match=f"{said}"):
        fit_plane(original, contextual)


def test_lengths_do_not_matter_with_unit_vectors() -> None:
    before, after = np.random.default_rng(4).normal(size=(2, 7, 5))
    lengths = np.array([1e-300, 1e-3, 1, 2, 30, 1e200, 1e306])[:, None]
    plane = fit_plane(before, after, unit=True)
    for one, other in ((before * lengths, after), (before, after * lengths[::-1])):
        found = fit_plane(one, other, unit=True)
        np.testing.assert_allclose(found.original, plane.original, atol=1e-12)
        np.testing.assert_allclose(found.contextual, plane.contextual, atol=1e-12)
    by_hand = fit_plane(*(each / np.sqrt((each**2).sum(1))[:, None] for each in (before, after)))
    np.testing.assert_allclose(plane.original, by_hand.original, atol=1e-12)
    still = fit_plane([[0.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 5.0]], unit=True)
    np.testing.assert_allclose(still.original, still.contextual)
    # the vector of zeros stays; the other vector gets length 1
    assert np.ptp(still.original) == pytest.approx(1)
