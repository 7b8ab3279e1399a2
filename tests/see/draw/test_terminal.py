"""Tests of the lines in a terminal: their numbers, columns, colours and width."""

import io
import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from qkv.see.analysis.measures import strongest_block
from qkv.see.draw import terminal
from qkv.see.draw.colours import shade
from qkv.see.draw.panels import (
    Bars,
    Column,
    HeatMap,
    Numbers,
    Passage,
    Passages,
    Table,
    number_format,
)
from qkv.see.draw.terminal import Screen, bar, prose

WORDS = ["[CLS]", "the", "river", "bank", "[SEP]"]


def grid(screen: Screen, values: np.ndarray, rows, columns, **options) -> list[Text]:
    panel = HeatMap(values=values, rows=rows, columns=columns, **options)
    return list(terminal.draw(screen, [[panel]]))


def numbers(screen: Screen, values: np.ndarray, rows, columns=None, **options) -> list[Text]:
    panel = Numbers(values=values, rows=rows, columns=columns, **options)
    return list(terminal.draw(screen, [[panel]]))


def table(n: int, seed: int = 0) -> np.ndarray:
    powers = np.exp(3 * np.random.default_rng(seed).normal(size=(n, n)))
    return powers / powers.sum(axis=1, keepdims=True)


def found_numbers(line: Text) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+\.\d+(?:e[-+]\d+)?", line.plain)]


@pytest.mark.parametrize("screen", [Screen(), Screen(colors=256), Screen(encoding="ascii")])
def test_a_grid_shows_every_weight_of_a_short_text(screen: Screen) -> None:
    weights = table(5)
    lines = grid(screen, weights, WORDS, WORDS)
    assert lines[0].plain.split() == WORDS
    for i, line in enumerate(lines[1:6]):
        assert line.plain.startswith(WORDS[i])
        assert found_numbers(line) == [float(f"{x:.2f}") for x in weights[i]]
    assert lines[6].plain.startswith("scale 0.00")
    assert lines[6].plain.endswith("1.00")


@pytest.mark.parametrize("colors", [0, 256, 1 << 24])
def test_the_numbers_of_a_grid_line_up_under_their_tokens(colors: int) -> None:
    lines = grid(Screen(colors=colors), table(5), WORDS, WORDS)
    points = [[match.start() for match in re.finditer(r"\.", line.plain)] for line in lines[1:6]]
    assert all(place == points[0] for place in points)
    ends = [match.end() for match in re.finditer(r"\S+", lines[0].plain)]
    assert [place + 3 for place in points[0]] == ends


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("n", [1, 2, 12, 19, 256])
@pytest.mark.parametrize("colors", [0, 1 << 24])
def test_a_grid_fits_the_screen_width_and_27_lines(width: int, n: int, colors: int) -> None:
    words = [f"word{i}" if i % 3 else "x" for i in range(n)]
    lines = grid(Screen(width=width, colors=colors), table(n), words, words)
    notes = [line for line in lines if line.plain.startswith(("Shown", "scale"))]
    assert all(cell_len(line.plain) <= width for line in lines if line not in notes)
    assert len(lines) <= 24 + 3


def test_a_grid_of_a_long_text_sums_the_omitted_columns() -> None:
    weights = table(60)
    words = [f"w{i}" for i in range(60)]
    lines = grid(Screen(), weights, words, words)
    assert lines[0].plain.split()[-1] == "others"
    shown = [int(word[1:]) for word in lines[0].plain.split()[:-1]]
    assert "24 of 60 rows" in lines[-1].plain
    assert f"{len(shown)} of 60 columns" in lines[-1].plain
    for line in lines[1:25]:
        i = int(line.plain.split()[0][1:])
        *cells, others = found_numbers(line)
        np.testing.assert_allclose(cells, weights[i, shown], atol=0.0051)
        assert others == pytest.approx(1 - weights[i, shown].sum(), abs=0.0051)


def test_the_shown_part_of_a_long_text_has_the_largest_score() -> None:
    weights = np.full((80, 80), 1 / 80)
    score = np.zeros((80, 80))
    score[71, 64] = 1.0
    words = [f"w{i}" for i in range(80)]
    lines = grid(Screen(), weights, words, words, score=score)
    assert "w64" in lines[0].plain.split()
    assert any(line.plain.startswith("w71 ") for line in lines)


