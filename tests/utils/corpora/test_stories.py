"""Stories of CNN and Daily Mail, published and hostile, and the archives they come in."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bart.errors import InputError
from utils.corpora.stories import parse_story, read_archive, read_url_list, story_name, strip_dateline
from utils.data.line_files import one_line

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
    story = parse_story(STORY.encode())
    assert story.article == (
        "LONDON, England (Reuters) -- Harry Potter star Daniel Radcliffe gains access to a reported fortune. "
        'Daniel Radcliffe as Harry Potter in "Harry Potter and the Order of the Phoenix" '
        '"I don\'t plan to be one of those people," he said (twice)'
    )
    assert story.highlights == (
        "Young actor says he has no plans to fritter his cash away. Radcliffe's earnings are held in a trust fund ."
    )
    assert not story.recoded


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
    story = parse_story(text.encode())
    article, highlights = published_parse(text.removeprefix("\ufeff"))
    # The space before a full stop that was added is the one difference, and only tokenised text has it.
    assert story.article.replace(" .", ".") == article.replace(" .", ".")
    assert story.highlights.replace(" .", ".") == highlights.replace(" .", ".")


@pytest.mark.parametrize("end", [".", "!", "?", "...", "'", "`", '"', "\u2019", "\u201d", ")"])
def test_lines_that_end_a_sentence_stay(end: str) -> None:
    story = parse_story(f"\n  A line{end} \n\n@highlight\n\n\tB{end}\n".encode())
    assert (story.article, story.highlights) == (f"A line{end}", f"B{end}")


@pytest.mark.parametrize("end", ["a", "7", ":", ",", ";", "-", "\u2026", "\u2018", "]", "é"])
def test_other_lines_get_a_full_stop(end: str) -> None:
    story = parse_story(f"A line{end}\n@highlight\nB{end}".encode())
    assert (story.article, story.highlights) == (f"A line{end}.", f"B{end}.")


@pytest.mark.parametrize(
    ("raw", "article", "highlights"),
    [
        (b"Only an article", "Only an article.", ""),
        (b"@highlight\n\nOnly a highlight", "", "Only a highlight."),
        (b"", "", ""),
        (b"\n \n\t\n", "", ""),
        (b"@highlight", "", ""),
        (b"A\n@highlight\n@highlight\n\n@highlight\nB", "A.", "B."),
        (b"A\n@highlight\nB\nC", "A.", "B. C."),
        (b"A\n@highlight B\n@highlight\nC", "A.", "B. C."),
        (b"Mail @highlight to us\n@highlight\nB", "Mail @highlight to us", "B."),
        (b"One\r\n\r\ntwo\r\n@highlight\r\n\r\nB\r\n", "One. two.", "B."),
        (b"One\rtwo\r@highlight\rB", "One. two.", "B."),
        (b"\xef\xbb\xbfOne\n@highlight\nB", "One.", "B."),
        (b"\xef\xbb\xbf@highlight\nB", "", "B."),
        ("One\u2028two\u2029three\x85four\x0bfive\x0csix\n@highlight\nB\u2028C".encode(), None, "B\u2028C."),
        ("Ünïcödé \U0001f600\n@highlight\n漢字".encode(), "Ünïcödé \U0001f600.", "漢字."),
        (b"a\x00b\n@highlight\nc", "a\x00b.", "c."),
        (b"Two  spaces\tand a tab\n@highlight\nB", "Two  spaces\tand a tab.", "B."),
    ],
)
def test_hostile_stories(raw: bytes, article: str | None, highlights: str) -> None:
    story = parse_story(raw)
    assert story.article == ("One\u2028two\u2029three\x85four\x0bfive\x0csix." if article is None else article)
    assert story.highlights == highlights
    assert not story.recoded
    for text in (story.article, story.highlights):
        assert one_line(text) == text


@pytest.mark.parametrize(
    ("raw", "article"),
    [
        (b"Caf\xe9 ol\xe9", "Café olé."),  # Latin-1
        (b"\x93Quoted\x94", "“Quoted”"),  # Windows-1252
        ("Café".encode() + b" ol\xe9", "Café olé."),  # both
        (b"\xef\xbb\xbfCaf\xe9", "Café."),
        (b"a\x81b", "a\x81b."),  # nothing in Windows-1252
        (b"\xf0\x9f\x98", "ðŸ˜."),  # a character cut short
        (b"\xed\xa0\x80", "í\xa0€."),  # a surrogate
    ],
)
def test_bytes_that_are_not_utf_8(raw: bytes, article: str) -> None:
    story = parse_story(raw + b"\n@highlight\nB")
    assert story.recoded
    assert story.article == article


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_story(raw: bytes) -> None:
    story = parse_story(raw)
    assert "\n" not in story.article + story.highlights
    (story.article + story.highlights).encode()


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


Member = tuple[str, bytes] | tarfile.TarInfo


def write_archive(path: Path, members: list[Member]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_an_archive_is_read_in_its_order(tmp_path: Path) -> None:
    other = story_name("http://example.org/b")
    members: list[Member] = [
        special("./cnn", tarfile.DIRTYPE),
        (f"./cnn/stories/{other}", b"b"),
        ("cnn/._README", b"junk"),
        (f"cnn/stories/{NAME}", b"a"),
        (f"{'deep/' * 60}{NAME}", b"c"),
    ]
    assert list(read_archive(write_archive(tmp_path / "x.tgz", members))) == [
        (other, b"b"),
        ("._README", "not named by a SHA-1"),
        (NAME, b"a"),
        (NAME, b"c"),
    ]


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ((f"../{NAME}", b""), "lies outside the archive"),
        ((f"cnn/../../{NAME}", b""), "lies outside the archive"),
        ((f"cnn\\..\\..\\{NAME}", b""), "lies outside the archive"),
        ((f"/tmp/{NAME}", b""), "has an absolute name"),
        ((f"\\\\host\\{NAME}", b""), "has an absolute name"),
        ((f"C:\\{NAME}", b""), "has an absolute name"),
        (special("..", tarfile.DIRTYPE), "lies outside the archive"),
        (special(NAME, tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
        (special(NAME, tarfile.SYMTYPE, "other.story"), "is a link"),
        (special(NAME, tarfile.LNKTYPE, "../other.story"), "is a link"),
        (special(NAME, tarfile.CHRTYPE), "is neither a file nor a folder"),
        (special(NAME, tarfile.BLKTYPE), "is neither a file nor a folder"),
        (special(NAME, tarfile.FIFOTYPE), "is neither a file nor a folder"),
    ],
)
def test_unsafe_archives_are_refused(tmp_path: Path, member: Member, said: str) -> None:
    path = write_archive(tmp_path / "x.tgz", [(f"cnn/{NAME}", b"fine"), member])
    name = member.name if isinstance(member, tarfile.TarInfo) else member[0]
    with pytest.raises(InputError) as caught:
        list(read_archive(path))
    assert str(caught.value) == f"{path}: refused: its member {name!r} {said}"
    assert [file.name for file in tmp_path.iterdir()] == ["x.tgz"]


def whole(tmp_path: Path) -> bytes:
    return write_archive(tmp_path / "whole.tgz", [(NAME, bytes(range(256)) * 99)]).read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"no archive",
        lambda data: gzip.compress(b"no archive"),
        lambda data: gzip.compress(b""),
        lambda data: data[: len(data) // 2],
        lambda data: data[:-4],
        lambda data: data[:-8] + bytes(4) + data[-4:],
        lambda data: gzip.compress(gzip.decompress(data)[:700]),
        lambda data: gzip.decompress(data),
    ],
)
def test_damaged_archives_are_errors(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "x.tgz"
    path.write_bytes(damage(whole(tmp_path)))
    with pytest.raises(InputError, match="x.tgz: not a whole .tgz archive"):
        list(read_archive(path))


def test_a_header_damaged_within_a_sound_gzip_stream_is_an_error(tmp_path: Path) -> None:
    """tarfile takes it for the archive's end."""
    path = write_archive(tmp_path / "x.tgz", [(NAME, b"a"), (NAME, b"b"), (NAME, b"c")])
    data = bytearray(gzip.decompress(path.read_bytes()))
    data[1024 + 3] ^= 1  # in the second member's name
    path.write_bytes(gzip.compress(data))
    with pytest.raises(InputError, match="x.tgz: not a whole .tgz archive"):
        list(read_archive(path))


