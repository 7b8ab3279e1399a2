"""Tests of writing a file completely or not at all, and of files that must not be opened."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.files import replacing


def test_an_error_leaves_the_old_file_unchanged(tmp_path: Path) -> None:
    target = tmp_path / "it"
    target.write_bytes(b"before")

    def stop_half_way() -> None:
        with replacing(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_the_new_file_shows_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "it"
    with replacing(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_an_unwritable_path_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not exist"), replacing(tmp_path / "no" / "it"):
        raise AssertionError("must not get here")
    with pytest.raises(IsADirectoryError, match="is a folder"), replacing(tmp_path):
        raise AssertionError("must not get here")


def test_replacing_a_symlink_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    (tmp_path / "link").symlink_to("file")
    with replacing(tmp_path / "link") as file:
        file.write(b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"after"


def test_a_named_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"), replacing(tmp_path / "pipe"):
        raise AssertionError("must not get here")
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_name_of_255_characters_can_be_written(tmp_path: Path) -> None:
    with replacing(tmp_path / ("x" * 255)) as file:
        file.write(b"whole")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"whole"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are those of Unix")
@pytest.mark.parametrize("before", [0o600, 0o640, 0o664, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, before: int) -> None:
    target = tmp_path / "it"
    target.write_bytes(b"before")
    target.chmod(before)
    with replacing(target) as file:
        (part,) = tmp_path.glob(".qkv-*.part")
        assert mode(part) == before  # set before the first byte is written
        file.write(b"after")
    assert (target.read_bytes(), mode(target)) == (b"after", before)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are those of Unix")
def test_a_new_file_has_the_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    with replacing(tmp_path / "it") as file:
        file.write(b"new")
    assert mode(tmp_path / "it") == mode(tmp_path / "other")


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away"
)
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    target = tmp_path / "it"
    target.write_bytes(b"before")
    os.chown(target, 1234, 4321)
    with replacing(target) as file:
        file.write(b"after")
    assert (target.stat().st_uid, target.stat().st_gid) == (1234, 4321)


def test_a_file_that_is_read_only_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "it"
    target.write_bytes(b"before")
    monkeypatch.setattr(os, "access", lambda path, _: path != target)  # root may write everywhere
    with pytest.raises(PermissionError, match="it is read-only"), replacing(target):
        raise AssertionError("must not get here")
    assert target.read_bytes() == b"before"


@pytest.mark.skipif(sys.platform == "win32", reason="limits are those of Unix")
@pytest.mark.parametrize("pieces", [1, 200])  # a single large write, and writes through the buffer
def test_a_full_disk_names_the_file(tmp_path: Path, pieces: int) -> None:
    import resource

    target = tmp_path / "it"
    target.write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write() -> None:
        with replacing(target) as file:
            for _ in range(pieces):
                file.write(bytes(200_000 // pieces))

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as found:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (found.value.errno, found.value.filename) == (errno.EFBIG, str(target))
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_of_the_caller_keeps_its_file_name(tmp_path: Path) -> None:
    def read_what_is_not_there() -> None:
        with replacing(tmp_path / "it"):
            raise OSError(errno.EIO, "Input/output error", "input")

    with pytest.raises(OSError, match="Input/output error") as found:
        read_what_is_not_there()
    assert found.value.filename == "input"


def test_two_files_at_once_in_one_folder(tmp_path: Path) -> None:
    with replacing(tmp_path / "one") as one, replacing(tmp_path / "two") as two:
        one.write(b"1")
        two.write(b"2")
    assert [(tmp_path / name).read_bytes() for name in ("one", "two")] == [b"1", b"2"]


# A program that opens a pipe to which nobody writes, through every reader of files of strangers.
PIPES = """
import json, os, sys
from pathlib import Path

from click.testing import CliRunner

import qkv
import qkv_marking
from qkv.circuits import SAE
from qkv.cli import main
from qkv.models.files.find import find_cached
from qkv.text import SubwordTokenizer

home = Path(sys.argv[1])

def pipe(*names):
    home.joinpath(*names).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(home.joinpath(*names))
    return str(home.joinpath(*names))

def with_pipe(name):
    folder = home / name.replace(".", "-")
    qkv.load("random").save(folder)
    (folder / name).unlink(missing_ok=True)
    pipe(folder.name, name)
    return folder

def command(*arguments):
    done = CliRunner().invoke(main, list(arguments))
    raise RuntimeError(f"exit {done.exit_code}: {done.stderr}")

(home / "picture.md").write_text("![a](a.png)")
(home / "finding.md").write_text("![a](a.json)")
(home / "mine.py").write_text("def softmax(x): ...")
pipe("a.png"), pipe("a.json")
out = str(home / "out.html")
(home / "sae").mkdir()
(home / "sae" / "cfg.json").write_text("{}")
os.environ["HF_HUB_CACHE"] = str(home / "hub")
readers = {
    "weights": lambda: qkv.load(with_pipe("model.safetensors")),
    "config": lambda: qkv.load(with_pipe("config.json")),
    "tokenizer": lambda: SubwordTokenizer.from_file(pipe("tokenizer.json")),
    "reference": lambda: find_cached("a/b", pipe("hub", "models--a--b", "refs", "v1") and "v1"),
    "autoencoder": lambda: SAE.load(Path(pipe("sae", "sae_weights.safetensors")).parent),
    "trace": lambda: qkv.Trace.load(pipe("trace.safetensors")),
    "finding": lambda: qkv.Finding.load(home / "a.json"),
    "verify": lambda: command("verify", str(home / "a.json")),
    "article": lambda: command("publish", pipe("article.md"), "-o", out),
    "picture": lambda: command("publish", str(home / "picture.md"), "-o", out),
    "finding of an article": lambda: command("publish", str(home / "finding.md"), "-o", out),
    "check": lambda: command("check", pipe("hers.py")),
    "check_file": lambda: qkv_marking.check_file(pipe("theirs.py")),
    "roster": lambda: command("check", str(home / "mine.py"), "--roster", pipe("roster.csv")),
    "key": lambda: command("serve", "--api-key-file", pipe("key")),
    "corpus": lambda: command("train", pipe("corpus.txt"), "-o", out, "--objective", "causal"),
    "rows": lambda: command("encode", pipe("rows.jsonl"), "-o", str(home / "out.npy")),
    "onnx": lambda: command("conform", pipe("attention.onnx")),
}
for name, read in readers.items():
    try:
        found = read()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    print(json.dumps([name, str(found)]), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in folders there")
def test_no_reader_waits_for_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PIPES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    said = dict(map(json.loads, done.stdout.splitlines()))
    expected = dict.fromkeys(said, "is a pipe, a socket or a device")
    expected |= dict.fromkeys(("weights", "config"), "it is not a regular file")
    expected |= {"autoencoder": "has no sae_weights", "corpus": "is not a regular file"}
    assert len(said) == 18
    assert not {name: text for name, text in said.items() if expected[name] not in text}
