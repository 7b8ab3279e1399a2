"""Tests of `qkv train`: new models, interrupted and resumed runs, and rejected arguments."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import qkv
from processes import ends, threads, until
from qkv.learn import last_checkpoint, read_metrics
from qkv.learn._loop import Training

from .test_cli import refused, run

TEXT = "The cat sat on the mat.\nA dog ran to the river.\n\nThe bank was near the river.\n" * 30
SMALL = ("--layers", "1", "--heads", "2", "--dim", "8", "--vocabulary", "300", "--length", "16")
QUICK = (*SMALL, "--tokens-per-step", "64")


@pytest.fixture(autouse=True)
def _curves_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a stub instead of the picture of the curves.

    These tests only need the picture's file to exist.
    """
    monkeypatch.setattr(Figure, "savefig", lambda _, file, **__: file.write(b"\x89PNG"))


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


# Without the pause, a short run could end before the test sends a signal.
PAUSED = """
import os, time
from qkv.learn._loop import Training
advance = Training.advance
def paused(training):
    while training.step == 20 and not os.path.exists(GO):
        time.sleep(0.02)
    return advance(training)
Training.advance = paused
from qkv.cli import main
main()
"""


def train_process(script: str, *args: str) -> subprocess.Popen[bytes]:
    """Start a training process, which can receive signals."""
    program = [sys.executable, "-c", script, "train", *args]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a run has made the step with this number."""

    def last() -> int:
        assert process.poll() is None, process.communicate()
        rows = read_metrics(folder)
        return rows[-1]["step"] if rows else 0

    until(last, f"step {step}", lambda found: found >= step)


def numbers(folder: Path) -> dict[str, np.ndarray]:
    return dict(qkv.load(folder).parameters)


@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_from_a_text_to_a_model(objective: str, corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / objective
    options = ("--objective", objective, "-o", str(folder), *QUICK, "--steps", "12", "--json")
    result = run("train", corpus, *options)
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert lines[0] == f"qkv train: corpus: 1 file, {len(TEXT):,} bytes"
    assert lines[1].startswith("qkv train: tokenizer: ")
    kind = {"masked": "bert", "causal": "gpt2"}[objective]
    assert lines[2].startswith(f"qkv train: model: {kind}, 1 layers, 2 heads, vectors of 8, ")
    assert lines[3] == f"qkv train: curves: {folder / 'curves.png'}"
    assert "12 steps" in lines[4]
    assert f"--model {folder}" in lines[4]
    assert len(lines) == 5
    said = json.loads(result.stdout)
    assert (said["folder"], said["objective"], said["steps"]) == (str(folder), objective, 12)
    assert said["loss"] == pytest.approx(read_metrics(folder)[-1]["loss"], rel=0.1)
    if objective == "masked":
        shown = run("show", "The cat sat on the mat", "--model", str(folder))
        assert shown.exit_code == 0
    else:
        written = run("generate", "The", "--model", str(folder), "--max-new-tokens", "4")
        assert written.exit_code == 0
    first = folder / "snapshots" / "step-00000000"
    assert run("show", "The cat", "--model", str(first)).exit_code == 0


def test_it_learns(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    options = ("--objective", "causal", "-o", str(folder), *QUICK)
    assert run("train", corpus, *options, "--steps", "150", "--rate", "0.02").exit_code == 0
    losses = [row["loss"] for row in read_metrics(folder)]
    # before training, all 300 tokens are about equally probable
    assert losses[0] == pytest.approx(np.log(300), abs=0.1)
    assert np.mean(losses[-10:]) < 1.5


def test_the_same_seed_gives_the_same_model(corpus: str, tmp_path: Path) -> None:
    options = ("--objective", "masked", *QUICK, "--steps", "4")
    for name, seed in (("one", "1"), ("two", "1"), ("three", "2")):
        run("train", corpus, *options, "--seed", seed, "-o", str(tmp_path / name))
    one, two, three = (numbers(tmp_path / name) for name in ("one", "two", "three"))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not np.array_equal(one["embed.weight"], three["embed.weight"])


def test_train_with_an_existing_tokenizer(corpus: str, tmp_path: Path) -> None:
    options = ("--objective", "masked", *QUICK, "--steps", "2")
    run("train", corpus, *options, "-o", str(tmp_path / "one"))
    for number, given in enumerate((tmp_path / "one", tmp_path / "one" / "tokenizer.json")):
        folder = str(tmp_path / f"again-{number}")
        result = run("train", corpus, *options, "--tokenizer", str(given), "-o", folder)
        assert f"tokens, from {tmp_path / 'one' / 'tokenizer.json'}" in result.stderr
        again = qkv.load(folder).tokenizer.vocabulary
        assert again == qkv.load(tmp_path / "one").tokenizer.vocabulary
    causal = run(
        *("train", corpus, "--objective", "causal", *QUICK, "--steps", "2"),
        *("-o", str(tmp_path / "causal")),
    )
    assert causal.exit_code == 0
    result = run(
        *("train", corpus, *options, "--tokenizer", str(tmp_path / "causal")),
        *("-o", str(tmp_path / "none")),
    )
    assert result.exit_code == 2
    assert "the tokenizer has no mask" in result.stderr


ENDED = ("--objective", "causal", *QUICK, "--steps", "150")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return the parameters of a run without an interruption."""
    home = tmp_path_factory.mktemp("whole")
    (home / "corpus.txt").write_text(TEXT, encoding="utf-8")
    assert run("train", str(home / "corpus.txt"), *ENDED, "-o", str(home / "run")).exit_code == 0
    return numbers(home / "run")


