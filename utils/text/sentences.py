"""Sentences of a text, also in scripts without blanks between words, for metrics and for long documents."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

logger = logging.getLogger(__name__)
# Of words in any script, in a character class: letters, their marks such as vowel signs, digits, and joiners.
WORD_CHARACTERS = "\\p{L}\\p{M}\\p{N}\u200c\u200d"


def _class_of(ranges: str) -> str:
    """The inside of a regular expression's character class, from ranges of hexadecimal code points."""
    return re.sub("[0-9a-f]+", lambda code: chr(int(code[0], 16)), ranges).replace(" ", "")


# Thai, Lao, Tibetan, Burmese, Khmer, kana and Chinese characters.
UNSPACED = _class_of(
    "e00-fff 1000-109f 1780-17ff 3005-3007 3040-30ff 31f0-31ff 3400-4dbf 4e00-9fff f900-faff ff66-ff9f 20000-3ffff"
)
# The property Sentence_Terminal of Unicode 17, without the marks of Latin text: ASCII's, which Punkt knows, and those
# such as "‼". The list is fixed here, since shards must not depend on the version of a library.
TERMINALS = _class_of(
    "589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e 1735-1736 17d4-17d5 1803 1809 "
    "1944-1945 1aa8-1aab 1b4e-1b4f 1b5a-1b5b 1b5e-1b5f 1b7d-1b7f 1c3b-1c3c 1c7e-1c7f 2cf9-2cfb 3002 a4ff a60e-a60f "
    "a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9 aa5d-aa5f aaf0-aaf1 abeb fe12 fe15-fe16 fe52 fe56-fe57 ff01 ff0e "
    "ff1f ff61 10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 110be-110c1 11141-11143 111c5-111c6 111cd 111de-111df "
    "11238-11239 1123b-1123c 112a9 113d4-113d5 1144b-1144c 115c2-115c3 115c9-115d7 11641-11642 1173c-1173e 11944 11946 "
    "11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f 16af5 16b37-16b38 16b44 16d6e-16d6f 16e98 "
    "1bc9f 1da88"
)
_CLOSING = r"\"')\]}" + _class_of(
    "bb 2019 201d 203a 3009 300b 300d 300f 3011 3015 3017 3019 301b 301e-301f fe42 fe44 fe5a fe5c fe5e ff02 ff07 ff09 "
    "ff3d ff5d ff60 ff63"
)
_GOES_ON = ".!?,:;" + _class_of("55d 60c-60d 2013-2014 3001 fe50-fe51 fe54-fe55 fe58 ff0c-ff0d ff1a-ff1b ff64") + "-"
# The end of a sentence by Unicode's UAX 29, rules SB8a to SB11, but that an opening mark belongs to what follows; and
# ASCII's marks where the next sentence follows without a blank.
END = re.compile(
    rf"[{TERMINALS}]+[{_CLOSING}]*(?![{TERMINALS}{_CLOSING}]|\s*[{_GOES_ON}])"
    rf"|(?:[!?]|(?<=[{UNSPACED}])\.)[.!?]*[{_CLOSING}]*(?=[{UNSPACED}])"
)
_MARK = re.compile(f"[{TERMINALS}{UNSPACED}]")  # END matches only where one is
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

    class Splitter(PunktSentenceTokenizer):
        """Decides once about words around a full stop that come again, a quarter of those in prose."""

        text_contains_sentbreak = lru_cache(1 << 17)(PunktSentenceTokenizer.text_contains_sentbreak)

    return Splitter(parameters)


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


def _ends(text: str, begin: int = 0, end: int = sys.maxsize) -> Iterable[re.Match[str]]:
    has_mark = not text.isascii() and _MARK.search(text, begin, end)
    return END.finditer(text, begin, end) if has_mark else ()


def _divided(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Divide a sentence of Punkt, which knows ASCII's marks alone, at the marks of other scripts."""
    for match in _ends(text, begin, end):
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
    unspaced = {match.end() for match in _ends(text)} - {len(text)}
    ends = [end for _, end in _spans(text) if text[end : end + 1].isspace() or end in unspaced]
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


def share_of(characters: str, texts: Iterable[str]) -> float:
    """The share of the letters and digits of texts, in lower case, that are in a character class; 1 without any."""
    joined = "".join(texts).lower()
    letters = sum(map(str.isalnum, joined))
    return len(re.findall(f"[{characters}]", joined)) / letters if letters else 1.0


def warn_of_unspaced(references: Iterable[str], chosen: str, others: str) -> None:
    """Warn where more than a tenth of references is in scripts without blanks; `others` says which options count."""
    if (unspaced := share_of(UNSPACED, references)) > 0.1:
        text = "%.0f %% of the references' letters are of scripts without blanks: %s takes clauses for words; %s"
        logger.warning(text, 100 * unspaced, chosen, others)
