"""Pairs of texts and documents from tables, from Parquet files behind URLs, and from a stand-in for the Hub."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bart.errors import InputError
from tests.hub_server import HubServer, ask_only, hub_server
from utils.corpora.prepare import prepared
from utils.data.columns import InputOptions
from utils.data.splits import EVERY, Choice
from utils.data.tables import Row, read_pairs, read_records, read_sources

PAIR = ("article", "highlights")
SOURCES = ["A cat, old.", "Two\u2028dogs.", "Men ran."]
ANY = (None, None)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.DOWNLOADED_DATASETS_PATH", str(tmp_path / "downloads"))
    with hub_server() as server:
        yield server


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Three training files of 10 examples each, and a file of a split that is called validation."""
    (tmp_path / "files").mkdir()
    columns = {f"train-{n}": ([f"text {n}{i}" for i in range(10)], [f"{n}{i}" for i in range(10)]) for n in range(3)}
    columns["validation-0"] = ["a\n b", "", "c", " \n", "d", "\ufeff e"], ["1", "2", None, "4", "5", "6"]
    for name, texts in columns.items():
        table = pa.table(dict(zip(PAIR, texts, strict=True)))
        pq.write_table(table, tmp_path / "files" / f"{name}.parquet", row_group_size=4)
    return str(tmp_path / "files" / "{split}-*.parquet")


def check(folder: str) -> None:
    """The data directory of what `place` writes."""
    assert read_pairs(folder, "train") == ([f"text {i:02}" for i in range(30)], [f"{i:02}" for i in range(30)])
    assert read_pairs(folder, "val") == (["a b", "d", "e"], ["1", "5", "6"])
    reasons = [json.loads(line)["reason"] for line in (Path(folder) / "dropped.jsonl").read_text().splitlines()]
    assert reasons == ["empty source", "highlights is null", "empty source"]


def test_parquet_files_become_a_data_directory_once(place: str, tmp_path: Path, server: HubServer) -> None:
    """By path, and behind a URL, where they are downloaded once."""
    folder = prepared(place, ANY)
    check(folder)
    assert Path(folder).is_relative_to(tmp_path / "files" / ".cache") and prepared(place, ANY) == folder
    assert Path(prepared(place, ANY, str(tmp_path / "mine"))).is_relative_to(tmp_path / "mine")
    server.files = {f"/{path.name}": path.read_bytes() for path in (tmp_path / "files").glob("*.parquet")}
    url = f"{server.url}/{{split}}-0.parquet"
    folder = prepared(url, ANY)
    assert read_pairs(folder, "train")[1] == [f"{i:02}" for i in range(10)]
    assert Path(folder).is_relative_to(tmp_path / "cache")
    assert prepared(url, ANY) == folder
    assert [record.values["highlights"] for record in read_records(url, "val", min)] == ["1", "2", None, "4", "5", "6"]
    assert (
        len([path for path in (tmp_path / "downloads").iterdir() if path.suffix not in (".json", ".lock")]) == 2
    )  # train and validation
    server.files["/train-0.parquet"] = server.files["/train-1.parquet"]
    assert read_pairs(prepared(url, ANY), "train")[1] == [f"1{i}" for i in range(10)]
    server.status = 404
    with pytest.raises(InputError, match="no files of the train split can be found or reached; tried http.*train-0"):
        prepared(url, ANY)


def test_a_set_on_the_hub(tmp_path: Path, place: str, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path.name: path.read_bytes() for path in (tmp_path / "files").glob("*.parquet")}
    server.repositories = {"org/name": {"main": files}}
    ask_only(server, monkeypatch, tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)  # a folder of the same name is not meant
    (tmp_path / "org" / "name" / "train.csv").write_text("article,highlights\na,b\n")
    folder = prepared("hub:org/name", ANY)
    check(folder)
    asked = len([path for path in server.requests if path.endswith(".parquet")])
    assert prepared("hub:org/name", ANY) == folder
    assert len([path for path in server.requests if path.endswith(".parquet")]) == asked
    assert read_sources("hub:org/name", "val") == ["a b", "c", "d", "e"]
    many = {f"{name}-0.parquet": files[f"train-{i}.parquet"] for i, name in enumerate(("val", "validation", "dev"))}
    configs = "".join(f"  - split: {split}\n    path: {split}-0.parquet\n" for split in ("val", "validation", "dev"))
    many["README.md"] = f"---\nconfigs:\n- config_name: default\n  data_files:\n{configs}---\n".encode()
    server.repositories["org/many"] = {"main": many}
    assert read_sources("hub:org/many", "val")[0] == "text 00"  # of several, the first name counts
    for wrong, split, message in (
        ("hub:org/name", "test", "hub:org/name: no test split; there are train, val"),
        ("hub:org/name:big", "val", "the val split of hub:org/name:big cannot be opened .*'big' not found"),
        ("hub:org/name@old", "val", "the val split of hub:org/name@old cannot be opened .*404"),
        ("hub:org/other", "val", "the val split of hub:org/other cannot be opened .*Repository Not Found"),
        ("hub:", "val", "'' names no set on the Hub; allowed: hub:NAME"),
    ):
        with pytest.raises(InputError, match=message):
            read_records(wrong, split, min)
    with pytest.raises(InputError, match="--data_dir hub:org/other cannot be opened .*Repository Not Found"):
        prepared("hub:org/other", ANY)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a": " one\r\n line ", "b": "two"}, Row("7", "one line", "two")),
        ({"a": None, "b": "two"}, Row("7", fault="a is null")),
        ({"a": "one", "b": 3}, Row("7", fault="b is no text")),
        ({"a": "one"}, Row("7", fault="no field b")),
        ({"a": "one", "b": " \ufeff "}, Row("7", fault="empty target")),
        ({"a": "", "b": None}, Row("7", fault="empty source")),
        ({"a": ["a  b\n", "c"], "b": "two"}, Row("7", "a  b c", "two")),
        ({"a": "[1, 2]", "b": "two"}, Row("7", "[1, 2]", "two")),
        ({"a": "[sic] so [it is]", "b": "two"}, Row("7", "[sic] so [it is]", "two")),
    ],
)
def test_a_row_is_a_pair_of_texts_or_says_why_not(values: dict[str, Any], expected: Row) -> None:
    assert Row.of("7", values, ("a", "b")) == expected