def test_the_strongest_block_takes_links_by_descending_score() -> None:
    score = np.zeros((6, 6))
    score[5, 1], score[5, 2], score[4, 1], score[0, 0] = 4, 3, 2, 1
    assert strongest_block(score, 2, 2) == ([4, 5], [1, 2])
    assert strongest_block(score, 6, 1) == ([0, 1, 2, 3, 4, 5], [1])
    assert strongest_block(score, 9, 9) == (list(range(6)), list(range(6)))


def test_masked_cells_are_not_shown_as_zeros() -> None:
    hidden = np.triu(np.ones((3, 3), dtype=bool), 1)
    weights = np.where(hidden, 0, 0.5)
    lines = grid(Screen(), weights, ["a", "b", "c"], ["a", "b", "c"], hidden=hidden)
    assert [len(found_numbers(line)) for line in lines[1:4]] == [1, 2, 3]
    assert lines[1].plain.count("·") == 2
    assert "hidden by the mask" in lines[4].plain
    plain = grid(Screen(encoding="ascii"), weights, ["a"] * 3, ["a"] * 3, hidden=hidden)
    assert all(line.plain.isascii() for line in plain)


def backgrounds(line: Text) -> list[str]:
    return [str(span.style).split(" on ")[1] for span in line.spans if " on " in str(span.style)]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_cell_backgrounds_follow_the_weights_and_are_unset_at_0(theme: str) -> None:
    weights = np.array([[0.0, 0.1], [0.4, 1.0]])
    lines = grid(Screen(colors=1 << 24, theme=theme), weights, ["a", "b"], ["a", "b"])
    assert backgrounds(lines[1]) == [shade(0.1, theme)]
    assert backgrounds(lines[2]) == [shade(0.4, theme), shade(1.0, theme)]
    assert lines[3].plain.endswith(" 1.00")
    few = grid(Screen(colors=256, theme=theme), weights, ["a", "b"], ["a", "b"])
    full = {"light": "color(17)", "dark": "color(153)"}[theme]
    assert backgrounds(few[2])[1] == full
    for screen in (Screen(), Screen(colors=256, theme=None)):
        assert not any(backgrounds(line) for line in grid(screen, weights, ["a", "b"], ["a", "b"]))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_below_the_neutral_value_have_another_colour(theme: str) -> None:
    values = np.array([[-20.0, 1.0], [11.0, -4.0]])
    options = {"top": None, "of": "metric", "ground": 1.0}
    screen = Screen(colors=1 << 24, theme=theme)
    lines = grid(screen, values, ["a", "b"], ["c", "d"], **options)
    assert [found_numbers(line) for line in lines[1:3]] == [[-20.0, 1.0], [11.0, -4.0]]
    assert backgrounds(lines[1]) == [shade(-1, theme)]
    assert backgrounds(lines[2]) == [shade(10 / 21, theme), shade(-5 / 21, theme)]
    scale = backgrounds(lines[3])
    assert (scale[0], scale[-1]) == (shade(-1, theme), shade(1, theme))
    assert lines[3].plain.startswith("scale metric (no colour: 1.000) -20.000 ")
    few = grid(Screen(colors=256, theme=theme), values, ["a", "b"], ["c", "d"], **options)
    assert backgrounds(few[1]) == [{"light": "color(88)", "dark": "color(218)"}[theme]]
    plain = grid(Screen(), values, ["a", "b"], ["c", "d"], **options)
    assert plain[1].plain.split() == ["a", "█-20.000", "1.000"]
    assert plain[3].plain.endswith(" -20.000 █▓▒░ ░▒▓█ 22.000")


def test_cells_may_have_words_in_place_of_numbers() -> None:
    values, words = np.array([[0.9, 0.0]]), [["river", "a word that is too long"]]
    lines = grid(Screen(), values, ["a"], ["b", "c"], words=words, of="probability")
    assert lines[1].plain.split(maxsplit=2) == ["a", "█river", "a word that …"]
    assert lines[2].plain.startswith("scale probability 0.000 ")


def test_omitted_columns_are_summed_only_for_weights() -> None:
    names = [f"w{i}" for i in range(40)]
    lines = grid(Screen(), table(40), names, names, of="mean weight")
    assert "others" not in lines[0].plain
    assert lines[-1].plain.endswith("those with the largest numbers.")


def test_a_stretched_grid_ends_at_its_largest_weight_and_says_so() -> None:
    weights = np.array([[0.1, 0.4]])
    lines = grid(Screen(colors=1 << 24), weights, ["a"], ["a", "b"], top=0.4)
    assert backgrounds(lines[1]) == [shade(0.25, "dark"), shade(1.0, "dark")]
    assert lines[2].plain.endswith(" 0.40 (stretched to the largest)")


