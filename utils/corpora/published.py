"""Sets as they were published: where they are, what they must be, and how they become line files."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bart.errors import InputError
from bart.files import replacing
from utils.corpora.data_directory import size_and_digest
from utils.corpora.sample_corpus import SIZES, sample_stories
from utils.corpora.stories import parse_story, read_archive, read_url_list, story_name, strip_dateline
from utils.data.line_files import SPLITS, PairWriter
from utils.data.tables import Reader, open_files, opening
from utils.errors import RunError, brief
from utils.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublishedSet:
    """A set as it was published.

    Attributes:
        sources: what can give it, by the names of --sources.
        sizes: split -> examples.
        repository, folders: where its Parquet files are on the Hub. The first folder that has them counts.
    """

    sources: tuple[str, ...]
    sizes: Mapping[str, int]
    repository: str = ""
    folders: tuple[str, ...] = ()


def _sizes(*sizes: int) -> dict[str, int]:
    return dict(zip(SPLITS, sizes, strict=True))


SETS = {
    "cnn_dm": PublishedSet(
        ("hub", "stories"), _sizes(287_113, 13_368, 11_490), "abisee/cnn_dailymail", ("3.0.0/",)
    ),
    "xsum": PublishedSet(
        ("hub",), _sizes(204_045, 11_332, 11_334), "EdinburghNLP/xsum", ("data/", "", "default/")
    ),
    "sample": PublishedSet(("sample",), SIZES),
}  # fmt: skip
ARCHIVES = ("cnn_stories", "dailymail_stories")
# The last commit of the Hub's repository that had the archives, and the commit of the URL lists.
ARCHIVE_COMMIT = "11343c3752184397d56efc19a8a7cceb68089318"
URL_LISTS = "https://raw.githubusercontent.com/abisee/cnn-dailymail/b15ad0a2db0d407a84b8ca9b5731e1f1c4bd24b9/url_lists"
# Bytes and SHA-256, from the Hub's metadata of cnn_dailymail.
PUBLISHED = {
    "cnn_stories.tgz": (158_577_824, "e8fbc0027e54e0a916abd9c969eb35f708ed1467d7ef4e3b17a56739d65cb200"),
    "dailymail_stories.tgz": (375_893_739, "ad69010002210b7c406718248ee66e65868b9f6820f163aa966369878d14147e"),
    "all_train.txt": (46_424_688, "a5cee49f3a6c862c26ce29308236d2a99625ab6c86a43be22d5206b2790d8029"),
    "all_val.txt": (2_433_674, "81887e982b045083409c6ee838aede8ff4b97291605bcfb21bffc456a16991db"),
    "all_test.txt": (2_109_547, "c4f5efb5ec2126430a5c156efbd13d0e9c4cb490169e552c38b4a51981a009bd"),
}
# Where the Hub puts the Parquet files that it makes of sets in other formats, and how Parquet files are named there:
# `train-00000-of-00003.parquet`, or `train/0000.parquet` where the Hub made them.
REVISIONS = ("main", "refs/convert/parquet")
_PARQUET = re.compile(r"(train|validation|test)(?:-\d+-of-\d+|/\d+)\.parquet")


def url_list(split: str) -> str:
    """The file of a split's URLs, as it is published."""
    return f"all_{split}.txt"


