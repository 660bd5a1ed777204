"""Schemes of tags, in which a letter tells where in an entity a word stands, such as B-PER."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

OUTSIDE = "O"
_LETTER = "(?P<letter>[BIELMSUW])"
_PREFIXED = re.compile(rf"{_LETTER}([-_](?P<kind>.+))?", re.IGNORECASE)
_SUFFIXED = re.compile(rf"(?P<kind>.+)[-_]{_LETTER}", re.IGNORECASE)
_SCHEMES = (("BIO", "BI"), ("IOE", "IE"), ("BIOES", "BIES"), ("BILOU", "BILU"), ("BMES", "BMES"), ("BMES", "BMEW"))
_IN_BIOES = str.maketrans("MLUW", "IESS")  # Middle, Last, Unit and Word


def is_outside(tag: str) -> bool:
    """True for the tag of words that belong to no entity."""
    return tag.upper() == OUTSIDE


@dataclass(frozen=True)
class Scheme:
    """The scheme of some tags: BIO, which stands for IOB1 too; IOE, BIOES, BILOU or BMES."""

    name: str
    pattern: re.Pattern[str]

    def fits(self, tag: str) -> bool:
        """True for a tag of this scheme."""
        return is_outside(tag) or self.pattern.fullmatch(tag) is not None

    def kind(self, tag: str) -> str | None:
        """The kind of a tag's entity, "" where the scheme names none; None of a tag outside."""
        match = self.pattern.fullmatch(tag)
        return None if match is None else match["kind"] or ""

    def in_bioes(self, tag: str) -> str:
        """A tag spelled as BIOES has it, such as S-PER for PER_u; O where it is none of this scheme."""
        match = self.pattern.fullmatch(tag)
        if match is None:
            return OUTSIDE
        letter = match["letter"].upper().translate(_IN_BIOES)
        return f"{letter}-{match['kind']}" if match["kind"] else letter


def scheme_of(tags: Iterable[str]) -> Scheme | None:
    """Find the scheme of tags by their letters; None of plain ones, such as parts of speech.

    Tags without a letter, such as X, may be among them if more than half have a letter and a kind. Some parts of speech
    begin or end with E, S or U, so if no other letter occurs, it must stand in front and O must be among the tags.
    """
    tags = set(tags)
    inside = {tag for tag in tags if not is_outside(tag)}
    matches = {pattern: [m for tag in inside if (m := pattern.fullmatch(tag))] for pattern in (_PREFIXED, _SUFFIXED)}
    pattern = max(matches, key=lambda pattern: len(matches[pattern]))
    with_kind = [match for match in matches[pattern] if match["kind"]]
    letters = {match["letter"].upper() for match in with_kind or matches[pattern]}
    is_scheme = 2 * len(with_kind) > len(inside) or (not with_kind and len(matches[pattern]) == len(inside))
    is_single = letters in ({"S"}, {"U"}, {"E"}) and pattern is _PREFIXED and inside < tags
    if is_scheme and (letters & {"B", "I"} or is_single):
        for name, known in _SCHEMES:
            if letters <= set(known):
                return Scheme(name, pattern)
    return None
