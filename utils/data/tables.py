"""The rows of a split, from tables and published sets; and pairs of documents and summaries in them."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.data.columns import Fields, Record, column_of, columns_of_pairs, names_in, value_in
from utils.data.parallel_text import SIDES, one_line
from utils.data.places import (
    CONLL,
    HUB,
    TABLES,
    is_published,
    load_from_hub,
    opening,
    parquet_files,
    split_tables,
    suffix_of,
    table_in,
)
from utils.data.rows import ABSENT, SURROGATE, rows_of, rows_of_files, rows_of_set, whole
from utils.data.splits import EVERY, SPLITS, WHOLE, Choice, MissingSplit, check_split, of_split
from utils.data.table_options import BY_ENDING, TableOptions
from utils.text.lines import check_is_text, check_no_list, read_lines, references_of

logger = logging.getLogger(__name__)


def published_rows(data_dir: str, split: str) -> Iterator[Record]:
    """The rows of a split of a set on the Hub, or of Parquet files, which are downloaded once."""
    with opening(f"the {split} split of {data_dir}"):
        if not data_dir.startswith(HUB):
            yield from rows_of_files(parquet_files(data_dir, split))
            return
        splits, _ = load_from_hub(data_dir.removeprefix(HUB))
        if split not in splits:
            raise MissingSplit(f"{data_dir}: no {split} split; there are {', '.join(splits)}")
        yield from rows_of_set(splits[split], f"{data_dir} {split}")


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

    path = Path(data_dir).expanduser()
    if is_published(data_dir):
        rows = published_rows(data_dir, split)
    else:
        rows = whole(rows_of(_table_of(path, split), choice.tables))
        rows = of_split(split, rows, text_of) if path.is_file() else rows
    records = choice.of(rows, text_of)
    check_split(records, data_dir, split, "rows")
    return records


def column_in(
    path: str, option: str, given: str | None, known: Collection[str], tables: TableOptions = BY_ENDING
) -> tuple[list[Record], str]:
    """All rows of a table, and the column of them that `column_of` chooses."""
    chosen = partial(column_of, option, given, known, where=path)
    records = read_records(path, WHOLE, chosen, Choice(tables=tables))
    return records, chosen(names_in(records))


def _table_of(path: Path, split: str) -> Path:
    """The file of a split."""
    if path.is_file() and suffix_of(path) in TABLES:
        return path
    if (table := table_in(path, split)) is not None:
        return table
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


def pairs_in(records: Iterable[Record], fields: Fields, where: str) -> Iterator[Row]:
    """Rows as pairs of texts; the first row decides on the columns that `fields` do not name (`columns_of_pairs`)."""
    columns = None
    for record in records:
        columns = columns or columns_of_pairs(record.values.keys(), fields, where)
        yield Row.of(*record, columns)


def read_sources(data_dir: str, split: str, choice: Choice = EVERY, source_field: str | None = None) -> list[str]:
    """Read documents without summaries, those that are chosen; a file of them, which has no splits, is read whole."""
    if is_published(data_dir):
        records = published_rows(data_dir, split)
    else:
        path = Path(data_dir).expanduser()
        path = split_tables(path).get(split, path)
        if path.is_dir():
            path /= f"{split}.source"
            if not path.exists():
                raise MissingSplit(f"{path}: no such file")
        if suffix_of(path) not in TABLES:
            return choice.of(read_lines(path), str)
        records = rows_of(path, choice.tables)
    sources, left_out = [], 0
    for row in pairs_in(records, (source_field,), data_dir):
        if row.fault is None:
            sources.append(row.source)
        elif is_published(data_dir):
            left_out += 1
        else:
            raise InputError(f"{row.name}: {row.fault}; a document is expected in every row")
    if not sources:
        raise InputError(f"{data_dir}: has no rows")
    if left_out:
        logger.info("%s: %d rows of the %s split are no examples and are left out", data_dir, left_out, split)
    return choice.of(sources, str)
