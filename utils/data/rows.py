"""The rows of tables and of sets of `datasets`, whose own readers guess types: "NA" in a CSV becomes null there."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from bart.errors import InputError
from bart.files import PathName
from utils.data.columns import BY_ENDING, Record, TableOptions
from utils.data.places import HUB, is_squad, load_from_hub, opening, parquet_files, suffix_of
from utils.data.splits import MissingSplit
from utils.text.lines import iter_lines

logger = logging.getLogger(__name__)
# Stands for the values that a CSV row lacks at its end, since None is null.
ABSENT = object()
AT_ONCE = 1024  # rows of a Parquet file in memory
NumberedRows = Iterator[tuple[int, Mapping[str, Any]]]  # each row with the number of the line where it ends
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may hold one half of a pair, which is no character


def rows_of(path: Path, tables: TableOptions = BY_ENDING, name: str | None = None) -> Iterator[Record]:
    """The rows of a table or the questions of SQuAD's JSON, each named by its file and line, number or id."""
    if is_squad(path):
        return _squad_rows(path)
    name = name or str(path)
    read = READERS.get(suffix_of(path))
    numbered = _parquet_rows(path, name) if read is None else read(path, tables)
    return (Record(f"{name}:{number}", values) for number, values in numbered)


def published_rows(data_dir: str, split: str) -> Iterator[Record]:
    """The rows of a split of a set on the Hub, named by their numbers, or of Parquet files; downloaded once."""
    with opening(f"the {split} split of {data_dir}"):
        if not data_dir.startswith(HUB):
            for name, path in parquet_files(data_dir, split).items():
                yield from rows_of(path, name=name)
            return
        splits, _ = load_from_hub(data_dir.removeprefix(HUB))
        if split not in splits:
            raise MissingSplit(f"{data_dir}: no {split} split; there are {', '.join(splits)}")
        named = _class_names(splits[split].features)
        for number, values in enumerate(splits[split], 1):
            yield Record(f"{data_dir} {split}:{number}", named(values))


def whole(records: Iterable[Record]) -> Iterator[Record]:
    """Rows of which none may lack values."""
    for record in records:
        if absent := [name for name, value in record.values.items() if value is ABSENT]:
            raise InputError(f"{record.name}: no value of {', '.join(absent)}")
        if half := SURROGATE.search(json.dumps(record.values, ensure_ascii=False, default=str)):
            raise InputError(f"{record.name}: unpaired surrogate {half[0]!r}; allowed: characters of Unicode")
        yield record


def _parquet_rows(path: Path, name: str) -> NumberedRows:
    from pyarrow.parquet import ParquetFile

    number = 0
    with opening(name), ParquetFile(path) as file:
        check_names(name, file.schema_arrow.names)
        features = None
        if b"huggingface" in (file.schema_arrow.metadata or {}):  # which may tell names of classes
            from datasets import Features

            features = Features.from_arrow_schema(file.schema_arrow)
        named = _class_names(features)
        for batch in file.iter_batches(AT_ONCE):
            for values in batch.to_pylist():
                number += 1
                yield number, named(values)


def _class_names(features: Mapping[str, Any] | None) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """The function that replaces numbers of classes in a row by their names, as the features tell them."""
    with_classes = {name: feature for name, feature in (features or {}).items() if "ClassLabel" in repr(feature)}
    return lambda values: {**values, **{name: _named(values[name], each) for name, each in with_classes.items()}}


def _named(value: Any, feature: Any) -> Any:
    """A value with names of classes; None where the Hub has -1 for an unknown one."""
    inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
    if inner is not None and isinstance(value, list):
        return [_named(item, inner) for item in value]
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None
    return value


def json_lines(path: Path, options: TableOptions = BY_ENDING) -> NumberedRows:
    """Read the objects of a file of JSON lines, each with the number of its line; blank lines are skipped."""
    for number, line in enumerate(iter_lines(path, blank=True, encoding=options.encoding), 1):
        if not line.strip():
            continue
        if not line.lstrip().startswith("{"):
            raise InputError(f"{path}, line {number}: {shortened(line)}; allowed: JSON lines, an object a line")
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}, column {error.colno}: not JSON ({error.msg})") from None
        except (ValueError, RecursionError) as error:  # a number or a nesting beyond what Python reads
            raise InputError(f"{path}, line {number}: not JSON ({error})") from None
        yield number, row


