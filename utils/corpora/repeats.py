"""Counts examples that repeat others."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import defaultdict
from collections.abc import Callable

import numpy as np

OPENING = 80  # characters by which near-duplicates are told
_GAP = re.compile(r"[\W_]+")


def opening(text: str) -> str:
    """The first OPENING characters of a text, case-folded, with one space for all between its letters and digits."""
    # Ten times as many characters hold enough letters. A text without any is compared as a whole.
    return _GAP.sub(" ", text[: 10 * OPENING].casefold()).strip()[:OPENING] or text


# What examples may share.
_SHARED: dict[str, Callable[[str, str], str]] = {
    "source": lambda source, target: source,
    "target": lambda source, target: target,
    "pair": lambda source, target: f"{source}\n{target}",
    "opening": lambda source, target: opening(source),
}


class Repeats:
    """Counts examples that share something. A text is remembered by 8 bytes.

    Among 1e6 different texts, the odds that two have the same bytes are 1 to 4e7.

    Args:
        what: of "source", "target", "pair" and "opening" (of the source), those to count.
    """

    def __init__(self, *what: str) -> None:
        self._texts = {name: _SHARED[name] for name in what}
        self._digests: dict[tuple[str, str], array[int]] = defaultdict(lambda: array("Q"))

    def add(self, split: str, source: str, target: str) -> None:
        """Take an example in."""
        for what, text_of in self._texts.items():
            digest = hashlib.blake2b(text_of(source, target).encode(), digest_size=8).digest()
            self._digests[split, what].append(int.from_bytes(digest, "big"))

    def within(self, split: str, what: str) -> int:
        """How many examples of a split share it with an earlier one of that split."""
        digests = self._digests[split, what]
        return len(digests) - len(set(digests))

    def shared(self, split: str, other: str, what: str) -> int:
        """How many examples of a split share it with one of another split."""
        return int(np.isin(self._digests[split, what], self._digests[other, what]).sum())
