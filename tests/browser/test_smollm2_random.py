"""Seeded random walks through the live page of SmolLM2: nothing breaks, and each claim is true.

`make browser` acts 1,000 times. The walk of CI is shorter.
"""

import json
import os
import re
from functools import lru_cache

import pytest

import qkv
from models.gguf_files import smollm2

from . import claims
from .play import opened_at
from .support import Visit
from .test_play_random import walk

WALKS, ACTIONS = (1, 30) if os.environ.get("CI") else (4, 250)
NEAR = 3e-3  # the page rounds vectors to int16 before it multiplies them with blocks


@pytest.mark.parametrize("seed", range(WALKS))
def test_a_random_walk_leaves_no_error_and_no_false_claim(
    visit: Visit, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    smollm2()
    monkeypatch.setattr(claims, "NEAR", NEAR)
    monkeypatch.setattr(claims, "MAX_HEADS", 4)
    traced = lru_cache(maxsize=4)(claims._traced.__wrapped__)  # a trace of 256 tokens has 300 MB
    monkeypatch.setattr(claims, "_traced", traced)
    known = qkv.load("smollm2")
    html = qkv.play(model=known)._document()
    [start] = re.findall(r'"start":(\{.*?\})', html)
    page = visit(opened_at(html, ""))
    page.wait_for_selector("html[data-qkv=ready]", timeout=300_000)
    walk(page, seed, ACTIONS, {"decoder": known}, {"decoder": json.loads(start)})
