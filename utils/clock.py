"""How long the parts of a piece of work take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


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
