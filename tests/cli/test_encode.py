"""Tests of `qkv encode` for many lines.

The command encodes the lines in groups, which are called windows. If the command fails, it writes
no output file.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import qkv
from processes import until
from qkv.cli import main
from qkv.models import random_model

LINES = [f"the cat sat {'on the mat ' * (n % 5)}" for n in range(23)]


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.models.sentence.encode.TEXTS", 4)


@pytest.fixture
def model(tmp_path: Path) -> str:
    random_model(LINES).save(tmp_path / "model")
    return str(tmp_path / "model")


def encode(*args: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["encode", *args], input=stdin)


@pytest.mark.parametrize("source", ["file", "standard input"])
def test_windows_make_one_array(source: str, model: str, tmp_path: Path) -> None:
    text, target = "\n".join(LINES).encode(), tmp_path / "out.npy"
    file = tmp_path / "in.txt"
    file.write_bytes(text)
    given, stdin = (str(file), None) if source == "file" else ("-", text)
    done = encode(given, "-o", str(target), "--model", model, stdin=stdin)
    assert done.exit_code == 0, done.output
    assert "23 texts, 8 numbers each" in done.stderr
    found = np.load(target)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, qkv.load(model).encode(LINES))
    mapped = np.load(target, mmap_mode="r")  # mapping is stricter about the file's contents
    assert mapped.shape == (23, 8)
    assert target.stat().st_size == 128 + 23 * 8 * 4


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in folders there")
@pytest.mark.parametrize("text", ["\n".join(LINES), "", "the cat\n \n"], ids=["", "empty", "blank"])
@pytest.mark.parametrize("name", [None, "random"])
def test_a_pipe_is_read_once(name: str | None, text: str, model: str, tmp_path: Path) -> None:
    pipe, target = tmp_path / "pipe", tmp_path / "out.npy"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    done = encode(str(pipe), "-o", str(target), "--model", name or model)
    writer.join(60)
    if text.startswith(LINES[0]):
        assert done.exit_code == 0, done.output
        assert len(np.load(target)) == len(LINES)
    else:
        assert done.exit_code == 2
        assert str(pipe) in done.stderr
        assert ("is empty" in done.stderr) if not text else ("line 2" in done.stderr)


ROWS = {
    ".txt": "the cat sat\n the mat \n",
    ".jsonl": '{"n": 1, "said": "the cat sat"}\n{"said": " the mat ", "n": 2}\n',
    ".csv": 'n,said\n1,the cat sat\n2," the mat "\n',
}


def written(path: Path) -> Path:
    """Write the texts "the cat sat" and " the mat " into a file of the path's kind."""
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(ROWS[path.with_suffix("").suffix].encode()))
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"n": [1, 2], "said": ["the cat sat", " the mat "]})
        pq.write_table(table, path, row_group_size=1)
    else:
        path.write_text(ROWS[path.suffix])
    return path


@pytest.mark.parametrize(
    "name", ["a.txt", "a.jsonl", "A.csv", "a.parquet", "a.jsonl.gz", "a.csv.gz"]
)
def test_each_kind_of_file_gives_its_texts(name: str, model: str, tmp_path: Path) -> None:
    file, target = written(tmp_path / name), tmp_path / "out.jsonl"
    done = encode(str(file), "-o", str(target), "--model", model, "--column", "said")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["text"] for row in rows] == ["the cat sat", " the mat "]
    vectors = qkv.load(model).encode(["the cat sat", " the mat "])
    np.testing.assert_array_equal(np.float32([row["vector"] for row in rows]), vectors)


