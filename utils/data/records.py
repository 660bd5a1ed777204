"""Rows of a user's own data for `prepare`: JSON Lines, CSV, pairs of text files, Parquet files, sets of the Hub.

JSON Lines and CSV are read by the standard library, not by `datasets`, whose readers guess a type for each column: CSV
fields such as "NA" become null there, and one number among texts makes a whole JSON Lines file unreadable.
"""

from __future__ import annotations

import csv
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bart.errors import InputError
from utils.data.line_files import SIDES, SPLITS, paired
from utils.data.places import HUB_NAME, TABLES, fields_of, is_streamed, suffix_of
from utils.data.tables import Fields, Reader, Row, Table, load_from_hub, open_dataset, open_files, opening, read_split
from utils.text.lines import iter_lines, read_lines

logger = logging.getLogger(__name__)


class Input(NamedTuple):
    """Where rows come from.

    Attributes:
        split: the split that the input is; None where it is yet to be split.
        name: of its file or files, or of its set with the commit that was found.
        rows: reads the rows.
    """

    split: str | None
    name: str
    rows: Callable[[], Iterable[Row]]


def inputs_of(names: Sequence[str], fields: Fields, keep_splits: bool) -> list[Input]:
    """The named inputs.

    Args:
        names: files of one kind, text files in pairs; or the name of one set of the Hub.
        fields: the columns of documents and summaries; None for those that published sets have.
        keep_splits: whether a set keeps its own splits.

    Raises:
        InputError: something is missing or of another kind. What is malformed in a file raises it when that is read.
    """
    paths = [Path(name).expanduser() for name in names]
    kinds = {suffix_of(path) if suffix_of(path) in TABLES else "text" for path in paths}
    if len(names) == 1 and kinds == {"text"} and not paths[0].exists() and HUB_NAME.fullmatch(names[0]):
        return _set_inputs(names[0], fields, keep_splits)
    for path in paths:
        if not path.is_file():
            raise InputError(f"--input {path}: no such file")
    if len(kinds) > 1:
        raise InputError(f"--input takes files of one kind, got {' and '.join(sorted(kinds))}")
    [kind] = kinds
    if kind == "text":
        return _text_inputs(paths, fields)
    if kind == ".parquet":
        with opening(f"--input {' '.join(names)}"):
            tables = [open_files([str(path.absolute())], str(path), fields) for path in paths]
        return [Input(None, table.name, partial(_table_rows, table)) for table in tables]
    return [Input(None, str(path), partial(_file_rows, READERS[kind], path, fields)) for path in paths]


def read_sources(data_dir: str, split: str, limit: int = -1, source_field: str | None = None) -> list[str]:
    """Read documents without summaries, the first `limit` unless it is negative.

    Args:
        data_dir: a directory with `<split>.source`; a file of one document a line, or a table, all of which is read; or
            a published set, whose rows that are no examples are left out and counted in the log.

    Raises:
        InputError: they are missing or malformed; in a table, a row has no document.
    """
    fields, path = (source_field,), Path(data_dir).expanduser()
    if is_streamed(data_dir):
        return read_split(data_dir, split, limit, fields)[0]
    end = None if limit < 0 else limit
    if path.is_dir() or suffix_of(path) not in TABLES:
        return read_lines(path / f"{split}.source" if path.is_dir() else path)[:end]
    if suffix_of(path) in READERS:
        rows = _file_rows(READERS[suffix_of(path)], path, fields)
    else:
        with opening(data_dir):
            rows = _table_rows(open_files([str(path.absolute())], data_dir, fields))
    sources = []
    for row in islice(rows, end):
        if row.fault is not None:
            raise InputError(f"{row.name}: {row.fault}; a document is expected in every row")
        sources.append(row.source)
    if not sources:
        raise InputError(f"{data_dir}: has no rows")
    return sources


# ---- Text files, JSON Lines and CSV


