"""CoNLL files: a word a line with its tag in another column, and a blank line behind each sentence."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from bart.errors import InputError
from utils.data.columns import column_of
from utils.text.lines import iter_lines
from utils.text.tags import scheme_of

logger = logging.getLogger(__name__)
DOCUMENT = "-DOCSTART-"  # of CoNLL-2003, between documents
HEADINGS = {"word", "words", "token", "tokens", "form", "text"}  # names of the column of words
NUMBER = re.compile(r"\d+([-.]\d+)?")  # of a word; 1-2 and 8.1 are ranges and empty nodes of CoNLL-U


@dataclass(frozen=True)
class Sentence:
    """A sentence; its column is that of its words in a table or, in metrics, of its tags, and None in a CoNLL file."""

    name: str
    words: list[str]
    tags: list[str] | None
    column: str | None = None


class _Row(NamedTuple):
    """A line with columns."""

    number: int
    columns: list[str]


def read_conll(
    path: Path,
    labelled: bool = True,
    words_column: str | None = None,
    tags_column: str | None = None,
    tags_option: str = "tags_column",
) -> list[Sentence]:
    """Read a CoNLL file, with words in the first column and tags in the last one, unless options name others."""
    of_sentences = _rows(path)
    rows = [*chain.from_iterable(of_sentences)]
    likely = [row for row in rows if not row.columns[0].startswith("#")] or rows  # without comments
    [(width, _)] = Counter(len(row.columns) for row in likely).most_common(1) or [(2, 0)]
    width = max(width, 1 + labelled)
    likely = [row for row in likely if len(row.columns) == width]
    header = likely.pop(0) if likely and _is_header(likely[0], likely[1:]) else None
    names = header.columns if header else []

    def index_of(option: str, given: str | None, default: int) -> int:
        chosen = column_of(option, given, (str(default),), [*map(str, range(1, width + 1)), *names], str(path))
        return names.index(chosen) if chosen in names else int(chosen.partition(".")[0]) - 1

    words_in, tags_in = index_of("words_column", words_column, 1), index_of(tags_option, tags_column, width)
    are_numbers = bool(likely) and width > 1 + labelled and all(NUMBER.fullmatch(row.columns[0]) for row in likely)
    known = {row.columns[tags_in] for row in likely}
    scheme = scheme_of(known)
    if words_column is None and tags_option == "tags_column" and width > 1:
        of_tags = (n for n in range(width - 1) if scheme is None and scheme_of(row.columns[n] for row in likely))
        column = 0 if are_numbers else next(of_tags, None)
        if column is not None:
            what = "numbers" if are_numbers else "tags"
            raise InputError(f"{path}: column {column + 1} of {width} holds {what}; name --words_column, --tags_column")
    if labelled and likely and all("*" in tag for tag in known):
        raise InputError(f"{path}: the tags are spans in brackets, such as {max(known)}; allowed: tags such as B-PER")

    def is_tag(cell: str) -> bool:
        found = scheme or scheme_of([cell])
        return cell in known or (found is not None and found.fits(cell))

    left_out: Counter[str] = Counter(header=int(header is not None))
    sentences = []
    for lines in of_sentences:
        kept: list[_Row] = []
        for row in lines:
            if row.columns[0].startswith("#") and not (len(row.columns) == width and is_tag(row.columns[tags_in])):
                left_out["comments"] += 1
            elif len(row.columns) != width:
                hint = "; a word that holds a blank needs tabs between columns" * (len(row.columns) > width)
                raise InputError(
                    f"{path}, line {row.number}: {len(row.columns)} columns; allowed: {width}, as in most lines{hint}"
                )
            elif row is header:
                continue
            elif are_numbers and not row.columns[0].isdecimal():
                left_out["ranges and empty nodes"] += 1
            elif not row.columns[words_in].strip():
                left_out["blank words"] += 1
            elif labelled and not row.columns[tags_in]:
                raise InputError(f"{path}, line {row.number}: the tag in column {tags_in + 1} is blank")
            else:
                kept.append(row)
        if kept:
            words, tags = ([row.columns[index] for row in kept] for index in (words_in, tags_in))
            sentences.append(Sentence(f"{path}:{kept[0].number}", words, tags if labelled else None))
    taken = f"words from column {words_in + 1}" + (f", tags from column {tags_in + 1}" if labelled else "")
    missing = "".join(f", {what} left out: {count}" for what, count in left_out.items() if count)
    logger.info("%s: %s of %d%s", path, taken, width, missing)
    return sentences


def _rows(path: Path) -> list[list[_Row]]:
    """The lines that hold columns, of each sentence."""
    numbered = enumerate(iter_lines(path, blank=True), 1)
    groups = groupby(numbered, lambda each: each[1].split()[:1] not in ([], [DOCUMENT]))
    sentences = [list(lines) for have_columns, lines in groups if have_columns]
    tabbed = ["\t" in line.rstrip() for lines in sentences for _, line in lines if not line.startswith("#")]
    is_tabbed = 2 * sum(tabbed) > len(tabbed)

    def columns_of(line: str) -> list[str]:
        if is_tabbed:  # words may hold blanks, and be blank
            return [column.strip(" ") for column in line.rstrip(" \t").split("\t")]
        return [column for column in line.replace("\t", " ").split(" ") if column]

    return [[_Row(number, columns_of(line)) for number, line in lines] for lines in sentences]


def _is_header(first: _Row, others: Sequence[_Row]) -> bool:
    """True where the first row names columns: its last name is no tag of other rows, and does not fit their scheme."""
    tag, known = first.columns[-1], {row.columns[-1] for row in others}
    if tag in known or len(first.columns) == 1:
        return False
    if (scheme := scheme_of(known)) is not None:
        return not scheme.fits(tag) and len(tag) > 1 and tag[0].isalpha()
    return not HEADINGS.isdisjoint(name.lower() for name in first.columns)