def test_lines_json_and_csv_need_no_extra(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("dask", "distributed", "fsspec", "pyarrow"):
        monkeypatch.setitem(sys.modules, module, None)
    target = str(tmp_path / "out.npy")
    for kind in ROWS:
        file = written(tmp_path / f"a{kind}")
        done = encode(str(file), "-o", target, "--model", model, "--column", "said")
        assert done.exit_code == 0, done.output
    for name in ("a.parquet", "a.csv.gz"):
        (tmp_path / name).write_bytes(b"")
        done = encode(str(tmp_path / name), "-o", target, "--model", model)
        assert "is not installed: pip install '.[scale]'" in done.stderr


@pytest.mark.parametrize("name", ["notes.md", "notes", "a.tsv"])
def test_a_file_of_another_kind_is_refused(name: str, model: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("the cat\n")
    done = encode(str(tmp_path / name), "-o", str(tmp_path / "out.npy"), "--model", model)
    assert done.exit_code == 2
    assert "pass a .txt, .jsonl or .csv file" in done.stderr
    assert ".parquet" in done.stderr


def test_a_row_without_a_text_is_named(model: str, tmp_path: Path) -> None:
    target = str(tmp_path / "out.npy")
    for name, content, said in (
        (
            "a.jsonl",
            '{"text": "the cat"}\n{"text": 3}\n',
            "a.jsonl, row 1 has a 'text' that is int, not a string: correct it, or pass another "
            "--column",
        ),
        ("b.jsonl", '{"text": "the cat"}\nthe mat\n', "b.jsonl, row 1 is not JSON"),
        (
            "a.csv",
            "n,text\n1,the cat\n2\n",
            "a.csv, row 1 has no 'text': correct it, or pass another --c",
        ),
        ("b.csv", 'text\nthe cat\n" "\n', "b.csv, row 1: the text is empty"),
        (
            "c.csv",
            "n,said\n1,the cat\n",
            "c.csv has no column 'text': pass --column with one of the columns 'n', 'said'",
        ),
    ):
        (tmp_path / name).write_text(content)
        done = encode(str(tmp_path / name), "-o", target, "--model", model)
        assert done.exit_code == 2
        assert said in done.stderr


def test_a_stream_of_lines_has_no_column(model: str, tmp_path: Path) -> None:
    target = str(tmp_path / "out.npy")
    done = encode("-", "-o", target, "--model", model, "--column", "text", stdin=b"the cat\n")
    assert done.exit_code == 2
    assert "standard input is read line by line and has no column 'text'" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the paths of open files are those of Linux")
def test_a_redirected_file_of_any_name_is_read_by_lines(model: str, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("the cat\non the mat\n")
    with (tmp_path / "notes").open() as file:
        path = f"/dev/fd/{file.fileno()}"
        done = encode(path, "-o", str(tmp_path / "out.npy"), "--model", model)
    assert done.exit_code == 0, done.output
    assert "2 texts" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in folders there")
@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".parquet"])
def test_a_pipe_of_rows_is_refused(kind: str, model: str, tmp_path: Path) -> None:
    pipe = tmp_path / f"pipe{kind}"
    os.mkfifo(pipe)
    done = encode(str(pipe), "-o", str(tmp_path / "out.npy"), "--model", model)
    assert done.exit_code == 2
    assert f"{pipe} is a pipe" in done.stderr


def test_windows_keep_texts_beside_their_vectors(model: str, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    for stdin, given in ((None, str(tmp_path / "in.txt")), ("\n".join(LINES).encode(), "-")):
        (tmp_path / "in.txt").write_text("\n".join(LINES))
        assert encode(given, "-o", str(target), "--model", model, stdin=stdin).exit_code == 0
        rows = [json.loads(line) for line in target.read_text().splitlines()]
        assert [row["text"] for row in rows] == LINES
        found = np.array([row["vector"] for row in rows], np.float32)
        np.testing.assert_array_equal(found, qkv.load(model).encode(LINES))


@pytest.mark.parametrize("rows", [0, 1, 10**7, 10**15])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_numpy_header_always_has_128_bytes(rows: int, kind: type, tmp_path: Path) -> None:
    about = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": (rows, 384)}
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, about)
        assert file.tell() == 128
    with (tmp_path / "x.npy").open("rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        found = np.lib.format.read_array_header_1_0(file)
        assert found == ((rows, 384), False, np.dtype(kind))
        assert file.tell() == 128


@pytest.mark.parametrize("name", ["out.npy", "out.jsonl"])
def test_an_invalid_last_line_leaves_the_old_file_unchanged(
    name: str, model: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"old")
    broken = "\n".join(LINES).encode() + b"\n\xff"
    done = encode("-", "-o", str(tmp_path / name), "--model", model, stdin=broken)
    assert done.exit_code == 2
    assert "byte 1 of line 24 is 0xff" in done.stderr
    assert (tmp_path / name).read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", name]


def test_a_file_is_checked_before_any_work(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_bytes("\n".join(LINES).encode() + b"\n\xff")
    monkeypatch.setattr("qkv.models.load_for", lambda *_: pytest.fail("a model was loaded"))
    done = encode(str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.npy"), "--model", model)
    assert done.exit_code == 2
    assert "byte 1 of line 24 is 0xff" in done.stderr


@pytest.mark.parametrize("source", ["file", "standard input"])
def test_a_line_without_a_token_is_named(source: str, model: str, tmp_path: Path) -> None:
    text = "\n".join([*LINES[:13], " ", *LINES]).encode()
    file = tmp_path / "in.txt"
    file.write_bytes(text)
    given, stdin = (str(file), None) if source == "file" else ("-", text)
    done = encode(given, "-o", str(tmp_path / "out.npy"), "--model", model, stdin=stdin)
    assert done.exit_code == 2
    name = file if source == "file" else source
    line = f"qkv encode: {name}, line 14: the text is empty, because there is no token in it\n"
    assert done.stderr == line
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.attack
@pytest.mark.skipif(sys.platform == "win32", reason="there a process is ended without a word")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT", "SIGINT"])
def test_a_program_that_is_ended_leaves_nothing(name: str, model: str, tmp_path: Path) -> None:
    home = tmp_path / "out"
    home.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "encode", "-", "-o", str(home / "out.npy"),
         "--model", model],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    ) as program:  # fmt: skip
        program.stdin.write(b"the cat\n")
        program.stdin.flush()
        until(lambda: list(home.iterdir()) or program.poll() is not None, "it waits for lines")
        assert [path.suffix for path in home.iterdir()] == [".part"]
        program.send_signal(getattr(signal, name))
        assert program.wait(100) == 128 + getattr(signal, name)
    assert not list(home.iterdir())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("source", ["file", "standard input"])
def test_lines_end_as_in_any_text_file(source: str, end: str, model: str, tmp_path: Path) -> None:
    text = end.join(LINES).encode()
    (tmp_path / "in.txt").write_bytes(text)
    given, stdin = (str(tmp_path / "in.txt"), None) if source == "file" else ("-", text)
    done = encode(given, "-o", str(tmp_path / "out.npy"), "--model", model, stdin=stdin)
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), qkv.load(model).encode(LINES))


