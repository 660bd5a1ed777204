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


def parse_story(text: str) -> tuple[str, str]:
    """The article and the summary of a story, each one line; either may be empty.

    Lines end at "\\n", "\\r\\n" or "\\r", not at U+2028 and the like. All that follows the first line that begins with
    `@highlight` belongs to the summary.
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


def story_name(url: str) -> str:
    """The name of the file that holds the story of a URL."""
    return f"{hashlib.sha1(url.encode()).hexdigest()}.story"


def unpack(path: Path, folder: Path) -> None:
    """Unpack a `.tgz` of stories into a folder, and nothing outside it."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a whole .tgz archive ({error})") from None
