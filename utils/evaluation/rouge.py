"""ROUGE (Lin, 2004) as Google's rouge-score package computes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from bart.errors import InputError

ROUGE_TYPES = ("rouge1", "rouge2", "rougeLsum")
# Punkt learns abbreviations from a corpus; nltk's trained model is a download, so the commonest of news are given.
_ABBREVIATIONS = frozenset(
    "a.m adm apr aug ave capt cmdr co col corp dec dr e.g feb fri gen gov hon i.e inc jan jr jul jun lt ltd maj mar "
    "messrs mon mr mrs ms mt no nov oct p.m ph.d pres prof rep rev sat sen sept sgt sr st sun thu tue u.k u.n u.s vs "
    "wed".split()
)


@cache
def _sentence_splitter() -> PunktSentenceTokenizer:
    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters)


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, by nltk's Punkt (Kiss & Strunk, 2006), without any download."""
    return _sentence_splitter().tokenize(text)


def rouge_per_example(predictions: Sequence[str], references: Sequence[str]) -> list[dict[str, float]]:
    """F measures in percent of each pair: `rouge1`, `rouge2` and `rougeLsum`, Porter-stemmed.

    Lsum takes the union of longest common subsequences over sentences, here split by `split_sentences`.

    Raises:
        InputError: predictions and references differ in number.
    """
    if len(predictions) != len(references):
        raise InputError(f"{len(predictions)} predictions but {len(references)} references; they must be equally many")
    scorer = RougeScorer(ROUGE_TYPES, tokenizer=DefaultTokenizer(use_stemmer=True))
    scores = []
    for prediction, reference in zip(predictions, references, strict=True):
        lines = ["\n".join(split_sentences(text)) for text in (reference, prediction)]
        scores.append({name: 100 * score.fmeasure for name, score in scorer.score(*lines).items()})
    return scores


def rouge(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Mean F measures in percent over all pairs: `rouge1`, `rouge2`, `rougeLsum`.

    Raises:
        InputError: there are no pairs, or the numbers differ.
    """
    scores = rouge_per_example(predictions, references)
    if not scores:
        raise InputError("ROUGE of no predictions; at least one is needed")
    return {name: sum(score[name] for score in scores) / len(scores) for name in ROUGE_TYPES}
