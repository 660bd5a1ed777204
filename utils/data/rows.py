"""The rows of JSON Lines, CSV and TSV files, as the file has them.

The standard library reads them, not `datasets`, whose readers guess a type for each column: CSV fields such as "NA"
become null there, and one number among texts makes a whole JSON Lines file unreadable.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.data.places import suffix_of
from utils.text.lines import iter_lines

# Stands for the values that a CSV row lacks at its end, since None is null.
ABSENT = object()
NumberedRows = Iterator[tuple[int, Mapping[str, Any]]]  # each row with the number of the line where it ends


def json_values(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of a file of JSON lines, each with the number of its line; blank lines are skipped.

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


def _csv_values(path: Path) -> NumberedRows:
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


READERS = {".jsonl": json_values, ".json": json_values, ".csv": _csv_values, ".tsv": _csv_values}