@pytest.mark.parametrize("suffix", ["npy", "jsonl"])
def test_an_input_that_shrinks_is_named(
    suffix: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.models import load_for

    file = tmp_path / "in.txt"
    file.write_text("\n".join(LINES))

    def shrunk(*args: Any) -> qkv.Model:
        file.write_text("\n".join(LINES[:7]))
        return load_for(*args)

    monkeypatch.setattr("qkv.models.load_for", shrunk)
    done = encode(str(file), "-o", str(tmp_path / f"out.{suffix}"), "--model", model)
    assert done.exit_code == 2
    assert done.stderr == (
        f"qkv encode: {file} changed while it was read: it had 23 texts and now has 7 texts: "
        "read a copy of the file\n"
    )
    assert not (tmp_path / f"out.{suffix}").exists()


def test_one_warning_for_all_windows(model: str, tmp_path: Path) -> None:
    settings = {"max_seq_length": 5}
    Path(model, "sentence_bert_config.json").write_text(json.dumps(settings))
    target = str(tmp_path / "out.npy")
    done = encode("-", "-o", target, "--model", model, stdin="\n".join(LINES).encode())
    assert done.exit_code == 0
    assert done.stderr.count("were cut to 5 tokens") == 1
    assert "18 of 23 texts" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the stream")
def test_encode_works_with_standard_error_closed(model: str, tmp_path: Path) -> None:
    """No file gets the descriptor of standard error, because libraries would print into it."""
    (tmp_path / "in.txt").write_text("\n".join(LINES))
    command = [sys.executable, "-c", OPENED, "encode", str(tmp_path / "in.txt"), "-o",
               str(tmp_path / "out.npy"), "--model", model]  # fmt: skip
    done = subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *command], check=False, text=True,
                          stdout=subprocess.PIPE)  # fmt: skip
    assert done.returncode == 0
    assert int(done.stdout) > 2
    assert np.load(tmp_path / "out.npy").shape == (23, 8)


