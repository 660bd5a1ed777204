from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bart.errors import InputError
from utils.data.splits import Choice
from utils.data.tables import one_line, read_pairs
from utils.text.lines import iter_lines


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    odd = "one\u2028still one\x0b\x0c\x1c\x1d\x1e\x85\u2029"
    path.write_bytes(f"{odd}\ntwo\r\nthree".encode())
    assert list(iter_lines(path)) == [odd, "two", "three"]
    path.write_bytes(b"\xef\xbb\xbfwith a byte order mark\nand an end\n")
    assert list(iter_lines(path)) == ["with a byte order mark", "and an end"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xef\xbb\xbf", "empty"),
        (b"one\n \t\nthree\n", "line 2: blank"),
        (b"one\ntwo\n\n", "line 3: blank"),
        (b"one\ntwo\nth\xffree\n", "line 3: not UTF-8.*0xff"),
    ],
)
def test_bad_files_are_errors_that_name_file_and_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.source"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"train\.source.*{message}"):
        list(iter_lines(path))


def test_pairs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere.*no such directory"):
        read_pairs(tmp_path / "nowhere", "train")
    (tmp_path / "val.source").write_text("a\nb\nc\n")
    with pytest.raises(InputError, match=r"val\.target: no such file"):
        read_pairs(tmp_path, "val")
    for lines in (2, 4):
        (tmp_path / "val.target").write_text("x\n" * lines)
        with pytest.raises(InputError, match=rf"val\.source has 3 lines.*val\.target has {lines}"):
            read_pairs(tmp_path, "val", Choice(limit=1))
    (tmp_path / "val.target").write_text("x\n[]\nz\n")
    with pytest.raises(InputError, match=r"val\.target, line 2: the target '\[\]' is a list"):
        read_pairs(tmp_path, "val")
    (tmp_path / "val.target").write_text("x\ny\nz\n")
    assert read_pairs(tmp_path, "val") == (["a", "b", "c"], ["x", "y", "z"])
    assert read_pairs(tmp_path, "val", Choice(limit=2)) in [
        (["a", "b"], ["x", "y"]),
        (["a", "c"], ["x", "z"]),
        (["b", "c"], ["y", "z"]),
    ]


@settings(deadline=None)
@given(st.text(st.sampled_from("ab \t\n\r\u2028\x0b\ufeff"), max_size=12))
def test_a_text_becomes_one_line(text: str) -> None:
    trimmed = text.strip().strip("\ufeff").strip()
    # Says the same, in time that is quadratic in the number of spaces.
    assert one_line(text) == re.sub(r"[^\S\n\r]*[\n\r]\s*", " ", trimmed)
