"""Tests of functions in `edit`: their arguments in every call and model, and their layers."""

from functools import partial

import numpy as np
import pytest

from qkv.models import load
from qkv.models.run.batches import POSITIONS

from .. import decoders
from ..small_models import CONFIGS, write_small
from ..support import close, cross_encoder

KINDS = ["cross-encoder", "gpt2", "llama", "modernbert", "bloom", "albert", "t5", "clip", "vit"]
TEXTS = ["the cat sat on the mat.", "a dog ran, the cat ran", "the bank", "a", "the dog sat"]
LENGTH = 12


def model_of(folder, kind):
    if kind == "cross-encoder":
        return load(cross_encoder(folder).write(), dtype=np.float64)
    return load(write_small(folder, CONFIGS[kind]), dtype=np.float64)


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory):
    return model_of(tmp_path_factory.mktemp("modernbert"), "modernbert")


def texts_of(model, kind, count):
    """Return ids of texts of one length, or images."""
    rng = np.random.default_rng(0)
    if kind == "vit":
        return rng.standard_normal((count, 2, 8, 8))
    return rng.integers(4, len(model.embedding.table), (count, LENGTH))


def seen_by(call, *args, edit, **options):
    """Return the result of a call, and the arguments that its edit function received."""
    seen = []

    def look(x, at):
        seen.append((x.copy(), at))
        return x

    return call(*args, edit={name: look for name in edit}, **options), seen


# which texts


@pytest.mark.parametrize("kind", KINDS)
def test_swapping_embeddings_in_trace_swaps_the_results(tmp_path, kind):
    """If an edit swaps the embeddings of two texts, the results of the two texts are swapped.

    This is true even if the two texts are far apart in the list.
    """
    model = model_of(tmp_path, kind)
    count = 2 * POSITIONS // LENGTH if kind != "vit" else POSITIONS // 2  # too many to run at once
    texts = texts_of(model, kind, count)
    last = ("resid_post", -1)
    found = model.trace(texts, names=[last], edit={"hook_full_embed": lambda x: x[::-1]})
    close(found[last], model.trace(texts[::-1], names=[last])[last])
    by_three = model.trace(
        texts[:7], names=[last], batch_size=3, edit={"hook_full_embed": lambda x: x[::-1]}
    )
    order = [2, 1, 0, 5, 4, 3, 6]
    close(by_three[last], model.trace(texts[order], names=[last])[last])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "clip"])
