"""Tests of findings: their measurements, their edits as records, and their verification."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.findings.measured import TOLERANCE

from .conftest import GLASS

Prediction = list[tuple[str, float]]


def alike(found: Prediction, expected: Prediction) -> None:
    """Check that words are equal, and probabilities are equal within the precision of float32."""
    assert [word for word, _ in found] == [word for word, _ in expected]
    np.testing.assert_allclose([p for _, p in found], [p for _, p in expected], atol=2e-6)


def test_before_and_after_are_the_predictions(glass: qkv.Finding, exact: qkv.Model) -> None:
    alike(glass.before, exact.predict(GLASS)[0])
    alike(glass.after, exact.predict(GLASS, hide="glass")[0])
    assert glass.before[0][0] != glass.after[0][0]
    assert glass.model == {"name": "books", "sha256": exact.sha256}
    assert (glass.text, glass.position) == (GLASS, 6)
    assert glass.edits == [{"op": "hide", "token": 4}]
    assert repr(glass).startswith("<Finding 'A glass makes it wine.' of books: ")


@pytest.mark.parametrize("gap", ["_", "[mask]", "___"])
def test_a_gap_may_be_typed_in_any_way(model: qkv.Model, glass: qkv.Finding, gap: str) -> None:
    found = qkv.finding(model, GLASS.replace("[MASK]", gap), hide="glass")
    assert (found.position, found.before, found.after) == (6, glass.before, glass.after)
    assert found.text == f"She drank a glass of {gap}."
    assert found.verify(model).holds


def test_a_model_may_be_named(glass: qkv.Finding) -> None:
    assert qkv.finding("books", GLASS, hide="glass", claim=glass.claim) == glass


def test_a_decoder_predicts_the_token_after_the_position(decoder: qkv.Model) -> None:
    text = "Here is Miss Green. Who is Miss"
    found = qkv.finding(decoder, text, ablate=[(2, 5)])
    assert (found.position, found.edits) == (7, [{"op": "ablate", "layer": 2, "head": 5}])
    alike(found.before, decoder.predict(text)[0])
    alike(found.after, decoder.predict(text, ablate=[(2, 5)])[0])
    # a decoder sees no token after a position, so the text may end at this position
    earlier = qkv.finding(decoder, text, position=2)
    assert qkv.finding(decoder, text, position=-6).position == 2
    alike(earlier.before, decoder.predict("Here is Miss")[0])
    assert earlier.after == earlier.before
    assert earlier.verify().holds


def test_the_position_of_an_encoder_needs_no_mask(model: qkv.Model, exact: qkv.Model) -> None:
    text = "She drank a glass of wine."
    found = qkv.finding(model, text, position=6, ablate=[(0, None)])
    logits = exact(exact.tokenize(text).ids, ablate=[(0, None)]).logits[0, 6]
    powers = np.exp(logits - logits.max())
    assert found.after[0][1] == pytest.approx(powers.max() / powers.sum(), abs=2e-6)
    # with two gaps, the position is that of the first gap
    assert qkv.finding(model, "A [MASK] and a [MASK].").position == 2


def test_arguments_become_records(model: qkv.Model) -> None:
    trace = model.trace(GLASS)
    swapped = model.trace(GLASS.replace("glass", "cup"))
    z, mlp = swapped["z", 2], swapped["mlp_out", 1]
    found = qkv.finding(
        model,
        GLASS,
        edit={("z", 2): z, "blocks.1.hook_mlp_out": mlp},
        ablate={(0, -1): np.float32([0.5] * 32), (1, 0): "mean"},
        hide=[(-3, 4, 1)],
    )
    by_op = {(one["op"], one.get("at", one.get("head"))): one for one in found.edits}
    assert list(by_op) == [
        ("set", "z"),
        ("set", "mlp_out"),
        ("ablate", 5),
        ("ablate", 0),
        ("mask", None),
    ]
    np.testing.assert_array_equal(by_op["set", "z"]["value"], z[0])
    assert by_op["ablate", 5] == {"op": "ablate", "layer": 0, "head": 5, "with": [0.5] * 32}
    assert by_op["ablate", 0]["with"] == "mean"
    assert by_op["mask", None] == {"op": "mask", "query": 6, "key": 4, "layer": 1}
    arguments: Any = {
        "edit": {("z", 2): z, ("mlp_out", 1): mlp},
        "ablate": {(0, -1): np.float32([0.5] * 32), (1, 0): "mean"},
        "hide": [(6, 4, 1)],
    }
    alike(found.after, model.predict(GLASS, **arguments)[0])
    assert len(trace.tokens) == 9


def test_an_array_for_all_layers_becomes_one_record_per_layer(model: qkv.Model) -> None:
    zero = np.zeros((1, 9, 6, 32))
    found = qkv.finding(model, GLASS, edit={"z": zero})
    assert [(one["at"], one["layer"]) for one in found.edits] == [("z", n) for n in range(4)]
    alike(found.after, model.predict(GLASS, ablate=[(n, None) for n in range(4)])[0])


@pytest.mark.parametrize("name", ["resid_post", "post", "embed", "attn_scores"])
def test_an_array_for_any_activation_becomes_a_record(
    model: qkv.Model, name: str, tmp_path: Path
) -> None:
    key: Any = name if name == "embed" else (name, 2)
    edit = {key: model.trace(GLASS.replace("glass", "cup"))[key]}
    found = qkv.finding(model, GLASS, edit=edit)
    [record] = found.edits
    assert record == {
        **{"op": "set", "at": name},
        **({} if name == "embed" else {"layer": 2}),
        "value": edit[key][0].tolist(),
    }
    alike(found.after, model.predict(GLASS, edit=edit)[0])
    found.save(tmp_path / "finding.json")
    assert qkv.Finding.load(tmp_path / "finding.json").verify(model).holds


def test_invalid_edits_are_refused(model: qkv.Model) -> None:
    def refused(edit: Any, said: str) -> None:
        with pytest.raises((ValueError, TypeError), match=said) as raised:
            qkv.finding(model, GLASS, edit=edit)
        assert "\n" not in str(raised.value)

    refused(
        {("z", 2): lambda z: z}, r"^finding: `edit` has a function for blocks\.2\.attn\.hook_z, but"
    )
    refused(
        {"embed": np.zeros((1, 9, 191))}, r"^finding: `edit` has shape \(1, 9, 191\) for hook_e"
    )
    refused({("z", 2): np.zeros((1, 8, 6, 32))}, r"^finding: `edit` has shape \(1, 8, 6, 32\) for")
    refused(
        {("z", 2): np.full((1, 9, 6, 32), np.nan)}, "^finding: edits.0. .set. has value .* finite"
    )
    refused([{"op": "hide", "token": 9}], "^finding: edit.0. .hide. has token 9; pass 0 to 8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "bookz"}, "^finding: 'bookz' is not a known model"),
        ({"text": 3}, "^finding: text is int, not a string"),
        ({"text": " "}, "^finding: the text is empty"),
        ({"text": "She drank."}, "^finding: the text has no mask token, and books guesses words"),
        ({"text": "a " * 80}, "^finding: the text has 82 tokens, but books reads at most.*64"),
        ({"position": 9}, "^finding: position is 9, but the text has 9 tokens; pass 0 to 8$"),
        ({"claim": None}, "^finding: claim is NoneType, not a string"),
        ({"hide": "dog"}, "^finding: `hide` has 'dog', which is in no text"),
        ({"ablate": [(9, 0)]}, "^finding: `ablate` names layer 9"),
        ({"model": qkv.load("random")}, "^finding: random has no head, so it cannot predict"),
    ],
)
def test_bad_arguments(model: qkv.Model, options: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"model": model, "text": GLASS, **options}
    with pytest.raises((ValueError, TypeError), match=said):
        qkv.finding(given.pop("model"), given.pop("text"), **given)


# ---- verification


def with_first(found: qkv.Finding, by: float, name: str = "after") -> qkv.Finding:
    """Return a copy of a finding, with `by` added to the probability of its first listed word."""
    (word, share), *others = getattr(found, name)
    return replace(found, **{name: [(word, share + by), *others]})


@pytest.mark.parametrize("name", ["before", "after"])
def test_probabilities_agree_to_a_ten_thousandth(glass: qkv.Finding, name: str) -> None:
    assert TOLERANCE == 1e-4
    assert glass.verify() == (True, [])
    for by in (0.9e-4, -0.9e-4):
        assert with_first(glass, by, name).verify().holds
    for by in (1.1e-4, -1.1e-4, np.nan):
        holds, [line] = with_first(glass, by, name).verify()
        assert not holds
        assert line.startswith(f"{name}, word 1: ")


def test_words_keep_their_order(glass: qkv.Finding) -> None:
    first, second, *others = glass.before
    other = replace(glass, before=[(second[0], first[1]), (first[0], second[1]), *others])
    holds, lines = other.verify()
    assert not holds
    assert lines == [
        f"before, word 1: {second[0]} ({first[1]:.4f}) in the finding, "
        f"{first[0]} ({first[1]:.4f}) here",
        f"before, word 2: {first[0]} ({second[1]:.4f}) in the finding, "
        f"{second[0]} ({second[1]:.4f}) here",
    ]
    assert replace(glass, before=glass.before[:2], after=glass.after[:1]).verify().holds


def test_another_text_edit_or_position_does_not_verify(glass: qkv.Finding) -> None:
    assert not replace(glass, text=GLASS.replace("drank", "broke")).verify().holds
    assert not replace(glass, edits=[]).verify().holds
    assert not replace(glass, position=5).verify().holds


def test_the_type_of_the_weights_does_not_matter(glass: qkv.Finding, exact: qkv.Model) -> None:
    assert glass.verify(exact) == (True, [])


def test_other_weights_do_not_verify_a_finding(model: qkv.Model, glass: qkv.Finding) -> None:
    table = model.parameters["embed.weight"].copy()
    table[5, 0] += 1e-3
    other = model.with_parameters({**model.parameters, "embed.weight": table})
    holds, [line] = glass.verify(other)
    assert not holds
    assert line == (
        f"the parameters differ: the finding belongs to books, sha256 {model.sha256[:12]}..., but "
        f"this model is books, sha256 {other.sha256[:12]}..."
    )
    own = qkv.finding(other, GLASS, hide="glass")
    assert own.verify() == (True, [])  # verified with the model that measured it
    assert not replace(own, _model=None).verify().holds  # verified with the model named books


def test_a_finding_of_an_unshipped_model_needs_the_model(small: Path, glass: qkv.Finding) -> None:
    made = qkv.finding(qkv.load(small), "the cat sat on the [MASK].", ablate=[(0, 1)])
    sent = replace(made, _model=None)
    with pytest.raises(ValueError, match=r"^verify: the finding belongs to 'small', which does"):
        sent.verify()
    assert sent.verify(small).holds
    assert sent.verify(str(small)).holds
    assert sent.verify(qkv.load(small)).holds
    with pytest.raises(FileNotFoundError, match="not on this machine, and nothing is downloaded"):
        sent.verify("nobody/nothing")


def test_values_that_do_not_fit_the_text_are_refused(glass: qkv.Finding) -> None:
    for changes, said in (
        ({"position": 9}, "verify: position is 9, but the text has 9 tokens; pass 0 to 8"),
        ({"position": 10**400}, "verify: position is 1000"),
        ({"edits": [{"op": "hide", "token": 9}]}, r"verify: edits\[0\] \(hide\) has token 9"),
        (
            {"edits": [{"op": "ablate", "layer": 10**30}]},
            r"verify: edits\[0\] \(ablate\) has layer",
        ),
        ({"text": "a " * 80}, "verify: the text has 82 tokens"),
        ({"text": "\u200b"}, "verify: the text is empty"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            replace(glass, **changes).verify()
