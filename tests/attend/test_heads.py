"""Tests of grouped heads, and of arrays that broadcast."""

import numpy as np
import pytest

import qkv
from rows import failing

from .support import agree, numbers, qkv_arrays


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 4), (2, 4), (1, 3)])
def test_heads_that_do_not_divide_are_refused(heads: int, kv_heads: int) -> None:
    with pytest.raises(ValueError, match=rf"attention.*\b{heads}\b.*\b{kv_heads}\b"):
        qkv.attention(*qkv_arrays((), heads, kv_heads))


def test_key_and_value_heads_must_agree() -> None:
    query, key, value = qkv_arrays((), 4, 2)
    for other in (value[:1], np.concatenate([value, value])):
        with pytest.raises(ValueError, match=r"attention.*(head|shape)"):
            qkv.attention(query, key, other)


@pytest.mark.parametrize(
    ("query_lead", "key_lead", "value_lead"),
    [
        ((3,), (1,), (1,)),
        ((1,), (3,), (3,)),
        ((1,), (1,), (3,)),
        ((3,), (), ()),
        ((), (3,), (1,)),
        ((2, 1), (1, 3), (2, 3)),
        ((2, 1), (3,), (1, 1)),
        ((0,), (1,), (1,)),
        ((), (2, 0), (1, 1)),
    ],
)
def test_leading_dimensions_broadcast(
    query_lead: tuple, key_lead: tuple, value_lead: tuple
) -> None:
    query, key, value = (
        numbers((*lead, heads, length, size), seed)
        for seed, (lead, heads, length, size) in enumerate(
            [(query_lead, 4, 5, 4), (key_lead, 2, 7, 4), (value_lead, 2, 7, 3)]
        )
    )
    agree(query, key, value)
    agree(query, key, value, numbers((5, 7), 9), is_causal=True, q_offset="end", key_lengths=5)


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": np.ones((3, 1, 5, 7), bool)},
        {"attn_mask": np.ones((1, 2, 5, 7), bool)[None].repeat(2, 0)},
        {"bias": numbers((3, 1, 1, 1), 1)},
        {"q_offset": [0, 1, 2]},
        {"key_lengths": [1, 2, 3]},
        {"query_lengths": [[1], [2]]},
    ],
    ids=str,
)
def test_masks_and_arguments_per_row_never_enlarge_the_result(options: dict) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=rf"attention.*{name}"):
        qkv.attention(*qkv_arrays((1,)), **options)
    with pytest.raises(ValueError, match=rf"attention.*{name}"):
        qkv.attention(*qkv_arrays(()), **options)


@pytest.mark.parametrize(
    "shape", [(4, 5, 7), (2, 5, 1, 7), (3, 5, 7), (5, 8), (4, 7), (7, 5), (2, 1, 1, 5, 7), (0,)]
)
def test_a_mask_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    for name, mask in [("attn_mask", np.ones(shape, bool)), ("bias", numbers(shape, 1))]:
        with pytest.raises(ValueError, match=rf"attention.*{name}") as caught:
            qkv.attention(*qkv_arrays((2,)), **{name: mask})
        message = str(caught.value)
        assert str(shape) in message
        assert "5" in message
        assert "7" in message


def test_a_mask_of_three_dimensions_is_refused_for_inputs_without_heads() -> None:
    query, key, value = (x[0] for x in qkv_arrays((), 1))
    for mask in (np.ones((2, 5, 7), bool), np.ones((1, 5, 7), bool)):
        with pytest.raises(ValueError, match="attn_mask"):
            qkv.attention(query, key, value, mask)


def test_shapes_that_do_not_fit_are_refused() -> None:
    for query, key, value in (
        ((2, 5, 4), (2, 7, 3), (2, 7, 3)),  # d
        ((2, 5, 4), (2, 7, 4), (2, 6, 3)),  # S
        ((2, 2, 5, 4), (3, 2, 7, 4), (3, 2, 7, 3)),  # B
        ((4,), (7, 4), (7, 3)),
        ((), (), ()),
    ):
        with failing(query, key, value), pytest.raises(ValueError, match="attention"):
            qkv.attention(numbers(query), numbers(key), numbers(value))


def test_the_errors_name_both_sizes() -> None:
    for shapes, sizes in [
        ([(2, 5, 31), (2, 7, 37), (2, 7, 3)], ("31", "37")),
        ([(2, 5, 4), (2, 41, 4), (2, 43, 3)], ("41", "43")),
        ([(11, 2, 5, 4), (13, 2, 7, 4), (13, 2, 7, 3)], ("11", "13")),
    ]:
        with pytest.raises(ValueError, match="attention") as caught:
            qkv.attention(*(numbers(shape) for shape in shapes))
        assert "\n" not in str(caught.value)
        for size in sizes:
            assert size in str(caught.value)