def test_swapping_embeddings_in_a_call_swaps_the_results(tmp_path, kind):
    model = model_of(tmp_path, kind)
    texts = texts_of(model, kind, POSITIONS // (2 if kind == "vit" else 6))
    more = {"decoder_input_ids": np.tile([[2, 5]], (len(texts), 1))} if kind == "t5" else {}
    name = "encoder.hook_full_embed" if kind == "t5" else "hook_full_embed"
    found = model(texts, **more, edit={name: lambda x: x[::-1]})
    close(found.last_hidden_state, model(texts[::-1], **more).last_hidden_state)


def test_swapping_embeddings_of_pairs_swaps_the_results(tmp_path):
    model = model_of(tmp_path, "t5")
    read, written = (texts_of(model, "t5", 2 * POSITIONS // LENGTH) for _ in range(2))
    written = written[::-1]
    swap = dict.fromkeys(["encoder.hook_full_embed", "decoder.hook_full_embed"], np.flipud)
    found = model.trace(read, target=written, names="decoder.hook_resid_post", edit=swap)
    expected = model.trace(read[::-1], target=written[::-1], names="decoder.hook_resid_post")
    close(found.decoder["resid_post", -1], expected.decoder["resid_post", -1])


def test_at_gives_the_name_layer_texts_and_positions(tmp_path):
    model = model_of(tmp_path, "cross-encoder")
    edit = ["hook_pos_embed", ("pattern", 1), "blocks.0.mlp.hook_post"]
    trace, seen = seen_by(model.trace, TEXTS, edit=edit)
    places = np.arange(max(trace.lengths))
    expected = np.where(places < trace.lengths[:, None], places, -1).tolist()
    assert [(at.name, at.layer) for _, at in seen] == [
        ("hook_pos_embed", None),
        ("blocks.0.mlp.hook_post", 0),
        ("blocks.1.attn.hook_pattern", 1),
    ]
    for x, at in seen:
        assert len(x) == len(TEXTS)
        assert at.texts.tolist() == [0, 1, 2, 3, 4]
        assert at.positions.tolist() == expected
        assert at.step is None
    _, seen = seen_by(model.trace, TEXTS, edit=[("z", 0)], batch_size=2)
    assert [at.texts.tolist() for _, at in seen] == [[0, 1], [2, 3], [4]]
    for x, at in seen:
        own = trace.lengths[at.texts]
        assert x.shape[1] == max(own)
        assert (at.positions >= 0).sum(1).tolist() == own.tolist()
        assert not x[at.positions < 0].any()


def test_at_gives_columns_as_positions_if_the_caller_passes_a_mask(tmp_path):
    model = model_of(tmp_path, "gpt2")
    mask = np.array([[0, 0, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 1]])
    for name in (("v", 1), ("pattern", 0)):
        _, ((x, at),) = seen_by(model, np.full((3, 5), 7), mask, edit=[name])
        assert at.positions.tolist() == [[-1, -1, 2, 3, 4], [0, -1, 2, 3, -1], [-1, -1, -1, -1, 4]]
        assert at.texts.tolist() == [0, 1, 2]
        if name[0] == "v":
            assert (x.any((-1, -2)) == mask).all()


@pytest.mark.parametrize("size", [1, 32])
def test_encode_says_which_texts_are_run_together(tmp_path, size):
    model = model_of(tmp_path, "cross-encoder")
    vectors = model.encode(TEXTS)
    found, seen = seen_by(model.encode, TEXTS, edit=["embed"], batch_size=size)
    close(found, vectors)
    assert sorted(number for _, at in seen for number in at.texts) == [0, 1, 2, 3, 4]
    for x, at in seen:
        for row, number in enumerate(at.texts):
            own = model.trace(TEXTS[number], names="embed")["embed"][0]
            close(x[row, : len(own)], own)
            padding = [-1] * (x.shape[1] - len(own))
            assert at.positions[row].tolist() == [*range(len(own)), *padding]


def test_a_stream_edits_each_batch_and_reports_its_texts(tmp_path):
    model = model_of(tmp_path, "gpt2")
    ids = texts_of(model, "gpt2", 150)
    size = 100  # the model runs 100 texts at once only if there is an edit function
    assert size * LENGTH > POSITIONS
    swap = {"hook_full_embed": lambda x: x[::-1]}
    last = ("resid_post", -1)
    found = model.trace_stream(ids, batch_size=size, names=[last], edit=swap)
    for trace, part in zip(found, (ids[:size], ids[size:]), strict=True):
        close(trace[last], model.trace(part[::-1], names=[last])[last])
    stream, seen = seen_by(model.trace_stream, ids, batch_size=size, edit=[("z", 0)])
    assert len([*stream]) == 2
    assert [at.texts.tolist() for _, at in seen] == [[*range(100)], [*range(100, 150)]]


def test_generate_says_which_step_and_which_positions(tmp_path):
    model = decoders.gpt2(tmp_path / "model", seed=3, eos_token_id=None)
    prompts = ["abcde", "xy"]
    (_, _), seen = seen_by(model.generate, prompts, max_new_tokens=3, edit=[("pattern", 1)])
    assert [at.step for _, at in seen] == [0, 1, 2]
    assert [at.positions.tolist() for _, at in seen] == [
        [[0, 1, 2, 3, 4], [0, 1, -1, -1, -1]],
        [[5], [2]],
        [[6], [3]],
    ]
    assert all(at.texts.tolist() == [0, 1] for _, at in seen)


def test_a_row_that_has_ended_is_padding(tmp_path):
    script = [0, 0, 0, 9, decoders.EOS, *[9] * 9]
    model = decoders.gpt2(tmp_path / "model", script=script)
    (one, other), seen = seen_by(
        model.generate, [[5, 5, 5], [5, 5, 5, 5]], max_new_tokens=4, edit=["embed"]
    )
    assert one.ids[:1] != other.ids[:1]
    ended = [at.positions.tolist() for _, at in seen if (at.positions < 0).all(1).any()]
    assert ended
    for x, at in seen:
        assert not x[at.positions < 0].any()


def test_at_gives_positions_on_both_sides_of_a_pair(tmp_path):
    model = model_of(tmp_path, "t5")
    read = [[4, 5, 6, 7], [8, 9]]
    edit = ["encoder.hook_embed", ("cross_attn.k", 0), ("cross_attn.pattern", 2), ("decoder.v", 1)]
    of_read, of_written = [[0, 1, 2, 3], [0, 1, -1, -1]], [[0, 1], [0, 1]]
    expected = {
        "encoder.hook_embed": (None, of_read),
        "decoder.blocks.0.cross_attn.hook_k": (0, of_read),
        "decoder.blocks.1.attn.hook_v": (1, of_written),
        "decoder.blocks.2.cross_attn.hook_pattern": (2, of_written),
    }
    _, seen = seen_by(model.trace, read, target=[[2, 5], [2, 6]], edit=edit)
    assert {at.name: (at.layer, at.positions.tolist()) for _, at in seen} == expected
    assert {at.step for _, at in seen} == {None}
    ids, mask = [[4, 5, 6, 7], [0, 8, 9, 0]], [[1, 1, 1, 1], [0, 1, 1, 0]]
    _, seen = seen_by(model, ids, mask, [[0, 2, 5], [2, 6, 7]], [[0, 1, 1], [1, 1, 1]], edit=edit)
    by_name = {at.name: at.positions.tolist() for _, at in seen}
    assert by_name["encoder.hook_embed"] == [[0, 1, 2, 3], [-1, 1, 2, -1]]
    assert by_name["decoder.blocks.0.cross_attn.hook_k"] == by_name["encoder.hook_embed"]
    assert by_name["decoder.blocks.1.attn.hook_v"] == [[-1, 1, 2], [0, 1, 2]]
    _, seen = seen_by(model.generate, read, max_new_tokens=2, edit=edit)
    steps = {(at.name, at.step): at.positions.tolist() for _, at in seen}
    assert steps["encoder.hook_embed", 0] == of_read
    assert steps["decoder.blocks.0.cross_attn.hook_k", 0] == of_read
    assert steps["decoder.blocks.1.attn.hook_v", 0] == [[0], [0]]
    assert steps["decoder.blocks.2.cross_attn.hook_pattern", 1] == [[1], [1]]


# functions


def test_a_function_takes_an_array_or_an_array_and_at(tmp_path):
    """A second parameter with a default keeps its default, unless it is named `at`."""
    model = model_of(tmp_path, "gpt2")
    ids = texts_of(model, "gpt2", 2)
    plain = model.trace(ids)

    class Twice:
        def __call__(self, z):
            return 2 * z

        def of_two(self, z, at):
            return (2 + 0 * at.layer) * z

    def by_default(z, factor=2):
        return factor * z

    def by_name(z, at=None):
        return z * (2 if at is not None and at.layer == 0 else np.nan)

    def any_number(*given):
        (z,) = given
        return 2 * z

    functions = [Twice(), Twice().of_two, by_default, by_name, any_number, lambda z, at: 2 * z]
    functions += [partial(np.multiply, 2), partial(lambda n, z: n * z, 2), np.add.accumulate]
    for function in functions[:-1]:
        close(model.trace(ids, edit={("z", 0): function})["z", 0], 2 * plain["z", 0])
    found = model.trace(ids, edit={("z", 0): functions[-1]})["z", 0]
    close(found, plain["z", 0].cumsum(0))


@pytest.mark.parametrize(
    "function",
    [lambda: 1, lambda a, b, c: a, lambda a, *, b: a, lambda *, at: at],
    ids=["none", "three", "a name", "names alone"],
)
def test_an_edit_function_with_other_parameters_is_refused_before_the_run(tmp_path, function):
    model, called = model_of(tmp_path, "gpt2"), []
    edit = {("q", 0): called.append, ("z", 0): function}
    said = (
        r"`edit` has a function with parameters \(.*\) for blocks.0.attn.hook_z; "
        r"pass f\(array\) or f\(array, at\)"
    )
    for call in (model.trace, model.generate, model.encode):
        with pytest.raises(TypeError, match=said):
            call(["the cat"], edit=edit)
    assert not called


# several layers


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("z", [0, 1, 2]),
        ("hook_z", [0, 1, 2]),
        ("attn.hook_z", [0, 1, 2]),
        (("z", None), [0, 1, 2]),
        (("z", None, "attn"), [0, 1, 2]),
        (("z", (1, 2)), [1, 2]),
        (("z", (-1,)), [2]),
        (("z", (2, 0)), [2, 0]),
        (("z", range(2)), [0, 1]),
        (("z", -1), [2]),
    ],
)
@pytest.mark.parametrize("given", ["function", "array"])
def test_an_activation_of_several_layers(modernbert, name, layers, given):
    model = modernbert
    ids = texts_of(model, "modernbert", 2)
    change = np.ones((1, LENGTH, 3, 4)) if given == "array" else np.negative
    found = model.trace(ids, edit={name: change})
    assert found.changed == {"edit": [f"blocks.{layer}.attn.hook_z" for layer in layers]}
    each = model.trace(ids, edit={("z", layer): change for layer in layers})
    for full in each.names():
        np.testing.assert_array_equal(found[full], each[full])


def test_an_edit_without_a_layer_applies_wherever_the_activation_exists(tmp_path):
    model = model_of(tmp_path, "modernbert")  # layer 0 has no first norm
    ids = texts_of(model, "modernbert", 1)

    def changed(name):
        return model.trace(ids, edit={name: np.negative}).changed["edit"]

    assert changed("ln1.scale") == ["blocks.1.ln1.hook_scale", "blocks.2.ln1.hook_scale"]
    assert changed(("scale", None, "ln2")) == [f"blocks.{n}.ln2.hook_scale" for n in range(3)]
    assert changed(("scale", None)) == ["ln_final.hook_scale"]  # the final norm's, as in a trace
    assert changed(("embed", None)) == changed("embed") == ["hook_embed"]
    with pytest.raises(KeyError, match=r"and \('scale', 0, 'ln1'\) exists only in layers 1, 2"):
        changed(("scale", (0, 1), "ln1"))


def test_several_layers_of_a_side_of_a_pair(tmp_path):
    model = model_of(tmp_path, "t5")
    pair = {"texts": [[4, 5, 6]], "target": [[2, 5]]}

    def changed(name):
        return model.trace(**pair, edit={name: np.negative}).encoder.changed["edit"]

    assert changed("encoder.z") == [f"encoder.blocks.{n}.attn.hook_z" for n in range(2)]
    assert changed(("decoder.z", None)) == [f"decoder.blocks.{n}.attn.hook_z" for n in range(3)]
    assert changed(("decoder.z", (0, -1))) == [f"decoder.blocks.{n}.attn.hook_z" for n in (0, 2)]
    assert changed(("encoder.z", 1)) == ["encoder.blocks.1.attn.hook_z"]
    crossed = [f"decoder.blocks.{n}.cross_attn.hook_z" for n in range(3)]
    assert changed("decoder.cross_attn.z") == changed(("cross_attn.z", None)) == crossed
    for name in ("z", ("z", 0), ("z", None), "encoder.cross_attn.z", ("encoder.z", (1, 2))):
        with pytest.raises(KeyError, match="trace: `edit` has "):
            changed(name)


@pytest.mark.parametrize(
    ("edit", "error", "said"),
    [
        ({("z", ()): abs}, ValueError, r"`edit` has \('z', \(\)\), which does not name a layer"),
        ({("z", (0, 9)): abs}, KeyError, "there is no layer 9: the model has 2 layers"),
        ({("z", (0, -2)): abs}, ValueError, "`edit` has two changes for blocks.0.attn.hook_z"),
        ({"z": abs, ("z", 1): abs}, ValueError, "`edit` has two changes for blocks.1.attn.hook_z"),
        ({"z": np.ones((1, 2))}, ValueError, r"`edit` has shape \(1, 2\) for blocks.0.attn.hook_z"),
        ({"lse": abs}, ValueError, "has 'lse', which a run only records and never reads; choose"),
        ({"blocks.1.hook_mlp_in": abs}, ValueError, "hook_mlp_in', which a run only records"),
    ],
)
def test_invalid_edits_of_several_layers_are_refused(tmp_path, edit, error, said):
    with pytest.raises(error, match=said):
        model_of(tmp_path, "gpt2").trace([[4, 5, 6]], edit=edit)
