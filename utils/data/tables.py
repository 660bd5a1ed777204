"""The rows of a split, of tables and published sets; and pairs of documents and summaries, of these or line files."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

from bart.errors import InputError
from bart.files import PathName
from utils.data.columns import Record, TableOptions, column_of, columns_of_pairs, names_in, value_in, without_blank
from utils.data.places import CONLL, TABLES, is_published, suffix_of, table_in
from utils.data.rows import ABSENT, SURROGATE, published_rows, rows_of, whole
from utils.data.splits import EVERY, SPLITS, WHOLE, Choice, MissingSplit, check_split, of_split
from utils.text.lines import BlankText, check_counts, check_is_text, check_no_list, iter_lines, references_of

SIDES = ("source", "target")
Pairs = tuple[list[str], list[str] | None]  # sources and, unless they are only to be predicted, targets, line by line


def read_records(
    data_dir: str, split: str, text_column: Callable[[Collection[str]], str], choice: Choice = EVERY
) -> list[Record]:
    """Read the rows of a split, those that are chosen by the texts in the column that `text_column` chooses.

    One table is split by these texts, unless the split is WHOLE; a split of a published set may have any name.
    """
    column = None

    def text_of(record: Record) -> str:
        nonlocal column  # which the first record decides on
        column = column or text_column(record.values)
        return one_line(str(value_in(record.values, column)))

    rows = whole(_rows_in(data_dir, split, choice.tables))
    if Path(data_dir).expanduser().is_file():
        rows = of_split(split, rows, text_of)
    records = choice.of(rows, text_of)
    check_split(records, data_dir, split, "rows")
    return records


def column_in(
    path: str, option: str, given: str | None, known: Collection[str], tables: TableOptions
) -> tuple[list[Record], str]:
    """All rows of a table, and the column of them that `column_of` chooses."""
    chosen = partial(column_of, option, given, known, where=path)
    records = read_records(path, WHOLE, chosen, Choice(tables=tables))
    return records, chosen(names_in(records))


def _rows_in(data_dir: str, split: str, tables: TableOptions) -> Iterator[Record]:
    """The rows of a split of a published set or of tables; of one table all."""
    if is_published(data_dir):
        return published_rows(data_dir, split)
    path = Path(data_dir).expanduser()
    table = path if path.is_file() and suffix_of(path) in TABLES else table_in(path, split)
    if table is not None:
        return rows_of(table, tables)
    holds = f"a data directory holds {{{','.join(SPLITS)}}}{{{','.join(TABLES)}}}, in tagging also {','.join(CONLL)}"
    if path.is_file():
        check_is_text(path)
        raise InputError(f"{path} is no table; allowed: {', '.join(TABLES)}")
    if path.exists():
        raise MissingSplit(f"{path}: no {split} split in it; {holds}")
    raise InputError(f"{path}: no such file or directory; {holds}")


@dataclass(frozen=True)
class Row:
    """A row of a table as a pair of texts, one line each; `fault` says why it is no example."""

    name: str
    source: str = ""
    target: str = ""
    fault: str | None = None
    is_blank: bool = dataclasses.field(default=False, compare=False)  # a text is null or blank
    columns: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any], fields: Sequence[str]) -> Row:
        """Make a row of the values of a table's columns.

        A list of sentences is joined to a document; a list of summaries is a target of several references.
        """
        texts = []
        for side, field in zip(SIDES, fields, strict=False):
            if (value := value_in(values, field, ABSENT)) is ABSENT:
                return cls(name, fault=f"no field {field}")
            check_no_list(value, f"{name}: ")
            if isinstance(value, list) and all(isinstance(part, str) for part in value):
                parts = [part for part in map(one_line, value) if part]
                value = json.dumps(parts, ensure_ascii=False) if parts and side == "target" else " ".join(parts)
            if not isinstance(value, str):
                is_null = value is None
                return cls(name, fault=f"{field} is {'null' if is_null else 'no text'}", is_blank=is_null)
            if SURROGATE.search(value):
                return cls(name, fault="unpaired surrogate")
            texts.append(one_line(value))
            if not texts[-1]:
                return cls(name, fault=f"empty {side}", is_blank=True)
        try:
            references_of(texts[-1])
        except InputError:
            return cls(name, fault="target is a list of no texts")
        return cls(name, *texts, columns=tuple(fields))


def pairs_in(records: Iterable[Record], fields: tuple[str | None, str | None], where: str) -> Iterator[Row]:
    """Rows as pairs of texts; the first row decides on the columns that `fields` do not name (`columns_of_pairs`)."""
    columns = None
    for record in records:
        columns = columns or columns_of_pairs(record.values.keys(), fields, where)
        yield Row.of(*record, columns)


def read_sources(data_dir: str, split: str, choice: Choice = EVERY, source_field: str | None = None) -> list[str]:
    """Read documents without summaries, those that are chosen; a file of them, which has no splits, is read whole."""
    path = Path(data_dir).expanduser()
    lines = path / f"{split}.source" if path.is_dir() else path
    if lines.exists() and suffix_of(lines) not in TABLES:  # a file or a pipe
        return choice.of(iter_lines(lines), str)
    if path.is_dir() and table_in(path, split) is None:
        raise MissingSplit(f"{lines}: no such file, and no table of the {split} split beside it")
    records = list(_rows_in(data_dir, split, choice.tables))
    check_split(records, data_dir, WHOLE, "rows")
    columns = columns_of_pairs(records[0].values, (source_field,), data_dir)
    skip = choice.tables.skip_blank or is_published(data_dir)
    records = without_blank(records, lambda record: documents_in([record], columns), skip)
    return choice.of(documents_in(records, columns), str)


def documents_in(records: Iterable[Record], columns: Sequence[str]) -> list[str]:
    """The document of each row; BlankText where one is blank."""
    rows = [Row.of(*record, columns) for record in records]
    for row in rows:
        if row.fault is not None:
            kind = BlankText if row.is_blank else InputError
            raise kind(f"{row.name}: {row.fault}; allowed: a text that is not blank")
    return [row.source for row in rows]


def paired(source: PathName, target: PathName) -> Iterator[tuple[str, str]]:
    """Read the lines of two files side by side; targets that are lists are checked."""
    files = source, target
    for number, (text, summary) in enumerate(zip_longest(*map(iter_lines, files)), 1):
        if text is None or summary is None:
            check_counts(files, *(sum(1 for _ in iter_lines(file)) for file in files))
        references_of(summary, f"{target}, line {number}: ")
        yield text, summary


def pair_paths(data_dir: PathName, split: str) -> tuple[Path, Path]:
    """The paths of a split's sources and targets."""
    folder = Path(data_dir)
    if not folder.is_dir():
        check_is_text(folder)
        found = f"a file, but no table {', '.join(TABLES)}" if folder.exists() else "no such directory"
        raise InputError(f"data directory {folder}: {found}")
    source, target = (folder / f"{split}.{side}" for side in SIDES)
    if missing := [file for file in (source, target) if not file.is_file()]:
        holds = f"a data directory holds {{{','.join(SPLITS)}}}.{{source,target}}, or a table of each split"
        raise (MissingSplit if len(missing) == 2 else InputError)(f"{missing[0]}: no such file; {holds}")
    return source, target


def read_pairs(data_dir: PathName, split: str, choice: Choice = EVERY) -> Pairs:
    """Read a split's sources and targets, of the examples that are chosen."""
    sources, targets = zip(*choice.of(paired(*pair_paths(data_dir, split)), itemgetter(0)), strict=True)
    return list(sources), list(targets)


def one_line(text: str) -> str:
    """Make one line of a text: a line break becomes a space, with the white space around it; all else stays within."""
    text = text.strip().strip("\ufeff").strip()
    if "\n" not in text and "\r" not in text:
        return text
    return " ".join(filter(None, map(str.strip, re.split(r"[\n\r]", text))))
