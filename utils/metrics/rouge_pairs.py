"""ROUGE (Lin, 2004) of texts and their references, in one process.

Two modes, because published figures come from two programs that differ by tenths of a percent:

- `rouge-score`: Google's package. Words are stemmed by nltk's variant of Porter's algorithm.
- `rouge-1.5.5`: the Perl script that papers report. Words are looked up in WordNet's lists of irregular forms, and only
  those not found there are stemmed, by Porter's own variant. ROUGE-L is the union of longest common subsequences over
  sentences, which the package calls Lsum.

nltk, which the package needs too, takes seconds to load, and is loaded on first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache

from utils.text.sentences import split_sentences

ROUGE_TYPES = {
    "rouge-score": ("rouge1", "rouge2", "rougeL", "rougeLsum"),
    "rouge-1.5.5": ("rouge1", "rouge2", "rougeL"),
}
ROUGE_MODES = tuple(ROUGE_TYPES)


@cache
def porter(algorithm: str = "NLTK_EXTENSIONS") -> Callable[[str], str]:
    """nltk's Porter stemmer in one of its variants, with a cache, since stemming would take most of the time."""
    from nltk.stem.porter import PorterStemmer

    return lru_cache(maxsize=1 << 17)(PorterStemmer(algorithm).stem)


class _Tokenizer:
    """Both programs' words: runs of a to z and digits in lower case, stemmed where longer than three characters."""

    def __init__(self, stem: Callable[[str], str]) -> None:
        self.stem = stem

    def tokenize(self, text: str) -> list[str]:
        return [self.stem(word) if len(word) > 3 else word for word in re.findall("[a-z0-9]+", text.lower())]


def rouge_words(text: str) -> list[str]:
    """The stemmed words that mode rouge-score counts."""
    return _Tokenizer(porter()).tokenize(text)


def score_pairs(pairs: Sequence[tuple[str, str]], mode: str, exceptions: Mapping[str, str]) -> list[list[float]]:
    """F in percent of each (prediction, reference), in the order of the mode's types."""
    from rouge_score.rouge_scorer import RougeScorer

    kinds = ROUGE_TYPES[mode]
    if mode == "rouge-score":
        stem = porter()
    else:
        kinds = tuple(kind.replace("rougeL", "rougeLsum") for kind in kinds)
        martins = porter("MARTIN_EXTENSIONS")

        def stem(word: str) -> str:
            return exceptions.get(word) or martins(word)

    scorer = RougeScorer(kinds, tokenizer=_Tokenizer(stem))
    rows = []
    for pair in pairs:
        prediction, reference = ("\n".join(split_sentences(text)) for text in pair)
        scores = scorer.score(reference, prediction)
        rows.append([100 * scores[kind].fmeasure for kind in kinds])
    return rows
