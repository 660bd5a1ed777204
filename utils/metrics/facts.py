"""Numbers and names by which a summary differs from its reference and its source, found by comparing words.

Numbers compare by value: "$1.5bn" is "$1,500 million", "30k" is "30,000", "seven" is 7, "3.5 %" is "3.5 per cent"; but
"£70" is not "$70". "m" and "b" may be no power without a currency: "10,000m" agrees with 10,000 and 10,000 million.
Names are capitalised words, days and months among them. They compare by their stems without accents, whatever the case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from decimal import Decimal
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any
from unicodedata import combining, normalize

from utils.app.progress import progress
from utils.metrics.rouge_pairs import porter
from utils.text.sentences import ABBREVIATIONS

# Kinds of facts: the reference's that is not in the summary, and the summary's that is in the source but not in the
# reference, or in neither.
MISSING, ADDED, WRONG = range(3)
_UNITS = "one two three four five six seven eight nine".split()
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SPELLED = {word: i for i, word in enumerate([*_UNITS, *_TEENS], 1)} | {word: 10 * i for i, word in enumerate(_TENS, 2)}
_POWERS = {"k": 3, "thousand": 3} | dict.fromkeys(("m", "mn", "million"), 6)
_POWERS |= dict.fromkeys(("b", "bn", "billion"), 9) | dict.fromkeys(("tn", "trillion"), 12)
_NUMBER = re.compile(
    r"(?:(?P<currency>[$£€¥])\s?|(?<!\w))"
    r"(?:(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?)"
    rf"|(?P<spelled>(?:{'|'.join(_TENS)})(?:-(?:{'|'.join(_UNITS)}))?|{'|'.join([*_UNITS, *_TEENS])})\b)"
    rf"(?:[\s-]?(?P<power>{'|'.join(_POWERS)})\b)?(?P<percent>\s?%|[\s-]per ?cent\b)?",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+(?:(?:[\u0300-\u036f]|\.[^\W\d]\b)\w*)*")  # "U.S" is one word
_INSIDE = re.compile(r"(?<=[\w,;)] )" + _WORD.pattern)
_BEFORE = re.compile(r"(\w*)([^\w\s]*)\s*([^\w\s]*)$")  # a word, its punctuation, and what opens the next word


@lru_cache(maxsize=1 << 17)
def _stem(word: str) -> str:
    plain = "".join(c for c in normalize("NFKD", word).casefold() if c != "." and not combining(c))
    return porter()(plain) if len(plain) > 3 else plain


class _Text:
    """A text and its numbers and words. A source is long, so each set is computed when it is first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = set(_WORD.findall(text))

    @cached_property
    def stems(self) -> set[str]:
        return {_stem(word) for word in self.words}

    @cached_property
    def numbers(self) -> list[tuple[int, int, str, list[str]]]:
        """Each number's begin, end and unit, and the values that it may have, as digits."""
        numbers = []
        for match in _NUMBER.finditer(self.text):
            currency, digits, spelled, power, percent = match.groups()
            number = digits.replace(",", "") if digits else sum(_SPELLED[word] for word in spelled.lower().split("-"))
            powers = [_POWERS[power.lower()]] if power else [0]
            if power and power in "mMbB" and not currency:
                powers.append(0)
            values = [f"{Decimal(number).scaleb(exponent).normalize():f}" for exponent in powers]
            numbers.append((*match.span(), currency or ("%" if percent else ""), values))
        return numbers

    @cached_property
    def values(self) -> set[str]:
        """Each number with its unit, and with any: one without a unit supports all units, and all support it."""
        return {key for *_, unit, each in self.numbers for value in each for key in (unit + value, f"any {value}")}

    @cached_property
    def names(self) -> set[str]:
        """Words that are capitalised inside sentences."""
        return {word for word in _INSIDE.findall(self.text) if word[0].isupper()}

    def facts(self, texts: Sequence[_Text], names: Set[str]) -> Iterator[tuple[int, int, set[str]]]:
        """Begin and end of each number and name, which all texts of the article tell, and the values of a number."""
        for begin, end, unit, values in self.numbers:
            if self.text[begin:end].lower() != "one":
                prefixes = (unit, "") if unit else ("any ",)
                yield begin, end, {prefix + value for value in values for prefix in prefixes}
        for match in _WORD.finditer(self.text):
            word, begin = match[0], match.start()
            if not word[0].isupper() or word == "I" or any(start <= begin < end for start, end, *_ in self.numbers):
                continue
            is_name = len(word) > 1 and word.isupper()
            if not is_name and not any(word.lower() in text.words for text in texts):
                is_name = self._inside(begin) or word in names or any(word in text.names for text in texts)
            if is_name:
                yield *match.span(), set()

    def _inside(self, begin: int) -> bool:
        """True if the word there stands inside a sentence, as far as the word and punctuation before it tell."""
        word, ending, opening = _BEFORE.search(self.text, max(0, begin - 30), begin).groups()
        abbreviated = ending == "." and word[:1].isupper() and (len(word) == 1 or word.lower() in ABBREVIATIONS)
        return bool(word) and (abbreviated or not set(ending + opening) & set('.!?…:"“\u2018„«('))

    def lacks(self, fact: str, values: set[str]) -> bool:
        return not (values & self.values if values else fact in self.words or _stem(fact) in self.stems)


