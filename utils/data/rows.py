"""The rows of JSON, JSON Lines, CSV and TSV files, as the file has them.

The standard library reads them, not `datasets`, whose readers guess a type for each column: CSV fields such as "NA"
become null there, and one number among texts makes a whole JSON Lines file unreadable.
"""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, tee
from pathlib import Path
from reprlib import repr as shortened
from types import SimpleNamespace
from typing import Any

from bart.errors import InputError
from bart.files import PathName
from utils.data.places import WORDS, suffix_of
from utils.data.table_options import BY_ENDING, TableOptions
from utils.text.lines import iter_lines

logger = logging.getLogger(__name__)
# Stands for the values that a CSV row lacks at its end, since None is null.
ABSENT = object()
NumberedRows = Iterator[tuple[int, Mapping[str, Any]]]  # each row with the number of the line where it ends
# Names of the list of rows in a JSON object that holds more, such as a version.
LISTS = ("data", "rows", "examples", "records", "items", "instances")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "pipes"}
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may hold one half of a pair, which is no character
_QUOTE_BEGINS = re.compile(r'(?:^|\t)"')


def _parsed(text: str, path: Path, line: int) -> Any:
    """The value of JSON that begins at a line of a file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        number = line + error.lineno - 1
        raise InputError(f"{path}, line {number}, column {error.colno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond what Python reads
        raise InputError(f"{path}, line {line}: not JSON ({error})") from None


def json_lines(path: Path, options: TableOptions = BY_ENDING) -> NumberedRows:
    """Read the objects of a file of JSON lines, each with the number of its line; blank lines are skipped.

    Raises:
        InputError: a line holds something else; the message names it.
    """
    for number, line in enumerate(iter_lines(path, blank=True, encoding=options.encoding), 1):
        if not line.strip():
            continue
        row = _parsed(line, path, number)
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: JSON Lines, one object with the fields a line, is expected")
        yield number, row


def _json_rows(path: Path, options: TableOptions = BY_ENDING) -> NumberedRows:
    """Read a .json file: JSON lines; or, on any lines, an array of objects, an object with such a list, or of columns.

    Columns are of one length. An object with a sentence, a list of texts called words or tokens, is one row. Rows that
    are not lines are numbered themselves.

    Raises:
        InputError: it is none of these.
    """
    filled = (line for line in iter_lines(path, blank=True, encoding=options.encoding) if line.strip())
    first, second = next(filled, ""), next(filled, "")
    if second and first.lstrip().startswith("{") and first.rstrip().endswith("}"):
        yield from json_lines(path, options)
        return
    value = _parsed("\n".join(iter_lines(path, blank=True, encoding=options.encoding)), path, 1)
    rows = value if isinstance(value, list) else [value]
    if isinstance(value, dict):
        lists = [each for name, each in value.items() if isinstance(each, list) and (len(value) == 1 or name in LISTS)]
        if len(lists) == 1 and all(isinstance(row, dict) for row in lists[0]):
            rows = lists[0]
        elif columns := _columns_in(value, path):
            rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
            logger.info("%s: an object of columns, which hold %d rows", path, len(rows))
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number}: {shortened(row)}; allowed: an object with the fields of the row")
        yield number, row


def _columns_in(value: Mapping[str, Any], path: Path) -> dict[str, list[Any]] | None:
    """The columns of an object of lists or, as of pandas, of objects; None of a row; InputError if it may be either."""
    columns = [*value.values()]
    lists = {name: cells for name, cells in value.items() if isinstance(cells, list)}
    of_texts = [name for name, cells in lists.items() if any(isinstance(cell, str) for cell in cells)]
    if {*WORDS} & {*of_texts}:
        return None
    if all(isinstance(cells, dict) and all(map(str.isdecimal, cells)) for cells in columns):
        columns = [[*cells.values()] for cells in columns] if len({*map(tuple, columns)}) == 1 else []
    if all(isinstance(cells, list) for cells in columns) and len({*map(len, columns)}) == 1:
        return dict(zip(value, columns, strict=True))
    if len(of_texts) > 1:
        listed = " and ".join(of_texts)
        raise InputError(f"{path}: {listed} are lists of texts; allowed: columns of one length, or a row in an array")
    return None


def check_names(path: PathName, names: Iterable[str]) -> None:
    """Raise InputError where columns of a file have the same name, or more than one has none; one would be lost."""
    if repeated := [name or "no name" for name, count in Counter(names).items() if count > 1]:
        raise InputError(
            f"{path}: the header has {', '.join(repeated)} more than once; allowed: each column once, and of a .csv or "
            ".tsv without a header --columns NAME,NAME"
        )


def _csv_rows(path: Path, options: TableOptions = BY_ENDING) -> NumberedRows:
    csv.field_size_limit(2**31 - 1)  # documents may exceed the usual limit of 128 KiB
    lines = iter_lines(path, blank=True, ends=True, encoding=options.encoding)
    header, skipped = next(iter_lines(path, blank=True, encoding=options.encoding), ""), 0
    delimiter, quoting = options.separator, csv.QUOTE_MINIMAL
    if mark := re.fullmatch('"?sep=(.)"?', header):  # by which Excel tells itself what the separator is
        delimiter, skipped = delimiter or mark[1], 1
        next(lines)
    delimiter = delimiter or _separator_of(path, header)
    if suffix_of(path) == ".tsv" and delimiter == "\t" and not _has_quoted_fields(path, options.encoding):
        quoting = csv.QUOTE_NONE
    names = options.columns and options.columns.split(",")
    reader = csv.DictReader(lines, fieldnames=names, restval=ABSENT, delimiter=delimiter, strict=True, quoting=quoting)
    try:
        named = len(reader.fieldnames)
        while len(reader.fieldnames) > 1 and not reader.fieldnames[-1]:  # spreadsheets write blank columns at the end
            reader.fieldnames.pop()
        if nameless := named - len(reader.fieldnames):
            logger.info("%s: columns without a name at the end, which are not read: %d", path, nameless)
        check_names(path, reader.fieldnames)
        for row in reader:
            number = reader.line_num + skipped
            rest = row.pop(None, ())
            if names and number == 1 + skipped:
                if all(value in ("", name) for name, value in row.items()):
                    continue  # a header of these names, some of which it may lack
                logger.info("%s: no header; its first row has %s", path, shortened([*row.values()]))
            if any(rest):
                known = ",".join(reader.fieldnames)
                hint = f"; {nameless} columns at the end have no name: --columns {known},NAME gives one to each"
                raise InputError(
                    f"{path}, line {number}: more values than the header names columns; values that hold the separator "
                    f"must stand in quotes{hint * bool(nameless)}"
                )
            yield number, row
    except csv.Error as error:
        raise InputError(
            f"{path}, the record after line {reader.line_num + skipped}: not CSV ({error}); allowed: quotes in a value "
            "doubled, not behind a backslash"
        ) from None


def _separator_of(path: Path, header: str) -> str:
    """What stands between values: as the ending says, or semicolons, which spreadsheets write where commas are in
    numbers; InputError where the header has more of another.
    """
    usual = "\t" if suffix_of(path) == ".tsv" else ","
    outside = re.sub('"[^"]*"', "", header)
    counts = {each: outside.count(each) for each in SEPARATORS}
    most = max(SEPARATORS, key=counts.get)
    if counts[most] <= counts[usual]:
        return usual
    if (usual, most, counts[usual]) == (",", ";", 0):
        return most
    found = f"{counts[most]} {SEPARATORS[most]} and {counts[usual] or 'no'} {SEPARATORS[usual]}"
    raise InputError(f"{path}: line 1 has {found}: --delimiter {most!r} reads it, {usual!r} takes it as it is")


def has_quoted_names(header: str) -> bool:
    """Return true if the first line of a TSV has all in quotes, as the header of what utils.predict writes has."""
    return all(re.fullmatch('".*"', name) for name in header.split("\t"))


def _has_quoted_fields(path: Path, encoding: str) -> bool:
    """Return true if quotes around the fields of a TSV are those of CSV; elsewhere they are text, as GLUE has them.

    They are CSV's where all names in the header have them, or the file is what `csv` writes, with a tab or a line break
    in quotes; unless each line is a row by itself: it has as many fields as the header, and more than one.
    """
    lines = iter_lines(path, blank=True, encoding=encoding)
    header = next(lines)
    names, in_header = header.split("\t"), has_quoted_names(header)
    begun, is_ragged = 0, len(names) == 1
    for line in lines:
        begun += _QUOTE_BEGINS.search(line) is not None
        is_ragged |= bool(line) and line.count("\t") != len(names) - 1
    are_csv = in_header or (begun > 0 and is_ragged and _are_quotes_needed(path, len(names), encoding))
    if begun:
        taken = "those of CSV" if are_csv else "part of the text"
        logger.warning("%s: lines with a quote at the beginning of a field: %d; quotes are %s", path, begun, taken)
    return are_csv


def _are_quotes_needed(path: Path, columns: int, encoding: str) -> bool:
    """Return true if `csv` would write a TSV as it is, with quotes around tabs or line breaks."""
    read, written = tee(line + "\n" for line in iter_lines(path, blank=True, encoding=encoding))
    writer = csv.writer(SimpleNamespace(write=str), delimiter="\t", lineterminator="\n")
    are_needed = False
    with suppress(csv.Error):
        for row in csv.reader(read, delimiter="\t", strict=True):
            text = writer.writerow(row)
            if len(row) not in (0, columns) or text != "".join(islice(written, text.count("\n"))):
                return False
            are_needed |= any(re.search(r"[\t\n]", value) for value in row)
        return are_needed
    return False


READERS = {".jsonl": json_lines, ".json": _json_rows, ".csv": _csv_rows, ".tsv": _csv_rows}
