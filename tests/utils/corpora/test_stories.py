"""Stories of CNN and Daily Mail, published and hostile, and the archives they come in."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bart.errors import InputError
from utils.corpora.stories import LARGEST_STORY, parse_story, read_archive, read_url_list, story_name, strip_dateline
from utils.data.parallel_text import one_line

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


def published_parse(text: str) -> tuple[str, str]:
    """See et al.'s rules, written down a second time; a full stop that is added has a space before it."""
    ends = set(".!?'`\")") | {"\u2019", "\u201d"}
    sides: tuple[list[str], list[str]] = [], []
    side = 0
    for line in io.StringIO(text, newline=None):
        line = line.strip()
        if line.startswith("@highlight"):
            side = 1
        elif line:
            sides[side].append(line if "@highlight" in line or line[-1] in ends else line + " .")
    return " ".join(sides[0]), " ".join(sides[1])


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["", "@highlight", " @highlight ", "He said:", "Is it?", "One\u2028two", "A\x85b", "\x0c"]),
            st.text(st.characters(exclude_characters="@\n\r", exclude_categories=("Cs",)), max_size=8),
        ),
        max_size=12,
    ),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_stories_are_taken_apart_by_the_published_rules(lines: list[str], end: str) -> None:
    text = end.join(lines)
    # The space before a full stop that was added is the one difference, and only tokenised text has it.
    for ours, published in zip(parse_story(text), published_parse(text), strict=True):
        assert ours.replace(" .", ".") == published.replace(" .", ".")


@pytest.mark.parametrize("end", [".", "!", "?", "...", "'", "`", '"', "\u2019", "\u201d", ")"])
def test_lines_that_end_a_sentence_stay(end: str) -> None:
    assert parse_story(f"\n  A line{end} \n\n@highlight\n\n\tB{end}\n") == (f"A line{end}", f"B{end}")


@pytest.mark.parametrize("end", ["a", "7", ":", ",", ";", "-", "\u2026", "\u2018", "]", "é"])
def test_other_lines_get_a_full_stop(end: str) -> None:
    assert parse_story(f"A line{end}\n@highlight\nB{end}") == (f"A line{end}.", f"B{end}.")


@pytest.mark.parametrize(
    ("text", "article", "highlights"),
    [
        ("Only an article", "Only an article.", ""),
        ("@highlight\n\nOnly a highlight", "", "Only a highlight."),
        ("\n \n\t\n", "", ""),
        ("@highlight", "", ""),
        ("A\n@highlight\n@highlight\n\n@highlight\nB", "A.", "B."),
        ("A\n@highlight\nB\nC", "A.", "B. C."),
        ("A\n@highlight B\n@highlight\nC", "A.", "B. C."),
        ("Mail @highlight to us\n@highlight\nB", "Mail @highlight to us", "B."),
        ("One\r\n\r\ntwo\r\n@highlight\r\n\r\nB\r\n", "One. two.", "B."),
        ("One\rtwo\r@highlight\rB", "One. two.", "B."),
        ("One\u2028two\u2029three\x85four\n@highlight\nB\u2028C", "One\u2028two\u2029three\x85four.", "B\u2028C."),
        ("Two  spaces\tand a tab\n@highlight\nB", "Two  spaces\tand a tab.", "B."),
    ],
)
def test_hostile_stories(text: str, article: str, highlights: str) -> None:
    assert parse_story(text) == (article, highlights)
    assert (one_line(article), one_line(highlights)) == (article, highlights)


TEXT = "Doctors said so."


@pytest.mark.parametrize(
    "dateline",
    [
        "(CNN) -- ", "(CNN)", "(CNN) ", "(CNN) --", "(CNN) \u2014 ", "(CNN) - ", "(CNN Student News) -- ",
        "(CNNMoney) -- ", "(CNNMoney.com) -- ", "(CNN International) -- ", "(AP) -- ", "(Reuters) \u2013 ",
        "(Oprah.com) -- ", "(Entertainment Weekly) -- ", "(Mashable) -- ", "(TIME.com) -- ",
        "LONDON, England (Reuters) -- ", "LONDON (CNN) -- ", "Washington (CNN)", "Hong Kong (CNN)",
        "Washington, D.C. (CNN) -- ", "RIO DE JANEIRO, Brazil (CNN) -- ", "Rio de Janeiro, Brazil (CNN) -- ",
        "São Paulo (CNN) -- ", "N'Djamena, Chad (CNN) -- ", "PORT-AU-PRINCE, Haiti (CNN) -- ",
        "ST. LOUIS, Missouri (CNN) -- ", "ABOARD THE USS NIMITZ (CNN) -- ", "On the Iraq-Syria Border (CNN)",
        "Islamabad/New Delhi (CNN) -- ", "Atlanta, Georgia (AP) \u2014 ",
    ],
)  # fmt: skip
def test_datelines_go(dateline: str) -> None:
    assert strip_dateline(dateline + TEXT) == TEXT