def names_in(texts: Iterable[str]) -> set[str]:
    """Words that are capitalised inside sentences, and in lower case nowhere."""
    read = [_Text(text) for text in texts]
    lower = {word for text in read for word in text.words}
    return {word for text in read for word in text.names if word.lower() not in lower}


def differing_facts(
    source: str, reference: str | None, summary: str, names: Set[str] = frozenset()
) -> list[tuple[int, int, int]]:
    """Begin, end and kind of the numbers and names that a summary should not have, or lacks: the MISSING ones stand in
    the reference, others in the summary.

    A capitalised word is a name where no text of the article has it in lower case. One that begins a sentence must also
    be capitalised inside a sentence of one, be an acronym, or be one of `names`, which `names_in` found in other texts.
    """
    in_source, in_reference, in_summary = texts = [_Text(text) for text in (source, reference or "", summary)]
    marks = []
    for begin, end, values in in_summary.facts(texts, names):
        fact = summary[begin:end]
        if in_reference.lacks(fact, values):
            if in_source.lacks(fact, values):
                marks.append((begin, end, WRONG))
            elif reference is not None:
                marks.append((begin, end, ADDED))
    for begin, end, values in in_reference.facts(texts, names):
        if in_summary.lacks(in_reference.text[begin:end], values):
            marks.append((begin, end, MISSING))
    return sorted(marks)


@lru_cache(maxsize=1)  # since the report that follows scoring is of the same articles
def facts_of(articles: tuple[tuple[str, str | None, str], ...]) -> list[list[tuple[int, int, int]]] | None:
    """`differing_facts` of each source, reference and summary; None if capitals tell no names in the summaries."""
    letters = [letter for *_, summary in articles for letter in summary if letter.isalpha()]
    if 2 * sum(map(str.islower, letters)) <= len(letters) or not any(map(str.isupper, letters)):
        return None  # most letters must be small, and some capitals
    names = names_in(filter(None, chain.from_iterable(texts[1:] for texts in articles)))
    return [differing_facts(*texts, names) for texts in progress("facts", len(articles), "articles", articles)]


def unsupported_facts(articles: tuple[tuple[str, str | None, str], ...]) -> dict[str, Any]:
    """The mean and the zeros of the WRONG facts of sources, references and summaries; {} if capitals tell no names."""
    if (facts := facts_of(articles)) is None:
        return {}
    counts = [sum(kind == WRONG for *_, kind in each) for each in facts]
    found = {"mean": sum(counts) / len(counts), "summaries_with_none": counts.count(0)}
    text = f"{sum(map(bool, counts)):,} of {len(counts):,} summaries ({found['mean']:.2f} names or numbers a summary)"
    return {"not_in": "article" if articles[0][1] is None else "article or reference", **found, "text": text}
