"""Stories of CNN and Daily Mail: the archives in which they are published, and the article and summary of each.

They are processed as by See et al. 2017 (https://github.com/abisee/cnn-dailymail), but without lower-casing and
tokenisation: a full stop that a line lacks is put directly after its last letter.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from bart.errors import InputError
from utils.lines import read_lines
from utils.progress import Progress

_MARKER = "@highlight"
# A line that ends in one of these gets no full stop.
_SENTENCE_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")
# A story's file is named by the SHA-1 of its URL.
_STORY_NAME = re.compile(r"[0-9a-f]{40}\.story")
# Bytes. The published stories have at most some hundred kilobytes. A larger file is not read into memory.
LARGEST_STORY = 64 << 20
_MB = 1_000_000

# A place is up to eight words, in capitals but for those that names of places contain: `Rio de Janeiro, Brazil`.
_WORD = r"(?:(?![a-z])[^\W\d_][\w.'\u2019-]*|(?:al|and|at|da|de|del|des|do|du|el|in|la|near|of|on|the|upon)\b)"
_PLACE = rf"(?!By )(?![a-z]){_WORD}(?:(?:, ?| ?/ ?| ){_WORD}){{0,7}} ?"
# The sender of a report: CNN and its programmes, agencies, and the magazines and sites from which CNN took articles.
_AGENCY = (
    r"CNN[A-Z]?[A-Za-z]*(?:\.com)?(?: [A-Z][A-Za-z]*){0,2}|Reuters|AP|Associated Press|AFP|UPI|[A-Z][A-Za-z]*\.com|"
    r"Budget Travel|Coastal Living|Cooking Light|Entertainment Weekly|Fortune|Health|Mashable|Mental Floss|People|"
    r"Real Simple|Southern Living|T(?:ime|IME)|W(?:ired|IRED)"
)
_DASH = r"(?: ?(?:--+|[\u2013\u2014]) ?| - )"
_DATELINE = re.compile(rf"(?:{_PLACE})?(?:\((?:{_AGENCY})\){_DASH}|\(CNN\) ?)(?=[^\s\u2013\u2014-])")


@dataclass(frozen=True)
class Story:
    """The two texts of a story, one line each.

    Attributes:
        recoded: whether some bytes were not UTF-8 and were read as Windows-1252.
    """

    article: str
    highlights: str
    recoded: bool


def _from_windows(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    wrong = error.object[error.start : error.end]
    # Five bytes mean nothing in Windows-1252; Latin-1 gives a meaning to each.
    text = "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in wrong)
    return text, error.end


codecs.register_error("windows-1252", _from_windows)


def parse_story(raw: bytes) -> Story:
    """Take a story apart.

    Lines end at "\\n", "\\r\\n" or "\\r", not at U+2028 and the like. All that follows the first line that begins with
    `@highlight` belongs to the summary. White space at the ends of a line goes, a line that does not end a sentence
    gets a full stop, and lines are joined by a space. Article or highlights may be empty.

    Args:
        raw: UTF-8, with a byte order mark or without; bytes that are not UTF-8 are read as Windows-1252.
    """
    try:
        text, recoded = raw.decode("utf-8-sig"), False
    except UnicodeDecodeError:
        text, recoded = raw.decode("utf-8-sig", "windows-1252"), True
    article: list[str] = []
    highlights: list[str] = []
    part = article
    for line in re.split(r"\r\n|[\r\n]", text):
        line = line.strip()
        if line.startswith(_MARKER):
            part = highlights
            line = line.removeprefix(_MARKER).strip()
        if line:
            part.append(line if line.endswith(_SENTENCE_ENDS) or _MARKER in line else f"{line}.")
    return Story(" ".join(article), " ".join(highlights), recoded)


def strip_dateline(article: str) -> str:
    """An article without the dateline with which it may begin.

    A dateline is a known agency in parentheses and a dash, `(CNN) -- `, or `(CNN)` alone. Either may follow a place:
    `LONDON, England (Reuters) -- `, `Hong Kong (CNN)`. A dateline with nothing behind it stays.
    """
    return article[match.end() :] if (match := _DATELINE.match(article)) else article


def story_name(url: str) -> str:
    """The name of the file that holds the story of a URL."""
    return f"{hashlib.sha1(url.encode()).hexdigest()}.story"


def read_url_list(path: Path) -> list[str]:
    """The URLs of a split, one a line. Blank lines do not count.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or holds no URL.
    """
    urls = [line.strip() for line in read_lines(path, blank=True) if line.strip()]
    if not urls:
        raise InputError(f"{path}: holds no URL; one a line is expected")
    return urls


def read_archive(path: Path) -> Iterator[tuple[str, bytes | str]]:
    """Read the files of a `.tgz`, in its order, one at a time and without writing any to disk.

    Yields:
        The name of a file without its folders, and its bytes or a text that says why it is no story.

    Raises:
        InputError: the file is no such archive or a damaged one, or a member is anything but a folder or a file inside
            the archive. Nothing is unpacked, but an archive with such a member is not the published one.
    """
    try:
        with (
            path.open("rb") as raw,
            gzip.open(raw) as stream,
            tarfile.open(fileobj=_Bounded(stream), mode="r:") as archive,  # type: ignore[arg-type]
        ):
            progress = Progress(path.name, -(-path.stat().st_size // _MB), "MB read")
            while (member := archive.next()) is not None:
                archive.members.clear()  # the list of a large archive takes gigabytes
                _refuse_unsafe(path, member)
                if member.isfile():
                    name = PurePosixPath(member.name).name
                    if not _STORY_NAME.fullmatch(name):
                        yield name, "not named by a SHA-1"
                    elif member.size > LARGEST_STORY:
                        yield name, f"larger than {LARGEST_STORY >> 20} MiB"
                    else:
                        yield name, archive.extractfile(member).read()
                progress.reach(raw.tell() // _MB)
            # tarfile takes a damaged header for the end. The checksum at the end of the gzip stream tells.
            while rest := stream.read(1 << 20):
                if any(rest):
                    raise tarfile.ReadError("something follows its last member")
            progress.reach(progress.total)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(f"{path}: not a whole .tgz archive ({error})") from None


@dataclass(frozen=True)
class _Bounded:
    """A stream that never gives more at once than a story may have. tarfile itself reads headers of any length."""

    stream: BinaryIO

    def read(self, size: int) -> bytes:
        if size > LARGEST_STORY:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self.stream.read(size)

    def seek(self, place: int) -> int:
        return self.stream.seek(place)

    def tell(self) -> int:
        return self.stream.tell()


def _refuse_unsafe(path: Path, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name.replace("\\", "/"))
    wrong = (
        "has an absolute name" if name.is_absolute() or re.match(r"[A-Za-z]:", member.name)
        else "lies outside the archive" if ".." in name.parts
        else "is a link" if member.issym() or member.islnk()
        else "is neither a file nor a folder" if not (member.isfile() or member.isdir())
        else None
    )  # fmt: skip
    if wrong:
        raise InputError(f"{path}: refused: its member {member.name!r} {wrong}")