@pytest.mark.attack
@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of Unix")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_an_interrupted_run_resumes_to_the_same_model(
    name: str, whole: dict[str, np.ndarray], corpus: str, tmp_path: Path
) -> None:
    broken, how, go = tmp_path / "broken", getattr(signal, name), tmp_path / "go"
    process = train_process(PAUSED.replace("GO", repr(str(go))), corpus, *ENDED, "-o", str(broken))
    wait_for(broken, 10, process)
    process.send_signal(how)
    go.touch()
    _, said = process.communicate(timeout=300)
    if how == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert not (broken / "config.json").exists()
    else:
        assert process.returncode == 128 + how
        step = last_checkpoint(broken).about["step"]
        assert 10 <= step <= 21
        last = said.decode().strip().splitlines()[-1]
        assert last.endswith(
            f"stopped at step {step}: checkpoint and model are in {broken}: continue with: "
            f"qkv train --resume -o {broken}"
        )
        assert qkv.load(broken).generate("The", max_new_tokens=2) is not None
    elsewhere = os.getcwd()
    os.chdir(tmp_path)
    try:
        result = run("train", "--resume", "-o", "broken")
    finally:
        os.chdir(elsewhere)
    assert result.exit_code == 0
    found = numbers(broken)
    assert all(np.array_equal(found[name], whole[name]) for name in whole)
    assert [row["step"] for row in read_metrics(broken)] == list(range(1, 151))


@pytest.mark.attack
@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of Unix")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT"])
def test_other_signals_end_it_as_ctrl_c_does(
    name: str, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, one, advance = tmp_path / "model", getattr(signal, name), Training.advance

    def asked(self: Training) -> dict[str, Any]:
        if self.step == 2:
            signal.raise_signal(one)
        return advance(self)

    monkeypatch.setattr(Training, "advance", asked)
    result = run(
        "train", corpus, "--objective", "causal", *QUICK, "--steps", "9", "-o", str(folder)
    )
    assert result.exit_code == 128 + one
    assert last_checkpoint(folder).about["step"] == 3
    assert result.stderr.strip().endswith(
        f"stopped at step 3: checkpoint and model are in {folder}: continue with: "
        f"qkv train --resume -o {folder}"
    )
    assert qkv.load(folder).generate("The", max_new_tokens=2) is not None


# Tells the id of the child process, which trains the tokenizer.
TOLD = """
import subprocess
start = subprocess.Popen
def told(*given, **named):
    process = start(*given, **named)
    print(process.pid, flush=True)
    return process
subprocess.Popen = told
from qkv.cli import main
main()
"""


@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="the threads of a process are those of Linux")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_tokenizer_is_trained(name: str, tmp_path: Path) -> None:
    """The library that trains the tokenizer ignores signals; the process does not wait for it."""
    corpus = tmp_path / "corpus.txt"
    letters = np.random.default_rng(0).choice(np.frombuffer(b"ACGT", np.uint8), 1_000_000)
    corpus.write_bytes(letters.tobytes())
    options = ("--objective", "causal", "--vocabulary", "30000", "-o", str(tmp_path / "model"))
    process = train_process(TOLD, str(corpus), *options)
    assert process.stderr.readline().startswith(b"qkv train: corpus: ")
    child = int(process.stdout.readline())
    until(lambda: threads(child), "the library has threads of its own", lambda count: count > 2)
    os.kill(child, signal.SIGSTOP)  # it never ends the training
    process.send_signal(getattr(signal, name))
    try:
        _, more = process.communicate(timeout=60)
        assert ends(child)
    finally:
        process.kill()
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    assert more.strip() == b""
    assert process.returncode == 128 + getattr(signal, name)
    assert list(tmp_path.iterdir()) == [corpus]


