"""How much a summary copies from its source, how long it is and how much it repeats, by counting words.

Words are lower-cased runs of letters and digits, so that punctuation, case and hyphens make no difference. The script
of the report's page finds words and copied fragments by the same rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

NOVEL_ORDERS = (1, 2, 3, 4)
REPEATED_ORDER = 3
_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Lower-cased runs of letters and digits, in order."""
    return [word.lower() for word in _WORD.findall(text)]


def match_lengths(source: Sequence[str], summary: Sequence[str]) -> list[int]:
    """For each position of the summary, the length in words of the longest run from there that the source also has."""
    wanted = set(summary)
    starts: dict[str, list[int]] = {}
    for position, word in enumerate(source):
        if word in wanted:
            starts.setdefault(word, []).append(position)
    lengths = []
    for begin, word in enumerate(summary):
        longest = 0
        for start in starts.get(word, ()):
            most = min(len(summary) - begin, len(source) - start)
            # A longer run would also agree in the word after the longest so far, which is quick to rule out.
            if longest >= most or source[start + longest] != summary[begin + longest]:
                continue
            length = 1
            while length < most and source[start + length] == summary[begin + length]:
                length += 1
            longest = max(longest, length)
        lengths.append(longest)
    return lengths


def fragment_lengths(matches: Sequence[int]) -> list[int]:
    """Lengths of the extractive fragments of Grusky et al. (2018, algorithm 1), found greedily from the left.

    Args:
        matches: what `match_lengths` returns.
    """
    fragments = []
    position = 0
    while position < len(matches):
        if matches[position]:
            fragments.append(matches[position])
        position += max(1, matches[position])
    return fragments


def novel_rate(summary: Sequence[str], matches: Sequence[int], order: int) -> float | None:
    """Percent of the summary's distinct n-grams that the source lacks; None for a text shorter than n words.

    Args:
        matches: `match_lengths` of the source and this summary.
        order: n.
    """
    # The source has an n-gram where it has a run of at least n words from the n-gram's start.
    held = {tuple(summary[i : i + order]): matches[i] >= order for i in range(len(summary) - order + 1)}
    return 100 * (1 - sum(held.values()) / len(held)) if held else None


def repetition(summary: Sequence[str], order: int = REPEATED_ORDER) -> float | None:
    """Percent of the n-grams that repeat an earlier one (seq-rep-n of Welleck et al., 2020); None if there are none."""
    total = len(summary) - order + 1
    if total < 1:
        return None
    return 100 * (1 - len({tuple(summary[i : i + order]) for i in range(total)}) / total)


def text_statistics(source: Sequence[str], summary: Sequence[str]) -> dict[str, float | None]:
    """Statistics of one summary; None where a text is too short to have one.

    Args:
        source, summary: their `words`.

    Returns:
        `words`: length. `novel1` to `novel4`: percent of distinct n-grams that the source lacks. `coverage`: percent of
        words that lie in a fragment copied from the source; `density`: mean length in words of the fragment that a word
        lies in, 0 for a word outside of any (both Grusky et al., 2018). `repeated3`: percent of 3-grams that repeat an
        earlier one. `compression`: words of the source per word of the summary.
    """
    matches = match_lengths(source, summary)
    fragments = fragment_lengths(matches)
    length = len(summary)
    return {
        "words": length,
        **{f"novel{order}": novel_rate(summary, matches, order) for order in NOVEL_ORDERS},
        "coverage": 100 * sum(fragments) / length if length else None,
        "density": sum(fragment**2 for fragment in fragments) / length if length else None,
        f"repeated{REPEATED_ORDER}": repetition(summary),
        "compression": len(source) / length if length else None,
    }


def length_ratio(summary: Sequence[str], reference: Sequence[str]) -> float | None:
    """Words of the summary per word of the reference; None for a reference without words."""
    return len(summary) / len(reference) if reference else None


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are not None; None where all are."""
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None
