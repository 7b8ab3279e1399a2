"""Tests of a model's card, licences and notices: kept whole, or reported as missing."""

import os

import pytest

from qkv.models import load
from qkv.models.files import _notices

from ..small_models import CONFIGS, write_small


@pytest.fixture
def folder(tmp_path):
    return write_small(tmp_path / "small", CONFIGS["clip"])


def test_the_card_comes_first_then_licences_and_notices(folder):
    texts = {
        "README.md": "a card: \N{GREEK SMALL LETTER ALPHA}\n",
        "LICENSE": "first\n",
        "License.txt": "second\n",
        "LICENCE.wordnet": "third\n",
        "NOTICE": "fourth\n",
    }
    for name, text in reversed(texts.items()):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "README.rst").write_text("another file")
    (folder / "LICENSES").mkdir()
    model = load(folder)
    assert model.notices == texts
    names = ["README.md", "LICENCE.wordnet", "LICENSE", "License.txt", "NOTICE"]
    assert [*model.notices] == names


def test_derived_models_keep_the_notices(folder):
    (folder / "LICENSE").write_text("a licence")
    model = load(folder)
    again = model.with_parameters(dict(model.parameters))
    for one in (model, again, model.text, again.text, again.vision):
        assert one.notices == {"LICENSE": "a licence"}


def test_models_without_documents_have_no_notices(folder):
    assert load(folder).notices == {}
    assert load("random").notices == {}


def test_unreadable_files_are_replaced_by_the_reason(folder, tmp_path):
    (tmp_path / "secret").write_text("a secret")
    (folder / "README.md").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "LICENSE")  # opening a pipe would block forever
    (folder / "NOTICE").write_bytes(b"x" * (_notices.MAX_BYTES + 1))
    (folder / "NOTICE.md").symlink_to(folder / "nowhere")
    found = load(folder).notices
    assert (
        found["README.md"]
        == "(qkv cannot show this file: it is a link to a file outside the folder.)"
    )
    assert found["LICENSE"] == "(qkv cannot show this file: it is not a regular file.)"
    assert found["NOTICE"].startswith("(qkv cannot show this file: it is 1048577 bytes long,")
    assert found["NOTICE.md"] == "(qkv cannot show this file: the file is missing.)"


def test_total_size_of_notices_is_limited(folder):
    for number in range(3):
        (folder / f"LICENSE.{number}").write_bytes(b"x" * (_notices.MAX_BYTES // 2 - 100))
    found = [text[0] for text in load(folder).notices.values()]
    assert found == ["x", "x", "("]


def test_invalid_utf8_becomes_replacement_characters(folder):
    (folder / "LICENSE").write_bytes(b"\xef\xbb\xbfCaf\xe9")
    assert load(folder).notices == {"LICENSE": "Caf\N{REPLACEMENT CHARACTER}"}
