"""`get_pretraining_data.sh` against a stand-in for the Hub."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bart.errors import InputError
from tests.hub_server import HubServer, ask_only, commit_of, hub_server
from utils.app.errors import RunError
from utils.corpora import get_pretraining_data
from utils.corpora.documents import Document, find_files, pieces_of, read_documents

FILES, ROWS = 3, 40  # of a set, and of each of its files


def text_of(number: int) -> str:
    return f"Article {number}.\n\nIt goes on."


def table(start: int, column: str) -> bytes:
    data = io.BytesIO()
    texts: list[str | None] = [text_of(number) for number in range(start, start + ROWS)]
    texts[3] = None
    parquet.write_table(pa.table({"title": ["x"] * ROWS, column: texts, "pages": [7] * ROWS}), data, row_group_size=7)
    return data.getvalue()


def repository(column: str, prefix: str = "data/train") -> dict[str, bytes]:
    return {f"{prefix}-{n:05d}-of-{FILES:05d}.parquet": table(n * ROWS, column) for n in range(FILES)}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with hub_server() as server:
        config = b"---\nconfigs:\n- config_name: 20231101.en\n  data_files: 20231101.en/*\n---\n"
        server.repositories = {
            "wikimedia/wikipedia": {"main": repository("text", "20231101.en/train") | {"README.md": config}},
            "sedthh/gutenberg_english": {"main": repository("TEXT")},
            "own/corpus": {"main": {}, "v1": repository("body")},
        }
        ask_only(server, monkeypatch, tmp_path / "home")
        yield server


def run(folder: Path, *words: object) -> dict[str, dict[str, Any]]:
    """Run the command line; returns set -> provenance."""
    get_pretraining_data.main([str(folder), *map(str, words)])
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/provenance.json")}


def texts_in(folder: Path) -> list[str | None]:
    files = sorted(folder.glob("*.parquet"))
    return [text for path in files for text in parquet.read_table(path)["text"].to_pylist()]


def expected(count: int) -> list[str | None]:
    return [None if number % ROWS == 3 else text_of(number) for number in range(count)]


def test_sets_are_written_as_one_column_of_text(server: HubServer, tmp_path: Path) -> None:
    made = run(tmp_path, "wikipedia", "books")
    for name, place in (("wikipedia", "wikimedia/wikipedia:20231101.en"), ("books", "sedthh/gutenberg_english")):
        assert texts_in(tmp_path / name) == expected(FILES * ROWS)
        assert made[name]["from"] == f"{place}@{commit_of('main')}"
        assert made[name]["documents"] == FILES * ROWS
        names = {path.name for path in (tmp_path / name).iterdir()}
        assert names == {".lock", "provenance.json", *(f"{n:05d}-of-00003.parquet" for n in range(3))}
    piece, *_ = pieces_of(*find_files("input", [str(tmp_path / "books/00000-of-00003.parquet")]))
    assert next(read_documents(piece, "text")) == Document(["Article 0.", "It goes on."])


def test_any_set_of_the_hub(server: HubServer, tmp_path: Path) -> None:
    made = run(tmp_path, "own/corpus@v1", "--text_field", "body", "--max_documents", 50)
    assert made["own-corpus@v1"]["from"] == f"own/corpus@{commit_of('v1')}"
    assert texts_in(tmp_path / "own-corpus@v1") == expected(50)


def test_a_run_goes_on_with_the_same_commit(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(get_pretraining_data, "GROUP", 300)
    original = get_pretraining_data._read

    def lost(texts: Any, name: str) -> Iterator[Any]:
        for text in original(texts, name):
            if text == text_of(ROWS + 20):
                raise RunError("the line is cut")
            yield text

    with monkeypatch.context() as patch, pytest.raises(RunError):
        patch.setattr(get_pretraining_data, "_read", lost)
        run(tmp_path, "books")
    assert texts_in(tmp_path / "books") == expected(ROWS)
    first = tmp_path / "books/00000-of-00003.parquet"
    before = first.stat().st_mtime_ns
    leftover = tmp_path / "books/.00001-of-00003.parquet.host.123.tmp"  # of a run that was killed
    leftover.touch()
    # The branch moves, and what it was stays under its commit.
    of_books = server.repositories["sedthh/gutenberg_english"]
    of_books[commit_of("main")] = of_books.pop("main")
    get_pretraining_data.load_from_hub.cache_clear()
    assert run(tmp_path, "books")["books"]["from"].endswith(commit_of("main"))
    assert texts_in(tmp_path / "books") == expected(FILES * ROWS)
    assert first.stat().st_mtime_ns == before
    assert not leftover.exists()
    server.repositories.clear()
    capsys.readouterr()
    run(tmp_path, "books")
    assert capsys.readouterr().out == f"{tmp_path}/books: is there already\n"
    with pytest.raises(InputError, match="made otherwise .its max_documents is None, this run's is 9.: move it"):
        run(tmp_path, "books", "--max_documents", 9)


def test_a_lost_connection_is_one_line(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: object, **__: object) -> Iterator[Any]:
        yield {"text": "a"}
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("datasets.IterableDataset.shard", cut)
    with pytest.raises(RunError, match="books: cannot be read any further .no route to host.; the same"):
        run(tmp_path, "books")
    assert texts_in(tmp_path / "books") == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["books", "wikipeda"], "'wikipeda' is no set; allowed: wikipedia, cc_news, openwebtext, books, NAME"),
        (["cc_news"], "vblagoje/cc_news on the Hub cannot be opened"),
        (["own/corpus@v1"], "own/corpus@.*: no text column; name one with --text_field .columns: body, title;"),
        (["own/corpus@v1", "--text_field", "pages"], "--text_field is .pages.; allowed: body, title"),
        (["taken/files"], "taken-files holds other files, and is not overwritten"),
    ],
)
def test_bad_input(words: list[str], message: str, server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "taken-files").mkdir()
    (tmp_path / "taken-files/x").touch()
    with pytest.raises(InputError, match=message):
        run(tmp_path, *words)
    assert not (tmp_path / "books").exists()