def test_a_list_in_a_text_is_refused() -> None:
    """Lists are those of .jsonl and .parquet alone."""
    for values in {"a": '["one", "it\'s"]', "b": "two"}, {"a": "one", "b": '["two", "three"]'}:
        with pytest.raises(InputError, match=r"^7: '\[.*\]' is a list in a text; allowed: a list in .jsonl"):
            Row.of("7", values, ("a", "b"))


@pytest.mark.parametrize(("value", "is_blank"), [(None, True), (" ", True), (3, False), ("one", False)])
def test_a_row_is_blank_by_its_text_whatever_its_column_is_called(value: Any, is_blank: bool) -> None:
    assert Row.of("7", {"empty": value}, ("empty",)).is_blank is is_blank


def test_sources_without_targets_lie_in_files_of_many_kinds(tmp_path: Path) -> None:
    (tmp_path / "test.source").write_text("".join(f"{line}\n" for line in SOURCES))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": 1, "article": line}) + "\n" for line in SOURCES))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("body", "text"), *((f"not {line}", line) for line in SOURCES)])
    pq.write_table(pa.table({"id": [1, 2, 3], "document": SOURCES}), tmp_path / "a-test.parquet")
    with gzip.open(tmp_path / "texts.txt.gz", "wt") as file:
        file.write((tmp_path / "test.source").read_text())
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/test.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    names = ("", "tables", "test.source", "texts.txt.gz", "a.jsonl", "a.csv", "a-test.parquet", "a-{split}.parquet")
    for name in names:
        assert read_sources(f"{tmp_path}/{name}", "test") == SOURCES, name
        drawn = read_sources(f"{tmp_path}/{name}", "test", Choice(limit=2))
        assert drawn == [source for source in SOURCES if source in drawn] and len(drawn) == 2, name
    assert read_sources(f"{tmp_path}/a.csv", "test", EVERY, "body") == [f"not {line}" for line in SOURCES]
    (tmp_path / "b.jsonl").write_text('{"article": "A cat."}\n{"article": " "}\n')
    assert read_sources(f"{tmp_path}/b.jsonl", "test", Choice(tables=InputOptions(skip_blank=True))) == ["A cat."]
    (tmp_path / "ragged.csv").write_text("article,highlights\na,b\nc\n")
    assert read_sources(f"{tmp_path}/ragged.csv", "test") == ["a", "c"]  # only documents are read
    read, write = os.pipe()
    os.write(write, b"A cat.\n")
    os.close(write)
    assert read_sources(f"/dev/fd/{read}", "test") == ["A cat."]
    os.close(read)
    (tmp_path / "c.jsonl").write_text('{"body": "A cat."}\n')
    (tmp_path / "d.jsonl").write_text("\n")
    for name, message in (
        ("b.jsonl", r"b.jsonl:2: empty source; .* \(1 of 2 are blank: .*; --skip_blank goes on without them"),
        ("c.jsonl", r"no source column; name one with --source_field \(columns: body; usual: article, document, "),
        ("d.jsonl", "d.jsonl: has no rows"),
        ("absent.jsonl", r"^/.*/absent.jsonl: no such file"),
        ("absent.parquet", r"^/.*/absent.parquet: no such file"),
        ("absent", "absent: no such file"),
    ):
        with pytest.raises(InputError, match=message):
            read_sources(f"{tmp_path}/{name}", "test")
    with pytest.raises(InputError, match="/val.source: no such file, and no table of the val split beside it"):
        read_sources(str(tmp_path), "val")
