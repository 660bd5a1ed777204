"""The log, the progress of long work, and the time that its parts take."""

from __future__ import annotations

import atexit
import logging
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

from utils.app.formatting import duration, rate
from utils.app.machine import is_first

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
REDRAW = 0.2  # seconds
LOG_SECONDS = 60  # between two lines of the log about long work, where no terminal shows how far it is
IN_THE_LINE = {"is_in_the_line": True}  # `extra` of log records that the line of progress repeats
console = Console(stderr=True)


class _AboveLine(logging.Handler):
    """Prints the log above the line of progress."""

    def emit(self, record: logging.LogRecord) -> None:
        if progress.shown is not None and hasattr(record, "is_in_the_line"):
            return
        with suppress(OSError):  # the terminal is gone
            console.print(Text(self.format(record)))


class _File(WatchedFileHandler):
    """Appends the log to a file, which a store may replace; nothing is written while its folder is gone."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(FileNotFoundError):
            super().emit(record)


def start_log(debug: bool = False, file: Path | None = None) -> None:
    """Send the first process's log to the terminal, and to a file if one is named; the others only warn."""
    # Imported here: processes that only compute ROUGE need not wait for it.
    from huggingface_hub.utils import disable_progress_bars
    from huggingface_hub.utils import logging as hub_log

    handlers: list[logging.Handler] = [_AboveLine() if console.is_terminal else logging.StreamHandler()]
    if file is not None and is_first():
        handlers.append(_File(file, encoding="utf-8", delay=True))
    usual = logging.INFO if is_first() else logging.WARNING
    level = logging.DEBUG if debug else usual
    logging.basicConfig(level=level, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", handlers=handlers)
    for chatty in "httpx httpx2 httpcore filelock urllib3 matplotlib PIL aiobotocore botocore".split():
        logging.getLogger(chatty).setLevel(logging.WARNING)
    hub_log.get_logger().handlers.clear()  # they would print each message a second time
    if not console.is_terminal:
        disable_progress_bars()


class progress(Generic[Item]):
    """The progress of some work: one line at the bottom of the terminal until the work ends; else lines of the log.

    Only the first of several processes shows it, and while a line is shown, work within that work has none. It is drawn
    in calls of `update` alone, so that no thread meets signals or forks. It is shown after `wait` seconds, so that
    short work has none; lines of the log have `every` seconds between them.
    """

    shown: progress[Any] | None = None

    def __init__(
        self, what: str, total: int | None, unit: str, items: Iterable[Item] = (), *, wait: float = 1, every: float = 60
    ) -> None:
        self.what, self.total, self.unit, self.items = what, total, unit, items
        self.notes: Sequence[str] | None = None  # parts of the line that follow the time left, in place of the rate
        self.left: float | None = None  # seconds, where the caller knows better than the rate tells
        self.more = ""  # words about work that `left` does not count
        self.ended = threading.Event()  # ends the thread of `log_every`
        self.wait, self.interval = (wait, REDRAW) if console.is_interactive else (every, every)
        self.begin()

    def begin(self, done: int = 0) -> None:
        """Let the work begin now, with so many units done before."""
        self.done = self.done_before = done
        self.began = time.monotonic()
        self.due = self.began + self.wait if is_first() else math.inf

    def log_every(self, seconds: float) -> None:
        """Let the log, where there is no terminal, have a line each so many seconds, also where a unit takes longer."""
        self.ended.set()
        if not console.is_interactive and is_first():
            self.interval, self.due, self.ended = seconds, time.monotonic() + seconds, threading.Event()
            if seconds < math.inf:
                threading.Thread(target=self._log_within_units, args=(self.ended,), daemon=True).start()

    def _log_within_units(self, ended: threading.Event) -> None:
        while not ended.wait(self.interval / 10):
            self.update(0)

    def __enter__(self) -> progress[Item]:
        self.begin()
        self.update(0)
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        if progress.shown is self:
            progress.shown = None
            atexit.unregister(self.__exit__)
            with suppress(OSError):
                self.live.stop()

    def __iter__(self) -> Iterator[Item]:
        with self:
            for item in self.items:
                yield item
                self.update()

    def update(self, count: int = 1) -> None:
        """Count so many more units as done; the line is drawn some times a second."""
        self.done += count
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + self.interval
        if not console.is_interactive:
            logger.info(self.text())
        elif progress.shown in (None, self):
            with suppress(OSError):  # the terminal is gone
                self._draw()

    def _draw(self) -> None:
        if progress.shown is None:
            progress.shown = self
            atexit.register(self.__exit__)  # an error keeps the frames of loops that it leaves
            # Standard output may go to a file, and then must not come to the terminal.
            redirects = sys.stdout.isatty()
            self.live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=redirects)
            self.live.start()
            console.show_cursor()  # a process that is killed could not do so
        self.live.update(Text(self.text(), no_wrap=True, overflow="ellipsis"), refresh=True)

    def text(self) -> str:
        total = "" if self.total is None else f"/{self.total:,}"
        parts = [f"{self.what} {self.done:,}{total} {self.unit}".rstrip()]
        speed = (self.done - self.done_before) / max(time.monotonic() - self.began, 1e-9)
        left = self.left
        if left is None:
            left = (self.total - self.done) / speed if speed and self.total is not None else math.inf
        if left < math.inf:
            parts.append(f"{duration(left)} left{self.more}")
        if speed and self.notes is None:
            parts.append(rate(speed, self.unit))
        return "  ".join([*parts, *(self.notes or ())])


class Clock:
    """Adds up the seconds of named parts of some work."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()  # of each part; "paused" holds what belongs to no part of the work

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is done inside as a part of the work. Work on a GPU must have been waited for."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
