"""Statistics of a summary by counting words: what it copies from its source, its length, its repetitions."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from utils.text.scripts import WORD_CHARACTERS

NOVEL_ORDERS = (1, 2, 3, 4)
WORD = regex.compile(rf"[\p{{L}}\p{{N}}][{WORD_CHARACTERS}]*")


def words(text: str) -> list[str]:
    """Lower-cased runs of letters, with their marks and joiners, and digits, in order."""
    return [word.lower() for word in WORD.findall(text)]


def fragments(source: Sequence[str], summary: Sequence[str]) -> list[tuple[int, int, int]]:
    """The extractive fragments of Grusky et al. (2018, algorithm 1), found greedily from the left.

    Returns:
        Of each its first word in the summary, its first word in the source, and its number of words.
    """
    starts: dict[str, list[int]] = {word: [] for word in summary}
    for position, word in enumerate(source):
        if word in starts:
            starts[word].append(position)
    found = []
    begin = 0
    while begin < len(summary):
        best = begin, 0, 0
        for start in starts[summary[begin]]:
            most = min(len(source) - start, len(summary) - begin)
            length = 1
            while length < most and source[start + length] == summary[begin + length]:
                length += 1
            if length > best[2]:
                best = begin, start, length
        found += [best] if best[2] else []
        begin += max(1, best[2])
    return found


def repetition(summary: Sequence[str]) -> float | None:
    """Percent of the 3-grams that repeat an earlier one (seq-rep-n of Welleck et al., 2020); None if there are none."""
    ngrams = _ngrams(summary, 3)
    return 100 * (1 - len(set(ngrams)) / len(ngrams)) if ngrams else None


def _ngrams(text: Sequence[str], order: int) -> list[tuple[str, ...]]:
    return list(zip(*(text[start:] for start in range(order)), strict=False))


def text_statistics(source: Sequence[str], summary: Sequence[str]) -> dict[str, float | None]:
    """Statistics of one summary, from the `words` of both texts; None where a text is too short to have one.

    Returns:
        `words`: length. `novel1` to `novel4`: percent of distinct n-grams that the source lacks. `coverage`: percent of
        words that lie in a fragment copied from the source; `density`: mean length in words of the fragment that a word
        lies in, 0 for a word outside of any (both Grusky et al., 2018). `repeated3`: percent of 3-grams that repeat an
        earlier one. `compression`: words of the source per word of the summary.
    """
    copied, length = [words for *_, words in fragments(source, summary)], len(summary)
    novel = {}
    for order in NOVEL_ORDERS:
        ngrams = set(_ngrams(summary, order))
        new = ngrams.difference(_ngrams(source, order))
        novel[f"novel{order}"] = 100 * len(new) / len(ngrams) if ngrams else None
    return {
        "words": length,
        **novel,
        "coverage": 100 * sum(copied) / length if length else None,
        "density": sum(words**2 for words in copied) / length if length else None,
        "repeated3": repetition(summary),
        "compression": len(source) / length if length else None,
    }
