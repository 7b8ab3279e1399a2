"""Tests of live views in a notebook that is run, saved, exported and opened elsewhere."""

import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import NotebookNode

import qkv

from .support import Visit, sentence, shown_weights, token

CAT = "The cat sat on the mat"
CELLS = [
    f"import qkv\nview = qkv.show({CAT!r}, model='random')\nview",
    "qkv.compare('I love you', 'You love me', word='love', model='random')",
    "view",
    "qkv.head_view(view.trace.attentions, view.tokens)",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    # outputs may arrive late on a busy machine: by default they would be dropped after 4 s
    NotebookClient(notebook, timeout=120, iopub_timeout=60, kernel_name="python3").execute()
    path = tmp_path_factory.mktemp("notebook") / "saved.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="module")
def exported(saved: Path) -> str:
    body, _ = HTMLExporter(mathjax_url="").from_filename(str(saved))
    # remove the exporter's own scripts: they need a network, and are not part of the views
    return re.sub(r"<script[^>]*src=[^>]*>\s*</script>", "", str(body))


@pytest.fixture(scope="module")
def view() -> qkv.see.ShowView:
    return qkv.show(CAT, model="random")


def test_each_cell_shows_its_view_once_and_as_text_too(saved: Path, view: qkv.see.ShowView) -> None:
    cells: list[NotebookNode] = nbformat.read(saved, as_version=4).cells
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output.output_type for output in outputs] == [
        *("execute_result", "execute_result", "execute_result", "display_data")
    ]
    for output in outputs:
        assert set(output.data) == {"text/html", "text/plain"}
        assert "<" not in output.data["text/plain"]
    assert outputs[0].data["text/plain"] == str(view)
    assert outputs[0].data["text/html"] == view._repr_html_()


def test_the_views_of_an_exported_notebook_are_alive(
    visit: Visit, exported: str, view: qkv.see.ShowView
) -> None:
    page = visit(exported)
    assert page.locator(".view").count() == 4
    assert page.locator(".lead").first.inner_text() == view.sentence
    assert sentence(page).startswith(f"{view.tokens[view.links[0].query]} attends to ")
    others = page.locator(".sentence").all_inner_texts()[1:]
    token(page, 2).click()
    assert sentence(page).startswith("sat attends to ")
    np.testing.assert_allclose(shown_weights(page), view.weights[2], atol=0.00501)
    assert page.locator(".sentence").all_inner_texts()[1:] == others  # other views unchanged


def test_the_exported_notebook_shows_pictures_without_scripts(visit: Visit, exported: str) -> None:
    page = visit(exported, scripts=False)
    pictures = page.locator(".qkv-view svg")
    assert pictures.count() == 4
    assert all(picture.is_visible() for picture in pictures.all())


def test_the_same_notebook_fits_a_phone_in_the_dark(visit: Visit, exported: str) -> None:
    page = visit(exported, width=390, scheme="dark")
    for shown in page.locator(".view").all():
        box = shown.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