OPENED = """
import sys
from qkv.cli import main
try:
    main(sys.argv[1:])
finally:
    print(open(sys.argv[2]).fileno())
"""
PROGRAM = """
import sys
from qkv.cli import main
try:
    main(sys.argv[1:])
finally:
    # not ru_maxrss, which begins with the memory of the process that started this one
    with open("/proc/self/status") as status:
        print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""


@pytest.mark.alone
@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="what a process has used is asked of Linux")
def test_memory_does_not_grow_with_the_number_of_lines(model: str, tmp_path: Path) -> None:
    peaks = []
    for count in (3_000, 30_000):
        with (tmp_path / "in.txt").open("w") as file:
            file.writelines(f"the cat sat on the mat, said {n} of them\n" for n in range(count))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "encode", str(tmp_path / "in.txt"), "-o",
             str(tmp_path / "out.npy"), "--model", model],
            capture_output=True, text=True, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        peaks.append(int(done.stdout))
        assert np.load(tmp_path / "out.npy", mmap_mode="r").shape == (count, 8)
    few, many = peaks
    assert many - few < 12_000, f"{few} KiB for 3,000 lines, {many} KiB for 30,000"


@pytest.mark.alone
@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="what a process has used is asked of Linux")
@pytest.mark.parametrize("word", ["the cat ", "x"])
def test_memory_does_not_grow_with_a_line(word: str, model: str, tmp_path: Path) -> None:
    """Test a long line with and without blanks, from standard input, which is not memory-mapped."""
    peaks = []
    for size in (2**21, 2**25):
        command = [sys.executable, "-c", PROGRAM, "encode", "-", "-o", str(tmp_path / "out.npy"),
                   "--model", model]  # fmt: skip
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        with (tmp_path / "in.txt").open("wb") as file:
            for _ in range(size >> 20):
                file.write(word.encode() * (2**20 // len(word)))
            file.write(b"\nthe cat\n")
        with (tmp_path / "in.txt").open("rb") as file:
            done = subprocess.run(
                command, stdin=file, capture_output=True, text=True, check=True, env=env
            )
        assert "1 of 2 texts were cut to" in done.stderr
        peaks.append(int(done.stdout))
        assert np.load(tmp_path / "out.npy").shape == (2, 8)
    assert peaks[1] - peaks[0] < 12_000, f"{peaks} KiB for lines of 2 MB and of 32 MB"


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float64"])
def test_dtype_loads_the_model_with_weights_of_this_type(
    dtype: str, model: str, tmp_path: Path
) -> None:
    file, target = tmp_path / "in.txt", tmp_path / "out.npy"
    file.write_text("\n".join(LINES))
    done = encode(str(file), "-o", str(target), "--model", model, "--dtype", dtype)
    assert done.exit_code == 0, done.output
    found, right = np.load(target), qkv.load(model, dtype=dtype).encode(LINES)
    np.testing.assert_array_equal(found, right)
    if dtype != "float64":
        assert not np.array_equal(right, qkv.load(model).encode(LINES))


def test_dtype_is_refused_on_a_cluster(model: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    options = ["--cluster", "local", "--model", model, "--dtype", "int8"]
    done = encode(str(tmp_path / "in.txt"), "-o", str(tmp_path / "out"), *options)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "--dtype cannot be combined with --cluster" in done.stderr
    assert not (tmp_path / "out").exists()
