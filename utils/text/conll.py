"""CoNLL files: a word a line with its tag in another column, and a blank line behind each sentence."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from bart.errors import InputError
from utils.text.lines import iter_lines
from utils.text.tags import Scheme, is_outside, scheme_of

logger = logging.getLogger(__name__)
DOCUMENT = "-DOCSTART-"  # of CoNLL-2003, between documents
# Names of the columns of words and of tags, where the first line names columns.
HEADINGS = {"word", "words", "token", "tokens", "form", "text"}
TAG_HEADINGS = {
    *("tag", "tags", "label", "labels", "class", "pos", "pos_tag", "pos_tags", "upos", "xpos", "ner", "ner_tag"),
    *("ner_tags", "chunk", "entity", "entities", "iob", "bio"),
}
# Tags of phrases, which CoNLL-2000 has, and sets of names in a column beside these.
PHRASES = {f"{letter}-{kind}" for letter in "BI" for kind in ("NP", "VP", "PP")}
_Cells = list[list[list[str]]]  # of the columns of each line of each sentence


@dataclass(frozen=True)
class Sentence:
    """A sentence as it was read.

    Attributes:
        tags: None where they are only to be predicted.
        column: the column of its words in a table or, in metrics, of its tags; None in a CoNLL file.
    """

    name: str
    words: list[str]
    tags: list[str] | None
    column: str | None = None


class _Row(NamedTuple):
    """A line with columns."""

    number: int
    sentence: int
    line: str
    columns: list[str]


class _Layout(NamedTuple):
    """The columns of a file's lines."""

    width: int
    is_tabbed: bool
    tags_in: int
    known: set[str]  # the tags of most lines
    scheme: Scheme | None  # of these tags

    def is_comment(self, row: _Row, begins: bool) -> bool:
        """True for a line with # that is no word: by its width or, where comments stand, by what would be its tag."""
        if not row.line.startswith("#"):
            return False
        if len(row.columns) != self.width:
            return begins or (row.line[1:2].isspace() and row.line.split()[-1] not in self.known)
        tag = row.columns[self.tags_in]
        if self.width == 1 or tag in self.known:
            return False
        if self.scheme is not None:
            return not self.scheme.fits(tag)
        return begins and not self.is_tabbed and row.columns[0] == "#" and scheme_of([tag]) is None