def test_without_colours_a_mark_stands_for_the_share() -> None:
    weights = np.array([[0.0, 0.05, 0.5, 0.75, 1.0]])
    line = grid(Screen(), weights, ["a"], list("abcde"))[1].plain
    assert re.findall(r"(.)[01]\.\d\d", line) == [" ", "░", "▒", "▓", "█"]
    line = grid(Screen(encoding="latin-1"), weights, ["a"], list("abcde"))[1].plain
    assert re.findall(r"(.)[01]\.\d\d", line) == [" ", ".", ":", "*", "#"]


def test_a_nan_weight_is_shown_as_nan() -> None:
    lines = grid(Screen(), np.array([[np.nan, 0.5]]), ["a"], ["a", "b"])
    assert "nan" in lines[1].plain
    assert lines[-1].plain.endswith("1.00")


@pytest.mark.parametrize("colors", [0, 1 << 24])
def test_wide_letters_take_two_columns(colors: int) -> None:
    words = ["你好", "cat", "é", "שלום"]
    lines = grid(Screen(colors=colors), table(4), words, words)
    widths = {cell_len(line.plain) for line in lines[:5]}
    assert len(widths) == 1


def test_control_characters_in_tokens_are_escaped() -> None:
    words = ["\x1b[2J", "a\nb", "\u202e", "\udcff"]
    lines = grid(Screen(width=120), table(4), words, words)
    text = "".join(line.plain for line in lines)
    assert text.isprintable()
    assert "\\x1b[2J" in text
    text.encode()


def test_markup_in_tokens_is_text() -> None:
    console = Console(file=io.StringIO(), width=80)
    for line in grid(Screen(), table(2), ["[bold]", "[/]"], ["[bold]", "[/]"]):
        console.print(line)
    assert "[bold]" in console.file.getvalue()


def test_numbers_show_the_first_columns_and_count_the_rest() -> None:
    values = np.random.default_rng(0).normal(size=(12, 384))
    rows = [f"w{i}" for i in range(12)]
    lines = numbers(Screen(), values, rows)
    assert lines[0].plain.split() == [str(j) for j in range(8)]
    for i in range(8):
        assert found_numbers(lines[i + 1]) == [float(f"{x:.3f}") for x in values[i, :8]]
        assert lines[i + 1].plain.endswith("…")
    assert lines[-1].plain == "Shown: 8 of 12 rows and 8 of 384 columns."
    points = [[m.start() for m in re.finditer(r"\.", line.plain)] for line in lines[1:9]]
    assert all(place == points[0] for place in points)


def test_the_spelled_out_cell_is_always_shown() -> None:
    values = np.arange(900.0).reshape(30, 30)
    words = [f"w{i}" for i in range(30)]
    lines = numbers(Screen(), values, words, words, cell=(25, 29))
    assert lines[0].plain.split()[-1] == "w29"
    assert lines[8].plain.split()[0] == "w25"
    assert found_numbers(lines[8])[-1] == values[25, 29]
    marked = [
        line.plain[s.start : s.end]
        for line in lines
        for s in line.spans
        if "underline" in str(s.style)
    ]
    assert [text.strip() for text in marked] == ["779.00"]


def test_masked_scores_are_shown_as_minus_infinity() -> None:
    values = np.array([[1.0, -np.inf], [2.0, 3.0]])
    lines = numbers(Screen(), values, ["a", "b"], ["a", "b"], hidden=np.isneginf(values))
    assert lines[1].plain.split() == ["a", "1.000", "-inf"]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5, -12.25], ["0.500", "-12.250"]),
        ([123.456], ["123.46"]),
        ([12345.678], ["12345.7"]),
        ([1e-5], ["1.00e-05"]),
        ([2e9], ["2.00e+09"]),
        ([0.0], ["0.000"]),
        ([np.nan, np.inf], ["nan", "inf"]),
    ],
)
def test_numbers_are_written_alike(values: list[float], shown: list[str]) -> None:
    form = number_format(np.array(values))
    assert [form(value) for value in values] == shown


def test_bars_are_as_long_as_their_share() -> None:
    screen = Screen()
    assert bar(screen, 0.0, 8).plain == " " * 8
    assert bar(screen, 1.0, 8).plain == "█" * 8 == bar(screen, 1.7, 8).plain
    assert bar(screen, 0.5 + 1 / 64, 8).plain == "████▏   "
    assert bar(screen, -1.0, 8).plain == bar(screen, float("nan"), 8).plain == " " * 8
    assert bar(Screen(encoding="ascii"), 0.25, 8).plain == "##      "


