from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bart.errors import InputError
from utils.data.records import read_sources

SOURCES = ["A cat, old.", "Two\u2028dogs.", "Men ran."]


def test_sources_without_targets_lie_in_files_of_many_kinds(tmp_path: Path) -> None:
    (tmp_path / "test.source").write_text("".join(f"{line}\n" for line in SOURCES))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": 1, "article": line}) + "\n" for line in SOURCES))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("body", "text"), *((f"not {line}", line) for line in SOURCES)])
    pq.write_table(pa.table({"id": [1, 2, 3], "document": SOURCES}), tmp_path / "a-test.parquet")
    with gzip.open(tmp_path / "texts.txt.gz", "wt") as file:
        file.write((tmp_path / "test.source").read_text())
    names = ("", "test.source", "texts.txt.gz", "a.jsonl", "a.csv", "a-test.parquet", "a-{split}.parquet")
    for name in names:
        assert read_sources(f"{tmp_path}/{name}", "test") == SOURCES, name
        assert read_sources(f"{tmp_path}/{name}", "test", 2) == SOURCES[:2], name
    assert read_sources(f"{tmp_path}/a.csv", "test", 1, "body") == ["not A cat, old."]
    (tmp_path / "b.jsonl").write_text('{"article": "A cat."}\n{"article": " "}\n')
    (tmp_path / "c.jsonl").write_text('{"body": "A cat."}\n')
    (tmp_path / "d.jsonl").write_text("\n")
    (tmp_path / "e.csv").write_text("text,id,text,,\na,1,b,,\n")
    for name, message in (
        ("b.jsonl", "b.jsonl:2: empty source; a document is expected in every row"),
        ("c.jsonl", "has the fields body: name those of documents by --source_field"),
        ("d.jsonl", "d.jsonl: has no rows"),
        ("e.csv", "e.csv: the header names text more than once; allowed: each column once"),
        ("absent.jsonl", r"^/.*/absent.jsonl: no such file"),
        ("absent.parquet", r"^/.*/absent.parquet cannot be opened \(FileNotFoundError"),
        ("absent", "absent: no such file"),
    ):
        with pytest.raises(InputError, match=message):
            read_sources(f"{tmp_path}/{name}", "test")
