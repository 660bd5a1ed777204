"""ROUGE (Lin, 2004) of texts and their references, in one process.

Two modes, because published figures come from two programs that differ by tenths of a percent:

- `rouge-score`: Google's package. Words are stemmed by nltk's variant of Porter's algorithm.
- `rouge-1.5.5`: the Perl script that papers report. Words are looked up in WordNet's lists of irregular forms, and only
  those not found there are stemmed, by Porter's own variant. ROUGE-L is what the package calls Lsum.

nltk takes seconds to load, and is loaded on first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import SimpleNamespace
from unicodedata import normalize

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from utils.text.sentences import split_sentences

ROUGE_TYPES = {
    "rouge-score": ("rouge1", "rouge2", "rougeL", "rougeLsum"),
    "rouge-1.5.5": ("rouge1", "rouge2", "rougeL"),
}
ROUGE_MODES = tuple(ROUGE_TYPES)
# Each with what it counts, apart from the package's own words: letters and digits of any script, with their marks.
_UNICODE_WORDS = {"words": r"[\p{L}\p{M}\p{N}]+", "characters": r"[\p{L}\p{N}]\p{M}*"}
ROUGE_TOKENIZERS = ("rouge-score", *_UNICODE_WORDS)


@dataclass(frozen=True)
class RougeRule:
    """The way in which ROUGE counts."""

    mode: str = ROUGE_MODES[0]
    tokenizer: str = ROUGE_TOKENIZERS[0]  # for mode rouge-score
    exceptions: Mapping[str, str] | None = None  # irregular forms, for rouge-1.5.5
    sentence_ends: Sequence[str] = ()


DEFAULT_RULE = RougeRule()


@cache
def porter(algorithm: str = "NLTK_EXTENSIONS") -> Callable[[str], str]:
    """nltk's Porter stemmer in one of its variants, with a cache, since stemming would take most of the time."""
    from nltk.stem.porter import PorterStemmer

    return lru_cache(maxsize=1 << 17)(PorterStemmer(algorithm).stem)


def _stemmed(text: str, stem: Callable[[str], str]) -> list[str]:
    """Both programs' words: runs of a to z and digits in lower case, stemmed where longer than three characters."""
    return [stem(word) if len(word) > 3 else word for word in re.findall("[a-z0-9]+", text.lower())]


def _matches(text: str, splitter: Split) -> list[str]:
    """Words, or characters, in lower case and Unicode's form NFC."""
    return [word for word, _ in splitter.pre_tokenize_str(normalize("NFC", text).lower())]


def score_pairs(pairs: Sequence[tuple[str, str]], rule: RougeRule) -> list[list[float]]:
    """F in percent of each (prediction, reference), in the order of the mode's types."""
    from rouge_score.rouge_scorer import RougeScorer

    kinds = ROUGE_TYPES[rule.mode]
    if rule.mode == "rouge-1.5.5":
        kinds = tuple(kind.replace("rougeL", "rougeLsum") for kind in kinds)
        martins = porter("MARTIN_EXTENSIONS")
        words = partial(_stemmed, stem=lambda word: rule.exceptions.get(word) or martins(word))
    elif rule.tokenizer in _UNICODE_WORDS:
        words = partial(_matches, splitter=Split(Regex(_UNICODE_WORDS[rule.tokenizer]), "removed", invert=True))
    else:
        words = partial(_stemmed, stem=porter())
    scorer = RougeScorer(kinds, tokenizer=SimpleNamespace(tokenize=words))
    rows = []
    for pair in pairs:
        prediction, reference = ("\n".join(_sentences(text.strip(), rule.sentence_ends)) for text in pair)
        scores = scorer.score(reference, prediction)
        rows.append([100 * scores[kind].fmeasure for kind in kinds])
    return rows


def _sentences(text: str, ends: Sequence[str]) -> list[str]:
    """The sentences of a text: its lines, where it has several or marks of their ends, or those of Punkt."""
    marked = text
    for end in ends:
        marked = marked.replace(end, "\n")
    return split_sentences(text) if "\n" not in marked else [*filter(None, map(str.strip, marked.split("\n")))]
