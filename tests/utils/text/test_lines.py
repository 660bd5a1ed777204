"""Targets that are lists of references."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bart.errors import InputError
from utils.text.lines import iter_lines, references_of


@pytest.mark.parametrize(
    ("line", "references"),
    [
        ('["A cat ran.", "A dog\\nsat."]', ["A cat ran.", "A dog sat."]),
        (' [ "A cat ran." ] ', ["A cat ran."]),
        (json.dumps(["你好", "a"]), ["你好", "a"]),
        ('["a", "", " "]', ["a"]),
        # Texts
        ("A cat ran.", ["A cat ran."]),
        ("[Applause] A cat [ran]", ["[Applause] A cat [ran]"]),
        ("[2009]", ["[2009]"]),
        ("[1, 2.5]", ["[1, 2.5]"]),
        ("[...]", ["[...]"]),
        ("['a' and 'b']", ["['a' and 'b']"]),
        ("['a'] and ['b']", ["['a'] and ['b']"]),
        ("['a'" + "  'b'" * 40 + " c]", ["['a'" + "  'b'" * 40 + " c]"]),  # told in linear time
    ],
)
def test_references_of_a_target(line: str, references: list[str]) -> None:
    assert references_of(line) == references


@pytest.mark.parametrize(
    "line",
    [
        """['A cat ran.', "It's a dog."]""",
        "['it''s']",
        r"['it\'s',]",
        str(np.array(["a", "b " * 60])),
        repr({"text": np.array(["a"], dtype=object)})[9:-1],
        repr(["a", None]),
    ],
)
def test_a_list_that_python_printed_is_refused(line: str) -> None:
    """Nobody can tell `it's`, written twice as CSV has it, from two texts as numpy prints them."""
    with pytest.raises(InputError, match="^f, line 3: .* is a list as Python prints it; allowed: JSON"):
        references_of(line, "f, line 3: ")


@pytest.mark.parametrize("line", ["[]", '[""]', '["a", null]', '["a", 3]', '[["a"], ["b"]]', '[{"text": "a"}]'])
def test_a_list_of_no_texts_is_refused(line: str) -> None:
    with pytest.raises(InputError, match=r"^f, line 3: the target .* is a list; allowed: a text, or a list of texts"):
        references_of(line, "f, line 3: ")


@pytest.mark.parametrize("name", ["a.xlsx", "a.DOCX", "a.pdf", "a.pkl", "a.npy", "a.feather", "a.zip", "a.db", "a.ods"])
def test_files_that_hold_no_text_are_refused_by_their_endings(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a\n")
    with pytest.raises(InputError, match=r"a\.\w+: files that end in \.[a-z]+ hold no text; allowed: UTF-8 text"):
        list(iter_lines(tmp_path / name))


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04a\nb\n", b"%PDF-1.4\na\n", b"\x1f\x8b\x08\na\n", "a\n".encode("utf-16"), b"a\0b\n"]
)
def test_files_that_hold_no_text_are_refused_by_their_first_bytes(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.txt: holds (a zip|a PDF|gzip|UTF-16|a NUL).*; allowed: UTF-8 text$"):
        list(iter_lines(tmp_path / "a.txt"))


def test_blank_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n\n" * 6 + " \nb\n")
    message = r"line 2: blank line; every line must hold an example \(7 of 14 are blank: 2, 4, 6, 8, 10 ...\)"
    with pytest.raises(InputError, match=message):
        list(iter_lines(tmp_path / "a.txt"))
