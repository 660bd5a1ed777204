from __future__ import annotations

import io
import logging
import shutil
import time
from pathlib import Path

import pytest
from rich.console import Console

from utils.app import progress as module
from utils.app.progress import IN_THE_LINE, progress, start_log


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test moves."""
    time = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: time[0])
    return time


def log(monkeypatch: pytest.MonkeyPatch, file: Path | None = None) -> logging.Logger:
    """Starts the log, as if pytest had no handlers there."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    start_log(file=file)
    return logging.getLogger("test")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 60 columns gets."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = io.StringIO()
    monkeypatch.setattr(module, "console", Console(file=shown, force_terminal=True, width=60))
    return shown


def test_without_a_terminal_the_first_process_logs_how_far_it_is(
    now: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)

    def messages() -> list[str]:
        caplog.clear()
        for _ in progress("decoding", 40, "articles", range(40)):
            now[0] += 10
        return caplog.messages

    assert messages()[:2] == [
        "decoding 6/40 articles  5:40 left  0.1 articles/s",
        "decoding 12/40 articles  4:40 left  0.1 articles/s",
    ]
    assert len(messages()) == 400 // 60
    monkeypatch.setenv("RANK", "1")
    assert messages() == []


def test_without_a_terminal_the_log_has_lines_within_a_long_unit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with progress("decoding", 2, "articles") as line:
        line.log_every(0.1)
        time.sleep(0.5)  # in the first article
    count = len(caplog.messages)
    assert count >= 2 and set(caplog.messages) == {"decoding 0/2 articles"}
    time.sleep(0.3)
    assert len(caplog.messages) == count


def test_a_line_has_what_its_caller_knows(now: list[float], terminal: io.StringIO) -> None:
    with progress("step", 20_000, "", wait=0) as line:
        line.begin(2_120)
        now[0] = 4530
        line.done = 12_120
        line.notes = ["loss 3.2145", "127,570 tokens/s"]
        line.update(0)
    assert line.text() == "step 12,120/20,000  59:30 left  loss 3.2145  127,570 tokens/s"
    assert "step 12,120/20,000  59:30 left  loss 3.2145  127,570 tokens\u2026" in terminal.getvalue()


def test_a_line_appears_after_a_second_and_goes(now: list[float], terminal: io.StringIO) -> None:
    for number in progress("reading", None, "rows", range(4)):
        now[0] += 0.4
        if progress.shown is not None:
            list(progress("inner work", 2, "parts", range(2), wait=0))  # which stays silent
        assert bool(terminal.getvalue()) == (number == 3)
    shown = terminal.getvalue()
    assert "reading 3 rows  2.5 rows/s" in shown and "inner" not in shown
    assert shown.endswith("\x1b[1A\x1b[2K") and shown.startswith("\x1b[?25l\x1b[?25h")
    assert progress.shown is None
    with pytest.raises(KeyboardInterrupt), progress("decoding", 2, "articles", wait=0):
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K") and progress.shown is None


def test_a_terminal_that_is_gone_does_not_end_the_work(
    now: list[float], terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str) -> int:
        raise OSError(5, "Input/output error")

    with progress("decoding", 2, "articles", wait=0) as line:
        monkeypatch.setattr(terminal, "write", fail)
        now[0] += 1
        line.update()
        log(monkeypatch).warning("unseen")
    assert progress.shown is None


def test_the_log_stands_above_the_line_and_in_the_file(
    terminal: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = log(monkeypatch, tmp_path / "log.txt")
    assert not (tmp_path / "log.txt").exists()
    with progress("decoding", 2, "articles", wait=0):
        logger.info("a [bold]long[/bold] message, %s, that a terminal of 60 columns breaks between words", "so")
        logger.info("step 1  loss 2.5", extra=IN_THE_LINE)
    logger.info("step 2  loss 2.5", extra=IN_THE_LINE)
    shown = terminal.getvalue()
    assert "a [bold]long[/bold] message, so, that a terminal \nof 60 columns" in shown
    assert "step 1" not in shown and "step 2  loss 2.5\n" in shown
    lines = [line.partition("  ")[2] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert lines[1:] == ["step 1  loss 2.5", "step 2  loss 2.5"]


def test_a_log_whose_folder_is_gone_ends_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    logger = log(monkeypatch, tmp_path / "run" / "log.txt")
    logger.info("step 1")
    shutil.rmtree(tmp_path / "run")
    for text in ("step 2", "step 3"):
        logger.info(text)
    (tmp_path / "run").mkdir()
    logger.info("step 4")
    assert (tmp_path / "run" / "log.txt").read_text().endswith("step 4\n")
