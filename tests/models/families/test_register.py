"""Tests that a user's script registers a family by the call that qkv's own families use."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import qkv
from qkv.models.families import FAMILIES

from ..formulas import attend, causal, rms_norm

V, D, F, H, T, LAYERS = 11, 6, 10, 2, 5, 2
CONFIG = {"model_type": "tests-plain", "words": V, "width": D, "inner": F, "depth": LAYERS}
NAMES = {
    "embed": "table",
    "pos_embed": "places",
    "blocks.*.norm1": "layer.*.first",
    "blocks.*.attn.q_proj": qkv.models.Fused("layer.*.look", 0, 3),
    "blocks.*.attn.k_proj": qkv.models.Fused("layer.*.look", 1, 3),
    "blocks.*.attn.v_proj": qkv.models.Fused("layer.*.look", 2, 3),
    "blocks.*.attn.out_proj": "layer.*.join",
    "blocks.*.norm2": "layer.*.second",
    "blocks.*.mlp.up_proj": "layer.*.widen",
    "blocks.*.mlp.down_proj": "layer.*.narrow",
    "final_norm": "last",
    "head.out_proj": "words",
}
IDS = [3, 1, 4, 1, 5]


def design(config: qkv.models.Config) -> qkv.models.Design:
    attention = qkv.models.Attention(H, H, D // H, options={"is_causal": True})
    return qkv.models.Design(
        vocabulary=config.size("vocab_size"),
        dim=config.size("hidden_size"),
        hidden=config.size("inner"),
        activation="relu",
        eps=1e-5,
        layers=(attention,) * config.size("depth"),
        max_seq_length=T,
        positions=T,
        rms=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        head=qkv.models.Head(V),
    )


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tests-plain", "tests-wrong"):
        monkeypatch.setitem(FAMILIES, name, None)  # restored after the test
        del FAMILIES[name]
    spellings = {"vocab_size": ["words"], "hidden_size": ["width"]}
    qkv.models.register("tests-plain", design, NAMES, spellings=spellings)


def write(folder: Path, **config: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {"table": (V, D), "places": (T, D), "last": (D,), "words": (V, D)}
    for n in range(LAYERS):
        shapes |= {f"layer.{n}.first": (D,), f"layer.{n}.second": (D,)}
        shapes |= {f"layer.{n}.look": (3 * D, D), f"layer.{n}.join": (D, D)}
        shapes |= {f"layer.{n}.widen": (F, D), f"layer.{n}.narrow": (D, F)}
    tensors = {f"{name}.weight": rng.standard_normal(shape) for name, shape in shapes.items()}
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(tensors, folder / "model.safetensors")
    return {name.removesuffix(".weight"): array for name, array in tensors.items()}


def formula(p: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Compute the logits (T, V) of the decoder that `write` makes."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(rms_norm(x, p[name], 1e-5))

    x = p["table"][ids] + p["places"][: len(ids)]
    for n in range(LAYERS):
        q, k, v = np.split(norm(x, f"layer.{n}.first") @ p[f"layer.{n}.look"].T, 3, axis=1)
        x = x + attend(q, k, v, H, visible=causal(len(ids)))[0] @ p[f"layer.{n}.join"].T
        hidden = np.maximum(norm(x, f"layer.{n}.second") @ p[f"layer.{n}.widen"].T, 0)
        x = x + hidden @ p[f"layer.{n}.narrow"].T
    return np.asarray(norm(x, "last") @ p["words"].T)


@pytest.mark.usefixtures("registered")
def test_a_model_of_a_registered_family_computes_the_formula(tmp_path: Path) -> None:
    expected = formula(write(tmp_path), IDS)
    model = qkv.load(tmp_path, dtype=np.float64)
    np.testing.assert_allclose(model([IDS]).logits[0], expected, rtol=1e-10, atol=1e-10)
    trace = model.trace([IDS], logits=True, edit={("z", 1): np.negative})
    assert trace["pattern", 1].shape == (1, H, T, T)
    written = tmp_path / "again"
    model.save(written)
    assert json.loads((written / "config.json").read_text())["model_type"] == "tests-plain"
    again = qkv.load(written, dtype=np.float64)
    np.testing.assert_array_equal(again([IDS]).logits, model([IDS]).logits)


def test_the_example_of_the_documentation_works_and_has_thirty_lines() -> None:
    page = Path(__file__).parents[3] / "docs/your-own-family.md"
    cells = re.findall(r"```\{code-cell\} ipython3\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert len([line for line in cells[0].split("\n") if line]) <= 30
    subprocess.run([sys.executable, "-W", "error", "-c", "".join(cells)], check=True)


@pytest.mark.usefixtures("registered")
def test_a_design_function_that_returns_no_design_is_named(tmp_path: Path) -> None:
    write(tmp_path, model_type="tests-wrong")
    qkv.models.register("tests-wrong", lambda config: None, NAMES)  # type: ignore[arg-type]  # it returns no Design
    with pytest.raises(TypeError, match=r"'tests-wrong'.* returned None; it must return a qkv"):
        qkv.load(tmp_path)


@pytest.mark.usefixtures("registered")
def test_a_missing_name_is_named(tmp_path: Path) -> None:
    write(tmp_path, model_type="tests-wrong")
    names = {ours: theirs for ours, theirs in NAMES.items() if ours != "blocks.*.norm2"}
    spellings = {"vocab_size": ["words"], "hidden_size": ["width"]}
    qkv.models.register("tests-wrong", design, names, spellings=spellings)
    with pytest.raises(ValueError, match=r"'tests-wrong' has no name for blocks\.0\.norm2\.weight"):
        qkv.load(tmp_path)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("gpt2", design, NAMES), ValueError, "model_type 'gpt2' is already registered: choose"),
        (("tests-plain", design, NAMES), ValueError, "'tests-plain' is already registered"),
        (("", design, NAMES), ValueError, "model_type '' is empty"),
        ((3, design, NAMES), TypeError, "model_type is 3; pass a string"),
        (("tests-wrong", "gpt2", NAMES), TypeError, "design is 'gpt2'; pass a function"),
        (("tests-wrong", design, ["embed"]), TypeError, r"names is \['embed'\]; pass a dict"),
    ],
)
def test_a_bad_registration_is_refused(arguments: Any, error: type[Exception], said: str) -> None:
    before = dict(FAMILIES)
    with pytest.raises(error, match=f"^register: .*{said}"):
        qkv.models.register(*arguments)
    assert before == FAMILIES


@pytest.mark.usefixtures("registered")
def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"^register: there is no argument default: .* defaults"):
        qkv.models.register("tests-wrong", design, NAMES, default={})
    assert "tests-wrong" not in FAMILIES


def test_the_registry_needs_no_other_package_than_numpy() -> None:
    program = (
        "import sys, qkv; assert 'qkv.models' not in sys.modules; qkv.models.register; "
        "assert not {'torch', 'safetensors', 'tokenizers', 'matplotlib'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
