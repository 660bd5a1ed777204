from __future__ import annotations

import logging
import sys
import time

import pytest

from utils.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def run(clock: list[float], total: int, seconds_each: float, **named: bool) -> None:
    progress = Progress("decoding", total, "articles", **named)
    for _ in range(total):
        clock[0] += seconds_each
        progress.advance()


def test_a_log_begins_goes_on_and_ends(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run(clock, 40, 2.0)
    messages = [record.getMessage() for record in caplog.records]
    # At every tenth of the way, 8 s.
    assert messages[:2] == ["decoding: 0/40 articles", "decoding: 4/40 articles, 0:01:12 left"]
    assert messages[-1] == "decoding: 40/40 articles in 80.0 s"
    assert len(messages) == 11


@pytest.mark.parametrize(
    ("total", "each", "count"),
    [(1000, 0.001, 2), (1000, 0.01, 3), (1000, 1.0, 18), (10000, 0.01, 11), (3, 100, 4), (0, 1, 0)],
)
def test_a_log_is_neither_silent_nor_flooded(
    clock: list[float], caplog: pytest.LogCaptureFixture, total: int, each: float, count: int
) -> None:
    caplog.set_level(logging.INFO)
    run(clock, total, each)
    assert len(caplog.records) == count


def test_a_terminal_has_one_line_that_renews_itself(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run(clock, 3, 1.0)
    lines = ["0/3 articles", "1/3 articles, 0:00:02 left", "2/3 articles, 0:00:01 left", "3/3 articles in 3.0 s\n"]
    assert capsys.readouterr().err == "".join(f"\r\x1b[Kdecoding: {line}" for line in lines)


def test_other_processes_are_silent(
    clock: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    run(clock, 40, 2.0, shown=False)
    monkeypatch.setenv("RANK", "1")
    run(clock, 40, 2.0)
    assert not caplog.records
