"""Tests of models in the blocks of a GGUF file in a page: numbers, edits, text, pieces."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Error, Page

import qkv
from models.gguf_files import llama_tensors, write_llama
from qkv.models import Model

from .edited import Edit, examples
from .engine import EXACT, agree, ask, by_the_library, page_of, unpacked
from .support import Visit

TEXT, OTHER = "the cat sat the 12 c", "a cat ran the 12 a t"  # each of 14 tokens
# In WebAssembly, vectors are rounded to int16 before they are multiplied with blocks. The random
# parameters make scores of up to 20.
ROUNDED = 2e-3, 2e-3
Pages = list[tuple[Page, tuple[float, float]]]
KINDS = ("Q4_0", "Q4_1", "Q8_0", "F16")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama whose matrices, and whose token table, are in blocks of all kinds."""
    names = [name for name in llama_tensors() if "norm" not in name]
    kinds = {name: KINDS[i % len(KINDS)] for i, name in enumerate(names)}
    folder = tmp_path_factory.mktemp("blocks")
    made: Path = write_llama(folder / "small.gguf", kinds=kinds | {"token_embd.weight": "Q8_0"})
    return made


@pytest.fixture(scope="module")
def small(path: Path) -> Model:
    return qkv.load(path)


@pytest.fixture(scope="module")
def double(path: Path) -> Model:
    return qkv.load(path, dtype=np.float64)


@pytest.fixture(scope="module")
def pages(visit_once: Visit, small: Model) -> Pages:
    """Two pages, with and without WebAssembly, and the bounds of their errors."""
    bounds = {False: ROUNDED, True: EXACT}
    return [(visit_once(page_of(small, plain=one)), bounds[one]) for one in bounds]


def edits_of(model: Model) -> dict[str, Edit]:
    """Return an edit of each kind."""
    found = examples(len(model.tokenize(TEXT)), "12", model.dim)
    return found | {"patch": found["patch"] | {"from": OTHER}}


def test_numbers_and_edits_are_the_librarys(pages: Pages, small: Model, double: Model) -> None:
    usual = by_the_library(double, TEXT, [])
    for name, edit in {"nothing": None, **edits_of(small)}.items():
        edits = [] if edit is None else [edit]
        expected = by_the_library(double, TEXT, edits)
        moved = np.abs(expected.logits - usual.logits).max()
        assert name in ("nothing", "causal") or moved > 0.05, name
        for page, bounds in pages:
            agree(ask(page, TEXT, edits)[1], expected, *bounds)


def test_text_is_the_librarys(pages: Pages, small: Model, double: Model) -> None:
    for edit in (None, edits_of(small)["hide"], edits_of(small)["ablate"]):
        edits = [] if edit is None else [edit]
        own = double.generate(TEXT, max_new_tokens=16, edit=edits)
        for page, _ in pages:
            generate = "([text, edits]) => qkv.generate(text, {max: 16}, edits)"
            found = page.evaluate(generate, [TEXT, edits])
            assert (found["ids"], found["text"]) == (own.ids, str(own))


def test_activations_and_parameters_are_the_librarys(
    pages: Pages, small: Model, double: Model
) -> None:
    trace = double.trace(TEXT)
    names = ["embed.weight", *(name for name in small.parameters if name.startswith("blocks.1"))]
    for page, (_, others) in pages:
        found, _ = ask(page, TEXT, [], layers=[1])
        for name in ("q", "v", "z", "pre", "post", "attn_out", "mlp_out"):
            own = trace[name, 1][0]
            numbers = unpacked(found["blocks"][0][name]).reshape(own.shape)
            np.testing.assert_allclose(numbers, own, rtol=0, atol=others * np.abs(own).max())
        packed = page.evaluate(
            """async ([names, rows]) => Object.values(await qkv.parameters(names, rows))
              .map((one) => new Uint8Array(one.slice().buffer).toBase64())""",
            [names, {"embed.weight": [5, 0, 199]}],
        )
        for name, one in zip(names, packed, strict=True):
            own = np.asarray(small.parameters[name])
            own = own[[5, 0, 199]] if name == "embed.weight" else own.T
            np.testing.assert_array_equal(unpacked(one), own.ravel())


def test_a_page_that_was_cut_off_says_so(visit: Visit, small: Model) -> None:
    html = page_of(small)
    before, pieces = html.split('<script type="text/plain" data-piece', 1)
    for cut in (before, html[: -len(pieces) // 2]):
        with pytest.raises(Error, match="this page's file is incomplete; download it again"):
            visit(cut).evaluate("qkv.run('the cat')")
