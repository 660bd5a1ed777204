from __future__ import annotations

import sys

import pytest

from utils.progress import Progress


def test_a_log_gets_a_line_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("scoring", 50, "pairs")
    for done in (0, 1, 4, 5, 9, 31, 32, 50, 50):
        progress(done)
    assert capsys.readouterr().err.splitlines() == [f"scoring: {done}/50 pairs" for done in (0, 5, 31, 50)]


def test_a_terminal_gets_one_line_that_renews_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress("generating", 2, "articles")
    progress(1)
    progress(2)
    assert capsys.readouterr().err == "\rgenerating: 1/2 articles\rgenerating: 2/2 articles\n"


def test_short_tasks_stay_silent(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("scoring", 2, "pairs", patience=60)
    progress(2)
    assert capsys.readouterr().err == ""
