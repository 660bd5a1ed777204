"""Rows of TSV and JSON files as other programs write them, against csv and json."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest

from bart.errors import InputError
from utils.data.columns import TableOptions
from utils.data.rows import READERS
from utils.data.splits import WHOLE
from utils.data.tables import read_records, read_sources

HEADER = ["sentence", "label"]
SWALLOWS = 'sentence\tlabel\n"a great film\t1\nbad\t0\ndull\t0\nfine"\t1\n'
TABS = TableOptions(r"\t")
Rows = list[dict[str, Any]]


def rows_of(path: Path) -> Rows:
    return [dict(values) for _, values in READERS[path.suffix](path)]


def by_csv(text: str, quoting: int) -> Rows:
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quoting=quoting, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        SWALLOWS,
        'sentence\tlabel\n"Never"\t1\nHe said "no"\t0\n',
        'sentence\n"one\ntwo" of it\n',
        'sentence\tlabel\n"He said ""yes"""\t1\nplain\t0\n',
    ],
)
def test_quotes_in_tsv_are_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(text)
    assert rows_of(tmp_path / "a.tsv") == by_csv(text, csv.QUOTE_NONE)
    (tmp_path / "b.tsv").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert rows_of(tmp_path / "b.tsv") == by_csv(text, csv.QUOTE_NONE)
    (tmp_path / "c.tsv.gz").write_bytes(gzip.compress(text.encode()))
    rows = [record.values for record in read_records(str(tmp_path / "c.tsv.gz"), WHOLE, min)]
    assert rows == by_csv(text, csv.QUOTE_NONE)


def test_a_tsv_of_other_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('sentence\tlabel\n"a film\t1\t2\nfine\t0\n')
    with pytest.raises(InputError, match=r"a.tsv, line 2: more values than the header names columns"):
        rows_of(tmp_path / "a.tsv")
    (tmp_path / "b.tsv").write_text('sentence\tlabel\n"Never"\t1\nfine\n')
    with pytest.raises(InputError, match=r"b.tsv:3: no value of label"):
        read_records(str(tmp_path / "b.tsv"), WHOLE, min)


