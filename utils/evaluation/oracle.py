"""The extractive oracle: the sentences of a document that, taken together, come nearest to a summary of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from utils.evaluation.rouge import rouge_words, split_sentences

_TINY = 1e-12  # differences of rounding


def oracle_sentences(sentences: Sequence[str], reference: str) -> list[int]:
    """Sentences chosen greedily (Nallapati et al., 2017, section 2.2).

    Next comes the one that raises the mean of ROUGE-1 and ROUGE-2 F the most, the first of equals, until none does.
    What is scored is the text that the chosen ones make in the document's order, with the n-grams over their borders.

    Returns:
        Indices in the document's order; none where no word is shared.
    """
    words = [rouge_words(sentence) for sentence in sentences]
    wanted = rouge_words(reference)
    limits: list[Counter[object]] = [Counter(wanted), Counter(pairwise(wanted))]
    # Of a sentence itself only the n-grams count that the reference has too.
    inside = [[Counter(gram for gram in grams if gram in limit) for grams, limit in zip((text, pairwise(text)), limits,
              strict=True)] for text in words]  # fmt: skip
    able = [index for index, counts in enumerate(inside) if counts[0]]
    chosen: list[int] = []
    held: list[Counter[object]] = [Counter(), Counter()]  # n-grams of the chosen ones
    shared = [0, 0]  # those of them that the reference has too
    length, best = 0, 0.0
    while True:
        found = None
        for index in able:
            changes: list[Counter[object]] = [inside[index][0], inside[index][1].copy()]
            before = max((other for other in chosen if other < index), default=None)
            after = min((other for other in chosen if other > index), default=None)
            if before is not None:
                changes[1][words[before][-1], words[index][0]] += 1
            if after is not None:
                changes[1][words[index][-1], words[after][0]] += 1
            if before is not None and after is not None:
                changes[1][words[before][-1], words[after][0]] -= 1  # the two are parted
            both = [
                number + sum(min(have[gram] + n, limit[gram]) - min(have[gram], limit[gram]) for gram, n in new.items())
                for number, have, limit, new in zip(shared, held, limits, changes, strict=True)
            ]
            total = length + len(words[index])
            score = (_f(both[0], total, len(wanted)) + _f(both[1], total - 1, len(wanted) - 1)) / 2
            if score > best + _TINY:
                best, found = score, (index, both, changes)
        if found is None:
            return sorted(chosen)
        index, shared, changes = found
        able.remove(index)
        chosen.append(index)
        length += len(words[index])
        for have, new in zip(held, changes, strict=True):
            have.update(new)


def _f(shared: int, first: int, second: int) -> float:
    """F measure of two texts of that many n-grams."""
    return 2 * shared / (first + second) if shared else 0.0


def oracle(document: str, reference: str) -> str:
    """The extractive oracle's summary of a document, split by `split_sentences`; empty where no word is shared."""
    sentences = split_sentences(document)
    return " ".join(sentences[index] for index in oracle_sentences(sentences, reference))
