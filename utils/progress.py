"""How far something is that takes long, and how long its parts take."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

logger = logging.getLogger(__name__)
LEAST_SECONDS, MOST_SECONDS = 5, 60  # between two lines of a log


def is_first() -> bool:
    """Whether this is the first of the processes that were started together, by what their launchers tell them."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def start_log(debug: bool = False, file: Path | None = None) -> None:
    """Send the first process's log to the terminal, and to a file if one is named; the others only warn."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if file is not None and is_first():
        handlers.append(logging.FileHandler(file, encoding="utf-8"))
    level = logging.DEBUG if debug else logging.INFO if is_first() else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", handlers=handlers)
    for chatty in ("httpx", "httpx2", "httpcore", "filelock", "urllib3", "matplotlib", "PIL"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class Progress:
    """Says how many of some things are done, to begin with, while it goes on, and at the end.

    On a terminal that is one line that renews itself. In a log it is a line at every tenth of the way, but at least
    LEAST_SECONDS after the one before, and one every MOST_SECONDS where things go slowly.

    Args:
        what: what is being done.
        total: how many things there are.
        unit: what they are called.
        shown: False to say nothing. Only the first of several processes says anything.
    """

    def __init__(self, what: str, total: int, unit: str, shown: bool = True) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.shown = shown and total > 0 and is_first()
        self.done = self.said = 0
        self.started = self.said_at = time.monotonic()
        self._say()

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        since = time.monotonic() - self.said_at
        tenth = self.done - self.said >= self.total / 10
        due = since >= 0.1 if sys.stderr.isatty() else since >= LEAST_SECONDS and (tenth or since >= MOST_SECONDS)
        if due or self.done == self.total:
            self._say()

    def reach(self, done: int) -> None:
        """So many are done in all, as far as there are so many; for what is counted in other units on the way."""
        if (steps := min(done, self.total) - self.done) > 0:
            self.advance(steps)

    def _say(self) -> None:
        if not self.shown:
            return
        self.said, self.said_at = self.done, time.monotonic()
        line = f"{self.what}: {self.done}/{self.total} {self.unit}"
        seconds = self.said_at - self.started
        if self.done == self.total:
            line += f" in {seconds:.1f} s"
        elif self.done:
            line += f", {timedelta(seconds=round(seconds * (self.total - self.done) / self.done))} left"
        if sys.stderr.isatty():
            end = "\n" if self.done == self.total else ""
            print(f"\r\x1b[K{line}", end=end, file=sys.stderr, flush=True)
        else:
            logger.info("%s", line)


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