def read_conll(
    path: Path,
    labelled: bool = True,
    words_column: str | None = None,
    tags_column: str | None = None,
    tags_option: str = "tags_column",
    trained: Mapping[str, str] = MappingProxyType({}),
) -> list[Sentence]:
    """Read a CoNLL file, whose columns stand between tabs, or between blanks.

    Comments, which begin with #, a header, and words that are blank are left out. Where no option names the columns,
    `_found` tells them by their cells. The log says what was taken.

    Args:
        labelled: read the tags.
        words_column, tags_column: columns by their number, from 1, or by their name in the header.
        tags_option: the option that an error names for tags_column.
        trained: values of --words_column and --tags_column in training, where a model tells them. They count for what
            is not given; the only column of a file holds words.

    Raises:
        InputError: a line has other columns than most, a column is not there, or nobody can tell which one is meant.
    """
    rows, is_tabbed = _rows(path)
    likely = [row for row in rows if not row.line.startswith("#")] or rows
    widths = Counter(len(row.columns) for row in likely)
    # Of two widths of as many lines the smaller is right: a word that holds a blank makes more columns.
    width = max(widths, key=lambda width: (widths[width], width > 1, -width), default=2)
    width = max(width, 2) if labelled else width
    likely = [row for row in likely if len(row.columns) == width]
    header, names = None, []
    if likely and _is_header(likely[0], likely[1:]):
        header, *likely = likely
        names = header.columns
    columns = [[row.columns for row in rows] for _, rows in groupby(likely, key=lambda row: row.sentence)]
    numbers = [place for place in range(width) if width > (2 if labelled else 1) and _are_numbers(columns, place)]

    place_of = partial(_place_of, path, width, names)
    words_in = place_of("words_column", words_column, trained.get("words_column"))
    tags_in = place_of(tags_option, tags_column, trained.get("tags_column") if labelled else None)
    if words_in is None:
        words_in = next((place for place, name in enumerate(names) if name.lower() in HEADINGS), None)
    words_in, tags_in = _found(columns, width, names, numbers, words_in, tags_in)
    is_metric = tags_option != "tags_column"  # it compares words, and has no option for their column
    if is_metric and None in (words_in, tags_in):
        words_in, tags_in = _found(columns, width, names, numbers, int(0 in numbers), tags_in)
    if words_in is None or (labelled and tags_in is None):
        asked = f"--{tags_option} is" if is_metric else f"--words_column and --{tags_option} are"
        raise InputError(
            f"{path}: {asked} needed, since nothing tells the columns; allowed: {', '.join([f'1 to {width}', *names])}"
        )
    tags_in = width - 1 if tags_in is None else tags_in
    known = {row.columns[tags_in] for row in likely}
    if labelled and likely and all("*" in tag for tag in known):
        raise InputError(f"{path}: the tags are spans in brackets, such as {max(known)}; allowed: tags such as B-PER")
    layout = _Layout(width, is_tabbed, tags_in, known, scheme_of(known))

    left_out: Counter[str] = Counter(header=int(header is not None))
    sentences = []
    for _, lines in groupby(rows, key=lambda row: row.sentence):
        kept: list[_Row] = []
        for row in lines:
            if layout.is_comment(row, begins=not kept):
                left_out["comments"] += 1
            elif len(row.columns) != width:
                wide = "; a word that holds a blank needs tabs between columns" if len(row.columns) > width else ""
                raise InputError(
                    f"{path}, line {row.number}: {len(row.columns)} columns; allowed: {width}, a word first and its "
                    f"tag last{wide}"
                )
            elif row is header:
                continue
            elif 0 in numbers and not row.columns[0].isdecimal():
                left_out["ranges and empty nodes"] += 1  # 1-2 and 8.1 of CoNLL-U
            elif not row.columns[words_in].strip():
                left_out["blank words"] += 1
            elif labelled and not row.columns[tags_in]:
                raise InputError(f"{path}, line {row.number}: the tag in column {tags_in + 1} is blank")
            else:
                kept.append(row)
        if kept:
            words, tags = ([row.columns[place] for row in kept] for place in (words_in, tags_in))
            sentences.append(Sentence(f"{path}:{kept[0].number}", words, tags if labelled else None))
    taken = f"words from column {words_in + 1}" + (f", tags from column {tags_in + 1}" if labelled else "")
    missing = "".join(f", {what} left out: {count}" for what, count in left_out.items() if count)
    logger.info("%s: %s of %d%s", path, taken, width, missing)
    return sentences


def _place_of(
    path: Path, width: int, names: list[str], option: str, given: str | None, trained: str | None
) -> int | None:
    """The place of a column that is given, or was read in training, by name or number; None where neither is."""
    wanted = trained if given is None else given
    if wanted in names:
        return names.index(wanted)
    if wanted is not None and wanted.isdecimal() and 1 <= int(wanted) <= width:
        return int(wanted) - 1
    if given is None and (wanted is None or width == 1):
        return None
    value = f"not given, and column {wanted}, which training read, is missing" if given is None else given
    raise InputError(f"{path}: --{option} is {value}; allowed: {', '.join([f'1 to {width}', *names])}")


