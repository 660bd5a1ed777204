"""Rows of a user's own data for `prepare`: JSON Lines, CSV, pairs of text files, Parquet files, sets of the Hub.

JSON Lines and CSV are read by the standard library, not by `datasets`, whose readers guess a type for each column: CSV
fields such as "NA" become null there, and one number among texts makes a whole JSON Lines file unreadable.
"""

from __future__ import annotations

import csv
import gzip
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from bart.errors import InputError
from utils.data.line_files import SPLITS, one_line, paired
from utils.data.places import HUB_NAME, SPLIT_NAMES, fields_of
from utils.data.tables import Fields, Reader, Row, Table, kind_of, load_from_hub, open_dataset, open_files, opening
from utils.lines import decoded_lines

logger = logging.getLogger(__name__)

JSON_LINES, CSV, PARQUET, TEXT, DATASET = "JSON Lines", "CSV", "Parquet", "text", "dataset"
KINDS = {".jsonl": JSON_LINES, ".json": JSON_LINES, ".csv": CSV, ".tsv": CSV, ".parquet": PARQUET}
# The columns of JSON Lines are those that its first rows have.
_FIRST_ROWS = 100
_MB = 10**6


@dataclass
class Input:
    """Where rows come from.

    Attributes:
        split: the split that the input is; None where it is yet to be split.
        unit, size: what its progress is counted in, and how much of that it has.
        rows: reads the rows, each with how much is read so far.
        origin: its files, {"file"}, or its set, for the provenance.
    """

    split: str | None
    unit: str
    size: int
    rows: Callable[[], Iterator[tuple[Row, int]]]
    origin: list[dict[str, Any]]


def inputs_of(names: Sequence[str], fields: Fields, keep_splits: bool) -> list[Input]:
    """The named inputs.

    Args:
        names: files of one kind, text files in pairs; or the name or folder of one set.
        fields: the columns of documents and summaries; None for those that published sets have.
        keep_splits: whether a set keeps its own splits.

    Raises:
        InputError: something is missing, of another kind, or malformed as a whole. Reading raises it for single rows.
    """
    paths = [Path(name).expanduser() for name in names]
    if len(names) == 1 and (paths[0].is_dir() or (not paths[0].exists() and _may_be_on_hub(names[0]))):
        return _set_inputs(names[0], paths[0], fields, keep_splits)
    for name, path in zip(names, paths, strict=True):
        if not path.is_file():
            what = "a folder; give files, or a dataset alone" if path.is_dir() else "no such file"
            raise InputError(f"--input {name}: {what}")
    kinds = {KINDS.get(suffix_of(path), TEXT): path for path in paths}
    if len(kinds) > 1:
        found = ", ".join(f"{path} ({kind})" for kind, path in kinds.items())
        raise InputError(f"--input takes files of one kind, got {found}")
    [kind] = kinds
    if kind == TEXT:
        return _text_inputs(paths, fields)
    inputs = []
    for path in paths:
        if kind == PARQUET:
            with opening(str(path)):
                table = open_files([str(path.absolute())], str(path), str(path), fields)
            fields = table.fields
            inputs.append(_table_input(None, table, {"file": str(path)}))
        else:
            # The columns of the first file are those of the others.
            fields = _columns_of(kind, path, fields)
            origin = {"file": str(path)} | _named(fields)
            inputs.append(Input(None, "MB", _megabytes(path), partial(_file_rows, kind, path, fields), [origin]))
    return inputs


def suffix_of(path: Path) -> str:
    """`.jsonl` of `news.JSONL.gz`."""
    name = path.name.lower().removesuffix(".gz")
    return name[name.rfind(".") :] if "." in name else ""


def _may_be_on_hub(name: str) -> bool:
    suffixes = {*KINDS, ".gz", ".txt", ".source", ".target"}
    return HUB_NAME.fullmatch(name) is not None and Path(name).suffix.lower() not in suffixes


def _named(fields: Fields) -> dict[str, str | None]:
    return dict(zip(("source_field", "target_field"), fields, strict=True))


