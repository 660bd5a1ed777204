"""Data directories of published sets: `python -m utils.corpora.get_data [folder] [cnn_dm] [xsum] [sample]`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.get_data")

import hashlib
import logging
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import Any

from bart.errors import InputError
from bart.files import sha256_of
from utils.app.cli import option, parse_dataclass
from utils.app.progress import progress, start_log
from utils.corpora.data_directory import is_made, write_data_directory
from utils.corpora.sample_corpus import write_sample_corpus
from utils.data.places import HUB, load_from_hub, opening
from utils.data.rows import published_rows
from utils.data.splits import SPLITS
from utils.data.tables import SIDES, Row, pairs_in

logger = logging.getLogger("utils.corpora.get_data")

# Examples of train, val and test, as published; and the places of the sets on the Hub.
PUBLISHED_SIZES = {"cnn_dm": (287_113, 13_368, 11_490), "xsum": (204_045, 11_332, 11_334)}
# XSum is a program there; the branch has the Parquet files that the Hub made of it.
ON_HUB = {"cnn_dm": "abisee/cnn_dailymail:3.0.0", "xsum": "EdinburghNLP/xsum@refs/convert/parquet"}
STORIES = ("cnn_stories", "dailymail_stories")  # options that name the archives of --sources stories
SETS = (*PUBLISHED_SIZES, "sample")
# The last commit of the Hub's repository that had the archives of stories, and the commit of the lists of URLs.
ARCHIVES = "hf://datasets/abisee/cnn_dailymail@11343c3752184397d56efc19a8a7cceb68089318/data"
URL_LISTS = "https://raw.githubusercontent.com/abisee/cnn-dailymail/b15ad0a2db0d407a84b8ca9b5731e1f1c4bd24b9/url_lists"
# SHA-256, from the Hub's metadata of cnn_dailymail.
PUBLISHED = {
    "cnn_stories": "e8fbc0027e54e0a916abd9c969eb35f708ed1467d7ef4e3b17a56739d65cb200",
    "dailymail_stories": "ad69010002210b7c406718248ee66e65868b9f6820f163aa966369878d14147e",
}
# Lines of stories that end in one of these get no full stop.
_SENTENCE_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")
_MARKER = "@highlight"
url_option = partial(option, metavar="FILE_OR_URL", reaches=bool)


@dataclass(frozen=True)
class GetDataOptions:
    folder_and_sets: tuple[str, ...] = option(
        (), positional=True, help="a folder (default: data), and any of cnn_dm, xsum, sample (default: cnn_dm and xsum)"
    )
    sources: str = option(
        "hub", choices=("hub", "stories"), help="source of CNN-DM: its files on the Hub, or archives of stories"
    )
    cnn_stories: str = url_option(f"{ARCHIVES}/cnn_stories.tgz", help="archive of CNN's stories")
    dailymail_stories: str = url_option(f"{ARCHIVES}/dailymail_stories.tgz", help="archive of the Daily Mail's stories")
    allow_other_sizes: bool = option(False, help="take a set even if its sizes or archives are not the published ones")

    def __post_init__(self) -> None:
        if self.sources == "stories" and "cnn_dm" not in self.sets:
            raise InputError(f"--sources is of use with cnn_dm only, not with {' and '.join(self.sets)}")
        for name in STORIES:
            if self.sources != "stories" and getattr(self, name) != f"{ARCHIVES}/{name}.tgz":
                raise InputError(f"--{name}: is of use with --sources stories only")

    @cached_property
    def folder(self) -> Path:
        folders = [word for word in self.folder_and_sets if word not in SETS]
        alike = [word for word in folders if get_close_matches(word.lower(), SETS) and "/" not in word]
        for word in [word for word in alike if not Path(word).is_dir()] or folders[1:]:
            raise InputError(f"{word!r} is no set; allowed: {', '.join(SETS)}, and one folder, such as ./{word}")
        return Path(*folders or ["data"]).expanduser()

    @cached_property
    def sets(self) -> list[str]:
        named = [word for word in self.folder_and_sets if word in SETS]
        return list(dict.fromkeys(named)) or list(PUBLISHED_SIZES)


def get_set(name: str, options: GetDataOptions) -> None:
    """Make a set, unless it is there as the options want it."""
    folder = options.folder / name
    if name == "sample":
        write_sample_corpus(folder)
        return
    facts: dict[str, Any] = {"set": name}
    if name == "cnn_dm":
        facts |= {option: getattr(options, option) for option in ("sources", *STORIES)}
    if not is_made(folder, facts):
        facts["allow_other_sizes"] = options.allow_other_sizes
        rows = _stories(options) if facts.get("sources") == "stories" else _rows_of(name, facts)
        write_data_directory(folder, facts, rows)


def _rows_of(name: str, facts: dict[str, Any]) -> Iterator[tuple[str, Row]]:
    """The rows of a set on the Hub, with their splits; the facts get the commit."""
    with opening(f"{ON_HUB[name]} on the Hub"):
        splits, facts["from"] = load_from_hub(ON_HUB[name])
    sizes = {split: len(splits.get(split, ())) for split in SPLITS}
    for split, size in sizes.items():
        if not facts["allow_other_sizes"]:
            _check_size(name, split, size, "rows on the Hub")
    for split, size in sizes.items():
        rows = pairs_in(published_rows(f"{HUB}{ON_HUB[name]}", split), (None, None), f"{name} {split}")
        yield from ((split, row) for row in progress(f"{name} {split}", size, "rows", rows))


def _check_size(name: str, split: str, count: int, unit: str) -> None:
    if count != (published := PUBLISHED_SIZES[name][SPLITS.index(split)]):
        raise InputError(f"{name} {split}: {count} {unit}, not {published} as published; --allow_other_sizes takes it")


def _downloaded(name: str, place: str) -> Path:
    """A file here, or one that is downloaded unless it was before; errors begin with the name."""
    from datasets import DownloadManager

    with opening(f"{name}: {place}"):
        try:
            return Path(DownloadManager().download(os.path.expanduser(place)))
        except FileNotFoundError:  # also where a server cannot be reached
            raise InputError(f"{name}: {place} cannot be found or reached") from None


def _stories(options: GetDataOptions) -> Iterator[tuple[str, Row]]:
    """The stories of the archives, which are held in memory (1.5 GB), in the order of the URL lists."""
    lists = {split: _downloaded("the list of URLs", f"{URL_LISTS}/all_{split}.txt") for split in SPLITS}
    stories: dict[str, bytes] = {}
    for name in STORIES:
        path = _downloaded(f"--{name}", getattr(options, name))
        if not options.allow_other_sizes and (digest := sha256_of(path)) != PUBLISHED[name]:
            raise InputError(
                f"--{name}: {path} has SHA-256 {digest}, the published one {PUBLISHED[name]}; "
                "--allow_other_sizes takes it as it is"
            )
        logger.info("reading %s", path)
        stories |= read_archive(path)
    for split in SPLITS:
        count = 0
        urls = lists[split].read_text().split()
        for url in progress(f"cnn_dm {split}", len(urls), "stories", urls):
            row = _story_row(url, stories.get(story_name(url)))
            count += row.fault is None
            yield split, row
        # The lists also name stories without article or highlights, which were never counted as examples.
        if not options.allow_other_sizes:
            _check_size("cnn_dm", split, count, "stories with article and highlights")


def _story_row(url: str, story: bytes | None) -> Row:
    if story is None:
        return Row(url, fault="no story in the archives")
    try:
        texts = parse_story(story.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return Row(url, fault="not UTF-8")
    return Row.of(url, dict(zip(SIDES, texts, strict=True)), SIDES)


def parse_story(text: str) -> tuple[str, str]:
    """The article and the summary of a story, each one line; either may be empty.

    They are made as by See et al. 2017 (https://github.com/abisee/cnn-dailymail), but without lower-casing and
    tokenisation: a full stop that a line lacks is put directly after its last letter.
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


def read_archive(path: Path) -> dict[str, bytes]:
    """The stories of a `.tgz`, by the names of their files without folders."""
    stories = {}
    with opening(str(path)), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if member.isfile() and (content := archive.extractfile(member)) is not None:
                stories[PurePath(member.name).name] = content.read()
    return stories


def main(argv: Sequence[str] | None = None) -> None:
    text = "Write CNN-DM, XSum and the sample corpus to FOLDER/SET/{train,val,test}.{source,target}."
    options = parse_dataclass(GetDataOptions, argv, text)
    start_log()
    for name in options.sets:
        get_set(name, options)
