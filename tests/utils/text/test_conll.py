"""CoNLL files as they are published: comments, headers, numbers of words, blanks, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from utils.text.conll import read_conll


def pairs(path: Path, text: str, **options: Any) -> list[list[str]]:
    """The words and tags of sentences, as word/tag."""
    path.write_text(text, encoding="utf-8")
    return [
        [f"{word}/{tag}" for word, tag in zip(sentence.words, sentence.tags, strict=True)]
        for sentence in read_conll(path, **options)
    ]


GERMEVAL = "#\thttp://x\t[2009]\n1\tMarta\tB-PER\tO\n2\tin\tO\tO\n\n1\tFC\tB-ORG\tO\n2\tRom\tI-ORG\tB-LOC\n"
CONLLU = """# text = al mar
1-2\tal\t_\t_\t_\t_\t_\t_\t_\t_
1\ta\ta\tADP\t_\t_\t3\tcase\t_\t_
2\tel\tel\tDET\t_\t_\t3\tdet\t_\t_
3\tmar\tmar\tNOUN\t_\t_\t0\troot\t_\tSpaceAfter=No
3.1\tx\tx\tNOUN\t_\t_\t_\t_\t_\t_
"""

CONLL_2005 = "Mr. NNP (S(NP* * - (A0*\nHaag NNP *) (PER*) - *)\nruns VBZ (VP*)) * run (V*)\n"
CONLL_2012 = """#begin document (bc/x); part 000
bc/x 0 0 In IN (TOP(S(PP* * -
bc/x 0 1 Hong NNP (NP* (GPE* (12
bc/x 0 2 Kong NNP *)))) *) 12)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "# id 1a2b domain=en\nEU NNP B-NP B-ORG\nsaid VBD B-VP O\n\n# id 2 domain=en\nRom NNP B-NP B-LOC\n",
            [["EU/B-ORG", "said/O"], ["Rom/B-LOC"]],
            id="a comment of as many columns",
        ),
        pytest.param("# doc1\nEU B-ORG\n\n# doc2\nsaid O\n", [["EU/B-ORG"], ["said/O"]], id="a comment of two"),
        pytest.param(
            "#Oslo B-LOC\n# O\nis O\n\n# O\n#one O\n", [["#Oslo/B-LOC", "#/O", "is/O"], ["#/O", "#one/O"]], id="words"
        ),
        pytest.param("# doc1\n#Oslo B-LOC\nis O\n", [["#Oslo/B-LOC", "is/O"]], id="a word that comes first"),
        pytest.param("a NN\n# SYM\nb NN\n\n# c1\nc NN\n", [["a/NN", "#/SYM", "b/NN"], ["c/NN"]], id="plain tags"),
        pytest.param(
            "a\tX\tO\n# a note of more\nb\tX\tB-PER\n# x\nc\tX\tO\n",
            [["a/O", "b/B-PER", "c/O"]],
            id="within a sentence",
        ),
        pytest.param("word\ttag\nEU\tB-ORG\nsaid\tO\n", [["EU/B-ORG", "said/O"]], id="a header"),
        pytest.param("Token NER\nEU B-ORG\nsaid O\n", [["EU/B-ORG", "said/O"]], id="a header of other names"),
        pytest.param("Wort\tMarke\nEU\tB-ORG\nsaid\tO\n", [["EU/B-ORG", "said/O"]], id="a header in German"),
        pytest.param("Nr\tWord\tTag\ns 1\tEU\tB-X\ns 1\tis\tO\n", [["EU/B-X", "is/O"]], id="a header tells the words"),
        pytest.param("word O\ntag O\n", [["word/O", "tag/O"]], id="no header"),
        pytest.param("Text NN\nis VBZ\nold JJ\n", [["Text/NN", "is/VBZ", "old/JJ"]], id="a first word like a heading"),
        pytest.param("form UPOS\nText NN\nis VBZ\n", [["Text/NN", "is/VBZ"]], id="a header of plain tags"),
        pytest.param("x X\nEU B-ORG\nsaid O\n", [["x/X", "EU/B-ORG", "said/O"]], id="a first tag of no scheme"),
        pytest.param("EU\t\tB-ORG\nis\tVBZ\tO\nold\t\tO\n", [["EU/B-ORG", "is/O", "old/O"]], id="empty cells"),
        pytest.param("EU\t\tB-ORG\nis\tO\nold\t\t\tO\n", [["EU/B-ORG", "is/O", "old/O"]], id="padded cells"),
        pytest.param(GERMEVAL, [["Marta/B-PER", "in/O"], ["FC/B-ORG", "Rom/I-ORG"]], id="GermEval"),
        pytest.param("0 EU B-ORG\n1 said O\n2 so O\n", [["EU/B-ORG", "said/O", "so/O"]], id="numbers from 0"),
        pytest.param("1 a X B-NP B-PER\n2 b X I-NP O\n", [["a/B-PER", "b/O"]], id="numbers, and phrases beside names"),
        pytest.param("1\ta\tB-PER\t-\tanna\n2\tb\tO\t-\tanna\n", [["a/B-PER", "b/O"]], id="an annotator behind"),
        pytest.param("5 CD O\n7 CD O\n", [["5/O", "7/O"]], id="words that are numbers"),
        pytest.param(
            "New York\tB-LOC\nis\tO\n \tO\n\u00a0\tO\n\tO\n \t\nbig\t\tO \t\n",
            [["New York/B-LOC", "is/O"], ["big/O"]],
            id="blanks in words, blank words, blank lines",
        ),
        pytest.param("a O\n\u00a0 O\nb\u00a0c\u2028 O\n", [["a/O", "b\u00a0c\u2028/O"]], id="NBSP between blanks"),
        pytest.param("\ufeffa O\r\nb B-X\r\n\r\nc O", [["a/O", "b/B-X"], ["c/O"]], id="BOM and CRLF"),
        pytest.param("O\tin\nB-X\tred sea\n\nI-X\tsea\n", [["in/O", "red sea/B-X"], ["sea/I-X"]], id="tags first"),
        pytest.param("- O b _ x.txt\n- B-X a _ x.txt\n", [["b/O", "a/B-X"]], id="other columns do not vary"),
        pytest.param("w1 NN\nw2 VB\n", [["w1/NN", "w2/VB"]], id="a digit in each word"),
        pytest.param("私 名詞\nは 助詞\n私 名詞\n", [["私/名詞", "は/助詞", "私/名詞"]], id="plain tags in Japanese"),
        pytest.param("-DOCSTART- -X- O\n\na X O\n-DOCSTART-\nb X B-Y\n", [["a/O"], ["b/B-Y"]], id="documents"),
    ],
)
def test_what_is_read(text: str, expected: list[list[str]], tmp_path: Path) -> None:
    assert pairs(tmp_path / "a.conll", text) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tags_column": "4"}, ["a/ADP", "el/DET", "mar/NOUN"]),
        ({"words_column": "3", "tags_column": "8"}, ["a/case", "el/det", "mar/root"]),
    ],
)
def test_columns_that_options_name(options: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    assert pairs(tmp_path / "a.conllu", CONLLU, **options) == [expected]


def test_columns_that_options_name_by_the_header(tmp_path: Path) -> None:
    text = "nr\tform\tfine\tcoarse\n1\tEU\tB-a\tB-b\n2\tis\tO\tO\n"
    assert pairs(tmp_path / "a.conll", text, tags_column="coarse") == [["EU/B-b", "is/O"]]


def test_the_log_says_what_was_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pairs(tmp_path / "a.conll", GERMEVAL + "3\t\u00a0\tO\tO\n")
    [message] = caplog.messages
    assert message.endswith(
        "a.conll: words from column 2, tags from column 3 of 4, comments left out: 1, blank words left out: 1"
    )


def test_columns_of_training_are_read_again(tmp_path: Path) -> None:
    """An option goes before them, and words alone need none."""
    file, trained = tmp_path / "a.conll", {"words_column": "3", "tags_column": "2"}
    assert pairs(file, "1 NNP Mary O\n", trained=trained) == [["Mary/NNP"]]
    assert pairs(file, "1 NNP Mary O\n", trained=trained, words_column="1") == [["1/NNP"]]
    file.write_text("Mary\nruns\n")
    assert [sentence.words for sentence in read_conll(file, labelled=False, trained=trained)] == [["Mary", "runs"]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a O\nb\n", {}, "line 2: 1 columns; allowed: 2, a word first and its tag last$"),
        ("# a longer comment here\na O\n# one more of them\nb\n", {}, "line 4: 1 columns; allowed: 2"),
        ("New York B-LOC\nis O\n", {}, "line 1: 3 columns; allowed: 2, .*; a word that holds a blank needs tabs"),
        ("a O\n# 1 O\nb O\n", {}, "line 2: 3 columns; allowed: 2"),  # a word, not a comment
        ("a O\n#one\nb O\n", {}, "line 2: 1 columns; allowed: 2"),
        ("a\tO\nb O\nc\tO\n", {}, "line 2: 1 columns; allowed: 2"),
        ("a\tX\tO\nb\t\tO\n", {"tags_column": "2"}, "line 2: the tag in column 2 is blank"),
        ("a\tX\tO\nb\t\tO\nc\tO\n", {}, "line 3: 2 columns; allowed: 3"),
        (CONLLU, {}, "--words_column and --tags_column are needed, since nothing tells the columns; allowed: 1 to 10"),
        ("a O\n", {"tags_column": "3"}, "--tags_column is 3; allowed: 1 to 2$"),
        ("NN ox\nVB is\nNN cow\n", {}, "--words_column and --tags_column are needed, .*; allowed: 1 to 2"),
        (
            "NN ox\nVB is\nNN cow\n",
            {"labelled": False},
            "--words_column and --tags_column are needed, .*; allowed: 1 to 2",
        ),
        ("an DT a\nox NN ox\nan DT a\n", {}, "--words_column and --tags_column are needed, .*; allowed: 1 to 3"),
        (
            "x.1 ox 0 O\nx.2 to 3 O\nx.3 ox 6 B-X\n",
            {},
            "--words_column and --tags_column are needed, .*; allowed: 1 to 4",
        ),
        ("w1 NN O\nw2 VB B-X\n", {}, "--words_column and --tags_column are needed, .*; allowed: 1 to 3"),
        ("ox B-X NN\nis O VBZ\n", {}, "--words_column and --tags_column are needed, .*; allowed: 1 to 3"),
        (CONLL_2005, {}, "--words_column and --tags_column are needed, .*; allowed: 1 to 6"),
        (CONLL_2012, {}, "--words_column and --tags_column are needed, .*; allowed: 1 to 8"),
        (CONLL_2012, {"words_column": "4", "tags_column": "7"}, r"the tags are spans in brackets, such as \*\)"),
        (
            *("a b O\n", {"trained": {"words_column": "4"}}),
            "--words_column is not given, and column 4, which training read, is missing; allowed: 1 to 3$",
        ),
        ("word\ttag\na\tB-X\n", {"words_column": "tga"}, "--words_column is tga; allowed: 1 to 2, word, tag"),
    ],
)
def test_what_is_refused(text: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        pairs(tmp_path / "a.conll", text, **options)


def test_words_without_tags(tmp_path: Path) -> None:
    file = tmp_path / "a.conll"
    for text in ("EU\n# note 1\n#Oslo\n#\n", "1 EU\n2 #Oslo\n3 #\n"):
        file.write_text(text)
        [sentence] = read_conll(file, labelled=False)
        assert (sentence.words, sentence.tags) == (["EU", "#Oslo", "#"], None)
