"""Tests of image_view: the picture shows the right weight on each patch."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.models.vision import patch_names
from qkv.see import image_view
from qkv.see.draw.svg import png
from qkv.see.views._image_view import LIGHT, laid_over, smaller
from qkv.trace import Trace

ROWS, COLUMNS = 3, 4


def a_trace(layers: int = 2, heads: int = 2, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    size = ROWS * COLUMNS + 1
    weights = rng.dirichlet(np.ones(size), (layers, 1, heads, size))
    weights[1, 0, 1, 0] = 0.02  # in layer 1, head 1, [CLS] attends to row 2, column 1
    weights[1, 0, 1, 0, 1 + 2 * COLUMNS + 1] = 1 - 0.02 * (size - 1)
    return Trace(
        {f"blocks.{layer}.attn.hook_pattern": part for layer, part in enumerate(weights)},
        tokens=[patch_names(ROWS, COLUMNS)],
        special=[[True] + [False] * (size - 1)],
        model="made",
    )


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8)


def test_the_head_with_the_largest_weight_is_shown(image):
    trace = a_trace()
    view = qkv.image_view(trace, image)
    assert (view.layer, view.head, view.strongest, view.half) == (1, 1, (2, 1), 1)
    assert view.sentence == (
        "[CLS] attends most to the patch in row 2, column 1 (red frame), with a weight of 0.76, in "
        "layer 1, head 1. "
        "Half of the weight on the image lies on 1 of 12 patches."
    )
    found = view.to_dict()
    pattern = trace["pattern", 1][0, :, 0]
    np.testing.assert_array_equal(np.array(found["weights"]).reshape(2, -1), pattern[:, 1:])
    assert found["first"] == pattern[:, 0].tolist()
    assert json.loads(json.dumps(found)) == found


def test_layer_head_and_query_can_be_chosen(image):
    trace = a_trace()
    view = image_view(trace, image, layer=0, head=-1, query="1,2")
    assert (view.layer, view.head, view.looking) == (0, 1, (1, 2))
    position = 1 + 1 * COLUMNS + 2
    pattern = trace["pattern", 0][0, :, position, 1:]
    np.testing.assert_array_equal(view.weights.reshape(2, -1), pattern)
    assert view.sentence.startswith("The patch in row 1, column 2 (white frame) attends most to")
    assert image_view(trace, image, query=position).query == position
    assert image_view(trace, image, query="[CLS]").query == 0
    only = image_view(trace, image, head=0)
    best = [trace["pattern", layer][0, 0, 0, 1:].max() for layer in range(2)]
    assert (only.layer, only.head) == (int(np.argmax(best)), 0)
    assert image_view(trace, image, layer=-1).layer == 1


def test_the_weight_of_a_patch_on_itself_does_not_choose_the_head(image):
    trace = a_trace()
    weights = trace["pattern", 0].copy()
    weights[0, 0, 5] = 0
    weights[0, 0, 5, 5] = 1
    trace = Trace({"blocks.0.attn.hook_pattern": weights}, tokens=[trace.tokens])
    assert image_view(trace, image, query=5).head == 1


def test_the_overlay_of_a_patch_shows_its_weight():
    """A patch without weight is grey, and a patch with more weight has a lighter colour.

    The patches together fill the image.
    """
    image = np.full((31, 42, 3), 200, np.uint8)
    weights = np.arange(12.0).reshape(ROWS, COLUMNS)
    found = laid_over(image, weights / 11).astype(float)
    grey = np.full(3, 20 + 0.5 * 200)
    for row, column in np.ndindex(ROWS, COLUMNS):
        share = 0.85 * weights[row, column] / 11
        expected = (1 - share) * grey + share * np.array(LIGHT)
        for y in (row * 31 / ROWS + 1, (row + 1) * 31 / ROWS - 1.5):
            for x in (column * 42 / COLUMNS + 1, (column + 1) * 42 / COLUMNS - 1.5):
                assert np.abs(found[int(y), int(x)] - expected).max() <= 0.51
    assert laid_over(image, np.zeros((2, 2))).std() == 0


def test_each_head_has_its_own_scale_unless_stretch_is_false(image):
    own, common = (image_view(a_trace(), image, stretch=stretch) for stretch in (True, False))
    weights = own.weights[0]
    for view, end in ((own, weights.max()), (common, 1.0)):
        size = max(image.shape[:2])
        np.testing.assert_array_equal(view.draw(0, size), laid_over(image, weights / end))
    assert (
        f"Light blue: the head's largest weight, here {own.weights[own.head].max():.3f}" in own.note
    )
    assert "Light blue: weight 1." in common.note
    assert "9 is 1)" in str(common)


def test_large_weights_are_lighter_than_any_grey():
    white = np.full((4, 4, 3), 255, np.uint8)
    mixed = laid_over(white, np.array([[0.0, 1.0]])) @ [0.2126, 0.7152, 0.0722]
    assert mixed[0, 3] > mixed[0, 0] + 30


def test_pillow_reads_the_written_png(image):
    from PIL import Image

    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(image)))), image)


@pytest.mark.parametrize("shape", [(1, 2000), (900, 3), (50, 50), (449, 448)])
def test_large_images_are_made_smaller(shape):
    image = np.zeros((*shape, 3), np.uint8)
    found = smaller(image)
    assert max(found.shape[:2]) <= 448
    assert min(found.shape[:2]) >= 1
    assert (max(shape) <= 448) == (found.shape == image.shape)


@pytest.mark.parametrize("shape", [(20, 60), (80, 20)])
def test_images_that_are_wide_or_high(shape, tmp_path):
    view = image_view(a_trace(), np.zeros((*shape, 3), np.uint8))
    view.to_png(tmp_path / "view.png")
    assert (tmp_path / "view.png").stat().st_size > 1000


def test_the_page_stands_alone(image, tmp_path: Path):
    from PIL import Image

    view = image_view(a_trace(), image)
    view.to_html(tmp_path / "view.html")
    page = (tmp_path / "view.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    pictures = re.findall(r'href="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 2 + 2
    first = Image.open(io.BytesIO(base64.b64decode(pictures[0])))
    assert np.array_equal(np.asarray(first), image)
    over = Image.open(io.BytesIO(base64.b64decode(pictures[1])))
    assert np.array_equal(np.asarray(over), view.draw(1))
    assert "prefers-color-scheme:dark" in page
    view.to_svg(tmp_path / "view.svg")
    svg = (tmp_path / "view.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg ")
    x, y = re.search(r'<rect x="([\d.]+)" y="([\d.]+)"[^>]*stroke="#c8102e"', svg).groups()
    assert float(x) == pytest.approx(300 / COLUMNS * 1, abs=0.1)
    assert float(y) == pytest.approx(225 / ROWS * 2, abs=0.1)


def test_the_terminal_shows_the_grid(image):
    view = image_view(a_trace(), image, query="1,2", layer=1, head=1, stretch=True)
    lines = str(view).splitlines()
    grid = [line.split() for line in lines if re.fullmatch(r"\s+([\dx] ?)+", line)]
    assert [len(line) for line in grid] == [COLUMNS] * ROWS
    assert grid[1][2] == "x"
    assert sum(line.count("9") for line in grid) >= 1


def test_grey_images_and_pillow_images(image):
    from PIL import Image

    grey = image[..., 0]
    for given in (grey, grey[..., None], Image.fromarray(grey)):
        assert np.array_equal(image_view(a_trace(), given).image, np.repeat(grey[..., None], 3, 2))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layer": 2}, IndexError, "no layer 2: the layers are 0 to 1"),
        ({"head": -3}, IndexError, "no head -3"),
        ({"query": 13}, IndexError, "no token 13"),
        ({"query": "3,0"}, ValueError, "'3,0'; pass '[CLS]', or a patch"),
        ({"theme": "pink"}, ValueError, "theme is 'pink'"),
        ({"image": np.zeros((4, 4, 3))}, TypeError, "float64; pass uint8"),
        ({"image": np.zeros((4, 4, 4), np.uint8)}, ValueError, r"\(4, 4, 4\); pass \(H, W, 3\)"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(image, change, error, message):
    with pytest.raises(error, match=re.escape(message) if "(" not in message else message):
        image_view(a_trace(), **{"image": image, **change})


def test_traces_without_an_image_or_weights_are_refused(image):
    text = qkv.load("random").trace("I love you")
    with pytest.raises(ValueError, match="not a trace of an image"):
        image_view(text, image)
    trace = Trace({"hook_embed": np.zeros((1, 13, 2))}, tokens=[patch_names(ROWS, COLUMNS)])
    with pytest.raises(ValueError, match="holds no weights"):
        image_view(trace, image)