ROWS = [{"text": "a {", "label": "x", "tags": [{"n": 1}]}, {"text": "b\n}", "label": "y", "tags": []}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_json_is_an_object_a_line(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(("\ufeff\r\n" + "\r\n\r\n".join(map(json.dumps, ROWS)) + "\r\n").encode())
    assert rows_of(file) == ROWS and read_sources(str(file), "") == ["a {", "b }"]
    for other in json.dumps(ROWS), json.dumps(ROWS, indent=2), '"text"':
        file.write_text(other)
        with pytest.raises(InputError, match=rf"{name}, line 1: .*; allowed: JSON lines, an object a line"):
            rows_of(file)
    file.write_text(json.dumps(ROWS[0], indent=2))
    with pytest.raises(InputError, match=f"{name}, line 1, column 2: not JSON"):
        rows_of(file)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_half_a_surrogate_pair_is_named_by_file_and_line(name: str, tmp_path: Path) -> None:
    whole = '{"text": "\\ud83d\\ude00 \\\\ud83d", "words": ["a"]}\n'
    (tmp_path / name).write_text(whole * 2)
    record, _ = read_records(str(tmp_path / name), WHOLE, min)
    assert record.values["text"] == "\U0001f600 \\ud83d"
    (tmp_path / name).write_text(whole + '{"text": "a", "words": ["b \\ude00"]}\n')
    with pytest.raises(InputError, match=rf"{name}:2: unpaired surrogate '\\ude00'; allowed: characters"):
        read_records(str(tmp_path / name), WHOLE, min)
    (tmp_path / name).write_text(whole + '{"text": "\\ud83d"}\n')
    with pytest.raises(InputError, match=rf"{name}:2: unpaired surrogate; allowed: a text"):
        read_sources(str(tmp_path / name), "")


@pytest.mark.parametrize(
    ("ending", "content", "options", "delimiter", "of_arrow"),
    [
        (".csv", "text;label\na, b;x\n", TableOptions(";"), ";", {}),
        (".csv", 'text\tlabel\n"a ""b""\tc"\tx\n', TableOptions(r"\t"), "\t", {}),
        (".tsv", "text|label\na\tb|x\n", TableOptions("|"), "|", {}),
        (".csv", "text,label\r\ncaf\xe9,x\r\n".encode("latin-1"), TableOptions(None, "latin-1"), ",", {}),
        (".tsv", "text\tlabel\r\n\u0a0a \u6771,x\ty\r\n".encode("utf-16"), TableOptions(None, "utf-16"), "\t", {}),
        (".csv", "good, day\nbad, night\n", TableOptions(columns="text,label"), ",", {"column_names": ["a", "b"]}),
        (
            *(".csv", 'v1,v2,,\nham,"a, b",,\nspam,c,d,e\n', TableOptions(columns="v1,v2,x,y"), ","),
            {"column_names": [*"abcd"], "skip_rows": 1},
        ),
        (".csv", '"text";"note, if any"\nc, d;x\n', TableOptions(";"), ";", {}),
        (".tsv", "Yes, no, maybe, so\tx\n", TableOptions(columns="text,label"), "\t", {"column_names": ["a", "b"]}),
    ],
)
def test_tables_of_other_forms(
    ending: str,
    content: str | bytes,
    options: TableOptions,
    delimiter: str,
    of_arrow: dict[str, Any],
    tmp_path: Path,
) -> None:
    """Separators, encodings and columns that options name, against pyarrow."""
    path = tmp_path / f"table{ending}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = [[*values.values()] for _, values in READERS[ending](path, options)]
    reading = pyarrow.csv.ReadOptions(encoding=options.encoding, **of_arrow)
    table = pyarrow.csv.read_csv(path, reading, pyarrow.csv.ParseOptions(delimiter=delimiter))
    assert rows == [[*row.values()] for row in table.to_pylist()] and rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text\tlabel\na\tx\n", r"a\.csv: line 1 has 1 tab and no comma: --delimiter '\\t' reads it"),
        ("a.csv", '"text";"label";"note, if any"\n', r"line 1 has 2 semicolons and no comma: --delimiter ';' reads it"),
        ("a.csv", "a;b;c, if any\n1;2;3\n", r"line 1 has 2 semicolons and 1 comma: --delimiter ';' reads it"),
        ("a.tsv", "text,label\na,x\n", r"a\.tsv: line 1 has 1 comma and no tab: --delimiter ',' reads it"),
        (
            "a.csv",
            "text,label\ncaf\xe9,x\n".encode("latin-1"),
            r"line 2: not UTF-8 \(byte 0xe9\), .*: --encoding cp1252",
        ),
        ("a.jsonl", '{"a": 1}\n'.encode("utf-16"), r"holds UTF-16; allowed: UTF-8 text, or --encoding utf-16"),
        ("a.csv", "a,b\n".encode("utf-16-le"), r"a NUL byte in its first line; .* or --encoding utf-16"),
        ("a.csv", "x,OTHER,OTHER\n", r"the header has OTHER more than once; --columns names those of .csv"),
        ("a.csv", 'text,label\n"a \\"b\\"",x\n', r"not CSV .* quotes are doubled"),
        (
            "a.csv",
            "v1,v2,,\na,b,c,\n",
            r"line 2: more values .*; 2 columns at the end have no name: --columns v1,v2,NAME",
        ),
    ],
)
def test_what_a_table_seems_to_be(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        list(READERS[path.suffix](path, TableOptions()))


def test_a_header_beside_columns(tmp_path: Path) -> None:
    """One of these names is left out, one of other names is a row, and one that has them elsewhere is refused."""
    path, options = tmp_path / "a.csv", TableOptions(columns="text,label")
    for header, rows in ("text,label", 1), ("text,", 1), ("\ntext,label", 1), ("v1,v2", 2):
        path.write_text(f"{header}\na,x\n")
        assert len([*READERS[".csv"](path, options)]) == rows, header
    for header in "label,text", "id,text":
        path.write_text(f"{header}\na,x\n")
        with pytest.raises(InputError, match=r"a.csv, line 1: a header that has '\w+' elsewhere than in --columns"):
            [*READERS[".csv"](path, options)]


@pytest.mark.parametrize("options", [{"delimiter": ";;"}, {"delimiter": ""}, {"encoding": "rot13"}, {"encoding": "x"}])
def test_options_of_tables_are_checked(options: dict[str, str]) -> None:
    with pytest.raises(InputError, match=f"^--{next(iter(options))} is .*; allowed: "):
        TableOptions(**options)
