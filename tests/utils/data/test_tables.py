"""Examples from Parquet files on this machine and behind URLs, and from a stand-in for the Hub."""

from __future__ import annotations

import csv
import gc
import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader, IterableDataset

from bart.errors import InputError
from tests.hub_server import HubServer, ask_only, commit_of, hub_server
from utils.app.errors import RunError
from utils.data.places import check_fields, is_streamed
from utils.data.splits import EVERY, Choice
from utils.data.tables import Row, Table, TableReader, open_files, open_split, read_sources, read_split

PAIR = ("article", "highlights")
SOURCES = ["A cat, old.", "Two\u2028dogs.", "Men ran."]


@pytest.fixture
def server() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


def write(path: Path, sources: list[Any], targets: list[Any], names: tuple[str, str] = PAIR, **more: Any) -> None:
    columns = dict(zip(names, (sources, targets), strict=True)) | more
    pq.write_table(pa.table(columns), path, row_group_size=4)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Three training files of 10 examples each, and a file of a split that is called validation."""
    for file in range(3):
        numbers = range(10 * file, 10 * file + 10)
        write(tmp_path / f"train-{file}.parquet", [f"text {i}" for i in numbers], [str(i) for i in numbers])
    sources = ["a\n b", "", "c", " \n", "d", "\ufeff e"]
    write(tmp_path / "validation-0.parquet", sources, ["1", "2", None, "4", "5", "6"])
    return str(tmp_path / "{split}-*.parquet")


def test_files_are_read_in_any_order_and_from_any_position(place: str) -> None:
    table = open_split(place, "train")
    order = [2, 0, 1]
    expected = [(f"text {i}", str(i)) for i in (*range(20, 30), *range(20))]
    assert list(TableReader(table, order)) == expected
    for begin in (0, 1, 4, 9, 10, 11, 29, 30):
        reader = TableReader(table, order)
        assert list(islice(reader, begin)) == expected[:begin]
        position = json.loads(json.dumps(reader.position()))
        again = TableReader(table, order, position)
        assert again.position() == position
        assert list(again) == expected[begin:]
        assert again.count == 30


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
        ({"a": json.dumps(["a  b\n", "it's"]), "b": "two"}, Row("7", "a  b it's", "two")),
        ({"a": "[]", "b": "two"}, Row("7", fault="empty source")),
        ({"a": '["a", null]', "b": "two"}, Row("7", fault="a is no text")),
        ({"a": "[1, 2]", "b": "two"}, Row("7", "[1, 2]", "two")),
        ({"a": "[sic] so [it is]", "b": "two"}, Row("7", "[sic] so [it is]", "two")),
    ],
)
def test_a_row_is_a_pair_of_texts_or_says_why_not(values: dict[str, Any], expected: Row) -> None:
    assert Row.of("7", values, ("a", "b")) == expected


@pytest.mark.parametrize(
    "values", [{"a": str(["one", "it's"]), "b": "two"}, {"a": "one", "b": str(np.array(["a", "b"]))}]
)
def test_lists_that_python_printed_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="^7: .* is a list as Python or numpy prints it; allowed: a list in JSON"):
        Row.of("7", values, ("a", "b"))


def test_rows_that_are_no_examples_are_left_out_and_counted(place: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert read_split(place, "val") == (["a b", "d", "e"], ["1", "5", "6"])
    assert "3 rows of the val split are no examples and are left out" in caplog.text
    assert read_split(place, "val", Choice(limit=2))[0] in (["a b", "d"], ["a b", "e"], ["d", "e"])
    reader = TableReader(open_split(place, "val"))
    faults = {row.name: row.fault for row in reader.rows() if row.fault}
    assert faults == {"2": "empty source", "3": "highlights is null", "4": "empty source"}
    assert (reader.count, reader.left_out) == (3, 3)


def test_rows_of_a_set_that_declares_no_types_follow_the_same_rule() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from ({"text": text, "summary": "s"} for text in (None, 3, "t"))

    table = Table(datasets.IterableDataset.from_generator(rows), ("text", "summary"), "made up")
    assert list(TableReader(table).rows()) == [
        Row("1", fault="text is null"),
        Row("2", fault="text is no text"),
        Row("3", "t", "s"),
    ]


def test_a_fault_of_the_program_is_no_fault_of_the_data(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Row, "of", lambda *_: {}["a fault"])
    with pytest.raises(KeyError, match="a fault"):
        list(TableReader(open_split(place, "train")))


def test_fields_are_found_or_named(tmp_path: Path, place: str) -> None:
    assert open_split(place, "train").fields == PAIR
    write(tmp_path / "test-0.parquet", ["in"], ["out"], ("body", "gist"))
    with pytest.raises(InputError, match=r"test-0.parquet has the fields body, gist: name those"):
        open_split(place, "test")
    assert read_split(place, "test", fields=("body", "gist")) == (["in"], ["out"])
    with pytest.raises(InputError, match="--target_field is 'jist'.*did you mean 'gist'"):
        open_split(place, "test", ("body", "jist"))


@pytest.mark.parametrize("sources", [[["in"]], [3]])
def test_columns_of_all_files_must_hold_texts(tmp_path: Path, place: str, sources: list[Any]) -> None:
    write(tmp_path / "train-2.parquet", sources, ["out"])
    with pytest.raises(InputError, match=r"train-2.parquet: the field 'article' holds .*texts are expected"):
        open_split(place, "train")


def test_what_is_missing_or_malformed_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(InputError, match=r"no files of the test split can be found.*tried .*test-\*.parquet"):
        open_split(place, "test")
    (tmp_path / "test-0.parquet").write_text("no Parquet at all")
    with pytest.raises(InputError, match="the test split of .* cannot be opened .ArrowInvalid"):
        open_split(place, "test")
    write(tmp_path / "test-0.parquet", ["", "b"], ["a", ""])
    with pytest.raises(InputError, match="the test split has no examples"):
        read_split(place, "test")
    with pytest.raises(InputError, match="'hub:' names no set on the Hub; allowed: hub:NAME"):
        is_streamed("hub:")
    with pytest.raises(
        InputError, match="--source_field is body, a column of a table; the data directory is data/mine"
    ):
        check_fields("data/mine", source_field="body", target_field=None)


def test_a_torn_file_is_an_error_when_it_is_reached(tmp_path: Path, place: str) -> None:
    table = open_split(place, "train")
    (tmp_path / "train-1.parquet").write_bytes((tmp_path / "train-1.parquet").read_bytes()[:100])
    with pytest.raises(RunError, match=r"split}-\*.parquet: cannot be read after 10 examples .ArrowInvalid"):
        list(TableReader(table))


def test_names_of_files_are_no_patterns(tmp_path: Path, place: str) -> None:
    path = tmp_path / "a[1]*.parquet"
    shutil.copy(tmp_path / "train-0.parquet", path)
    assert len(list(TableReader(open_files([str(path)], "name")))) == 10


def test_the_identity_is_that_of_the_content(tmp_path: Path, place: str) -> None:
    first = open_split(place, "train").identity
    assert json.loads(json.dumps(first)) == first
    assert first == {"data": place, "fields": list(PAIR), "files": 3, "digest": first["digest"]}
    path = tmp_path / "train-1.parquet"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)  # the same bytes in another file
    assert open_split(place, "train").identity == first
    # As many files and rows of the same names and lengths, but other texts.
    write(path, [f"next {i}" for i in range(10, 20)], [str(i) for i in range(10, 20)])
    changed = open_split(place, "train").identity
    assert changed["digest"] != first["digest"] and changed | {"digest": ""} == first | {"digest": ""}


@dataclass
class Examples(IterableDataset[tuple[str, str]]):
    table: Table

    def __iter__(self) -> Iterator[tuple[str, str]]:
        yield from TableReader(self.table)
        gc.collect()  # what the parent process has left must not be touched


def test_files_behind_a_url(tmp_path: Path, place: str, server: HubServer) -> None:
    server.files = {f"/{path.name}": path.read_bytes() for path in tmp_path.glob("*.parquet")}
    url = f"{server.url}/{{split}}-0.parquet"
    assert read_split(url, "val") == (["a b", "d", "e"], ["1", "5", "6"])
    table = open_split(url, "train")
    expected = [str(i) for i in range(10)]
    assert [target for _, target in TableReader(table)] == expected
    assert server.ranges > 2  # parts of files
    # A loader process is a fork of one that has read from the server already.
    assert [target for _, target in DataLoader(Examples(table), batch_size=None, num_workers=1)] == expected
    server.status = 404
    with pytest.raises(RunError, match="split}-0.parquet: cannot be read after 0 examples"):
        list(TableReader(table))
    with pytest.raises(InputError, match="no files of the train split can be found or reached; tried http.*train-0"):
        open_split(url, "train")


@pytest.mark.parametrize("tagged", [True, False])
def test_the_identity_behind_a_url_is_that_of_the_etag_or_the_size(
    tmp_path: Path, place: str, server: HubServer, tagged: bool
) -> None:
    server.tagged = tagged
    path, url = tmp_path / "train-0.parquet", f"{server.url}/{{split}}.parquet"
    server.files = {"/train.parquet": path.read_bytes()}
    first = open_split(url, "train").identity
    assert open_split(url, "train").identity == first
    write(path, [f"next {i}" for i in range(10)], [str(i) for i in range(10)])
    assert path.stat().st_size == len(server.files["/train.parquet"])
    server.files = {"/train.parquet": path.read_bytes()}
    assert (open_split(url, "train").identity == first) is not tagged  # a server may tell no more than the size
    write(path, [f"longer text {i}" for i in range(10)], [str(i) for i in range(10)])
    server.files = {"/train.parquet": path.read_bytes()}
    assert open_split(url, "train").identity != first


def test_a_set_on_the_hub(tmp_path: Path, place: str, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")}
    server.repositories = {"org/name": {"main": files}}
    ask_only(server, monkeypatch, tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)  # a folder of the same name is not meant
    (tmp_path / "org" / "name" / "train.csv").write_text("article,highlights\na,b\n")
    train, val = (open_split("hub:org/name", split) for split in ("train", "val"))
    name = f"hub:org/name@{commit_of('main')}"
    assert train.identity == {"data": name, "fields": list(PAIR), "files": 3, "digest": ""}
    assert [target for _, target in TableReader(train)] == [str(i) for i in range(30)]
    assert [target for _, target in TableReader(val)] == ["1", "5", "6"]
    many = {f"{name}-0.parquet": files[f"train-{i}.parquet"] for i, name in enumerate(("val", "validation", "dev"))}
    configs = "".join(f"  - split: {split}\n    path: {split}-0.parquet\n" for split in ("val", "validation", "dev"))
    many["README.md"] = f"---\nconfigs:\n- config_name: default\n  data_files:\n{configs}---\n".encode()
    server.repositories["org/many"] = {"main": many}
    assert next(iter(TableReader(open_split("hub:org/many", "val")))) == (
        "text 0",
        "0",
    )  # of several, the first name counts
    for wrong, split, message in (
        ("hub:org/name", "test", "hub:org/name: no test split; there are train, val"),
        ("hub:org/name:big", "val", "the val split of hub:org/name:big cannot be opened .*'big' not found"),
        ("hub:org/name@old", "val", "the val split of hub:org/name@old cannot be opened .*404"),
        ("hub:org/other", "val", "the val split of hub:org/other cannot be opened .*Repository Not Found"),
    ):
        with pytest.raises(InputError, match=message):
            open_split(wrong, split)


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
    (tmp_path / "c.jsonl").write_text('{"body": "A cat."}\n')
    (tmp_path / "d.jsonl").write_text("\n")
    (tmp_path / "e.csv").write_text("text,id,text,,\na,1,b,,\n")
    pq.write_table(pa.table([["a"], ["b"]], ["text", "text"]), tmp_path / "f.parquet")
    for name, message in (
        ("b.jsonl", "b.jsonl:2: empty source; a document is expected in every row"),
        ("c.jsonl", "has the fields body: name those of documents by --source_field"),
        ("d.jsonl", "d.jsonl: has no rows"),
        ("e.csv", "e.csv: the header has text more than once; allowed: each column once"),
        ("f.parquet", "f.parquet: the header has text more than once; allowed: each column once"),
        ("absent.jsonl", r"^/.*/absent.jsonl: no such file"),
        ("absent.parquet", r"^/.*/absent.parquet cannot be opened \(FileNotFoundError"),
        ("absent", "absent: no such file"),
    ):
        with pytest.raises(InputError, match=message):
            read_sources(f"{tmp_path}/{name}", "test")
