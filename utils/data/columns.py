"""Rows of tables with any columns, for tasks whose examples are no pairs of texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, NamedTuple

from bart.errors import InputError
from utils.data.parallel_text import one_line
from utils.data.places import CONLL, HUB, TABLES, check_not_saved, hint_at, is_streamed, suffix_of, table_in, value_in
from utils.data.published import find_files_of, load_from_hub, opening, parquet_rows
from utils.data.rows import ABSENT, READERS, SURROGATE, check_names
from utils.data.splits import EVERY, SPLITS, WHOLE, Choice, MissingSplit, check_split, of_split
from utils.data.table_options import BY_ENDING, TableOptions
from utils.text.lines import BlankText, check_is_text, named

if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)


class Record(NamedTuple):
    """A row of a table of any columns.

    Attributes:
        name: tells a person which row it is.
        values: its columns; classes by their names, or None where the Hub has -1 for an unknown one.
    """

    name: str
    values: Mapping[str, Any]


def read_records(
    data_dir: str, split: str, text_column: Callable[[Collection[str]], str], choice: Choice = EVERY
) -> list[Record]:
    """Read the rows of a split, those that are chosen by their texts.

    Args:
        data_dir: a directory with a table for each split, such as train.jsonl; one table, whose rows are split by
            their texts as `prepare` splits sources; or a set on the Hub, or Parquet files, where a split may have any
            name.
        split: train, val or test, or a name of the set's own; or WHOLE, of one table.
        text_column: chooses the column of the texts from all columns.

    Raises:
        InputError: there is no such place or split, or a table is malformed or empty.
    """
    column = None

    def text_of(record: Record) -> str:
        nonlocal column  # which the first record decides on
        column = column or text_column(record.values)
        return one_line(str(value_in(record.values, column)))

    if is_streamed(data_dir):
        with opening(f"the {split} split of {data_dir}"):
            if data_dir.startswith(HUB):
                splits, _ = load_from_hub(data_dir.removeprefix(HUB), streaming=True)
                if split not in splits:
                    raise MissingSplit(f"{data_dir}: no {split} split; there are {', '.join(splits)}")
                dataset = splits[split]
            else:
                dataset = parquet_rows(find_files_of(data_dir, split))
            rows = enumerate(_with_class_names(dataset), 1)
            named = (Record(f"{data_dir}, {split} row {number}", values) for number, values in rows)
            records = choice.of(named, text_of)
    else:
        path = Path(data_dir).expanduser()
        of_table = records_of(_table_of(path, split), choice.tables)
        records = choice.of(of_split(split, of_table, text_of) if path.is_file() else of_table, text_of)
    check_split(records, data_dir, split, "rows")
    return records


def column_in(
    path: str, option: str, given: str | None, known: Collection[str], tables: TableOptions = BY_ENDING
) -> tuple[list[Record], str]:
    """All rows of a table, and the column of them that `column_of` chooses.

    Raises:
        InputError: the table is malformed or empty, or there is no such column.
    """
    chosen = partial(column_of, option, given, known, where=path)
    records = read_records(path, WHOLE, chosen, Choice(tables=tables))
    return records, chosen(names_in(records))


def names_in(records: Iterable[Record]) -> list[str]:
    """The columns that any of the rows has, in the order in which they come."""
    return list(dict.fromkeys(name for record in records for name in record.values))


def _table_of(path: Path, split: str) -> Path:
    """The file of a split."""
    if path.is_file() and suffix_of(path) in TABLES:
        return path
    if (table := table_in(path, split)) is not None:
        return table
    holds = f"a data directory holds {{{','.join(SPLITS)}}}{{{','.join(TABLES)}}}, in tagging also {','.join(CONLL)}"
    if path.is_file():
        check_is_text(path)
        raise InputError(
            f"{path} is no table; allowed: {', '.join(TABLES)}; lines such as fastText's __label__pos become rows of "
            "label and text"
        )
    check_not_saved(path)
    if path.exists():
        raise MissingSplit(f"{path}: no {split} split in it; {holds}")
    raise InputError(f"{path}: no such file or directory; {holds}")


def records_of(path: Path, tables: TableOptions = BY_ENDING) -> Iterator[Record]:
    """The rows of a table, one after the other.

    Raises:
        InputError: it is malformed, or a row lacks values.
    """
    if suffix_of(path) in READERS:
        for number, values in READERS[suffix_of(path)](path, tables):
            if absent := [name for name, value in values.items() if value is ABSENT]:
                raise InputError(f"{path}:{number}: no value of {', '.join(absent)}")
            if half := SURROGATE.search(json.dumps(values, ensure_ascii=False)):
                raise InputError(f"{path}:{number}: unpaired surrogate {half[0]!r}; allowed: characters of Unicode")
            yield Record(f"{path}:{number}", values)
        return
    from pyarrow.parquet import read_metadata

    with opening(str(path)):
        metadata = read_metadata(path)
        check_names(path, metadata.schema.to_arrow_schema().names)
        if metadata.num_rows:  # `datasets` reads no file without rows
            for number, values in enumerate(_with_class_names(parquet_rows([str(path.absolute())])), 1):
                yield Record(f"{path}:{number}", values)


def _with_class_names(dataset: datasets.IterableDataset) -> Iterator[Mapping[str, Any]]:
    features = dataset.features or {}
    for row in dataset:
        yield {name: _class_names(value, features.get(name)) for name, value in row.items()}


def _class_names(value: Any, feature: Any) -> Any:
    """A value with the numbers of classes replaced by their names."""
    from datasets import ClassLabel

    inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
    if inner is not None and isinstance(value, list):
        return [_class_names(item, inner) for item in value]
    if isinstance(feature, ClassLabel) and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None
    return value


def column_of(
    option: str,
    given: str | None,
    known: Collection[str],
    columns: Collection[str],
    where: str,
    trained: Sequence[str] = (),
) -> str:
    """Choose a column.

    Args:
        option: names the column where it is none of `known`.
        given: the value of the option.
        known: usual names, the likeliest first.
        columns: all that there are.
        trained: the column that training read, where a model tells it, which goes before `known`.
        where: names the owner of the columns, for the error.

    Raises:
        InputError: there is no such column.
    """
    for name in [*trained, *known] if given is None else [given]:
        if name in columns or name.partition(".")[0] in columns:  # see `value_in`
            return name
    listed = ", ".join(sorted(columns))
    if given is None:
        what, is_csv = option.removesuffix("_field"), where.endswith((".csv", ".tsv"))
        hint = "; --columns NAME,NAME names those of a table without a header" * is_csv
        what = f"column {trained[0]!r}, which training read" if trained else f"{what} column"
        raise InputError(f"{where}: no {what}; name one with --{option} (columns: {listed}){hint}")
    hint = hint_at(given, columns)
    if "," in given and {*given.split(",")} <= {*columns}:
        hint = "; one of them: labels that have a column of 0 and 1 each become one column of lists in .jsonl"
    raise InputError(f"{where}: --{option} is {given!r}; allowed: {listed}{hint}")


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