def test_prose_is_wrapped_and_indented() -> None:
    lines = prose(Screen(width=30), "one two three four five six seven eight", indent=3)
    assert len(lines) == 2
    assert all(line.plain.startswith("   ") and cell_len(line.plain) <= 30 for line in lines)
    assert prose(Screen(), "") == []
    (line,) = prose(Screen(encoding="ascii"), "Q·Kᵀ / √d → …")
    assert line.plain == "Q*K.T / sqrt d -> ..."


@pytest.mark.parametrize(
    ("options", "environment", "colors"),
    [
        ({"force_terminal": True, "color_system": "truecolor"}, {}, 1 << 24),
        ({"force_terminal": True, "color_system": "256"}, {}, 256),
        ({"force_terminal": True, "color_system": "standard"}, {}, 0),
        ({"force_terminal": True, "color_system": "truecolor"}, {"NO_COLOR": "1"}, 0),
        ({}, {}, 0),
    ],
)
def test_a_screen_has_the_width_and_colours_of_the_console(
    options: dict, environment: dict[str, str], colors: int
) -> None:
    console = Console(file=io.StringIO(), width=93, _environ=environment, **options)
    screen = Screen.of(console)
    assert (screen.width, screen.colors) == (93, colors)


def test_a_table_lines_up_and_says_what_its_columns_are() -> None:
    columns = [
        Column("size", ["1.5", "12.25"]),
        Column("share", bars=[0.5, 1.0]),
        Column("where", ["a → b", "c"], left=True),
    ]
    panel = Table(
        title="Sizes", explained="of all", names=["cat", "你好"], columns=columns, note="!"
    )
    lines = [line.plain for line in terminal.draw(Screen(), [[panel]])]
    assert lines[:2] == ["", "Sizes (of all)"]
    assert lines[2].split() == ["size", "share", "where"]
    assert [cell_len(line[: line.index("1")]) for line in lines[3:4]] == [4 + 2 + 2]
    assert lines[3].split() == ["cat", "1.5", "█" * 12, "a", "→", "b"]
    assert lines[4].split() == ["你好", "12.25", "█" * 24, "c"]
    assert lines[5] == "!"
    plain = [line.plain for line in terminal.draw(Screen(encoding="ascii"), [[panel]])]
    assert plain[3].split() == ["cat", "1.5", "#" * 12, "a", "->", "b"]


def test_the_last_columns_are_shown_if_not_all_fit() -> None:
    columns = [Column(f"layer {n}", [f"{n}.000"], spare=True) for n in range(30)]
    header, line = terminal.draw(Screen(40), [[Table(names=["cat"], columns=columns)]])
    assert header.plain.split()[-2:] == ["layer", "29"]
    assert found_numbers(line) == [27.0, 28.0, 29.0]
    assert cell_len(header.plain) <= 40


def test_named_panels_are_side_by_side_if_there_is_room() -> None:
    row = [Bars(title="looks", name=name, names=["x"], values=[0.5]) for name in "AB"]
    _, title, names, line = terminal.draw(Screen(80), [row])
    assert (title.plain, names.plain.split()) == ("looks", ["A", "B"])
    assert found_numbers(line) == [0.5, 0.5]
    narrow = [line.plain for line in terminal.draw(Screen(20), [row])]
    assert [line for line in narrow if line in "AB" and line] == ["A", "B"]


def test_passages_are_wrapped_and_their_words_shaded() -> None:
    passage = Passage("1.500", ["one", "word"] * 12, [0.0, 1.0] * 12, 3)
    panel = Passages(title="card", passages=[passage])
    screen = Screen(width=40, colors=1 << 24)
    lines = list(terminal.draw(screen, [[panel]]))[2:]
    assert len(lines) > 3
    assert all(line.cell_len <= 40 for line in lines)
    assert " ".join(line.plain for line in lines).split() == ["1.500", *passage.words]
    styles = [(line.plain[span.start : span.end], str(span.style)) for line in lines
              for span in line.spans if line.plain[span.start : span.end].strip()]  # fmt: skip
    shaded = [style for word, style in styles if word == "word"]
    assert shaded.count(screen.shading(1.0)) == 11
    assert shaded.count(f"{screen.shading(1.0)} bold") == 1
    plain = list(terminal.draw(Screen(width=40), [[panel]]))
    assert sum(line.plain.count("[word]") for line in plain) == 1
