"""Examples from Parquet files on this machine, behind URLs, and from a small stand-in for the Hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader, IterableDataset

from bart.errors import InputError
from utils.cli import RunError
from utils.data.tables import Reader, Table, open_split, read_split

ROOT = Path(__file__).parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StandIn(BaseHTTPRequestHandler):
    """Serves a folder's files, by name and as the set org/name of the Hub."""

    def do_GET(self) -> None:
        if not self.server.up:
            return None
        path = self.path.split("?")[0]
        files = {file.name: file for file in self.server.folder.glob("*.parquet")}
        api, resolved = "/api/datasets/org/name", f"/datasets/org/name/resolve/{COMMIT}/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            return self.answer(200, json.dumps({"id": "org/name", "sha": COMMIT, "siblings": []}).encode())
        if path == f"{api}/tree/{COMMIT}":
            tree = [
                {
                    "type": "file",
                    "path": name,
                    "size": file.stat().st_size,
                    "oid": hashlib.sha1(name.encode()).hexdigest(),
                }
                for name, file in files.items()
            ]
            return self.answer(200, json.dumps(tree).encode())
        name = path.removeprefix(resolved).removeprefix("/")
        if name not in files:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound" if "org/name" in path else "RepoNotFound"})
        data = files[name].read_bytes()
        headers = {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if "Range" not in self.headers:
            return self.answer(200, data, headers)
        self.server.ranges += 1
        begin, end = (int(number) for number in self.headers["Range"].removeprefix("bytes=").split("-"))
        headers["Content-Range"] = f"bytes {begin}-{min(end, len(data) - 1)}/{len(data)}"
        return self.answer(206, data[begin : end + 1], headers)

    do_HEAD = do_GET

    def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    server.folder, server.up, server.ranges = tmp_path, True, 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@dataclass
class Examples(IterableDataset[tuple[str, str]]):
    table: Table

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(Reader(self.table))


def write(path: Path, sources: list[object], targets: list[object], names: tuple[str, str] = ("article", "highlights")):
    pq.write_table(pa.table(dict(zip(names, (sources, targets), strict=True))), path, row_group_size=4)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Three training files of 10 examples each, and a file of a split that the Hub calls validation."""
    for file in range(3):
        numbers = range(10 * file, 10 * file + 10)
        write(tmp_path / f"train-{file}.parquet", [f"text {i}" for i in numbers], [str(i) for i in numbers])
    write(
        tmp_path / "validation-0.parquet", ["a\n b", "", "c", " \n", "d", "\ufeff e"], ["1", "2", None, "4", "5", "6"]
    )
    return str(tmp_path / "{split}-*.parquet")


def test_files_are_read_in_any_order_and_on_from_any_example(place: str) -> None:
    table = open_split(place, "train")
    order = [2, 0, 1]
    expected = [(f"text {i}", str(i)) for i in (*range(20, 30), *range(20))]
    assert list(Reader(table, order)) == expected
    for begin in (0, 1, 4, 9, 10, 11, 29, 30):
        reader = Reader(table, order)
        assert list(islice(reader, begin)) == expected[:begin]
        position = json.loads(json.dumps(reader.position()))
        again = Reader(table, order, position)
        assert again.position() == position
        assert list(again) == expected[begin:]
        assert again.count == 30


def test_texts_become_lines_and_empty_sides_are_left_out(place: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert read_split(place, "val") == (["a b", "d", "e"], ["1", "5", "6"])
    assert "3 examples of val with an empty side are left out" in caplog.text
    assert read_split(place, "val", 2) == (["a b", "d"], ["1", "5"])


def test_fields_are_found_or_named(tmp_path: Path, place: str) -> None:
    assert open_split(place, "train").fields == ("article", "highlights")
    write(tmp_path / "test-0.parquet", ["in"], ["out"], ("body", "gist"))
    with pytest.raises(InputError, match="the test split of .* has the fields body, gist: name those"):
        open_split(place, "test")
    assert read_split(place, "test", source_field="body", target_field="gist") == (["in"], ["out"])
    with pytest.raises(InputError, match="--target_field is 'jist'.*did you mean 'gist'"):
        open_split(place, "test", "body", "jist")
    write(tmp_path / "test-0.parquet", [["in"]], ["out"])
    with pytest.raises(InputError, match="the field 'article' holds List.*texts are expected"):
        open_split(place, "test")


def test_what_is_not_there_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(InputError, match=r"no files of the test split can be found.*tried .*test-\*.parquet"):
        open_split(place, "test")
    (tmp_path / "test-0.parquet").write_text("no Parquet at all")
    with pytest.raises(InputError, match="the test split cannot be opened .ArrowInvalid"):
        open_split(place, "test")
    write(tmp_path / "test-0.parquet", ["", "b"], ["a", ""])
    with pytest.raises(InputError, match="the test split has no examples"):
        read_split(place, "test")


def test_a_torn_file_is_named_where_it_is_come_to(tmp_path: Path, place: str) -> None:
    table = open_split(place, "train")
    (tmp_path / "train-1.parquet").write_bytes((tmp_path / "train-1.parquet").read_bytes()[:100])
    reader = Reader(table)
    with pytest.raises(RunError, match=r"train|split}-\*.parquet: cannot be read after 10 examples .ArrowInvalid"):
        list(reader)


def test_files_behind_a_url(place: str, server: ThreadingHTTPServer) -> None:
    url = f"http://127.0.0.1:{server.server_port}/{{split}}-0.parquet"
    assert read_split(url, "val") == (["a b", "d", "e"], ["1", "5", "6"])
    table = open_split(url, "train")
    expected = [str(i) for i in range(10)]
    assert [target for _, target in Reader(table)] == expected
    assert server.ranges > 2  # parts, not whole files
    # A loader process is a fork of one that has read from there already.
    assert [target for _, target in DataLoader(Examples(table), batch_size=None, num_workers=1)] == expected
    server.up = False
    with pytest.raises(RunError, match="split}-0.parquet: cannot be read after 0 examples"):
        list(Reader(table))
    with pytest.raises(InputError, match="no files of the train split can be found or reached; tried http.*train-0"):
        open_split(url, "train")


def test_a_set_on_the_hub(tmp_path: Path, place: str, server: ThreadingHTTPServer) -> None:
    script = """if True:
        from utils.data.tables import *
        for split in ("train", "val"):
            table = open_split("hub:org/name", split)
            print(table.name, [target for _, target in Reader(table)])
        for place, split in (("hub:org/name", "test"), ("hub:org/name:big", "val"), ("hub:org/name@old", "val"),
                             ("hub:org/other", "val")):
            try:
                open_split(place, split)
            except InputError as error:
                print(error)
    """
    # The Hub's client reads the address when it is loaded.
    address = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "home")}
    environment = {**os.environ, **address, "PYTHONPATH": str(ROOT)}
    (tmp_path / "org" / "name").mkdir(parents=True)  # is not the set
    (tmp_path / "org" / "name" / "train.csv").write_text("article,highlights\na,b\n")
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"hub:org/name@{COMMIT} {[str(i) for i in range(30)]}"
    assert lines[1] == f"hub:org/name@{COMMIT} ['1', '5', '6']"
    assert lines[2] == "hub:org/name: no test split; there are train, validation"
    assert "hub:org/name:big: the val split cannot be opened" in lines[3] and "'big' not found" in lines[3]
    assert "hub:org/name@old: the val split cannot be opened" in lines[4] and "404" in lines[4]
    assert "hub:org/other: the val split cannot be opened" in lines[5] and "Repository Not Found" in lines[5]