@pytest.mark.attack
@pytest.mark.skipif(sys.platform == "win32", reason="terminals are those of Unix")
def test_a_terminal_that_is_closed(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    ours, theirs = os.openpty()
    program = "import os; os.open(os.ttyname(2), os.O_RDWR); from qkv.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "train", corpus, *ENDED[:-1], "100000", "-o", str(folder)],
        **{"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True},
    )
    os.close(theirs)
    wait_for(folder, 10, process)
    os.close(ours)  # the process gets SIGHUP, and can no longer print
    assert process.wait(timeout=300) == 128 + signal.SIGHUP
    assert last_checkpoint(folder).about["step"] >= 10
    assert (folder / "model.safetensors").exists()
    assert not list(folder.rglob("*.part"))


def test_resuming_with_other_settings_or_texts_is_refused(corpus: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    assert run(
        *("train", corpus, "--objective", "causal", *QUICK, "--steps", "3", "-o", folder)
    ).exit_code == 0  # fmt: skip
    again = ("train", "--resume", "-o", folder)
    assert run(*again, corpus, "--steps", "3", "--objective", "causal").exit_code == 0
    for flags, words in (
        (("--steps", "5"), "with steps 3, but now steps is 5"),
        (("--objective", "masked"), "with objective 'causal', but now objective is 'masked'"),
        (("--layers", "2"), "with layers 1, but now layers is 2"),
    ):
        assert words in refused(run(*again, *flags), "train")
    line = refused(run("train", corpus, "--objective", "causal", *QUICK, "-o", folder), "train")
    assert f"{folder} contains a run: continue with resume" in line
    Path(corpus).write_text(TEXT + "more", encoding="utf-8")
    (tmp_path / "run" / "config.json").unlink()
    result = run(*again)
    assert result.exit_code == 2
    assert f"has {len(TEXT) + 4} bytes, but had {len(TEXT)} when" in result.stderr


def test_resuming_from_damaged_files(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--objective", "causal", *QUICK, "--steps", "3", "-o", str(folder))
    assert run("train", corpus, *options).exit_code == 0
    expected = numbers(folder)
    last = folder / "checkpoints" / "step-00000003.safetensors"
    last.write_bytes(last.read_bytes()[:-4] + b"\0\0\0\0")
    result = run("train", "--resume", "-o", str(folder))
    assert result.exit_code == 0
    told = f"qkv train: warning: train: {last} is damaged: its checksum does not match its content"
    assert result.stderr.count(f"{told}; continuing from step 0\n") == 1
    found = numbers(folder)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    tokenizer = folder / "checkpoints" / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes().replace(b": 5,", b": 6,", 1))
    result = run("train", "--resume", "-o", str(folder))
    assert result.exit_code == 2
    assert result.stderr.strip().endswith(
        f"{tokenizer} is damaged: its checksum differs from the checksum in {last.name}"
    )


def test_a_run_that_diverges(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "wild"
    result = run(
        *("train", corpus, "--objective", "causal", *QUICK, "--steps", "300", "--rate", "30"),
        *("-o", str(folder)),
    )
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("qkv train: at step ")
    assert f"{folder} holds the model of its last good checkpoint, step 0: use a lower" in last
    assert (folder / "curves.png").exists()
    assert qkv.load(folder).parameters["embed.weight"].std() < 0.03


def test_a_non_finite_model_is_detected_before_the_losses_show_it(
    corpus: str, tmp_path: Path
) -> None:
    for steps in ("1", "5"):
        folder = tmp_path / steps
        options = ("--objective", "causal", *QUICK, "--steps", steps, "--rate", "1e30")
        result = run("train", corpus, *options, "-o", str(folder))
        assert result.exit_code == 1
        last = result.stderr.splitlines()[-1]
        assert f"at step {steps}, the model's parameters or outputs are not finite" in last
        assert f"{folder} holds the model of its last good checkpoint, step 0: use a lower" in last
        assert np.isfinite(qkv.load(folder)(np.arange(9)[None]).logits).all()


def test_without_matplotlib(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = tmp_path / "plain"
    options = ("--objective", "causal", *QUICK, "--steps", "2", "-o", str(folder))
    result = run("train", corpus, *options)
    assert result.exit_code == 0
    assert "no curves: this needs matplotlib" in result.stderr
    assert not (folder / "curves.png").exists()


@pytest.mark.attack
def test_ctrl_c_before_the_first_step(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Training, "snapshot", lambda self: signal.raise_signal(signal.SIGINT))
    folder = tmp_path / "early"
    options = ("--objective", "causal", *QUICK, "--steps", "2", "-o", str(folder))
    result = run("train", corpus, *options)
    assert result.exit_code == 130
    assert "contains no steps" in result.stderr
    assert f"continue with: qkv train --resume -o {folder}" in result.stderr
    monkeypatch.undo()
    assert run("train", "--resume", "-o", str(folder)).exit_code == 0
    assert [row["step"] for row in read_metrics(folder)] == [1, 2]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
@pytest.mark.parametrize("folder", ["/proc/new/model", "/proc/self", "x" * 300])
def test_an_unusable_output_folder_is_refused_before_any_work(
    folder: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.learn._on_text.Files", None)
    result = run("train", corpus, "--objective", "causal", "-o", folder)
    assert result.exit_code in (1, 2)
    (line,) = result.stderr.splitlines()
    assert line.startswith(("qkv train: /proc/", "qkv train: xxx"))


def test_a_refused_run_leaves_the_output_folder_unchanged(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    options = ("train", str(tmp_path / "none.txt"), "--objective", "causal", "-o")
    for name in ("there", "new/model"):
        assert run(*options, str(tmp_path / name)).exit_code == 2
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


NUMBERS = ("steps", "layers", "heads", "dim", "vocabulary", "length", "tokens-per-step")


def test_refused(corpus: str, tmp_path: Path) -> None:
    def why(*flags: str, text: str = corpus, folder: str = str(tmp_path / "new")) -> str:
        return refused(run("train", text, "--objective", "causal", "-o", folder, *flags), "train")

    for flags, words in (
        (("--layers", "0"), "layers is 0"),
        (("--dim", "10"), "dim is 10 and heads is 4: dim must be a multiple of heads"),
        (("--vocabulary", "10"), "vocabulary is 10: it must be 300 or more"),
        (("--steps", "0"), "steps is 0"),
        (("--steps", "x"), "--steps"),
        (("--minutes", "0"), "minutes is 0"),
        (("--minutes", "1e999"), "minutes is inf"),
        *(((f"--{name}", "9" * 20), "it must be at most ") for name in NUMBERS),
        (("--rate", "-1"), "rate is -1"),
        (("--rate", "nan"), "rate is nan"),
        (("--seed", "-1"), "seed is -1"),
        (("--tokens-per-step", "0"), "tokens_per_step is 0"),
        (("--objective", "both"), "both"),
    ):
        assert words in why(*flags)
    for content, words in (
        (b"", "is empty"),
        (b"\n \n", "contains only white space"),
        (b"spam spam\nspam", "contains only the word 'spam'"),
        (b"caf\xe9\n", "is not UTF-8: line 1 contains the byte 0xe9"),
        (b"one\n\0\n", "is not text"),
    ):
        bad = tmp_path / "bad.txt"
        bad.write_bytes(content)
        line = why(text=str(bad))
        assert words in line
        assert str(bad) in line
    assert "No such file" in why(text=str(tmp_path / "none.txt"))
    assert "is a folder; pass the text files in it" in why(text=str(tmp_path))
    assert "is a file; pass a folder" in why(folder=corpus)
    assert "it cannot be written: Not a directory" in why(folder=f"{corpus}/inside/it")
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine", encoding="utf-8")
    assert "contains files that do not belong to a run" in why(folder=str(other))
    assert "pass the text files" in refused(run("train", "-o", "x"), "train")
    assert "--objective" in refused(run("train", corpus, "-o", "x"), "train")
    assert "--output" in refused(run("train", corpus), "train")
    line = refused(run("train", "--resume", "-o", str(tmp_path / "new")), "train")
    assert "contains no checkpoint to resume from" in line
    assert not (tmp_path / "new").exists()
