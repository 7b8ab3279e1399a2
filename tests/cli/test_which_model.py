"""Tests of each command's default model, and of the models in QKV_MODEL that it rejects."""

import json
from pathlib import Path

import pytest

from models import decoders
from models.small_models import CONFIGS, write_small
from models.support import Folder

from .test_cli import refused, run

TEXT = "the cat sat on the mat"
READERS = {
    "show": ("show", TEXT),
    "walk": ("walk", TEXT),
    "compare": ("compare", TEXT, "the cat ran", "--word", "cat"),
    "guess": ("guess", "the cat [MASK]"),
    "encode": ("encode", "in.txt", "-o", "out.npy"),
}
CHAT = {"chat": ("chat",)}
PLAY = {"play": ("play", "the cat [MASK]", "-o", "page.html")}
VERBS = READERS | PLAY | CHAT | {"generate": ("generate", TEXT, "--max-new-tokens", "3")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a dict from the name of each small model to its folder.

    The models include one of each kind that a command rejects.
    """
    home = tmp_path_factory.mktemp("models")
    for name in ("t5", "vit", "gemma2", "llama"):
        write_small(home / name, CONFIGS[name])
    Folder(home / "bert").write()  # a BERT without a head
    decoders.gpt2(home / "gpt2", seed=1, eos_token_id=None)
    return {path.name: path for path in home.iterdir()}


@pytest.fixture(autouse=True)
def _a_file_to_encode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text(f"{TEXT}\n")


def taken(verb: str) -> str:
    """Return the model that a command used."""
    if verb == "compare":  # it reads two texts, and names the model in each heading
        return run(*VERBS[verb]).stdout.removeprefix("A  ").partition(",")[0]
    return str(json.loads(run(*VERBS[verb], "--json").stdout)["model"])


@pytest.mark.parametrize("verb", READERS)
def test_reading_commands_use_the_shipped_encoder_by_default(
    verb: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert taken(verb) == "books"
    monkeypatch.setenv("QKV_MODEL", "")
    assert taken(verb) == "books"
    if verb != "guess":
        monkeypatch.setenv("QKV_MODEL", str(folders["bert"]))
        assert taken(verb) == "bert"


def test_generate_uses_the_shipped_decoder_by_default(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "books-decoder").symlink_to(folders["gpt2"])
    monkeypatch.setattr("qkv.models.files.find.DATA", tmp_path / "data")
    assert taken("generate") == "books-decoder"
    monkeypatch.setenv("QKV_MODEL", "")
    assert taken("generate") == "books-decoder"
    monkeypatch.setenv("QKV_MODEL", str(folders["llama"]))
    assert taken("generate") == "llama"


@pytest.mark.parametrize(
    ("verb", "name", "said"),
    [
        *(
            (verb, "vit", f"{verb}: vit reads images, not text")
            for verb in ("show", "walk", "compare")
        ),
        ("encode", "vit", "vit reads images, not text"),
        ("guess", "vit", "vit reads images and has a head for 2 classes, so it cannot"),
        ("guess", "bert", "bert has no head"),
        ("guess", "random", "random has no head, so it cannot predict words"),
        ("guess", "t5", "t5 reads one text and writes another"),
        ("guess", "gpt2", "gpt2 guesses the next word and has no [MASK]"),
        ("walk", "t5", " uses bias, which a walk cannot show"),
        ("walk", "gemma2", " uses softcap, which a walk cannot show"),
        *(
            ("generate", name, f"{name}, which does not predict the next token: unset it")
            for name in ("vit", "bert", "random", "books")
        ),
        *(
            ("chat", name, f"{name}, which does not predict the next token: choose a model")
            for name in ("vit", "bert", "random", "books")
        ),
        ("chat", "gpt2", "gpt2, which has no chat template: choose a model that was trained on"),
        *(
            ("play", name, f"play: {name} {why}")
            for name, why in (
                ("vit", "has no language-model head"),
                ("t5", "is of the family t5"),
                ("bert", "has no language-model head"),
            )
        ),
        *((verb, "nowhere", "path (the name comes from QKV_MODEL)") for verb in VERBS),
    ],
)
def test_unsuitable_models_are_refused(
    verb: str, name: str, said: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_MODEL", str(folders.get(name, name)))
    assert said in refused(run(*VERBS[verb]), verb)
    assert not Path("out.npy").exists()
    assert not Path("page.html").exists()
