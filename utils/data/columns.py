"""Tables of text: options for what their endings do not tell, the choice of columns, and the texts in them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from reprlib import repr as shortened
from typing import Any, NamedTuple

from bart.errors import InputError
from utils.app.cli import option
from utils.text.lines import BlankText, named

logger = logging.getLogger(__name__)
# Documents and summaries as published sets name their columns.
KNOWN_FIELDS = (
    ("article", "highlights"),
    ("document", "summary"),
    ("source", "target"),
    ("dialogue", "summary"),
    ("article", "summary"),
    ("article", "abstract"),
    ("text", "summary"),
)
# Of classification: texts, the second ones of pairs, classes. Of tagging: lists of words, and of their tags.
TEXTS = ("text", "sentence", "sentence1", "premise", "question1", "question")
PAIRS = ("sentence2", "hypothesis", "question2", "text2", "pair")
LABELS = ("label", "labels", "class")
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "labels")
# --source_field and --target_field; the first alone where only documents are read.
Fields = tuple[str | None] | tuple[str | None, str | None]


@dataclass(frozen=True)
class TableOptions:
    """The form of .csv and .tsv files, where it is not that of their endings."""

    delimiter: str | None = option(
        None,
        section="tables",
        metavar="CHAR",
        help=r"separator of the values of .csv and .tsv files, such as ';' or '\t'; by default a comma or a tab",
        on_resume="by_content",
    )
    encoding: str = option(
        "utf-8", help="of .csv, .tsv, .json and .jsonl files: cp1252, utf-16 and others", on_resume="by_content"
    )
    columns: str | None = option(
        None,
        metavar="NAME,NAME",
        help="names of all columns of .csv and .tsv files without a header, or with one that lacks names",
        on_resume="by_content",
    )

    def __post_init__(self) -> None:
        if self.delimiter == r"\t":
            object.__setattr__(self, "delimiter", "\t")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '\r\n"'):
            raise InputError(rf"--delimiter is {self.delimiter!r}; allowed: one character, such as ';', '|' or '\t'")
        try:
            "a".encode(self.encoding)
        except (LookupError, ValueError):
            raise InputError(f"--encoding is {self.encoding!r}; allowed: utf-8, utf-16, cp1252 and others") from None


@dataclass(frozen=True)
class InputOptions(TableOptions):
    """The same, and what becomes of texts that are blank."""

    skip_blank: bool = option(
        False,
        help="leave out examples with a blank text; the log counts them, and their predictions are empty",
        on_resume="by_content",
    )


BY_ENDING = InputOptions()


class Record(NamedTuple):
    """A row of a table: a name for messages, and its columns; classes by their names, or None where the Hub has -1."""

    name: str
    values: Mapping[str, Any]


def names_in(records: Iterable[Record]) -> list[str]:
    """The columns that any of the rows has, in the order in which they come."""
    return list(dict.fromkeys(name for record in records for name in record.values))


def value_in(values: Mapping[str, Any], column: str, default: Any = None) -> Any:
    """The value of a column; where translation.en is no column, the value en of an object in the column translation."""
    outer, dot, inner = column.partition(".")
    if column in values or not dot or not isinstance(values.get(outer), Mapping):
        return values.get(column, default)
    return value_in(values[outer], inner, default)


class FromTraining(str):
    """The name of a column that training read: the model tells it, and no option gave it."""


def column_of(option: str, given: str | None, known: Sequence[str], columns: Collection[str], where: str) -> str:
    """Choose a column: the one given by the option, or the first of those that training read or that are usual."""
    for name in known if given is None else [given]:
        if name in columns or name.partition(".")[0] in columns:  # see `value_in`
            return name
    there = ", ".join(sorted(columns))
    if given is not None:
        near = get_close_matches(given, columns, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(f"{where}: --{option} is {given!r}; allowed: {there}{hint}")
    what = f"{option.removesuffix('_field')} column"
    if known and isinstance(known[0], FromTraining):
        what = f"column {known[0]!r}, which training read"
    elif known:
        there += f"; usual: {', '.join(dict.fromkeys(known))}"
    is_csv = where.endswith((".csv", ".tsv"))
    hint = "; --columns NAME,NAME names those of a table without a header" * is_csv
    raise InputError(f"{where}: no {what}; name one with --{option} (columns: {there}){hint}")


def columns_of_pairs(columns: Collection[str], fields: Fields, where: str) -> tuple[str, ...]:
    """Choose the columns of documents and summaries; where `fields` name none, two usual ones that are both there."""
    usual = [*zip(*KNOWN_FIELDS, strict=True)][: len(fields)]
    sources = sorted({*usual[0]} & {*columns})
    # A usual name that training read is as good as another one.
    fields = tuple(
        None if isinstance(field, FromTraining) and field in known and field not in columns else field
        for field, known in zip(fields, usual, strict=True)
    )
    if fields == (None,) and len(sources) > 1:
        raise InputError(f"{where}: {' and '.join(sources)} may both be documents; name one with --source_field")
    free = {*columns} - {*fields}
    fitting = [
        pair
        for pair in KNOWN_FIELDS
        if all(field is not None or name in free for field, name in zip(fields, pair, strict=False))
    ]
    chosen = []
    for number, (name, field) in enumerate(zip(("source_field", "target_field"), fields, strict=False)):
        known = [pair[number] for pair in fitting or KNOWN_FIELDS]
        if isinstance(field, FromTraining):
            field, known = None, [field]
        chosen.append(column_of(name, field, known, columns, where))
    if len({*chosen}) < len(chosen):
        raise InputError(f"--source_field and --target_field are both {chosen[0]!r}; allowed: two different columns")
    return tuple(chosen)


def blank_among(records: Iterable[Record], check: Callable[[Record], object]) -> dict[str, BlankText]:
    """The BlankText that `check` raises for each record with a blank text, by the record's name."""
    blank = {}
    for record in records:
        try:
            check(record)
        except BlankText as fault:
            blank[record.name] = fault
    return blank


def check_blank(blank: Mapping[str, BlankText], total: int, skip: bool) -> None:
    """Warn of texts that are blank and left out; raise BlankText where they may not be, or nothing else is left."""
    if blank and not (skip and len(blank) < total):
        fault = next(iter(blank.values()))
        raise BlankText(f"{fault} ({named([*blank], total)}; --skip_blank goes on without them)")
    if blank:
        logger.warning("%s; they are left out", named([*blank], total))


def without_blank(records: list[Record], check: Callable[[Record], object], skip: bool) -> list[Record]:
    """The records without those that have a blank text; BlankText as of `check_blank`."""
    blank = blank_among(records, check)
    check_blank(blank, len(records), skip)
    return [record for record in records if record.name not in blank]


def text_in(record: Record, column: str, may_be_blank: bool = False) -> str:
    """A text of a row; two second texts of QQP are blank."""
    value = value_in(record.values, column)
    if not isinstance(value, str) or not (value.strip() or may_be_blank):
        rest = "" if isinstance(value, (int, float, list, dict)) else " that is not blank"
        raise (BlankText if value is None or isinstance(value, str) else InputError)(
            f"{record.name}: {column} is {shortened(value)}; allowed: a text{rest}"
        )
    return value
