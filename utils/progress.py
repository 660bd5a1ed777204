"""How far a long task is, on stderr."""

from __future__ import annotations

import sys
import time


class Progress:
    """One line that renews itself on a terminal; in a log, a line every tenth of the way.

    Args:
        doing: what is done, as "generating".
        total: how many there are to do.
        unit: of what, in the plural.
        patience: seconds from now in which nothing is shown, so that short tasks stay silent.
    """

    def __init__(self, doing: str, total: int, unit: str, patience: float = 0.0) -> None:
        self.doing, self.total, self.unit = doing, total, unit
        self.first_shown = time.monotonic() + patience
        self.tenths = -1

    def __call__(self, done: int) -> None:
        """Show that `done` of `total` are done."""
        if time.monotonic() < self.first_shown:
            return
        text = f"{self.doing}: {done}/{self.total} {self.unit}"
        tenths = 10 * done // max(1, self.total)
        if sys.stderr.isatty():
            print(f"\r{text}", end="\n" if done == self.total else "", file=sys.stderr, flush=True)
        elif tenths > self.tenths:
            print(text, file=sys.stderr, flush=True)
        self.tenths = tenths
