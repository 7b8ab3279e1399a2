"""Tests of the functions that handle the signals that end a program."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import pytest

from qkv import signals
from qkv.signals import ENDING, answering, end_with_parent, leave


@pytest.mark.parametrize("one", ENDING)
def test_leave_exits_with_128_plus_the_signal_number(one: int) -> None:
    before = signal.getsignal(one)
    with pytest.raises(SystemExit) as end, answering(leave):
        signal.raise_signal(one)
    assert end.value.code == 128 + one
    assert signal.getsignal(one) is before


def test_an_inner_handler_replaces_the_outer_one() -> None:
    asked: list[int] = []
    with answering(leave), answering(lambda number, _: asked.append(number), signal.SIGINT):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert asked == [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("theirs", ["ignored", "answered"])
def test_existing_signal_handlers_are_kept(theirs: str) -> None:
    asked: list[int] = []
    there: Any = signal.SIG_IGN if theirs == "ignored" else lambda number, _: asked.append(number)
    before = signal.signal(signal.SIGTERM, there)
    try:
        with answering(leave):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is there
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked == ([] if theirs == "ignored" else [signal.SIGTERM])


def test_another_thread_takes_no_signals() -> None:
    seen = []

    def run() -> None:
        with answering(leave):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)] != [leave]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the number of a dead parent")
def test_end_with_parent_waits_until_the_parent_is_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "_PARENT_CHECK", 0.001)
    ended, parents = threading.Event(), iter([7, 7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    end_with_parent(7, ended.set)
    assert ended.wait(60)
    assert list(parents) == []  # it has asked until the answer changed


def test_end_with_parent_ends_at_once_if_the_parent_has_already_ended() -> None:
    ended = threading.Event()
    end_with_parent(os.getppid() + 1, ended.set)
    assert ended.wait(60)
