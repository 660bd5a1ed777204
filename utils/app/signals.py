"""The end of a program by SIGTERM, SIGHUP or SIGINT (Ctrl-C): one line, and the status 128 + signal."""

from __future__ import annotations

import errno
import os
import signal
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from utils.app.machine import is_first

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
# Scripts and launchers pass on a signal that the program has got, too; a second one comes later.
AGAIN_SECONDS = 1.0
CLEAR = "\r\x1b[2K"  # removes the line of a terminal in which the cursor is


class Interruption(BaseException):
    """A signal ends the program. It is no Exception, so that nothing takes it for a failure that can be handled."""

    def __init__(self, number: int, remedy: str = "") -> None:
        super().__init__(f"ended by {NAMES[number]}; {remedy}" if remedy else f"ended by {NAMES[number]}")
        self.number = number


def interrupt(number: int) -> None:
    raise Interruption(number)


def answer(text: str) -> None:
    """Print a line, once for all processes, where a signal may have broken off another print, or that of progress."""
    if is_first():
        with suppress(OSError):
            os.write(2, f"{CLEAR if os.isatty(2) else ''}{text}\n".encode())


class Signals:
    """Calls `act` with the first SIGINT, SIGTERM or SIGHUP. A second Ctrl-C or SIGTERM ends the program at once."""

    def __init__(self, act: Callable[[int], None] = interrupt) -> None:
        self.act, self.process = act, os.getpid()
        self.number, self.time = 0, 0.0  # of the first signal
        # A shell lets programs in the background ignore SIGINT, and nohup SIGHUP.
        heeded = [number for number in NAMES if signal.getsignal(number) is not signal.SIG_IGN]
        self.before = {number: signal.signal(number, self) for number in heeded}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # a forked process, such as a loader's that has not started yet
            if number == signal.SIGTERM and self.act is interrupt:  # by which the program ends it
                os._exit(128 + number)
            return
        now = time.monotonic()
        if not self.number:
            self.number, self.time = number, now
            _drop_lost_terminal()
            self.act(number)
        elif number != signal.SIGHUP and now - self.time > AGAIN_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def restore(self) -> None:
        """Let the former handlers serve again, unless a signal has come: the program is ending then."""
        if not self.number:
            for number, handler in self.before.items():
                signal.signal(number, handler)


def _drop_lost_terminal() -> None:
    """Let output go nowhere where its terminal is gone: an error of writing would end the program before its time."""
    for stream in (1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def status(number: int) -> int:
    """The exit status after a signal."""
    # Lightning kills the parent of a process of its own that fails.
    started_by_lightning = os.environ.get("LOCAL_RANK", "0") != "0" and "LOCAL_WORLD_SIZE" not in os.environ
    return 0 if started_by_lightning else 128 + number
