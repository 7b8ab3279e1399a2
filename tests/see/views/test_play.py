"""Tests of the page with a model inside: its first state, its contents, and rejected inputs."""

import json
import re
import zlib
from contextlib import AbstractContextManager
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

import qkv
from models.decoders import gpt2
from models.gguf_files import llama_tensors, write_llama
from models.support import mask_bert
from qkv.files import replacing
from qkv.models.files.find import shipped_models
from qkv.see import PlayView, play
from qkv.see.page.html import POLICY
from qkv.see.page.play import OPENING
from qkv.see.views.play import findings_view

from ..page.reading import Page

SMALL = "the cat sat on the [MASK]."
OPPOSITE = "The opposite of black is [MASK]."
KEPT = json.loads((shipped_models()["books"] / "stories.json").read_text("utf-8"))["stories"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> qkv.Model:
    folder = tmp_path_factory.mktemp("mask") / "small"
    mask_bert(folder)
    return qkv.load(folder)


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("books")


@pytest.fixture(scope="module")
def view(small: qkv.Model) -> PlayView:
    return play(SMALL, model=small)


def data_of(page: str) -> tuple[dict, dict]:
    """Return the data that a page passes to its script, and the model in the page."""
    script, model, *_ = Page(page).scripts
    mark, _ = json.JSONDecoder().raw_decode(script, script.rindex('start("') + 6)
    at = script.rindex(f'start("{mark}", ') + len(f'start("{mark}", ')
    return json.JSONDecoder().raw_decode(script, at)[0], json.loads(model)


def test_play_opens_on_the_word_with_the_largest_effect(small: qkv.Model, view: PlayView) -> None:
    words = small.config["vocab_size"]
    (before,) = small.predict(SMALL, words)
    apart = {}
    for word in ("cat", "sat"):
        (after,) = small.predict(SMALL, words, hide=word)
        probabilities = dict(after)
        change = sum(abs(share - probabilities[name]) for name, share in before) / 2
        apart[word] = (before[0][0] != after[0][0], change, after)
    word = max(apart, key=lambda name: apart[name][:2])
    found = view.to_dict()
    assert view.opening.word == word
    assert found["hide"] == [small.tokenize(SMALL).tokens.index(word)]
    assert found["place"] == 6
    assert found["before"] == [list(one) for one in before[:5]]
    for (name, share), (expected, exact) in zip(found["after"], apart[word][2][:5], strict=True):
        assert name == expected
        assert share == pytest.approx(exact, rel=1e-12)
    (first, share), (second, less) = before[0], apart[word][2][0]
    assert view.sentence == (
        f"Most likely at the gap: {first}, {100 * share:.0f}%; {word} hidden: {second}, "
        f"{100 * less:.0f}%."
    )
    for line in (view.sentence, f"{share:.3f}", f"{less:.3f}"):
        assert line in str(view)


@pytest.mark.parametrize("text", [one["sentence"] for one in KEPT if one["hide"]])
def test_words_that_change_the_first_guess_are_preferred(text: str, model: qkv.Model) -> None:
    found = play(text, model=model).opening
    (before,) = model.predict(text, 1)
    (after,) = model.predict(text, 1, hide=found.word)
    assert before[0][0] != after[0][0]
    assert found.after[0][0] == after[0][0]


def test_play_opens_on_the_head_that_show_chooses(view: PlayView, small: qkv.Model) -> None:
    head = qkv.show(SMALL, model=small).head  # `show` chooses the same head
    assert view.head == replace(head, reason=view.head.reason, headline=view.head.headline)
    assert view.head.reason in view.reasons[0]
    data = data_of(view._document())[0]
    assert data["start"] == {
        **{"text": SMALL, "edits": [], "position": 6, "query": 6, "said": view.head.headline},
        **{"layer": head.layer, "head": head.head, "hide": view.opening.hidden},
        "view": "front",
    }
    share = f"{100 * float(head.headline.split(' of the prob')[0][-4:]):.0f}%"
    most = f"the head whose removal changes the guess most is head {head.layer}.{head.head}; "
    assert most in view.head.headline
    assert f" without it, {share} of the probability goes to other words." in view.head.headline
    assert data["untrained"] is True
    assert {"the", "of"} < set(data["little"]["words"]) - {"cat"}


@pytest.mark.parametrize(
    ("text", "position", "hidden"),
    [
        ("the cat sat on a mat", 6, True),  # without a mask token, the last content word is guessed
        ("a [MASK] sat. the [MASK] ran", 2, True),  # the first of two masks
        ("cat", 1, False),  # the text has no other word to hide
        ("[MASK]", 1, False),
        ("...", 1, False),
    ],
)
def test_opening_of_unusual_texts(small: qkv.Model, text: str, position: int, hidden: bool) -> None:
    view = play(text, model=small)
    assert view.opening.position == position
    assert bool(view.opening.hidden) is hidden
    assert position not in view.opening.hidden
    assert view.opening.after == view.opening.before or hidden
    assert ("hidden" in view.sentence) is hidden
    assert view.svg().startswith("<svg")


def test_all_subwords_of_a_word_are_hidden(small: qkv.Model) -> None:
    view = play("dogs [MASK]", model=small)
    subwords = small.tokenize("dogs [MASK]").tokens
    assert subwords[1].startswith("d")
    assert view.opening.hidden == list(range(1, subwords.index("[MASK]")))
    assert view.opening.word == "dogs"


def test_byte_level_tokens_are_printed_as_text(tmp_path: Path) -> None:
    view = play("the the", model=gpt2(tmp_path, seed=1))
    assert list(view.trace.tokens) == ["the", "the"]
    assert "Ġ" not in str(view) + json.dumps(view.to_dict(), ensure_ascii=False)


def test_a_cut_text_draws_one_warning(small: qkv.Model) -> None:
    with pytest.warns(UserWarning, match="cut to 16 tokens") as told:
        view = play("the [MASK] " + "cat " * 30, model=small)
    assert len(told) == 1
    assert len(view.trace.tokens) == 16


@pytest.mark.parametrize(
    ("text", "decoder_text"),
    [
        ("The oak is a small tree.", "The oak is a small tree."),
        ("Is it a small tree ?", "Is it a small tree ?"),  # a question mark at the end is no gap
        ("The oak is a small _.", OPENING),
        ("The oak is a small [MASK].", OPENING),
        (None, OPENING),
    ],
)
def test_the_decoder_opens_on_the_given_text_unless_the_text_has_a_gap(
    text: str | None, decoder_text: str
) -> None:
    view = play(text)
    assert view.text == (text or "She drank a glass of [MASK].")
    (other,) = view.others
    assert other.text == decoder_text


def test_only_a_page_without_a_chosen_model_has_a_decoder(
    small: qkv.Model, model: qkv.Model
) -> None:
    assert play(SMALL, model=small).others == []
    assert play(OPPOSITE, model=model).others == []


def test_a_page_has_the_models_of_a_list(small: qkv.Model) -> None:
    view = play(model=[small, "books", "books-decoder"])
    data, _ = data_of(view._document())
    assert [data["side"], *(one["side"] for one in data["others"])] == [
        "encoder",
        "books",
        "decoder",
    ]
    assert view.model is small
    assert re.findall('data-side="(.*?)"', view._document()) == ["encoder", "books", "decoder"]
    with pytest.raises(ValueError, match="two models have the same name; pass each model once"):
        play(model=["books", "books"])
    with pytest.raises(ValueError, match="empty list: pass at least one model"):
        play(model=[])


def test_play_without_text_opens_on_a_sentence_with_a_mask_token(model: qkv.Model) -> None:
    view = play()
    assert view.text.count("[MASK]") == 1
    hidden = model.predict(view.text, hide=view.opening.word)[0][0]
    assert [view.opening.before[0], view.opening.after[0]] == [
        (word, pytest.approx(share)) for word, share in (model.predict(view.text)[0][0], hidden)
    ]


def test_the_page_has_the_stories_and_roles_of_the_card(model: qkv.Model) -> None:
    data, inside = data_of(play(OPPOSITE, model=model)._document())
    assert (data["version"], data["kind"], data["model"]) == (1, "play", "books")
    assert (data["title"], data["texts"]) == ("The opposite of black is ___.", [])
    assert [story["text"] for story in data["stories"]] == [one["sentence"] for one in KEPT]
    for story, kept in zip(data["stories"], KEPT, strict=True):
        tokens = model.tokenize(kept["sentence"]).tokens
        assert [tokens[position] for position in story.get("hide", [])] == kept["hide"]
        assert story.get("ablate", []) == kept["ablate"]
        assert story["before"] == [kept["before"]["word"], kept["before"]["probability"]]
        assert story["after"] == [kept["after"]["word"], kept["after"]["probability"]]
        assert story["why"] == kept["reason"]
        changes = [f"{word} hidden" for word in kept["hide"]]
        changes += [f"without layer {layer}, head {head}" for layer, head in kept["ablate"]]
        assert [story["change"]] == changes
    roles = json.loads((shipped_models()["books"] / "roles.json").read_text("utf-8"))
    assert data["roles"] == roles
    assert data["read"] == "has read 273 books from before 1930 and a dictionary"
    cards = json.loads((shipped_models()["books"] / "cards.json").read_text("utf-8"))["cards"]
    assert data["cards"] == cards
    assert data["game"] == json.loads((shipped_models()["books"] / "game.json").read_text("utf-8"))
    assert inside["name"] == "books"


def test_a_changed_model_has_no_stories_roles_cards_or_game(model: qkv.Model) -> None:
    changed = dict(model.parameters)
    changed["embed.weight"] = np.array(changed["embed.weight"])
    changed["embed.weight"][5, 5] += 1
    data, _ = data_of(play(OPPOSITE, model=model.with_parameters(changed))._document())
    assert (data["stories"], data["roles"], data["cards"], data["game"]) == ([], {}, [], {})
    count = sum(array.size for array in changed.values())
    assert data["read"] == (
        f"is of type bert, with 4 layers of 6 heads and {count:,} parameters; "
        "qkv does not know what it has read"
    )
    assert (data["called"], data["shelf"]) == ("books", [])


def test_the_page_is_one_file_with_its_policy_and_picture(
    view: PlayView, model: qkv.Model, tmp_path: Path
) -> None:
    view.to_html(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    assert text == view._document()
    page = Page(text)
    (policy,) = (x for x in page.attribute("meta", "content") if x and "default-src" in x)
    scripts = "script-src 'wasm-unsafe-eval' 'unsafe-inline'"
    more = {"worker-src blob:", scripts}
    assert {*policy.split("; ")} == {*POLICY.split("; ")} - {"script-src 'unsafe-inline'"} | more
    assert page.attribute("svg", "role") == ["img"]
    assert text.index("<svg") < text.index("<script") < text.index('data-side="encoder"')
    assert len(play(model=model)._document().encode()) <= 16_000_000


def test_weights_may_be_in_a_file_beside_the_page(
    small: qkv.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {name: "Q8_0" for name in llama_tensors() if "norm" not in name}
    big = qkv.load(write_llama(tmp_path / "a big one.gguf", kinds=kinds))
    view, written = play(model=[small, big]), list[str]()

    def recorded(path: Path) -> AbstractContextManager[BinaryIO]:
        written.append(Path(path).name)
        return replacing(path)

    monkeypatch.setattr("qkv.see.views.play.replacing", recorded)
    home = tmp_path / "site"
    home.mkdir()
    view.to_html(home / "page.html", weights="beside")
    text = (home / "page.html").read_text("utf-8")
    found = (
        'data-side="decoder" data-weights="(.*?)">{"bytes":([0-9]+),"described":([0-9]+)}</script>'
    )
    ((name, size, described),) = re.findall(found, text)
    assert written == [name, "page.html"]
    assert sorted(path.name for path in home.iterdir()) == sorted(written)
    data = (home / name).read_bytes()
    assert name == f"a-big-one-{zlib.crc32(data):08x}.bin"
    assert int(size) == len(data)
    about = zlib.decompress(data, -zlib.MAX_WBITS)[: int(described)]
    assert json.loads(about)["name"] == big.name
    assert len(text.encode()) < len(view._document().encode())
    assert "; connect-src 'self'\"" in text
    assert "connect-src" not in view._document()
    (home / name).unlink()
    (home / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder; pass a file in it"):
        view.to_html(home / "folder", weights="beside")
    assert not list(home.glob("*.bin"))
    with pytest.raises(ValueError, match=r"^to_html: the weights of these models stay inside .*"):
        play(SMALL, model=small).to_html(home / "other.html", weights="beside")
    with pytest.raises(ValueError, match="`weights` is 'out': choose 'inside' or 'beside'"):
        view.to_html(home / "other.html", weights="out")
    assert not (home / "other.html").exists()


def test_a_notebook_shows_the_page_file_in_an_iframe(
    view: PlayView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    html = view._repr_html_()
    (name,) = Page(html).attribute("iframe", "src")
    assert re.fullmatch(r"qkv-play-[0-9a-f]{8}\.html", str(name))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / str(name)).read_text("utf-8") == view._document()
    assert view._repr_html_() == html
    assert Page(html).attribute("iframe", "title") == [view.sentence]


def test_notebooks_of_one_folder_share_the_page_of_all_states(
    small: qkv.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    states = ["#text=the+cat&layer=1", '#text=a+cat&only=["head"]', "#layer=0"]
    sources = [
        Page(play(model=small, state=state)._repr_html_()).attribute("iframe", "src")[0]
        for state in states
    ]
    (path,) = tmp_path.iterdir()
    assert sources == [f"{path.name}{state}" for state in states]
    assert path.read_text("utf-8") == play(model=small)._document()


def test_embed_puts_the_page_itself_into_the_notebook(
    small: qkv.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    view = play(SMALL, model=small, embed=True)
    html = view._repr_html_()
    assert list(tmp_path.iterdir()) == []
    (source,) = re.findall(r'<iframe srcdoc="([^"]*)"', html)
    assert unescape(source) == view._document()


SERVE = r".*; `qkv serve --model random` shows this page for any model"


def test_unsupported_models_texts_and_themes_are_refused(tmp_path: Path, small: qkv.Model) -> None:
    with pytest.raises(ValueError, match=rf"^play: random has no language-model head: {SERVE}$"):
        play("a b", model=qkv.load("random"))
    for text in ("", " "):
        with pytest.raises(ValueError, match=r"^play: the text is empty; pass at least one word$"):
            play(text, model=small)
    with pytest.raises(ValueError, match=r"^play: theme is 'blue'"):
        play(SMALL, model=small, theme="blue")
    with pytest.raises(TypeError, match=r"^play: the text is Trace, not a string$"):
        play(small.trace(SMALL), model=small)  # type: ignore[arg-type]  # what is refused


def test_an_unsupported_model_in_qkv_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_MODEL", "random")
    with pytest.raises(ValueError, match=rf"^play: random .*: {SERVE}$"):
        play()


def test_the_page_opens_with_the_requested_edits(small: qkv.Model) -> None:
    """The page writes words and negative indices as indices from 0; other values stay as given."""
    cat = small.tokenize(SMALL).tokens.index("cat")
    assert small.tokenize(SMALL).tokens[:5] == ["[CLS]", "the", "cat", "sat", "on"]
    view = play(
        SMALL,
        model=small,
        edit=[{"op": "scale", "value": 0.5}],
        ablate={(-1, 1): np.ones(small.layers[0].attn.d_value)},
        hide=["cat", -1, (6, 1), (-3, 3, -1, 0)],
    )
    last, length = small.num_layers - 1, len(small.tokenize(SMALL))
    expected = [
        {"op": "scale", "value": 0.5},
        {"op": "ablate", "layer": last, "head": 1, "with": [1.0] * small.layers[0].attn.d_value},
        {"op": "hide", "token": cat},
        {"op": "hide", "token": length - 1},
        {"op": "mask", "query": 6, "key": 1},
        {"op": "mask", "query": length - 3, "key": 3, "layer": last, "head": 0},
    ]
    assert view.edits == expected == view.to_dict()["edits"]
    data, _ = data_of(view._document())
    assert data["start"]["edits"] == expected
    plain = play(SMALL, model=small)
    assert data_of(plain._document())[0]["start"]["edits"] == []
    [[(word, share), *_]] = small.predict(SMALL, 1, edit=expected)
    said = f"; as the page opens: {word}, {100 * share:.0f}%."
    assert (view.opening, view.sentence) == (plain.opening, plain.sentence[:-1] + said)
    options = {"edit": expected[:1], "ablate": {(last, 1): expected[1]["with"]}}
    records = small.predict(SMALL, 3, edit=expected)
    assert records == small.predict(SMALL, 3, hide=["cat", -1, (6, 1), (-3, 3, -1, 0)], **options)


def test_a_word_that_is_swapped_in_can_be_hidden(small: qkv.Model) -> None:
    swap = {"op": "swap", "token": 3, "with": "the"}
    view = play("cat on sat [MASK].", model=small, edit=[swap], hide="the")
    assert view.edits == [swap, {"op": "hide", "token": 3}]


def test_an_array_becomes_a_record(small: qkv.Model) -> None:
    z = small.trace(SMALL)["z", 0] / 2
    view = play(SMALL, model=small, edit={("z", 0): z})
    assert view.edits == [{"op": "set", "at": "z", "layer": 0, "value": z[0].tolist()}]
    assert view.opened == small.predict(SMALL, edit={("z", 0): z})[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hide": "dog"}, "play: `hide` has 'dog', which is in no text: the words are the, cat"),
        ({"hide": [9]}, "play: `hide` has position 9, but no text has more than 9 tokens"),
        ({"ablate": [(9, 0)]}, "play: `ablate` names layer 9, but the model has "),
        ({"edit": {("z", 0): np.copy}}, "play: `edit` has a function for"),
        ({"edit": [{"op": "hide", "token": 77}]}, r"play: edit\[0\] \(hide\) has token 77"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(small: qkv.Model, changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        play(SMALL, model=small, **changes)


@pytest.mark.parametrize("address", ["#{}", "{}", "file:///a/b.html#{}"])
def test_the_page_opens_on_the_state_in_an_address(small: qkv.Model, address: str) -> None:
    state = "text=the+dog+%5BMASK%5D.&edits=%5B%7B%22op%22%3A%22causal%22%7D%5D&layer=0"
    view = play(model=small, state=address.format(state))
    assert (view.text, view.state) == ("the dog [MASK].", f"#{state}")
    data, _ = data_of(view._document())
    assert (data["state"], data["start"]["text"]) == (f"#{state}", view.text)
    assert data_of(play(SMALL, model=small)._document())[0]["state"] == ""


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"state": ""}, ValueError, "play: `state` is '': copy the complete address of a page"),
        ({"state": "#nonsense"}, ValueError, "copy the complete address of a page"),
        ({"state": "#text=a&edits=["}, ValueError, r"`state` has edits '\[', which is not JSON"),
        ({"state": 3}, TypeError, "play: `state` is 3; pass the address of a page"),
        ({"state": "#text=a", "hide": "a"}, TypeError, "leave out text, edit"),
        ({"state": "#text=a", "text": "a"}, TypeError, "leave out text, edit"),
    ],
)
def test_an_invalid_state_is_refused(
    small: qkv.Model, given: dict, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        play(model=small, **given)


def test_a_page_of_findings_runs_texts_of_at_most_256_tokens() -> None:
    model = qkv.load("books")
    findings_view(model, [{"text": "the " * 254}], "title")  # and [CLS] and [SEP]
    expected = r"publish: the text the .* has 257 tokens, but a page runs at most 256: shorten it$"
    with pytest.raises(ValueError, match=expected):
        findings_view(model, [{"text": "the " * 255}], "title")
