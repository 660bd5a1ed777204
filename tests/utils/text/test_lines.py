"""Targets that are lists of references."""

from __future__ import annotations

import json

import pytest

from bart.errors import InputError
from utils.text.lines import references_of


@pytest.mark.parametrize(
    ("line", "references"),
    [
        ('["A cat ran.", "A dog\\nsat."]', ["A cat ran.", "A dog sat."]),
        (' [ "A cat ran." ] ', ["A cat ran."]),
        (json.dumps(["你好", "a"]), ["你好", "a"]),
        ('["a", "", " "]', ["a"]),
        ("""['A cat ran.', "It's a dog."]""", ["A cat ran.", "It's a dog."]),  # as Python, and so pandas, prints it
        # Texts
        ("A cat ran.", ["A cat ran."]),
        ("[Applause] A cat [ran]", ["[Applause] A cat [ran]"]),
        ("[2009]", ["[2009]"]),
        ("[1, 2.5]", ["[1, 2.5]"]),
        ("['a' 'b']", ["['a' 'b']"]),  # not a list of one text
    ],
)
def test_references_of_a_target(line: str, references: list[str]) -> None:
    assert references_of(line) == references


@pytest.mark.parametrize("line", ["[]", '[""]', '["a", null]', '["a", 3]', '[["a"], ["b"]]', '[{"text": "a"}]'])
def test_a_list_of_no_texts_is_refused(line: str) -> None:
    with pytest.raises(InputError, match=r"^f, line 3: the target .* is a list; allowed: a text, or a list of texts"):
        references_of(line, "f, line 3: ")
