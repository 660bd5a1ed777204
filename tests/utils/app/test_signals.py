"""Programs that SIGINT or SIGTERM ends, wherever they are."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.forked import CONTEXT, SECONDS
from utils.app import signals as signals_module
from utils.app.cli import run_main
from utils.app.signals import Signals

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills are those of Linux")


def sleep() -> None:
    time.sleep(SECONDS)


def sleep_with_a_loader() -> None:
    """A process forked from the program gets signals: SIGINT is none of its business, SIGTERM ends it alone."""
    child = os.fork()
    time.sleep(0.1 if child == 0 else 0)
    if child == 0:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGTERM
    sleep()


def clean_up_in_vain() -> None:
    try:
        sleep()
    finally:
        raise RuntimeError("not set up yet")


def program(work: Callable[[], None], output: Path) -> None:
    file = output.open("w")
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)

    def main(argv: object) -> None:
        print("begun", flush=True)
        work()

    sys.argv = ["folder/command.py"]
    run_main(main)


def start(work: Callable[[], None], output: Path) -> BaseProcess:
    process = CONTEXT.Process(target=program, args=(work, output))
    process.start()
    until(output, "begun\n")
    return process


def until(output: Path, text: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not output.exists() or text not in output.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("work", "number", "name"),
    [
        (sleep, signal.SIGINT, "Ctrl-C"),
        (clean_up_in_vain, signal.SIGTERM, "SIGTERM"),
        (sleep_with_a_loader, signal.SIGTERM, "SIGTERM"),
    ],
)
def test_one_line_and_the_status_of_the_signal(
    work: Callable[[], None], number: int, name: str, tmp_path: Path
) -> None:
    process = start(work, tmp_path / "output")
    time.sleep(2.0 if work is sleep_with_a_loader else 0.3)  # so that it is at work, or would have ended
    os.kill(process.pid, number)
    process.join(SECONDS)
    assert (tmp_path / "output").read_text() == f"begun\ncommand.py: ended by {name}\n"
    assert process.exitcode == 128 + number


@pytest.mark.parametrize("again", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once_and_one_that_is_passed_on_does_not(
    again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked, raised = Mock(), [], []
    monkeypatch.setattr(signals_module, "time", clock)
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    signals = Signals(asked.append)
    for now, number in ((10, signal.SIGINT), (10.4, signal.SIGINT), (10.5, signal.SIGTERM), (20, signal.SIGHUP)):
        clock.monotonic.return_value = now
        signals(number, None)
    assert (asked, raised) == ([signal.SIGINT], [])
    signals(again, None)
    assert raised == [again] and signal.getsignal(again) is signal.SIG_DFL


@pytest.mark.parametrize("is_ignored", [False, True])  # as nohup lets a program ignore it
def test_the_end_of_a_terminal_ends_a_program_that_still_cleans_up(is_ignored: bool, tmp_path: Path) -> None:
    """The terminal is gone when SIGHUP comes; what is printed then must not raise."""

    def clean_up(argv: object) -> None:
        try:
            os.write(1, b"begun")
            time.sleep(1 if is_ignored else 20)
            (tmp_path / "slept").touch()
        finally:
            with suppress(OSError if is_ignored else ()):
                os.write(1, b"writing a checkpoint")
            (tmp_path / "checkpoint").touch()

    process, terminal = pty.fork()
    if process == 0:
        try:
            signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
            run_main(clean_up)
        except SystemExit as stop:
            os._exit(stop.code)
        finally:
            os._exit(1)
    assert os.read(terminal, 5) == b"begun"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == (0 if is_ignored else 128 + signal.SIGHUP)
    assert (tmp_path / "checkpoint").exists() and (tmp_path / "slept").exists() == is_ignored