def _text_inputs(paths: Sequence[Path], fields: Fields) -> list[Input]:
    if any(field is not None for field in fields):
        raise InputError(f"--source_field and --target_field are of tables; {paths[0]} is a text file, without fields")
    if len(paths) % 2:
        raise InputError(
            f"--input {' '.join(map(str, paths))}: text files come in pairs, a.source b.target; tables end in "
            f"{', '.join(READERS)}, or in these and .gz, or in .parquet"
        )
    inputs = []
    for source, target in zip(paths[::2], paths[1::2], strict=True):
        if suffix_of(source) == ".target" or suffix_of(target) == ".source":
            raise InputError(f"--input {source} {target}: of each pair the source comes first, then its target")
        inputs.append(Input(None, f"{source} {target}", partial(_text_rows, source, target)))
    return inputs


def _text_rows(source: Path, target: Path) -> Iterator[Row]:
    for number, pair in enumerate(paired(source, target), 1):
        yield Row.of(f"{source}:{number}", dict(zip(SIDES, pair, strict=True)), SIDES)


def json_values(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with the number of its line; blank lines are skipped.

    Raises:
        InputError: a line holds something else; the message names it.
    """
    for number, line in enumerate(iter_lines(path, blank=True), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}, column {error.colno}: not JSON ({error.msg})") from None
        except (ValueError, RecursionError) as error:  # a number or a nesting beyond what Python reads
            raise InputError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: JSON Lines, one object with the fields a line, is expected")
        yield number, row


def _csv_values(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(2**31 - 1)  # documents may exceed the usual limit of 128 KiB
    lines = (line + "\n" for line in iter_lines(path, blank=True))
    delimiter = "\t" if suffix_of(path) == ".tsv" else ","
    reader = csv.DictReader(lines, restval=ABSENT, delimiter=delimiter, strict=True)
    try:
        names = Counter(reader.fieldnames)
        if repeated := [name for name in names if name and names[name] > 1]:
            raise InputError(
                f"{path}: the header names {', '.join(repeated)} more than once; allowed: each column once"
            )
        for row in reader:
            if None in row:
                raise InputError(
                    f"{path}, line {reader.line_num}: more values than the header names columns; values that hold "
                    "the separator must stand in quotes"
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path}, the record after line {reader.line_num}: not CSV ({error})") from None


# Stands for the values that a CSV row lacks at its end, since None is null.
ABSENT = object()
READERS = {".jsonl": json_values, ".json": json_values, ".csv": _csv_values, ".tsv": _csv_values}


def _file_rows(
    read: Callable[[Path], Iterator[tuple[int, Mapping[str, Any]]]], path: Path, fields: Fields
) -> Iterator[Row]:
    """The rows of a file, each named by the line where it ends. The first row decides on the columns."""
    columns = None
    for number, values in read(path):
        columns = columns or fields_of(values.keys(), fields, str(path))
        present = {name: value for name, value in values.items() if value is not ABSENT}
        yield Row.of(f"{path}:{number}", present, columns)


# ---- Parquet files, and sets of the Hub


def _table_rows(table: Table) -> Iterator[Row]:
    for row in Reader(table).rows():
        yield Row(f"{table.name}:{row.name}", row.source, row.target, row.fault)


def _set_inputs(name: str, fields: Fields, keep_splits: bool) -> list[Input]:
    with opening(f"--input {name}: no such file here, and as a set of the Hub it"):
        splits, found = load_from_hub(name, streaming=False)
    chosen: dict[str, str | None] = dict.fromkeys(splits)
    if keep_splits and splits.keys() >= set(SPLITS):
        chosen = {split: split for split in SPLITS}
        if unused := splits.keys() - chosen:
            logger.warning("%s: not used are the splits %s", name, ", ".join(sorted(unused)))
    elif keep_splits and len(splits) > 1:
        raise InputError(
            f"--input {name} has the splits {', '.join(splits)}, not all of {', '.join(SPLITS)}: give --split_ratio to "
            "split all its examples anew"
        )
    tables = {split: open_dataset(splits[split].to_iterable_dataset(), f"{found}/{split}", fields) for split in chosen}
    return [
        Input(kept_as, tables[split].name, partial(_table_rows, tables[split])) for split, kept_as in chosen.items()
    ]
