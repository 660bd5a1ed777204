"""Targets that are lists of references."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bart.errors import InputError
from utils.text.lines import iter_references, references_of


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
    with pytest.raises(
        InputError, match="^f, line 3: .* is a list as Python or numpy prints it; allowed: a list in JSON"
    ):
        references_of(line, "f, line 3: ")


@pytest.mark.parametrize("line", ["[]", '[""]', '["a", null]', '["a", 3]', '[["a"], ["b"]]', '[{"text": "a"}]'])
def test_a_list_of_no_texts_is_refused(line: str) -> None:
    with pytest.raises(InputError, match=r"^f, line 3: the target .* is a list; allowed: a text, or a list of texts"):
        references_of(line, "f, line 3: ")


def test_a_file_of_references_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\n[]\n")
    with pytest.raises(InputError, match=r"f, line 2: the target '\[\]' is a list"):
        list(iter_references(tmp_path / "f"))
