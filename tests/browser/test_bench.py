"""Tests of the page's benchmark: it detects wrong results; times are not judged."""

import pytest
from playwright.sync_api import Browser

from benchmarks import play
from benchmarks.common import Row
from rows import sample


def test_every_row_is_within_its_error_limit(chromium: Browser) -> None:
    names = []
    for row in play.rows(8, chromium):
        names.append(row.name)
        way = row.ways["qkv"]
        assert way.error(way.call()) <= way.allowed, row.name
        for goal in row.goals:
            judged = goal.judged({"ways": {"qkv": {"seconds": 2.0}}})
            assert judged["value"] == 2.0 or 0 <= judged["value"] < 2.0
            assert judged["most"] is not None
    assert len(names) == len(set(names)) == 8


def test_wrong_results_exceed_the_error_limit(
    chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong input, the error of each row of the benchmark exceeds the allowed limit.

    Each wrong input is one of these: another text, another query, a press on another word, or
    another length of the generated text.
    """
    for name, *other in (
        ("KEY", "field.value = text", "field.value = `${text} no`"),
        ("SWEEP", "qkv.sweep(text", "qkv.sweep(`a ${text}`"),
        ("PLAYED", "${other} query", "next query"),
        ("PRESSED", "[data-qkv-first]", "[data-token='2']"),
        ("WRITE", "text, { max }", "text, { max: 9 }"),
    ):
        monkeypatch.setattr(play, name, getattr(play, name).replace(*other))
    for row in sample(play.rows(8, chromium)):
        way = row.ways["qkv"]
        assert way.error(way.call()) > way.allowed, row.name


def test_without_a_browser_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_CHROMIUM", raising=False)
    monkeypatch.setattr(play.shutil, "which", lambda _: None)
    found: list[Row] = list(play.rows())
    assert [row.ways for row in found] == [{"qkv": None}] * 8
    assert all(goal.judged({"ways": {}})["value"] is None for row in found for goal in row.goals)
