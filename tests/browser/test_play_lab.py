"""Tests of the lab's drawer: one kind of changes at a time, few controls, a map of many heads."""

import json
from importlib.resources import files
from itertools import pairwise

import pytest

import qkv
from models.small_models import write_small

from .play import after, at, changed
from .playing import TEXT, held, until
from .support import Visit, config_of, idle
from .test_play_page import check_layout

# One control of each kind.
KINDS = {
    "sentence": [".offer", ".acting"],
    "links": [".masks", "[data-part=links]", "[data-part=head] .weights"],
    "heads": [".model-map", ".power"],
    "steps": [".heat", ".steer", ".walk-panel"],
}
NAMES = {"sentence": "Words", "links": "Links", "heads": "Heads", "steps": "Numbers"}
MEASURED = json.loads(files("qkv.see.page").joinpath("roles.json").read_bytes())
ROLES: dict[str, tuple[str, float]] = MEASURED["smollm2"]
EDITS = [{"op": "hide", "token": 4}, {"op": "ablate", "layer": 2, "head": 1}]
# Returns the visible controls of the whole page, also of its part below the window. A list, a map,
# a heat map or a row of tabs has one tab stop and is one control: the arrow keys move inside it.
CONTROLS = """() => {
  const root = document.querySelector(".qkv-view").shadowRoot;
  const own = "a[href], button, input, select, textarea, summary, [role=slider], [tabindex]";
  const shown = (node) => node.checkVisibility() && node.getBoundingClientRect().width > 0;
  const tabs = [...root.querySelectorAll("[role=tablist]")].filter(shown);
  const others = [...root.querySelectorAll(own)].filter((node) =>
    shown(node) && node.tabIndex >= 0 && !node.closest("[role=tablist]"));
  return [...tabs, ...others].map((node) => node.ariaLabel ?? node.textContent);
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_drawer_has_one_kind_of_changes_at_a_time(lab_at: Visit, width: int) -> None:
    page = lab_at(width=width, tab="sentence")
    for tab, own in KINDS.items():
        page.get_by_role("tab", name=NAMES[tab], exact=True).click()
        idle(page)
        for selector in own:
            page.locator(selector).first.wait_for()
        for other, selectors in KINDS.items():
            for selector in selectors if other != tab else ():
                assert not page.locator(selector).first.is_visible(), (tab, selector)
    until(lambda: held(page).get("tab") == "steps")


@pytest.mark.parametrize("tab", NAMES)
@pytest.mark.parametrize("width", [390, 1280])
def test_at_most_forty_controls_are_visible(lab_at: Visit, width: int, tab: str) -> None:
    page = lab_at(width=width, tab=tab, edits=EDITS, beside=True)
    if tab == "steps":
        page.locator(".walk-panel canvas").first.wait_for()
    assert 10 < len(page.evaluate(CONTROLS)) <= 40, page.evaluate(CONTROLS)


@pytest.mark.parametrize("tab", NAMES)
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080)])
def test_head_and_result_are_in_the_window_beside_the_drawer(
    quick_at: Visit, width: int, height: int, tab: str
) -> None:
    page = quick_at(text=TEXT, inside=True, tab=tab, width=width, height=height)
    nodes = [".drawer", "[data-part=head] .map-box canvas", "[data-part=outcome] .outcome-bars"]
    boxes = [page.locator(node).first.bounding_box() for node in nodes]
    for left, right in pairwise(boxes):
        assert left["x"] + left["width"] <= right["x"]
        assert right["y"] + right["height"] <= height
    check_layout(page)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of a model with as many heads as SmolLM2, and with its roles."""
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    config = config_of("llama", hidden_size=36, num_hidden_layers=30, **heads)
    model = qkv.load(write_small(tmp_path_factory.mktemp("dense") / "dense", config))
    html = qkv.play("the cat sat", model=model)._document()
    assert html.count('"roles":{}') == 1
    return html.replace('"roles":{}', f'"roles":{json.dumps(ROLES)}')


def test_a_map_of_270_heads_says_what_each_usually_does(visit: Visit, dense: str) -> None:
    page = at(visit, dense, view="lab", inside=True, tab="heads", layer=2, head=1)
    cells = page.locator(".model-map .cell-head")
    assert cells.count() == 270
    names = "all => all.map((one) => [one.dataset.head, one.querySelector('.role').textContent])"
    signs = dict(cells.evaluate_all(names))
    known = {"first": "⇤", "previous": "←", "same": "=", "induction": "↻"}
    own = {head: known.get(role) for head, (role, _) in ROLES.items()}
    expected = {head: own.get(head, "·") for head in signs if own.get(head, "·")}
    assert {head: signs[head] for head in expected} == expected
    legend = page.locator(".role-list li").all_inner_texts()
    counts = [int(line.split()[-2]) for line in legend]
    assert sum(counts) == 270
    assert legend[0] == f"⇤ usually attends to the start of the text: {counts[0]} heads"
    assert legend[-1] == f"· mixed: {270 - len(ROLES)} heads"
    assert len(page.evaluate(CONTROLS)) <= 40
    check_layout(page)
    page.locator(".model-map [data-head='29.8']").click()
    until(lambda: held(page)["layer"] == 29)
    after(page, page.get_by_role("switch", name="use head 29.8").click)
    assert changed(page) == [{"op": "ablate", "layer": 29, "head": 8}]


def test_the_shown_head_and_the_map_agree_for_every_measured_model() -> None:
    """The file of roles has only heads that exist, and no role below the rule's 0.4."""
    sizes = {"books-decoder": (5, 6), "smollm2": (30, 9)}
    assert MEASURED.keys() == sizes.keys()
    for name, own in MEASURED.items():
        for head, (_, value) in own.items():
            assert all(int(n) < most for n, most in zip(head.split("."), sizes[name], strict=True))
            assert 0.4 <= value <= 1