def _found(
    sentences: _Cells, width: int, names: list[str], numbers: list[int], words_in: int | None, tags_in: int | None
) -> tuple[int | None, int | None]:
    """The places of words and tags that are given, or that cells tell; None of those that nobody can tell.

    Words are in the first column that varies in a sentence, if no other one has more different cells; cells that all
    hold a digit may be names of lines. Tags are in the last column if it is in a scheme, or if its name says so. Where
    words are numbered, tags are in the first column in a scheme: GermEval's last column holds inner entities. Another
    column holds tags only if no further one can.
    """
    last = width - 1
    if not sentences or width == 1:
        return words_in or 0, last if tags_in is None else tags_in
    cells = [{row[place] for rows in sentences for row in rows} for place in range(width)]
    free = [place for place in range(width) if place not in (*numbers, words_in, tags_in)]
    tagged = [place for place in free if _holds_tags(cells[place])]
    others = [place for place in free if place not in tagged]
    texts = [place for place in others if _varies(sentences, place)] or others
    if words_in is None and texts:
        may_be_names = len(texts) > 1 and width > 2 and all(re.search(r"\d", cell) for cell in cells[texts[0]])
        if not may_be_names and len(cells[texts[0]]) == max(len(cells[place]) for place in texts):
            words_in, *texts = texts
    if tags_in is not None or words_in is None:
        return words_in, tags_in
    if 0 in numbers and width > 3:
        return words_in, next((place for place in tagged if PHRASES.isdisjoint(cells[place])), None)
    if last in tagged or (names and names[-1].lower() in TAG_HEADINGS):
        return words_in, last
    likely = [*tagged, *texts] or [place for place in others if place > words_in]
    return words_in, likely[0] if len(likely) == 1 else None


def _rows(path: Path) -> tuple[list[_Row], bool]:
    """The lines that hold columns, and true if tabs stand between these."""
    lines, sentence = [], 0
    for number, line in enumerate(iter_lines(path, blank=True), 1):
        if not line.strip() or line.split()[0] == DOCUMENT:
            sentence += 1
        else:
            lines.append((number, sentence, line))
    tabbed = ["\t" in line.rstrip() for _, _, line in lines if not line.startswith("#")]
    is_tabbed = 2 * sum(tabbed) > len(tabbed)

    def most_alike(separator: str) -> int:
        """How many lines have as many columns as most."""
        widths = (len(re.split(separator, line.rstrip(" \t"))) for _, _, line in lines if not line.startswith("#"))
        return max(Counter(widths).values(), default=0)

    # Cells may be empty, or padded by several tabs.
    tabs = max("\t", "\t+", key=most_alike)

    def columns_of(line: str) -> list[str]:
        if is_tabbed:  # words may hold blanks, and be blank
            return [column.strip(" ") for column in re.split(tabs, line.rstrip(" \t"))]
        return re.split("[ \t]+", line.strip(" \t"))

    return [_Row(*row, columns_of(row[-1])) for row in lines], is_tabbed


def _is_header(first: _Row, others: Sequence[_Row]) -> bool:
    """True where the first row names columns, whose last name is no tag of other rows.

    The other tags are in a scheme that this name, such as "Marke", does not fit; or the row has usual names of both.
    """
    tag, known = first.columns[-1], {row.columns[-1] for row in others}
    if tag in known or len(first.columns) == 1:
        return False
    if (scheme := scheme_of(known)) is not None:
        return not scheme.fits(tag) and len(tag) > 1 and tag[0].isalpha()
    names = {name.lower() for name in first.columns}
    return bool(names & HEADINGS and names & TAG_HEADINGS)


def _are_numbers(sentences: _Cells, place: int) -> bool:
    """True for a column that counts the words of sentences of more than one."""
    is_long = False
    for rows in sentences:
        cells = [row[place] for row in rows if not re.fullmatch(r"\d+[-.]\d+", row[place])]
        if not all(cell.isdecimal() and int(cell) - number == int(cells[0]) for number, cell in enumerate(cells)):
            return False
        is_long |= len(cells) > 1
    return is_long


def _holds_tags(cells: Set[str]) -> bool:
    """True for tags in a scheme, or outside alone; a lonely I may be a word."""
    scheme = scheme_of(cells)
    if scheme is None:
        return all(map(is_outside, cells))
    return len(cells) > 1 or any(map(scheme.kind, cells))


def _varies(sentences: _Cells, place: int) -> bool:
    """True for a column that is not the same all over each sentence of more than one word, if there are such."""
    long = [rows for rows in sentences if len(rows) > 1]
    return not long or any(len({row[place] for row in rows}) > 1 for rows in long)