@pytest.mark.parametrize(
    "article",
    [
        TEXT, "", "(CNN)", "(CNN) -- ", "London (CNN) -- ", "CNN -- Doctors said so.",
        "WASHINGTON -- Doctors said so.", "Doctors said so. (CNN) -- They left.",
        "The doctors told us (CNN) -- and left.", "He watched it on television (CNN)and left.",
        "By Jane Doe (CNN) -- Doctors said so.", "(cnn) -- Doctors said so.", "(CNN's Jane Doe) -- Doctors said so.",
        "(Doctors) -- said so.", "The Associated Press (AP) said so.", "Reuters (Reuters) Doctors said so.",
        "London (UK) -- Doctors said so.", "The network (CNN) -- said so.", "(CNN Doctors said so.",
        "Editor's note: (CNN) -- Doctors said so.", "(AP)-based doctors said so.",
        "One Two Three Four Five Six Seven Eight Nine (CNN) -- Doctors said so.", "\u2028(CNN) -- Doctors said so.",
    ],
)  # fmt: skip
def test_what_is_no_dateline_stays(article: str) -> None:
    assert strip_dateline(article) == article


def test_only_the_first_dateline_goes() -> None:
    assert strip_dateline("(CNN) -- (CNN) -- x") == "(CNN) -- x"


@pytest.mark.parametrize("part", ["A", "A ", "A, ", "Ab-", "of ", "A / ", "(CNN", "(A", "CNN "])
def test_datelines_are_looked_for_in_linear_time(part: str) -> None:
    article = part * 100_000
    assert strip_dateline(article) == article


NAME = story_name("http://example.org/a")


def test_stories_are_named_by_the_sha_1_of_their_url() -> None:
    """As the Hub has it: this is the first example of its test split."""
    url = (
        "http://web.archive.org/web/20150724132829id_/http://www.dailymail.co.uk/travel/travel_news/article-3042141/"
        "Passengers-safety-risk-shrinking-plane-seats-decreasing-cabin-space.html"
    )
    assert story_name(url) == "92c514c913c0bdfe25341af9fd72b29db544099b.story"


def tgz(files: Sequence[tuple[str, bytes]], *links: tarfile.TarInfo) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for link in links:
            archive.addfile(link)
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def write_archive(path: Path, files: Sequence[tuple[str, bytes]]) -> Path:
    link = tarfile.TarInfo("cnn/stories/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    path.write_bytes(tgz(files, link))
    return path


def test_files_of_an_archive_are_read_in_its_order_and_none_is_unpacked(tmp_path: Path) -> None:
    files = [("./cnn/stories/b", b"b"), (f"cnn/{NAME}", b"a"), (f"{'deep/' * 60}{NAME}", b"c"), ("../../evil", b"d")]
    path = write_archive(tmp_path / "x.tgz", files)
    assert list(read_archive(path, {"b", NAME, "evil"})) == [("b", b"b"), (NAME, b"a"), (NAME, b"c"), ("evil", b"d")]
    assert list(read_archive(path, {"b"})) == [("b", b"b")]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"no archive",
        lambda data: gzip.compress(b"no archive"),
        lambda data: data[: len(data) // 2],
        lambda data: gzip.decompress(data),
    ],
)
def test_damaged_archives_are_errors(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write_archive(tmp_path / "x.tgz", [(NAME, random.Random(0).randbytes(100_000))])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="x.tgz: not a whole .tgz archive"):
        list(read_archive(path, {NAME}))


def test_files_that_are_no_stories_take_no_memory(tmp_path: Path) -> None:
    """A few bytes of an archive may stand for gigabytes, and a header may claim any size."""
    large = (NAME, bytes(LARGEST_STORY + 1))
    path = write_archive(tmp_path / "x.tgz", [large, ("b", b"b")])
    assert list(read_archive(path, {"b"})) == [("b", b"b")]
    with pytest.raises(InputError) as error:
        list(read_archive(path, {"b", NAME}))
    assert str(error.value) == f"{path}: {NAME} has {LARGEST_STORY + 1} bytes; allowed: at most {LARGEST_STORY}"
    claim = tarfile.TarInfo(NAME)
    claim.size = 1 << 40
    path.write_bytes(gzip.compress(claim.tobuf() + bytes(1024)))
    with pytest.raises(InputError, match=f"{NAME} has {1 << 40} bytes"):
        list(read_archive(path, {NAME}))
    with pytest.raises(InputError, match="not a whole .tgz archive"):
        list(read_archive(path, {"b"}))


def test_url_lists(tmp_path: Path) -> None:
    path = tmp_path / "all_test.txt"
    path.write_bytes(b"\xef\xbb\xbfhttp://a/\r\n\n http://b/\xc3\xa9 \nhttp://c")
    assert read_url_list(path) == ["http://a/", "http://b/é", "http://c"]
