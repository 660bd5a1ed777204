"""Stories of CNN and Daily Mail: the archives in which they are published, and the article and summary of each.

They are processed as by See et al. 2017 (https://github.com/abisee/cnn-dailymail), but without lower-casing and
tokenisation: a full stop that a line lacks is put directly after its last letter.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import tarfile
import zlib
from pathlib import Path

from bart.errors import InputError

_MARKER = "@highlight"
# A line that ends in one of these gets no full stop.
_SENTENCE_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")

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


def parse_story(text: str) -> tuple[str, str]:
    """The article and the summary of a story, each one line; either may be empty.

    Lines end at "\\n", "\\r\\n" or "\\r", not at U+2028 and the like. All that follows the first line that begins with
    `@highlight` belongs to the summary. White space at the ends of a line goes, a line that does not end a sentence
    gets a full stop, and lines are joined by a space.
    """
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
    return " ".join(article), " ".join(highlights)


def strip_dateline(article: str) -> str:
    """An article without the dateline with which it may begin.

    A dateline is a known agency in parentheses and a dash, `(CNN) -- `, or `(CNN)` alone. Either may follow a place:
    `LONDON, England (Reuters) -- `, `Hong Kong (CNN)`. A dateline with nothing behind it stays.
    """
    return article[match.end() :] if (match := _DATELINE.match(article)) else article


def story_name(url: str) -> str:
    """The name of the file that holds the story of a URL."""
    return f"{hashlib.sha1(url.encode()).hexdigest()}.story"


def unpack(path: Path, folder: Path) -> None:
    """Unpack a `.tgz` of stories into a folder, and nothing outside it.

    Raises:
        InputError: the file is no such archive, or a damaged one.
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a whole .tgz archive ({error})") from None