def _squad_rows(file: Path) -> Iterator[Record]:
    """The questions of a file, which stand in paragraphs of articles."""
    try:
        content = json.loads(file.read_bytes())
        for article in content["data"] if isinstance(content, dict) else content:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    values = {"id": question["id"], "question": question["question"], "context": paragraph["context"]}
                    if "answers" in question or question.get("is_impossible"):
                        answers = question.get("answers", [])
                        columns = ("text", "answer_start")
                        values["answers"] = {name: [answer.get(name) for answer in answers] for name in columns}
                    yield Record(f"{file}, question {question['id']}", values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: not SQuAD's JSON ({type(error).__name__}: {error})") from None


def check_names(path: PathName, names: Iterable[str]) -> None:
    """No two columns of a file may have the same name, or none: one would be lost."""
    if repeated := [name or "no name" for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"{path}: the header has {', '.join(repeated)} more than once; --columns names those of .csv")


def _csv_rows(path: Path, options: TableOptions = BY_ENDING) -> NumberedRows:
    csv.field_size_limit(2**31 - 1)  # documents may exceed the usual limit of 128 KiB
    lines = iter_lines(path, blank=True, ends=True, encoding=options.encoding)
    is_tsv, names = suffix_of(path) == ".tsv", options.columns and options.columns.split(",")
    delimiter, quoting = options.delimiter or ("\t" if is_tsv else ","), csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL
    if not names and options.delimiter is None:
        _check_header(path, next(iter_lines(path, blank=True, encoding=options.encoding), ""), delimiter)
    reader = csv.DictReader(lines, fieldnames=names, restval=ABSENT, delimiter=delimiter, strict=True, quoting=quoting)
    try:
        named = len(reader.fieldnames)
        while len(reader.fieldnames) > 1 and not reader.fieldnames[-1]:  # spreadsheets write blank columns at the end
            reader.fieldnames.pop()
        if nameless := named - len(reader.fieldnames):
            logger.info("%s: columns without a name at the end, which are not read: %d", path, nameless)
        check_names(path, reader.fieldnames)
        for index, row in enumerate(reader):
            number = reader.line_num
            rest = row.pop(None, ())
            if names and index == 0:
                named_in_row = {*names} & {*row.values()}
                if named_in_row and all(value in ("", name) for name, value in row.items()):
                    continue  # a header of these names, some of which it may lack
                if named_in_row:
                    name = min(named_in_row)
                    raise InputError(f"{path}, line {number}: a header that has {name!r} elsewhere than in --columns")
                logger.info("%s: no header; its first row has %s", path, shortened([*row.values()]))
            if any(rest):
                known = ",".join(reader.fieldnames)
                hint = f"; {nameless} columns at the end have no name: --columns {known},NAME gives one to each"
                raise InputError(
                    f"{path}, line {number}: more values than the header names columns; values that hold the separator "
                    f"must stand in quotes, which only .csv has{hint * bool(nameless)}"
                )
            yield number, row
    except csv.Error as error:
        raise InputError(f"{path}, behind line {reader.line_num}: not CSV ({error}); quotes are doubled") from None


def _check_header(path: Path, header: str, delimiter: str) -> None:
    """The first line of a table must be as its ending says."""
    outside = re.sub('"[^"]*"', "", header)
    counts = {each: outside.count(each) for each in SEPARATORS}
    most = max(SEPARATORS, key=counts.get)
    if counts[most] > counts[delimiter]:
        there, usual = (
            f"{counts[each] or 'no'} {SEPARATORS[each]}{'s' * (counts[each] > 1)}" for each in (most, delimiter)
        )
        raise InputError(f"{path}: line 1 has {there} and {usual}: --delimiter {most!r} reads it")


READERS = {".jsonl": json_lines, ".json": json_lines, ".csv": _csv_rows, ".tsv": _csv_rows}