def test_a_story_too_large_for_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.corpora.stories.LARGEST_STORY", 1 << 20)
    path = write_archive(tmp_path / "x.tgz", [(NAME, bytes(1 << 20)), (NAME, bytes((1 << 20) + 1)), (NAME, b"a")])
    assert [content for _, content in read_archive(path)] == [bytes(1 << 20), "larger than 1 MiB", b"a"]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_header_too_large_for_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: int
) -> None:
    monkeypatch.setattr("utils.corpora.stories.LARGEST_STORY", 1 << 20)
    path = tmp_path / "x.tgz"
    with tarfile.open(path, "w:gz", format=format) as archive:
        archive.addfile(tarfile.TarInfo("x" * ((1 << 20) + 1)))
    with pytest.raises(InputError, match=r"x.tgz: not a whole .tgz archive \(a header of 1,04[\d,]+ bytes\)"):
        list(read_archive(path))


def test_url_lists(tmp_path: Path) -> None:
    path = tmp_path / "all_test.txt"
    path.write_bytes(b"\xef\xbb\xbfhttp://a/\r\n\n http://b/\xc3\xa9 \nhttp://c")
    assert read_url_list(path) == ["http://a/", "http://b/é", "http://c"]
    for wrong, said in ((b"", "the file is empty"), (b"\n\n", "holds no URL"), (b"a\n\xe9", "line 2: not UTF-8")):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match=said):
            read_url_list(path)
    with pytest.raises(InputError, match="no such file"):
        read_url_list(tmp_path / "missing")
