"""Summaries that need no training: a document's first sentences, and the extractive oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from utils.metrics.rouge_pairs import rouge_tokenizer
from utils.text.lines import references_of
from utils.text.sentences import split_sentences

LEADS = {1: "first 1 sentence", 2: "first 2 sentences", 3: "first 3 sentences"}
_ROUNDING = 1e-12  # scores that differ by less are equal but for rounding


def leads(articles: Sequence[str]) -> dict[str, list[str]]:
    """Each article's first sentences, 1 to 3 of them: the baselines that news summarisers are measured against."""
    sentences = [split_sentences(article) for article in articles]
    return {name: [" ".join(each[:count]) for each in sentences] for count, name in LEADS.items()}


def oracle_sentences(sentences: Sequence[str], reference: str, tokenizer: str = "rouge-score") -> list[int]:
    """Choose sentences greedily by ROUGE (Nallapati et al., 2017, section 2.2).

    Each round adds the sentence that raises the mean of ROUGE-1 and ROUGE-2 F the most, the first of equals, and the
    last round is the one in which none raises it. The chosen sentences are scored as one text in the document's order,
    so n-grams may cross their borders.

    Args:
        reference: of a list (see `references_of`), the one counts in each round that gives the highest score.
        tokenizer: one of ROUGE_TOKENIZERS.

    Returns:
        Indices in the document's order; none where no word is shared.
    """
    tokenize = rouge_tokenizer(tokenizer).tokenize
    words = [tokenize(sentence) for sentence in sentences]
    wanted = [_ngrams(tokenize(text)) for text in references_of(reference)]

    def score(chosen: Sequence[int]) -> float:
        text = _ngrams([word for index in sorted(chosen) for word in words[index]])
        return max(sum(_f(*orders) for orders in zip(text, each, strict=True)) for each in wanted) / 2

    wanted_words = {word for each, _ in wanted for word in each}
    candidates = [index for index, text in enumerate(words) if wanted_words & set(text)]
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


def oracle(document: str, reference: str, tokenizer: str = "rouge-score") -> str:
    """The extractive oracle's summary of a document, split by `split_sentences`; empty where no word is shared."""
    sentences = split_sentences(document)
    return " ".join(sentences[index] for index in oracle_sentences(sentences, reference, tokenizer))
