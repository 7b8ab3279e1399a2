"""Tests of token ids in the types of other libraries, in place of texts."""

import numpy as np
import pytest

from qkv.circuits import head_scores, patch

IDS = [3, 7, 1, 9, 4]
OTHER = [3, 7, 8, 9, 2]


class Tensor:
    """A substitute for a torch tensor, with the parts of a tensor that qkv uses.

    The substitute is not a NumPy array, but NumPy can convert it to an array.
    """

    def __init__(self, data):
        self.data = np.asarray(data)

    def __array__(self, dtype=None, copy=None):
        return self.data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return Tensor(self.data[index])

    def __iter__(self):
        return map(Tensor, self.data)


WAYS = {
    "trace": lambda model, ids, _: model.trace(ids, logits=True)["logits"],
    "trace of two": lambda model, *both: model.trace([*both], logits=True)["logits"],
    "stream": lambda model, *both: [
        one["resid_post", -1] for one in model.trace_stream([*both], batch_size=1)
    ],
    "gradient": lambda model, ids, _: model.gradient(ids, of=(-1, 5))["embed"],
    "generate": lambda model, ids, _: model.generate(ids, max_new_tokens=3).ids,
    "predict": lambda model, ids, _: [probability for _, probability in model.predict(ids)[0]],
    "patch": lambda model, *both: patch(model, *both, at="z", metric=(-1, 5)),
    "head_scores": lambda model, *both: head_scores(model, [*both], "previous")["previous"],
    "head_scores of one": lambda model, ids, _: head_scores(model, ids, "first")["first"],
}


@pytest.mark.parametrize("way", WAYS)
def test_tensors_of_ids_are_ids(llama, way):
    run = WAYS[way]
    np.testing.assert_array_equal(run(llama, Tensor(IDS), Tensor(OTHER)), run(llama, IDS, OTHER))


def test_one_tensor_of_several_texts(llama):
    expected = llama.trace([IDS, OTHER])
    found = llama.trace(Tensor([IDS, OTHER]))
    assert found.ids == expected.ids
    streamed = [one.ids for one in llama.trace_stream(Tensor([IDS, OTHER]), batch_size=1)]
    assert streamed == [[IDS], [OTHER]]


def test_trace_stream_refuses_a_tensor_of_one_text(llama):
    with pytest.raises(TypeError, match="`texts` is one text; pass a list of texts"):
        llama.trace_stream(Tensor(IDS), batch_size=1)


def test_tensors_of_floats_are_no_ids(llama):
    with pytest.raises(TypeError, match="text 0 is Tensor, not a string"):
        llama.trace([Tensor([0.5, 1.5])])


def test_lengths_locate_each_last_token_in_a_padded_batch(llama):
    texts, step = [IDS, OTHER[:2], OTHER[:3]], np.linspace(-1, 1, llama.dim)
    last = llama.trace(texts, names="embed").lengths - 1

    def by_lengths(resid):
        resid[np.arange(len(resid)), last] += step
        return resid

    def of_one(resid):
        resid[:, -1] += step
        return resid

    at = ("resid_post", 0)
    found = llama.trace(texts, edit={at: by_lengths}, logits=True)
    for number, text in enumerate(texts):
        expected = llama.trace(text, edit={at: of_one}, logits=True)["logits"]
        np.testing.assert_allclose(found[number]["logits"], expected, rtol=0, atol=1e-11)
    in_padding = llama.trace(texts, edit={at: of_one}, logits=True)
    np.testing.assert_allclose(
        in_padding[1]["logits"], llama.trace(texts[1], logits=True)["logits"], rtol=0, atol=1e-11
    )
