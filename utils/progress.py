"""The log, how far something is that takes long, and how long its parts take."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from utils.figures import duration, rate

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
REDRAW = 0.2  # seconds
FORMAT = logging.Formatter("%(asctime)s  %(message)s", "%H:%M:%S")
# `extra` of log records of figures, whose parts two spaces separate: what the line of progress says too, and what a
# terminal prints in one line, without the last parts if they have no room. Files get all of both.
IN_THE_LINE, IN_ONE_LINE = {"terminal": "line"}, {"terminal": "fit"}


class _Console(Console):
    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is, since a process that is killed could not bring it back."""
        return False


console = _Console(stderr=True)


def is_first() -> bool:
    """Whether this is the first of the processes that were started together, by what their launchers tell them."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


class _AboveLine(logging.Handler):
    """Prints the log above the line of progress."""

    def emit(self, record: logging.LogRecord) -> None:
        text, place = self.format(record), getattr(record, "terminal", None)
        if place == "line" and progress.shown is not None:
            return
        try:
            console.print(Text(fitted(text.split("  "), console.width) if place == "fit" else text))
        except OSError:  # the terminal is gone
            self.handleError(record)


def start_log(debug: bool = False) -> None:
    """Send the first process's log to the terminal; the others only warn."""
    # Imported here: processes that only compute ROUGE need not wait for it.
    from huggingface_hub.utils import disable_progress_bars
    from huggingface_hub.utils import logging as hub_log

    handler = _AboveLine() if console.is_terminal else logging.StreamHandler()
    handler.setFormatter(FORMAT)
    level = logging.DEBUG if debug else logging.INFO if is_first() else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler])
    for chatty in ("httpx", "httpx2", "httpcore", "filelock", "urllib3", "matplotlib", "PIL"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    hub_log.get_logger().handlers.clear()  # which print all of it a second time
    if not console.is_terminal:
        disable_progress_bars()


def log_to(file: Path) -> None:
    """Send the first process's log to a file as well, in place of the file of a run before."""
    for handler in [each for each in logging.root.handlers if type(each) is logging.FileHandler]:
        logging.root.removeHandler(handler)
        handler.close()
    if is_first():
        handler = logging.FileHandler(file, encoding="utf-8", delay=True)
        handler.setFormatter(FORMAT)
        logging.root.addHandler(handler)


def fitted(parts: Sequence[str], width: int) -> str:
    """The first of the parts, and those of the others for which a line of this width has room."""
    line, *others = parts
    for part in others:
        if cell_len(line) + 2 + cell_len(part) <= width:
            line += f"  {part}"
    return line


class progress(Generic[Item]):
    """How far some work is: one line at the bottom of the terminal, which never wraps and goes when the work ends.

    Without a terminal the log says it from time to time. Only the first of several processes does either, and where one
    line is shown, work within that work has none. The line is drawn in calls of `update` alone, so that no thread meets
    signals, forks or a debugger.

    Args:
        what: the work.
        total: of the units; None where nobody knows.
        items: to iterate over, each of which is a unit.
        after: seconds until the line is shown, so that it is not for short work.
        log_every: seconds between two lines of the log.

    Attributes:
        shown: the line on the terminal.
        done: units so far.
        notes: what to show besides; by default the rate.
    """

    shown: progress[Any] | None = None

    def __init__(
        self,
        what: str,
        total: int | None,
        unit: str,
        items: Iterable[Item] = (),
        *,
        after: float = 1.0,
        log_every: float = 60.0,
    ) -> None:
        self.what, self.total, self.unit, self.items = what, total, unit, items
        self.notes: Sequence[str] | None = None
        self.live: Live | None = None
        self.has_terminal = is_first() and console.is_terminal and not console.is_dumb_terminal
        log_every = log_every if is_first() else math.inf
        self.wait, self.interval = (after, REDRAW) if self.has_terminal else (log_every, log_every)
        self.begin()

    def begin(self, done: int = 0) -> None:
        """Let the work begin now, with so many units done before."""
        self.done = self.done_before = done
        self.began = time.monotonic()
        self.due = self.began + self.wait

    def __enter__(self) -> progress[Item]:
        self.begin()
        self.update(0)
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            atexit.unregister(self.__exit__)
            with suppress(OSError):
                self.live.stop()
            self.live = progress.shown = None

    def __iter__(self) -> Iterator[Item]:
        with self:
            for item in self.items:
                yield item
                self.update()

    def update(self, count: int = 1, notes: Sequence[str] | None = None) -> None:
        """Tell that so many more units are done. With other notes the line is drawn at once."""
        self.done += count
        now = time.monotonic()
        if notes is not None:
            self.notes = notes
            self.due = now if self.has_terminal else self.due
        if now < self.due:
            return
        self.due = now + self.interval
        if not self.has_terminal:
            logger.info(self.text())
        elif progress.shown in (None, self):
            with suppress(OSError):  # the terminal is gone
                if self.live is None:
                    progress.shown = self
                    atexit.register(self.__exit__)  # an error keeps the frames of loops that it leaves
                    self.live = Live(
                        get_renderable=lambda: Text(self.text(console.width - 1), no_wrap=True, overflow="ellipsis"),
                        console=console,
                        auto_refresh=False,
                        transient=True,
                        redirect_stdout=sys.stdout.isatty(),  # and not where it goes to a file
                    )
                    self.live.start()
                self.live.refresh()

    def text(self, width: float = math.inf) -> str:
        """The line, with as much of it as fits."""
        of_all = "" if self.total is None else f"/{self.total:,}"
        parts = [f"{self.what} {self.done:,}{of_all} {self.unit}".rstrip()]
        speed = (self.done - self.done_before) / max(time.monotonic() - self.began, 1e-9)
        if speed and self.total is not None:
            parts.append(f"{duration((self.total - self.done) / speed)} left")
        if speed and self.notes is None:
            parts.append(rate(speed, self.unit))
        return fitted([*parts, *(self.notes or ())], width)


class Clock:
    """Adds up the seconds of named parts of some work.

    Attributes:
        seconds: of each part. "paused" holds what belongs to no part of the work.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is done inside as a part of the work. Work on a GPU must have been waited for."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
