"""How far something is that takes long, and how long its parts take."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm


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


def progress(what: str, total: int, unit: str, items: Iterable[Any] | None = None, *, shown: bool = True) -> tqdm[Any]:
    """A bar of tqdm, of the first of several processes alone; without a terminal it writes once a minute at most."""
    seconds = 0.1 if sys.stderr.isatty() else 60
    return tqdm(items, what, total, unit=f" {unit}", mininterval=seconds, disable=not (shown and is_first()))


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