@dataclass(frozen=True)
class Job:
    """A set that is being built.

    Attributes:
        building: the folder for its files.
        downloads: the folder for what is downloaded.
        places: option -> where the archives of stories and the URL lists are; None for the Hub.
        strip_datelines: whether articles lose their datelines.
        allow_other_sizes: whether anything but the published set is taken.
        records: what the provenance says about each file that was used.
        dropped: what is left out and belongs to no split, as in `PairWriter.dropped`.
    """

    name: str
    building: Path
    downloads: Path
    places: Mapping[str, str | None]
    strip_datelines: bool
    allow_other_sizes: bool
    records: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[dict[str, str]] = field(default_factory=list)

    def from_hub(self, file: str, commit: str, size: int | None, sha256: str | None) -> Path:
        """Download a file of the set's repository on the Hub."""
        from huggingface_hub import hf_hub_download, hf_hub_url

        repository = {"repo_id": SETS[self.name].repository, "repo_type": "dataset", "revision": commit}
        url = hf_hub_url(filename=file, **repository)
        with _asking(url):
            path = Path(hf_hub_download(filename=file, local_dir=self.downloads, **repository))
        return self._checked(path, url, size, sha256)

    def from_url(self, url: str, size: int | None, sha256: str | None) -> Path:
        """Download a file from anywhere else, unless it is there."""
        from huggingface_hub.file_download import http_get

        # Two URLs may end alike.
        path = self.downloads / f"{sha1(url.encode()).hexdigest()[:12]}-{url.split('?')[0].rpartition('/')[2]}"
        if not path.exists():
            with _asking(url), replacing(path) as temporary, temporary.open("wb") as file:
                http_get(url, file)
        return self._checked(path, url, size, sha256)

    def _checked(self, path: Path, url: str, size: int | None, sha256: str | None) -> Path:
        found = size_and_digest(path)
        if size not in (None, found["bytes"]) or sha256 not in (None, found["sha256"]):
            path.unlink()
            raise RunError(
                f"{url}: the server sent {found['bytes']} bytes with SHA-256 {found['sha256']}; expected are {size} "
                f"with SHA-256 {sha256}"
            )
        self.records.append({"from": url, **found})
        return path

    def published_file(self, name: str, option: str) -> Path:
        """An archive or a URL list, from where its option says.

        Raises:
            InputError, RunError: it is missing; or it is not the published one, and --allow_other_sizes is not given.
        """
        place = self.places[option]
        size, sha256 = (None, None) if self.allow_other_sizes else PUBLISHED[name]
        if place is None:
            return self.from_hub(f"data/{name}", ARCHIVE_COMMIT, size, sha256)
        if option == "url_lists":
            place = f"{place.rstrip('/')}/{name}"
        if "://" in place:
            return self.from_url(place, size, sha256)
        path = Path(place).expanduser()
        found = size_and_digest(path)
        if sha256 not in (None, found["sha256"]):
            raise InputError(
                f"--{option}: {path} has SHA-256 {found['sha256']}, the published {name} has {sha256}; "
                "--allow_other_sizes takes it as it is"
            )
        self.records.append({"from": place, **found})
        return path

    def check_size(self, split: str, found: int, what: str) -> None:
        """Raise InputError where the number of examples is not the published one, unless that is allowed."""
        expected = SETS[self.name].sizes[split]
        if found != expected and not self.allow_other_sizes:
            raise InputError(
                f"{self.name} {split}: {found} {what}, {expected} are published; --allow_other_sizes takes it as it is"
            )

    def text(self, article: str) -> str:
        """An article, with its dateline or without."""
        return strip_dateline(article) if self.strip_datelines else article


@contextmanager
def _asking(server: str) -> Iterator[None]:
    """Make one error of whatever the Hub's client raises: RunError where asking again may help, else InputError."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        yield
    except RepositoryNotFoundError:
        raise InputError(
            f"{server}: the Hub has no such data set, or not for everyone: set HF_TOKEN if you may see it"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        kind = InputError if 400 <= status < 500 and status not in (408, 425, 429) else RunError
        raise kind(f"{server}: the server answers {status} {error.response.reason_phrase}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = error.__cause__ or error
        raise RunError(f"{server}: cannot be reached ({type(reason).__name__}: {brief(reason)})") from None


def _list_parquet(repository: str, folders: Sequence[str]) -> tuple[str, dict[str, list[RepoSibling]]]:
    """Find the Parquet files of a set: the commit, and the files of each split in order.

    They are those in the first of the folders that has each split, in the first of `REVISIONS`.

    Raises:
        InputError: there is no such repository, it is closed, or it has no such files.
        RunError: the Hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionNotFoundError

    for revision in REVISIONS:
        with _asking(f"{repository} on the Hub"):
            try:
                info = HfApi().dataset_info(repository, revision=revision, files_metadata=True)
            except RevisionNotFoundError:
                continue
        for folder in folders:
            splits: dict[str, list[RepoSibling]] = {split: [] for split in SPLITS}
            for file in sorted(info.siblings or [], key=lambda file: file.rfilename):
                if file.rfilename.startswith(folder) and (found := _PARQUET.fullmatch(file.rfilename[len(folder) :])):
                    splits["val" if found[1] == "validation" else found[1]].append(file)
            if all(splits.values()):
                return info.sha, splits
    places = " or ".join(repr(folder) for folder in folders)
    raise InputError(f"{repository} on the Hub: no Parquet files of train, validation and test under {places}")


