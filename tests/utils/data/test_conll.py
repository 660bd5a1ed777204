"""CoNLL files as they are published: comments, headers, numbers of words, blanks, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from utils.data.conll import read_conll


def pairs(path: Path, text: str, **options: Any) -> list[list[str]]:
    """The words and tags of sentences, as word/tag."""
    path.write_text(text, encoding="utf-8")
    return [
        [f"{word}/{tag}" for word, tag in zip(sentence.words, sentence.tags, strict=True)]
        for sentence in read_conll(path, **options)
    ]


NUMBERED = "#\thttp://x\t[2009]\n1\tMarta\tB-PER\tO\n2\tin\tO\tO\n\n1\tFC\tB-ORG\tO\n2\tRom\tI-ORG\tB-LOC\n"
CONLLU = """# text = al mar
1-2\tal\t_\t_\t_\t_\t_\t_\t_\t_
1\ta\ta\tADP\t_\t_\t3\tcase\t_\t_
2\tel\tel\tDET\t_\t_\t3\tdet\t_\t_
3\tmar\tmar\tNOUN\t_\t_\t0\troot\t_\tSpaceAfter=No
3.1\tx\tx\tNOUN\t_\t_\t_\t_\t_\t_
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "# id 1a2b domain=en\nEU NNP B-NP B-ORG\nsaid VBD B-VP O\n\n# id 2 domain=en\nRom NNP B-NP B-LOC\n",
            [["EU/B-ORG", "said/O"], ["Rom/B-LOC"]],
            id="a comment of as many columns",
        ),
        pytest.param(
            "#Oslo B-LOC\n# O\nis O\n\n# O\n#one O\n", [["#Oslo/B-LOC", "#/O", "is/O"], ["#/O", "#one/O"]], id="words"
        ),
        pytest.param("word\ttag\nEU\tB-ORG\nsaid\tO\n", [["EU/B-ORG", "said/O"]], id="a header"),
        pytest.param("Wort\tMarke\nEU\tB-ORG\nsaid\tO\n", [["EU/B-ORG", "said/O"]], id="a header in German"),
        pytest.param("word O\ntag O\n", [["word/O", "tag/O"]], id="no header"),
        pytest.param("form UPOS\nText NN\nis VBZ\n", [["Text/NN", "is/VBZ"]], id="a header of plain tags"),
        pytest.param("EU\t\tB-ORG\nis\tVBZ\tO\nold\t\tO\n", [["EU/B-ORG", "is/O", "old/O"]], id="empty cells"),
        pytest.param("5 O\n7 O\n", [["5/O", "7/O"]], id="words that are numbers"),
        pytest.param(
            "New York\tB-LOC\nis\tO\n \tO\n\u00a0\tO\n\tO\n \t\nbig\tO \t\n",
            [["New York/B-LOC", "is/O"], ["big/O"]],
            id="blanks in words, blank words, blank lines",
        ),
        pytest.param("a O\n\u00a0 O\nb\u00a0c\u2028 O\n", [["a/O", "b\u00a0c\u2028/O"]], id="NBSP between blanks"),
        pytest.param("\ufeffa O\r\nb B-X\r\n\r\nc O", [["a/O", "b/B-X"], ["c/O"]], id="BOM and CRLF"),
        pytest.param("私 名詞\nは 助詞\n私 名詞\n", [["私/名詞", "は/助詞", "私/名詞"]], id="plain tags in Japanese"),
        pytest.param("-DOCSTART- -X- O\n\na X O\n-DOCSTART-\nb X B-Y\n", [["a/O"], ["b/B-Y"]], id="documents"),
    ],
)
def test_what_is_read(text: str, expected: list[list[str]], tmp_path: Path) -> None:
    assert pairs(tmp_path / "a.conll", text) == expected


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (CONLLU, {"words_column": "2", "tags_column": "4"}, ["a/ADP", "el/DET", "mar/NOUN"]),
        (CONLLU, {"words_column": "3", "tags_column": "8"}, ["a/case", "el/det", "mar/root"]),
        (
            "nr\tform\tfine\tcoarse\n1\tEU\tB-a\tB-b\n2\tis\tO\tO\n",
            {"words_column": "form", "tags_column": "fine"},
            ["EU/B-a", "is/O"],
        ),
        ("1 NNP Mary O\n", {"words_column": "3", "tags_column": "2"}, ["Mary/NNP"]),
        ("1 NNP Mary O\n", {"words_column": "1", "tags_column": "2"}, ["1/NNP"]),
    ],
)
def test_columns_that_options_name(text: str, options: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    assert pairs(tmp_path / "a.conllu", text, **options) == [expected]


def test_the_log_says_what_was_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pairs(tmp_path / "a.conll", NUMBERED + "3\t\u00a0\tO\tO\n", words_column="2", tags_column="3")
    [message] = caplog.messages
    assert message.endswith(
        "a.conll: words from column 2, tags from column 3 of 4, comments left out: 1, blank words left out: 1"
    )


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a O\nb\n", {}, "line 2: 1 columns; allowed: 2, as in most lines$"),
        ("is O\nNew York B-LOC\nis O\n", {}, "line 2: 3 columns; .*; a word that holds a blank needs tabs"),
        ("a\tO\nb O\nc\tO\n", {}, "line 2: 1 columns; allowed: 2"),
        ("a\tX\tO\nb\t\tO\n", {"tags_column": "2"}, "line 2: the tag in column 2 is blank"),
        (CONLLU, {}, "column 1 of 10 holds numbers; name --words_column, --tags_column"),
        (NUMBERED, {"labelled": False}, "column 1 of 4 holds numbers; name --words_column"),
        ("O\tin\nB-X\tred sea\n", {}, "column 1 of 2 holds tags; name --words_column"),
        ("tom B-X NNP\nran O VBD\n", {}, "column 2 of 3 holds tags; name --words_column"),
        ("a O\n", {"tags_column": "3"}, "--tags_column is '3'; allowed: 1, 2$"),
        ("(NP* (A0*\nx *)\n", {}, r"the tags are spans in brackets, such as \*\)"),
        ("word\ttag\na\tB-X\n", {"words_column": "tga"}, "--words_column is 'tga'; allowed: 1, 2, tag, word"),
    ],
)
def test_what_is_refused(text: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        pairs(tmp_path / "a.conll", text, **options)


def test_words_without_tags(tmp_path: Path) -> None:
    file = tmp_path / "a.conll"
    for text, options in ("EU\n#Oslo\n", {}), ("1 EU\n2 #Oslo\n", {"words_column": "2"}):
        file.write_text(text)
        [sentence] = read_conll(file, labelled=False, **options)
        assert sentence.words[0] == "EU" and sentence.tags is None
