from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from bart.errors import InputError
from utils.corpora import documents
from utils.corpora.documents import NEAR_EMPTY, NOT_JSON, NOT_UTF8, Document, find_files, pieces_of, read_documents

MISSING = "no text in the field text"


def read(path: Path, field: str = "text") -> list[Document]:
    [file] = find_files("input", [str(path)])
    return [document for piece in pieces_of(documents.measured(file)[0]) for document in read_documents(piece, field)]


def texts(*paragraphs: list[str]) -> list[Document]:
    return [Document(each) for each in paragraphs]


def write_lines(path: Path) -> Path:
    rows = [{"text": f"Row {number}.\nMore\u2028of it."} for number in range(30)]
    lines = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    faulty = [b"", b'{"text": 3}', b'{"body": "x"}', b"[]", b"{", b'{"text": "\xff"}', b'{"text": "\\ud800"}']
    path.write_bytes(b"\n".join([*lines, *faulty, b'{"text": " \\n "}']))
    return path


def test_documents_of_text_are_between_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffOne\t two. \r\n Three\u2028four.\r\n \t\r\n\nFive.".encode())
    assert read(path) == texts(["One two.", "Three four."], ["Five."])
    path.write_bytes(b"Good.\n\nB\xe4d.\n\nGood.\n")
    assert read(path) == [Document(["Good."]), Document([], NOT_UTF8), Document(["Good."])]
    path.write_text("A line.\n\u3000\nOne after a line that looks empty.")  # it ends no document, nor joins its lines
    assert read(path) == texts(["A line.", "One after a line that looks empty."])
    path.write_bytes(b"")
    assert read(path) == []


def test_json_lines(tmp_path: Path) -> None:
    documents_read = read(write_lines(tmp_path / "a.jsonl"))
    assert documents_read[:30] == texts(*([f"Row {number}.", "More of it."] for number in range(30)))
    faults = [MISSING, MISSING, MISSING, NOT_JSON, NOT_UTF8, NOT_UTF8, NEAR_EMPTY]
    assert [document.fault for document in documents_read[30:]] == faults


def test_paragraphs_of_a_field(tmp_path: Path) -> None:
    wrapped = "\r\n\r\nIt is a\r\nlong line.\r\n \t\r\n\r\nThe next\n one.\n\n"
    rows = [wrapped, "One.\nTwo.\n", "\n\nOne.\nTwo.", "One.\n\n\n\nTwo."]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    assert read(tmp_path / "a.jsonl") == texts(["It is a long line.", "The next one."], *[["One.", "Two."]] * 3)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    values = [f"Row {number}.\n\nMore." for number in range(200)]
    faulty = pa.array([b"a\xff", b"b"], pa.binary()).cast(pa.large_binary()).view(pa.large_string())
    columns = [pa.array([*values, None], kind), faulty.cast(kind, safe=False) if kind == pa.large_string() else faulty]
    for number, column in enumerate(columns):
        parquet.write_table(pa.table({"id": range(len(column)), "text": column}), tmp_path / f"{number}.parquet", 7)
    whole = texts(*([f"Row {number}.", "More."] for number in range(200)))
    assert read(tmp_path / "0.parquet") == [*whole, Document([], MISSING)]
    assert read(tmp_path / "1.parquet") == [Document([], NOT_UTF8), Document(["b"])]
    with pytest.raises(InputError, match="--text_field is 'body'; .*0.parquet has the fields id, text"):
        read(tmp_path / "0.parquet", "body")
    with pytest.raises(InputError, match="the field 'id' holds int64; texts are expected"):
        read(tmp_path / "0.parquet", "id")


@pytest.mark.parametrize("size", [1, 7, 100])
def test_pieces_together_hold_each_document_once(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "a.txt"
    ends = ["\n", "\r\n", " \t\n"]
    whole = "".join(f"Döcument {n}.\r\nIt 行く{' on' * (n % 7)}.\n{ends[n % 3] * (n % 4 + 1)}" for n in range(20))
    text.write_text(whole, encoding="utf-8", newline="")
    table = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"Row {n}." for n in range(99)]}), table, 10)
    files = [text, write_lines(tmp_path / "a.jsonl"), table]
    for path in files[:2]:
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()[:99]) + gzip.compress(path.read_bytes()[99:]))
        assert read(packed) == read(path)
        files.append(packed)
    whole = [read(path) for path in files]
    monkeypatch.setattr(documents, "PIECE", size)
    assert [read(path) for path in files] == whole
    assert all(len(pieces_of(documents.measured(file)[0])) > 1 for file in find_files("input", [*map(str, files)]))


def found(*places: Path) -> list[Path]:
    return [Path(file.place) for file in find_files("input", [*map(str, places)])]


def test_files_of_folders_in_order_of_their_paths(tmp_path: Path) -> None:
    """Also of folders behind links, each once; a link that leads nowhere is no text that is left out without a word."""
    for name in ("b/2.txt", "b/1.JSONL.gz", "a.parquet", "README.md", ".hidden/x.txt", "b/.y.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    expected = [tmp_path / name for name in ("a.parquet", "b/1.JSONL.gz", "b/2.txt")]
    assert found(tmp_path / "b", tmp_path, tmp_path / "b/2.txt") == expected
    (tmp_path / "links").mkdir()
    for link, target in (("a", "b"), ("again", "b"), ("loop", "links"), ("of_file.txt", "b/2.txt")):
        (tmp_path / "links" / link).symlink_to(tmp_path / target)
    names = ["a/1.JSONL.gz", "a/2.txt", "of_file.txt"]
    assert found(tmp_path / "links") == [tmp_path / "links" / name for name in names]
    (tmp_path / "hash").touch()  # as the Hub's cache names the file behind a link
    (tmp_path / "links/of_hash.txt").symlink_to(tmp_path / "hash")
    assert found(tmp_path / "links/of_hash.txt") == [tmp_path / "links/of_hash.txt"]
    (tmp_path / "links/gone.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match="--input .*links: cannot be read .*gone.txt"):
        find_files("input", [str(tmp_path / "links")])


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "--input .*nowhere: no such file or folder"),
        ("a.md", r"a\.md: not a known kind of file; allowed: \.txt, \.txt\.gz, \.jsonl, .*\.parquet, folders"),
        ("empty", r"empty: no file there ends in \.txt"),
    ],
)
def test_no_files(place: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.md").touch()
    with pytest.raises(InputError, match=message):
        find_files("input", [str(tmp_path / place)])


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.parquet"])
def test_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(bytes(range(256)) * 9)[:-9] if name.endswith("gz") else b"PAR1 PAR1")
    with pytest.raises(InputError, match=f"{name}: cannot be read"):
        read(tmp_path / name)
