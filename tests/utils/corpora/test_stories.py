"""Stories of CNN and Daily Mail, published and hostile, and the archives they come in."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bart.errors import InputError
from utils.corpora.get_data import parse_story, read_archive, story_name
from utils.data.tables import one_line

STORY = """\
LONDON, England (Reuters) -- Harry Potter star Daniel Radcliffe gains access to a reported fortune

Daniel Radcliffe as Harry Potter in "Harry Potter and the Order of the Phoenix"

"I don't plan to be one of those people," he said (twice)

@highlight

Young actor says he has no plans to fritter his cash away

@highlight

Radcliffe's earnings are held in a trust fund .
"""


def test_a_story_as_published() -> None:
    article, highlights = parse_story(STORY)
    assert article == (
        "LONDON, England (Reuters) -- Harry Potter star Daniel Radcliffe gains access to a reported fortune. "
        'Daniel Radcliffe as Harry Potter in "Harry Potter and the Order of the Phoenix" '
        '"I don\'t plan to be one of those people," he said (twice)'
    )
    assert highlights == (
        "Young actor says he has no plans to fritter his cash away. Radcliffe's earnings are held in a trust fund ."
    )


def test_lines_that_end_no_sentence_get_a_full_stop() -> None:
    for end in (*".!?'`\")", "...", "\u2019", "\u201d"):
        assert parse_story(f"\n  A line{end} \n\n@highlight\n\n\tB{end}\n") == (f"A line{end}", f"B{end}")
    for end in (*"a7:,;-]é", "\u2026", "\u2018"):
        assert parse_story(f"A line{end}\n@highlight\nB{end}") == (f"A line{end}.", f"B{end}.")


@pytest.mark.parametrize(
    ("text", "article", "highlights"),
    [
        ("Only an article", "Only an article.", ""),
        ("@highlight\n\nOnly a highlight", "", "Only a highlight."),
        ("@highlight", "", ""),
        ("A\n@highlight\n@highlight\n\n@highlight\nB", "A.", "B."),
        ("A\n@highlight B\n@highlight\nC", "A.", "B. C."),
        ("Mail @highlight to us\n@highlight\nB", "Mail @highlight to us", "B."),
        ("One\r\n\r\ntwo\r\n@highlight\r\n\r\nB\r\n", "One. two.", "B."),
        ("One\u2028two\u2029three\x85four\n@highlight\nB\u2028C", "One\u2028two\u2029three\x85four.", "B\u2028C."),
        ("Two  spaces\tand a tab\n@highlight\nB", "Two  spaces\tand a tab.", "B."),
    ],
)
def test_hostile_stories(text: str, article: str, highlights: str) -> None:
    assert parse_story(text) == (article, highlights)
    assert (one_line(article), one_line(highlights)) == (article, highlights)


def test_stories_are_named_by_the_sha_1_of_their_url() -> None:
    """As the Hub has it: this is the first example of its test split."""
    url = (
        "http://web.archive.org/web/20150724132829id_/http://www.dailymail.co.uk/travel/travel_news/article-3042141/"
        "Passengers-safety-risk-shrinking-plane-seats-decreasing-cabin-space.html"
    )
    assert story_name(url) == "92c514c913c0bdfe25341af9fd72b29db544099b.story"


def tgz(files: Sequence[tuple[str, bytes]]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


@pytest.mark.parametrize("damage", [lambda data: b"no", lambda data: gzip.compress(b"no"), lambda data: data[:9999]])
def test_damaged_archives_are_errors(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    (tmp_path / "x.tgz").write_bytes(damage(tgz([("a.story", random.Random(0).randbytes(100_000))])))
    with pytest.raises(InputError, match="x.tgz cannot be opened"):
        read_archive(tmp_path / "x.tgz")
