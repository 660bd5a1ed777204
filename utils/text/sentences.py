"""Sentences of a text, for metrics and for long documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from utils.text.scripts import END

if TYPE_CHECKING:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

# Punkt knows abbreviations from a corpus. nltk's trained model would have to be downloaded, so the commonest
# abbreviations of news are listed here.
ABBREVIATIONS = frozenset(
    "a.m adm apr aug ave capt cmdr co col corp dec dr e.g feb fri gen gov hon i.e inc jan jr jul jun lt ltd maj mar "
    "messrs mon mr mrs ms mt no nov oct p.m ph.d pres prof rep rev sat sen sept sgt sr st sun thu tue u.k u.n u.s vs "
    "wed".split()
)


# Characters that nltk gets at once: it ends a search after five seconds, which a megabyte may take.
_AT_ONCE = 1 << 16
_BLANKS = re.compile(r"\s*")


@cache
def _sentence_splitter() -> PunktSentenceTokenizer:
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer  # here: nltk takes seconds to load

    parameters = PunktParameters()
    parameters.abbrev_types = set(ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """The bounds of each sentence of a text."""
    start = 0
    while start < len(text):
        part = text[start : start + _AT_ONCE]
        spans = [span for punkts in _sentence_splitter().span_tokenize(part) for span in _divided(part, *punkts)]
        here, start = start, start + len(part)
        if start < len(text) and len(spans) > 1:  # the last sentence may go on
            start = here + spans.pop()[0]
        for begin, end in spans:
            yield here + begin, here + end


def _divided(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Divide a sentence of Punkt, which knows ASCII's marks alone, at the marks of other scripts."""
    for match in END.finditer(text, begin, end):
        yield begin, match.end()
        begin = _BLANKS.match(text, match.end(), end).end()
    if begin < end:
        yield begin, end


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences by nltk's Punkt (Kiss & Strunk, 2006), without any download, and by `END`."""
    return [text[begin:end] for begin, end in _spans(text)]


def sentence_parts(text: str) -> list[str]:
    """Split a text into sentences, each with the white space before it, so that joined they are the text."""
    # Punkt also finds sentence ends inside words, as in "he left.(She stayed.)"; other scripts put no blank there.
    unspaced = {match.end() for match in END.finditer(text)} - {len(text)}
    ends = [end for _, end in _spans(text) if text[end : end + 1].isspace() or end in unspaced]
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


def without_repeats(text: str) -> str:
    """Remove the sentences that repeat an earlier one of the text, whatever their case and white space."""
    kept: dict[str, str] = {}
    for part in sentence_parts(text):
        kept.setdefault(" ".join(part.casefold().split()), part)
    return "".join(kept.values())