def _megabytes(path: Path) -> int:
    return -(-path.stat().st_size // _MB)


# ---- Text files, JSON Lines and CSV


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """Yields the file, unpacked if its name ends in .gz, and a function that tells how many megabytes are read.

    Raises:
        InputError: it cannot be read or unpacked.
    """
    try:
        with path.open("rb") as raw:
            if path.suffix.lower() != ".gz":
                yield raw, lambda: raw.tell() // _MB
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield unpacked, lambda: raw.tell() // _MB  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: cannot be unpacked ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _text_inputs(paths: Sequence[Path], fields: Fields) -> list[Input]:
    if any(fields):
        raise InputError(f"--source_field and --target_field are of tables; {paths[0]} is a text file, without fields")
    if len(paths) % 2:
        raise InputError(
            f"--input {' '.join(map(str, paths))}: text files come in pairs, a.source b.target; tables end in "
            f"{', '.join(KINDS)}, or in these and .gz"
        )
    inputs = []
    for source, target in zip(paths[::2], paths[1::2], strict=True):
        if suffix_of(source) == ".target" or suffix_of(target) == ".source":
            raise InputError(f"--input {source} {target}: of each pair the source comes first, then its target")
        origin = [{"file": str(path)} for path in (source, target)]
        inputs.append(Input(None, "MB", _megabytes(source), partial(_text_rows, source, target), origin))
    return inputs


def _text_rows(source: Path, target: Path) -> Iterator[tuple[Row, int]]:
    with _opened(source) as (source_file, read), _opened(target) as (target_file, _):
        lines = paired(source, target, decoded_lines(source_file, source), decoded_lines(target_file, target))
        for number, pair in enumerate(lines, 1):
            yield Row(f"{source}:{number}", *map(one_line, pair)), read()


# A row's number, its values (None for a blank line), and the megabytes that are read so far.
Values = tuple[int, Mapping[str, Any] | None, int]


def _json_values(path: Path) -> Iterator[Values]:
    with _opened(path) as (file, read):
        for number, line in enumerate(decoded_lines(file, path, blank=True), 1):
            if not line.strip():
                yield number, None, read()
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}, line {number}, column {error.colno}: not JSON ({error.msg})") from None
            except (ValueError, RecursionError) as error:  # a number or a nesting beyond what Python reads
                raise InputError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise InputError(
                    f"{path}, line {number}: {kind_of(row)}; JSON Lines, one object with the fields a line, is expected"
                )
            yield number, row, read()


def _csv_values(path: Path) -> Iterator[Values]:
    csv.field_size_limit(2**31 - 1)  # documents may exceed the usual limit of 128 KiB
    with _opened(path) as (file, read):
        lines = (line + "\n" for line in decoded_lines(file, path, blank=True))
        reader = csv.reader(lines, delimiter="\t" if suffix_of(path) == ".tsv" else ",", strict=True)
        columns: list[str] | None = None
        number = 1
        try:
            for values in reader:
                if columns is None:
                    columns = values
                    if repeated := {column for column in columns if columns.count(column) > 1}:
                        raise InputError(f"{path}, line 1: several columns are called {sorted(repeated)[0]!r}")
                elif len(values) > len(columns):
                    raise InputError(
                        f"{path}, line {number}: {len(values)} values, but the header names {len(columns)} columns; "
                        "values that hold the separator must stand in quotes"
                    )
                else:
                    yield number, dict(zip(columns, values, strict=False)) if values else None, read()
                number = reader.line_num + 1  # a record may take several lines
        except csv.Error as error:
            raise InputError(f"{path}, the record that begins in line {number}: not CSV ({error})") from None


_READERS = {JSON_LINES: _json_values, CSV: _csv_values}


def _columns_of(kind: str, path: Path, fields: Fields) -> tuple[str, str]:
    first = [values for _, values, _ in islice(_READERS[kind](path), _FIRST_ROWS) if values is not None]
    if not first:
        raise InputError(f"{path}: no rows" + " under the header" * (kind == CSV))
    return fields_of(dict.fromkeys(chain(*first)), *fields, str(path))


def _file_rows(kind: str, path: Path, fields: tuple[str, str]) -> Iterator[tuple[Row, int]]:
    for number, values, read in _READERS[kind](path):
        name = f"{path}:{number}"
        yield Row(name, fault="blank line") if values is None else Row.of(name, values, fields), read


# ---- Parquet files, and sets of the Hub


def _table_input(split: str | None, table: Table, origin: dict[str, Any]) -> Input:
    return Input(split, "rows", table.size, partial(_table_rows, table), [origin | _named(table.fields)])


def _table_rows(table: Table) -> Iterator[tuple[Row, int]]:
    for number, row in enumerate(Reader(table).rows(), 1):
        yield Row(f"{table.name}:{row.name}", row.source, row.target, row.fault), number


def _set_inputs(name: str, folder: Path, fields: Fields, keep_splits: bool) -> list[Input]:
    origin: dict[str, Any]
    if folder.is_dir():
        import datasets

        with opening(f"--input {name}"):
            splits = datasets.load_dataset(str(folder))
        origin = {"dataset": str(folder), "config": None, "revision": None, "commit": None}
    else:
        with opening(f"--input {name}: no such file or folder here, and as a set of the Hub it"):
            splits, commit = load_from_hub(name, streaming=False)
        parts = HUB_NAME.fullmatch(name).group("name", "config", "revision")
        origin = dict(zip(("dataset", "config", "revision", "commit"), (*parts, commit), strict=True))
    kept = {split: name for split, names in SPLIT_NAMES.items() for name in reversed(names) if name in splits}
    if keep_splits and set(kept) == set(SPLITS):
        chosen = {kept[split]: split for split in SPLITS}
    elif keep_splits and len(splits) > 1:
        raise InputError(
            f"--input {name} has the splits {', '.join(splits)}, not all of train, validation and test: give "
            "--split_ratio to split all its examples anew"
        )
    else:
        chosen = dict.fromkeys(splits)
    if unused := [split for split in splits if split not in chosen]:
        logger.warning("%s: not used are the splits %s", name, ", ".join(unused))
    inputs = []
    for split, kept_as in chosen.items():
        rows = splits[split].to_iterable_dataset()
        table = open_dataset(rows, f"{name}/{split}", f"{name}, split {split},", fields, size=len(splits[split]))
        inputs.append(_table_input(kept_as, table, origin | {"split": split}))
    return inputs