def from_hub(job: Job, writers: Mapping[str, PairWriter]) -> dict[str, Any]:
    """Write a set from its Parquet files on the Hub; returns what the provenance says of it."""
    published = SETS[job.name]
    commit, splits = _list_parquet(published.repository, published.folders)
    tables = {}
    for split, files in splits.items():
        checks = [(file.lfs.size, file.lfs.sha256) if file.lfs else (file.size, None) for file in files]
        paths = [job.from_hub(file.rfilename, commit, *check) for file, check in zip(files, checks, strict=True)]
        what = f"{job.name} {split}"
        with opening(what):
            tables[split] = open_files([str(path.absolute()) for path in paths], what, what)
        job.check_size(split, tables[split].size, "rows on the Hub")
    for split, writer in writers.items():
        progress = Progress(f"{job.name} {split}", tables[split].size, "rows")
        for row in Reader(tables[split]).rows():
            if row.fault is None:
                writer.add(job.text(row.source), row.target, row.name)
            else:
                writer.drop(row.name, row.fault)
            progress.advance()
    return {"repository": published.repository, "revision": commit}


def from_stories(job: Job, writers: Mapping[str, PairWriter]) -> dict[str, Any]:
    """Write CNN-DM from the archives of stories, in the order of the URL lists; returns what the provenance says of it.

    The stories go to a nameless file on the disk first. Memory holds only where in it each story lies.
    """
    urls = {split: read_url_list(job.published_file(url_list(split), "url_lists")) for split in SPLITS}
    archives = [job.published_file(f"{option}.tgz", option) for option in ARCHIVES]
    wanted = {story_name(url) for split in SPLITS for url in urls[split]}
    places: dict[str, tuple[int, int]] = {}
    recoded = 0
    done: set[str] = set()
    with tempfile.TemporaryFile(dir=job.building) as spool:
        for name, content in chain.from_iterable(map(read_archive, archives)):
            reason = (
                content if isinstance(content, str)
                else "in no URL list" if name not in wanted
                else "second file of its name" if name in places
                else None
            )  # fmt: skip
            if reason:
                job.dropped.append({"split": "none", "example": name, "reason": reason})
            else:
                places[name] = spool.tell(), len(content)
                spool.write(content)
        for split, writer in writers.items():
            progress = Progress(f"{job.name} {split}", len(urls[split]), "stories")
            for url in urls[split]:
                name = story_name(url)
                if name in done:
                    writer.drop(url, "listed before")
                elif name not in places:
                    writer.drop(url, "no story in the archives")
                else:
                    start, length = places[name]
                    spool.seek(start)
                    story = parse_story(spool.read(length))
                    recoded += story.recoded
                    writer.add(job.text(story.article), story.highlights, url)
                done.add(name)
                progress.advance()
    for split, writer in writers.items():
        # The lists also name stories without article or highlights, which were never counted as examples.
        job.check_size(split, writer.count, f"stories with article and highlights among {len(urls[split])} listed")
    if recoded:
        logger.warning("%s: %d stories are not UTF-8; their other bytes were read as Windows-1252", job.name, recoded)
    return {"stories_read_as_windows_1252": recoded}


def from_sample(job: Job, writers: Mapping[str, PairWriter]) -> dict[str, Any]:
    """Write the sample corpus, which this project makes itself."""
    for split, writer in writers.items():
        for number, story in enumerate(sample_stories(split, SETS[job.name].sizes[split]), 1):
            writer.add(*story, str(number))
    return {}


BUILDERS: dict[str, Callable[[Job, Mapping[str, PairWriter]], dict[str, Any]]] = {
    "hub": from_hub,
    "stories": from_stories,
    "sample": from_sample,
}
