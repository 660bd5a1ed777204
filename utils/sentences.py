"""Sentences of a text, for metrics and for long documents."""

from __future__ import annotations

from functools import cache

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

# Punkt knows abbreviations from a corpus. nltk's trained model would have to be downloaded, so the commonest
# abbreviations of news are listed here.
ABBREVIATIONS = frozenset(
    "a.m adm apr aug ave capt cmdr co col corp dec dr e.g feb fri gen gov hon i.e inc jan jr jul jun lt ltd maj mar "
    "messrs mon mr mrs ms mt no nov oct p.m ph.d pres prof rep rev sat sen sept sgt sr st sun thu tue u.k u.n u.s vs "
    "wed".split()
)


@cache
def _sentence_splitter() -> PunktSentenceTokenizer:
    parameters = PunktParameters()
    parameters.abbrev_types = set(ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters)


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences by nltk's Punkt (Kiss & Strunk, 2006), without any download."""
    return _sentence_splitter().tokenize(text)
