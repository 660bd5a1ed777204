"""Summaries that need no training: a document's first sentences, and the extractive oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from utils.metrics.rouge_pairs import rouge_words
from utils.text.sentences import split_sentences

LEADS = {1: "first 1 sentence", 2: "first 2 sentences", 3: "first 3 sentences"}
_ROUNDING = 1e-12  # scores that differ by less are equal but for rounding


def leads(articles: Sequence[str]) -> dict[str, list[str]]:
    """Each article's first sentences, 1 to 3 of them: the baselines that news summarisers are measured against."""
    sentences = [split_sentences(article) for article in articles]
    return {name: [" ".join(each[:count]) for each in sentences] for count, name in LEADS.items()}


def oracle_sentences(sentences: Sequence[str], reference: str) -> list[int]:
    """Choose sentences greedily by ROUGE (Nallapati et al., 2017, section 2.2).

    Each round adds the sentence that raises the mean of ROUGE-1 and ROUGE-2 F the most, the first of equals, and the
    last round is the one in which none raises it. The chosen sentences are scored as one text in the document's order,
    so n-grams may cross their borders.

    Returns:
        Indices in the document's order; none where no word is shared.
    """
    words = [rouge_words(sentence) for sentence in sentences]
    wanted = _ngrams(rouge_words(reference))

    def score(chosen: Sequence[int]) -> float:
        text = _ngrams([word for index in sorted(chosen) for word in words[index]])
        return sum(_f(*orders) for orders in zip(text, wanted, strict=True)) / 2

    candidates = [index for index, text in enumerate(words) if wanted[0].keys() & text]
    chosen: list[int] = []
    best = 0.0
    while True:
        choice = None
        for index in candidates:
            if (value := score([*chosen, index])) > best + _ROUNDING:
                best, choice = value, index
        if choice is None:
            return sorted(chosen)
        candidates.remove(choice)
        chosen.append(choice)


def _ngrams(words: Sequence[str]) -> tuple[Counter[object], Counter[object]]:
    """Count each word, and each pair of neighbours, of a text."""
    return Counter(words), Counter(pairwise(words))


def _f(first: Counter[object], second: Counter[object]) -> float:
    """F measure of two texts' n-grams."""
    shared = (first & second).total()
    return 2 * shared / (first.total() + second.total()) if shared else 0.0


def oracle(document: str, reference: str) -> str:
    """The extractive oracle's summary of a document, split by `split_sentences`; empty where no word is shared."""
    sentences = split_sentences(document)
    return " ".join(sentences[index] for index in oracle_sentences(sentences, reference))
