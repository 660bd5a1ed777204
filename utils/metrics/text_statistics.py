"""Statistics of a summary by counting words: its length, what it copies from its source, its repetitions."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from utils.text.scripts import WORD_CHARACTERS

_WORD = regex.compile(rf"[\p{{L}}\p{{N}}][{WORD_CHARACTERS}]*")


def words(text: str) -> list[str]:
    """Lower-cased runs of letters, with their marks and joiners, and digits, in order."""
    return [word.lower() for word in _WORD.findall(text)]


def _ngrams(text: Sequence[str], order: int) -> list[tuple[str, ...]]:
    return list(zip(*(text[start:] for start in range(order)), strict=False))


def repetition(summary: Sequence[str]) -> float | None:
    """Percent of the 3-grams that repeat an earlier one (seq-rep-n of Welleck et al., 2020); None if there are none."""
    ngrams = _ngrams(summary, 3)
    return 100 * (1 - len(set(ngrams)) / len(ngrams)) if ngrams else None


def novelty(source: Sequence[str], summary: Sequence[str]) -> float | None:
    """Percent of the distinct bigrams that the source lacks; None if there are none."""
    bigrams = set(_ngrams(summary, 2))
    return 100 * len(bigrams.difference(_ngrams(source, 2))) / len(bigrams) if bigrams else None
