"""Rows of tables that hold documents and summaries: JSON Lines, CSV, Parquet, pairs of text files, Hub datasets.

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
from typing import TYPE_CHECKING, Any, BinaryIO

from bart.errors import InputError
from utils.cli import brief
from utils.data.fields import fields_of
from utils.data.line_files import SPLITS, decoded_lines, paired
from utils.data.places import HUB_NAME, SPLIT_NAMES

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

KINDS = {".jsonl": "JSON Lines", ".json": "JSON Lines", ".csv": "CSV", ".tsv": "CSV", ".parquet": "Parquet"}
TEXT = "text"
# Rows that may come before the first one with all fields.
_FIRST_ROWS = 100
_PARQUET_BATCH = 1000


@dataclass
class Record:
    """A row, or what is wrong with it.

    Attributes:
        name: file and line, by which a person finds it; for Parquet and datasets the row, counted from 1.
        read: how many of the input's units (`Input.size`) are read.
        fault: why it is no pair of texts; None where it is one.
    """

    name: str
    read: int
    source: str = ""
    target: str = ""
    fault: str | None = None


@dataclass
class Input:
    """Where rows come from.

    Attributes:
        split: the split that it is, None for what is yet to be split.
        size: bytes of a file, rows of a dataset.
        records: reads the rows, one at a time.
        origin: its files, {"file"}, or the dataset that it is of, for provenance.
    """

    split: str | None
    size: int
    records: Callable[[], Iterator[Record]]
    origin: list[dict[str, Any]]


def suffix_of(path: Path) -> str:
    """`.jsonl` of `news.JSONL.gz`."""
    name = path.name.lower().removesuffix(".gz")
    return name[name.rfind(".") :] if "." in name else ""


def inputs_of(
    names: Sequence[str], source_field: str | None, target_field: str | None, keep_splits: bool
) -> tuple[str, list[Input]]:
    """What kind the named inputs are of, and the inputs.

    Args:
        names: files of one kind, text files in pairs; or one dataset's name or folder.
        source_field, target_field: columns; None for those that published sets have.
        keep_splits: whether a dataset's own splits stay.

    Raises:
        InputError: something is missing, of another kind or malformed as a whole. Reading raises it for rows that are.
    """
    paths = [Path(name).expanduser() for name in names]
    if len(names) == 1 and (paths[0].is_dir() or (not paths[0].exists() and _means_dataset(names[0]))):
        return "dataset", _dataset_inputs(names[0], paths[0], source_field, target_field, keep_splits)
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
        return kind, _text_inputs(paths, source_field or target_field)
    return kind, _table_inputs(kind, paths, source_field, target_field)


def _means_dataset(name: str) -> bool:
    suffixes = {*KINDS, ".gz", ".txt", ".source", ".target"}
    return HUB_NAME.fullmatch(name) is not None and Path(name).suffix.lower() not in suffixes


# ---- Files


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """Yields the file, unpacked where it ends in .gz, and what tells how many bytes of it are read.

    Raises:
        InputError: it cannot be read or unpacked.
    """
    try:
        with path.open("rb") as raw:
            if path.suffix.lower() != ".gz":
                yield raw, raw.tell
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield unpacked, raw.tell  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: cannot be unpacked ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _text_inputs(paths: Sequence[Path], field: str | None) -> list[Input]:
    if field is not None:
        raise InputError(f"--source_field and --target_field are of tables; {paths[0]} is a text file, without fields")
    if len(paths) % 2:
        raise InputError(
            f"--input {' '.join(map(str, paths))}: text files come in pairs, a.source b.target; tables end in "
            f"{', '.join(KINDS)}, or in these and .gz"
        )
    pairs = list(zip(paths[::2], paths[1::2], strict=True))
    for source, target in pairs:
        if suffix_of(source) == ".target" or suffix_of(target) == ".source":
            raise InputError(f"--input {source} {target}: of each pair the source comes first, then its target")
    return [
        Input(None, source.stat().st_size, partial(_text_records, source, target), [_file(source), _file(target)])
        for source, target in pairs
    ]


def _file(path: Path, **more: str) -> dict[str, Any]:
    return {"file": str(path), **more}


def _text_records(source: Path, target: Path) -> Iterator[Record]:
    with _opened(source) as (source_file, read), _opened(target) as (target_file, _):
        lines = paired(source, target, decoded_lines(source_file, source), decoded_lines(target_file, target))
        for number, (document, summary) in enumerate(lines, 1):
            yield Record(f"{source}:{number}", read(), document, summary)


Row = tuple[int, Mapping[str, Any] | None, int]  # its number, its values (None for a blank line), bytes read so far


def _json_rows(path: Path) -> Iterator[Row]:
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
                    f"{path}, line {number}: {_called(row)}; JSON Lines, one object with the fields a line, is expected"
                )
            yield number, row, read()


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # 128 KiB otherwise, which a document may exceed
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


_LINE_READERS = {"JSON Lines": _json_rows, "CSV": _csv_rows}


def _parquet_columns(path: Path) -> list[str]:
    import pyarrow
    from pyarrow.parquet import read_schema

    try:
        return read_schema(path).names
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not Parquet ({brief(error)})") from None


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    size = path.stat().st_size
    number = 0
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(_PARQUET_BATCH, columns=list(columns)):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row, size * number // file.metadata.num_rows
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}, after row {number}: cannot be read ({brief(error)})") from None


def _table_inputs(kind: str, paths: Sequence[Path], source: str | None, target: str | None) -> list[Input]:
    inputs = []
    for path in paths:
        # Columns that one file settles hold for those after it.
        if kind == "Parquet":
            source, target = fields_of(_parquet_columns(path), source, target, str(path))
        else:
            rows = _LINE_READERS[kind](path)
            first = [row for _, row, _ in islice(rows, _FIRST_ROWS) if row is not None]
            rows.close()
            if not first:
                raise InputError(f"{path}: no rows" + " under the header" * (kind == "CSV"))
            source, target = fields_of(dict.fromkeys(chain(*first)), source, target, str(path))

        records = partial(_table_records, kind, path, source, target)
        origin = _file(path, source_field=source, target_field=target)
        inputs.append(Input(None, path.stat().st_size, records, [origin]))
    return inputs


def _table_records(kind: str, path: Path, source: str, target: str) -> Iterator[Record]:
    rows = _parquet_rows(path, (source, target)) if kind == "Parquet" else _LINE_READERS[kind](path)
    for number, row, read in rows:
        yield _record(f"{path}:{number}", read, row, source, target)


def _record(name: str, read: int, row: Mapping[str, Any] | None, source: str, target: str) -> Record:
    if row is None:
        return Record(name, read, fault="blank line")
    for field in (source, target):
        if field not in row:
            return Record(name, read, fault=f"no field {field}")
        if row[field] is None:
            return Record(name, read, fault=f"{field} is null")
        if not isinstance(row[field], str):
            return Record(name, read, fault=f"{field} is {_called(row[field])}, not text")
    return Record(name, read, row[source], row[target])


def _called(value: object) -> str:
    """What a value that is no text is, in the words of JSON."""
    kinds = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    kinds |= {dict: "an object", type(None): "null"}
    return kinds.get(type(value), f"of type {type(value).__name__}")


# ---- Datasets of the Hub


def _dataset_inputs(
    name: str, folder: Path, source_field: str | None, target_field: str | None, keep_splits: bool
) -> list[Input]:
    found = HUB_NAME.fullmatch(name)
    place, config, revision = (
        (str(folder), None, None) if folder.is_dir() or found is None else found.group("name", "config", "revision")
    )
    splits, commit = _load(name, place, config, revision)
    kept = {split: name for split, names in SPLIT_NAMES.items() for name in reversed(names) if name in splits}
    named = ", ".join(splits)
    if keep_splits and set(kept) == set(SPLITS):
        chosen = {kept[split]: split for split in SPLITS}
    elif keep_splits and len(splits) > 1:
        raise InputError(
            f"--input {name} has the splits {named}, not all of train, validation and test: give --split_ratio to "
            "split all its examples anew"
        )
    else:
        chosen = dict.fromkeys(splits)
    if unused := [split for split in splits if split not in chosen]:
        logger.warning("%s: not used are the splits %s", name, ", ".join(unused))
    inputs = []
    for split, kept_as in chosen.items():
        rows = splits[split]
        source, target = fields_of(rows.column_names, source_field, target_field, f"{name}, split {split},")
        origin = {"dataset": place, "config": config, "revision": revision, "commit": commit, "split": split}
        origin |= {"source_field": source, "target_field": target}
        records = partial(_dataset_records, f"{name}/{split}", rows, source, target)
        inputs.append(Input(kept_as, len(rows), records, [origin]))
    return inputs


def _dataset_records(name: str, rows: Dataset, source: str, target: str) -> Iterator[Record]:
    for number, row in enumerate(rows.select_columns([source, target]), 1):
        yield _record(f"{name}:{number}", number, row, source, target)


def _load(name: str, place: str, config: str | None, revision: str | None) -> tuple[dict[str, Dataset], str | None]:
    """The splits of a dataset, downloaded into the Hub cache if need be, and the commit that they are of."""
    # Seconds to load, which other inputs need not wait for.
    import datasets
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        builder = datasets.load_dataset_builder(place, config, revision=revision)
        builder.download_and_prepare()
        # Of a folder it is no commit but a hash of the files' names and times.
        return dict(builder.as_dataset()), None if Path(place).is_dir() else builder.hash
    except (datasets.exceptions.DatasetNotFoundError, RepositoryNotFoundError) as error:
        raise InputError(
            f"--input {name}: no such file or folder here, and no such dataset on the Hub, or one that is closed to "
            f"this user: set HF_TOKEN ({brief(error)})"
        ) from None
    except ConnectionError as error:
        raise InputError(
            f"--input {name}: no such file or folder here, and the Hub cannot be reached: {error}"
        ) from None
    except (datasets.exceptions.DatasetsError, HfHubHTTPError, ValueError, RuntimeError, OSError) as error:
        # ValueError: a configuration that it lacks; RuntimeError: a dataset that is a script.
        raise InputError(f"--input {name}: {brief(error.__cause__ or error)}") from None
