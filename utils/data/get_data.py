"""Published summarisation sets as line files: `python -m utils.data.get_data [folder] [cnn_dm] [xsum] [sample]`.

Each set is built in `FOLDER/SET/.building` and moved into place file by file once all of it is right;
`provenance.json` is removed before the first of these moves and written after the last. Where it is, the files beside
it are whole and are those whose SHA-256 it lists.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha1
from itertools import chain
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bart.errors import InputError
from utils.cli import ArgumentParser, RunError, run_main, unwritable, with_underscores
from utils.data.download import RetryPolicy, fetch
from utils.data.hub_parquet import count_rows, hub_headers, list_parquet, read_rows
from utils.data.line_files import SPLITS, PairWriter, read_pairs, writing_pairs
from utils.data.provenance import DROPPED, PAIR_FILES, PROVENANCE, sha256_of, size_and_digest, write_dropped
from utils.data.sample_corpus import write_sample_corpus
from utils.data.stories import parse_story, read_archive, read_url_list, story_name, strip_dateline, url_list_name
from utils.evaluation.results import write_json
from utils.progress import Progress, start_log

logger = logging.getLogger("utils.data.get_data")
BUILDING = ".building"


@dataclass(frozen=True)
class PublishedSet:
    """A set as it was published.

    Attributes:
        sources: what can give it, by the names of --sources.
        sizes: split -> examples.
        repository, folders: where its Parquet files are on the Hub; the first folder that has them counts.
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
    "sample": PublishedSet(("sample",), _sizes(8000, 200, 200)),
}  # fmt: skip
SOURCES = ("hub", "stories")
ARCHIVES = ("cnn_stories", "dailymail_stories")
# The commit of the Hub's repository that last had the archives, and the one of the URL lists.
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


@dataclass(frozen=True)
class Job:
    """A set to be built.

    Attributes:
        building: the folder for its files.
        downloads: where what is downloaded lies.
        args: the command line.
        dropped: what is left out and belongs to no split, as in `PairWriter.dropped`.
    """

    name: str
    building: Path
    downloads: Path
    args: argparse.Namespace
    dropped: list[dict[str, str]] = field(default_factory=list)

    @property
    def retries(self) -> RetryPolicy:
        """How long to go on with a server that fails."""
        return RetryPolicy(self.args.tries, self.args.timeout)

    def download(
        self, url: str, size: int | None, sha256: str | None, headers: Mapping[str, str] | None = None
    ) -> tuple[Path, dict[str, Any]]:
        """Fetch a URL; returns the file and its record for the provenance."""
        name = url.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
        # Two URLs may end alike.
        path = self.downloads / f"{sha1(url.encode()).hexdigest()[:12]}-{name}"
        digest = fetch(url, path, self.retries, size, sha256, headers)
        return path, {"from": url, "bytes": path.stat().st_size, "sha256": digest}

    def check_size(self, split: str, found: int, what: str) -> None:
        """Compare the number of examples with the published one.

        Raises:
            InputError: it is another, and --allow_other_sizes was not given.
        """
        expected = SETS[self.name].sizes[split]
        if found != expected and not self.args.allow_other_sizes:
            raise InputError(
                f"{self.name} {split}: {found} {what}, {expected} are published; --allow_other_sizes takes it as it is"
            )

    def text(self, article: str) -> str:
        """An article with its dateline kept or not."""
        return strip_dateline(article) if self.args.datelines == "strip" else article


def from_hub(job: Job, writers: Mapping[str, PairWriter]) -> dict[str, Any]:
    """Write a set from its Parquet files on the Hub; returns what the provenance says of it."""
    published = SETS[job.name]
    commit, splits = list_parquet(published.repository, published.folders, job.retries)
    headers = hub_headers()
    files = {
        split: [job.download(file.url, file.size, file.sha256, headers) for file in splits[split]] for split in SPLITS
    }
    paths = {split: [path for path, _ in files[split]] for split in SPLITS}
    rows = {split: count_rows(paths[split]) for split in SPLITS}
    for split in SPLITS:
        job.check_size(split, rows[split], "rows on the Hub")
    for split, writer in writers.items():
        progress = Progress(f"{job.name} {split}", rows[split], "rows")
        for name, source, target in read_rows(paths[split]):
            writer.add(job.text(source), target, name)
            progress.advance()
    records = [record for split in SPLITS for _, record in files[split]]
    return {"repository": published.repository, "revision": commit, "downloads": records}


def from_stories(job: Job, writers: Mapping[str, PairWriter]) -> dict[str, Any]:
    """Write CNN-DM from the archives of stories, in the order of the URL lists; returns what the provenance says.

    Memory holds the place of each story, not the story: what the archives hold goes to a nameless file on disk first.
    """
    lists = {split: _published_file(job, "url_lists", url_list_name(split)) for split in SPLITS}
    archives = [_published_file(job, option, f"{option}.tgz") for option in ARCHIVES]
    urls = {split: read_url_list(lists[split][0]) for split in SPLITS}
    wanted = {story_name(url) for split in SPLITS for url in urls[split]}
    places: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryFile(dir=job.building) as spool:
        for path, _ in archives:
            for name, content in read_archive(path):
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
        recoded = 0
        done: set[str] = set()
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
        # Stories without article or highlights are in the lists, but were never counted as examples.
        job.check_size(split, writer.count, f"stories with article and highlights among {len(urls[split])} listed")
    if recoded:
        logger.warning("%s: %d stories are not UTF-8; their other bytes were read as Windows-1252", job.name, recoded)
    records = [record for _, record in [*lists.values(), *archives]]
    return {"downloads": records, "stories_read_as_windows_1252": recoded}


def _published_file(job: Job, option: str, name: str) -> tuple[Path, dict[str, Any]]:
    """An archive or a URL list, from where its option says, and its record for the provenance.

    Raises:
        InputError: it is not the published one, and --allow_other_sizes was not given.
    """
    place = getattr(job.args, option)
    size, sha256 = (None, None) if job.args.allow_other_sizes else PUBLISHED[name]
    if place is None:
        from huggingface_hub import hf_hub_url

        repository = SETS[job.name].repository
        url = hf_hub_url(repository, f"data/{name}", repo_type="dataset", revision=ARCHIVE_COMMIT)
        return job.download(url, size, sha256, hub_headers())
    if option == "url_lists":
        place = f"{place.rstrip('/')}/{name}"
    if "://" in place:
        return job.download(place, size, sha256)
    path = Path(place).expanduser()
    digest = sha256_of(path)
    if sha256 not in (None, digest):
        raise InputError(
            f"--{option}: {path} has SHA-256 {digest}, the published {name} has {sha256}; --allow_other_sizes takes it "
            "as it is"
        )
    return path, {"from": place, "bytes": path.stat().st_size, "sha256": digest}


def from_sample(job: Job, writers: Mapping[str, PairWriter]) -> dict[str, Any]:
    """Write the sample corpus, which this project makes itself."""
    folder = job.building / "corpus"
    write_sample_corpus(folder, *SETS[job.name].sizes.values())
    for split, writer in writers.items():
        for number, (source, target) in enumerate(zip(*read_pairs(folder, split), strict=True), 1):
            writer.add(source, target, str(number))
    return {"downloads": []}


BUILDERS: dict[str, Callable[[Job, Mapping[str, PairWriter]], dict[str, Any]]] = {
    "hub": from_hub,
    "stories": from_stories,
    "sample": from_sample,
}


def get_set(name: str, args: argparse.Namespace) -> None:
    """Build a set, unless it is there as wanted.

    Raises:
        InputError: no source can give it, or files are in the way that this program did not write.
        RunError: a source may give it at another time.
    """
    folder = args.folder / name
    sources = [source for source in args.sources if source in SETS[name].sources] or list(SETS[name].sources)
    request = {"set": name, "sources": sources, "allow_other_sizes": args.allow_other_sizes}
    if name == "cnn_dm":
        request |= {option: getattr(args, option) for option in ("datelines", *ARCHIVES, "url_lists")}
    building, downloads = folder / BUILDING, args.folder / "downloads" / name
    provenance = find_set(folder, request)
    if provenance:
        logger.info("%s: is there already, from %s; nothing to do", folder, provenance["source"])
    else:
        try:
            provenance = build_set(name, building, downloads, args, request)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            if _ours_by_halves(folder):
                building.mkdir()
            raise
        install(folder, provenance)
    shutil.rmtree(building, ignore_errors=True)
    if not args.keep_downloads:
        shutil.rmtree(downloads, ignore_errors=True)
        if downloads.parent.is_dir() and not any(downloads.parent.iterdir()):
            downloads.parent.rmdir()
    counts = " + ".join(str(provenance["counts"][split]["written"]) for split in SPLITS)
    print(f"{folder}: {counts} examples from {provenance['source']}")


def _ours_by_halves(folder: Path) -> bool:
    """Whether there are examples without provenance, such as a run leaves that is killed while it moves files."""
    return not (folder / PROVENANCE).exists() and any((folder / name).exists() for name in PAIR_FILES)


def find_set(folder: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The provenance of a set that is whole and as requested; None where it is to be built.

    Raises:
        InputError: building it would overwrite what this program did not write.
    """
    path = folder / PROVENANCE
    if not path.exists():
        if _ours_by_halves(folder) and not (folder / BUILDING).exists() and request["set"] != "sample":
            names = ", ".join(name for name in PAIR_FILES if (folder / name).exists())
            raise InputError(f"{folder} holds {names} from elsewhere: move them away, or name another folder")
        return None
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
        files = {folder / name: record["sha256"] for name, record in provenance["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{path}: cannot be read as the provenance of a set; delete it to build the set anew"
        ) from None
    for file, digest in files.items():
        if file.exists() and sha256_of(file) != digest:
            raise InputError(f"{file} was changed since it was written: move it away, or delete it to build it anew")
    missing = [file.name for file in files if not file.exists()]
    if missing:
        logger.info("%s: %s missing; building it anew", folder, ", ".join(missing))
    elif provenance["request"] != request:
        logger.info("%s: was made with other options; building it anew", folder)
    else:
        return provenance
    return None


def build_set(
    name: str, building: Path, downloads: Path, args: argparse.Namespace, request: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a set's files into `building` from the first source that gives it; returns the provenance."""
    failures: dict[str, InputError | RunError] = {}
    for source in request["sources"]:
        if failures:
            logger.warning("%s: %s fails: %s", name, *list(failures.items())[-1])
        try:
            shutil.rmtree(building, ignore_errors=True)
            for path in (building, downloads):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(str(path), error) from None
        logger.info("%s: from %s", name, source)
        try:
            return _build_from(source, Job(name, building, downloads, args)) | {"request": request}
        except (InputError, RunError) as error:
            failures[source] = error
    if len(failures) == 1:
        raise next(iter(failures.values()))
    kind = RunError if any(isinstance(error, RunError) for error in failures.values()) else InputError
    raise kind("; ".join([f"{name}: no source gives it", *(f"{key}: {error}" for key, error in failures.items())]))


def _build_from(source: str, job: Job) -> dict[str, Any]:
    with ExitStack() as whole:
        writers = {split: whole.enter_context(writing_pairs(job.building, split)) for split in SPLITS}
        details = BUILDERS[source](job, writers)
    dropped = {split: writer.dropped for split, writer in writers.items()} | {"none": job.dropped}
    counts = {
        split: {
            "written": writers[split].count if split in writers else 0,
            "dropped": dict(Counter(entry["reason"] for entry in entries).most_common()),
        }
        for split, entries in dropped.items()
    }
    for split, count in counts.items():
        for reason, number in count["dropped"].items():
            logger.info("%s %s: dropped %d: %s", job.name, split, number, reason)
        if split in writers and not count["written"]:
            raise InputError(f"{job.name} {split}: {source} gives no example that could be written")
    write_dropped(job.building, chain.from_iterable(dropped.values()))
    files = {name: size_and_digest(job.building / name) for name in (*PAIR_FILES, DROPPED)}
    return {"source": source, **details, "counts": counts, "files": files}


def install(folder: Path, provenance: Mapping[str, Any]) -> None:
    """Move the files of a set that was built into place, and say last that they are there."""
    try:
        write_json(folder / BUILDING / PROVENANCE, provenance)
        (folder / PROVENANCE).unlink(missing_ok=True)
        for name in (*provenance["files"], PROVENANCE):
            os.replace(folder / BUILDING / name, folder / name)
    except OSError as error:
        raise unwritable(str(folder), error) from None


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line.

    Returns:
        The options, `folder`, `sets`, and `sources` as a list.

    Raises:
        InputError: values that do not fit each other; it names them.
    """
    parser = ArgumentParser(
        prog="get_data.sh",
        usage="%(prog)s [folder] [cnn_dm] [xsum] [sample] [--option value ...]",
        description="Write CNN-DM, XSum and the sample corpus to FOLDER/SET/{train,val,test}.{source,target}.\n"
        "The folder is data/ unless named, the sets cnn_dm and xsum.",
    )
    parser.add_argument(
        "--sources", default=",".join(SOURCES),
        help="where to look for a set, in this order: hub (its Parquet files), stories (CNN-DM's archives of stories) "
        "(default: %(default)s)",
    )  # fmt: skip
    for option in ARCHIVES:
        parser.add_argument(
            f"--{option}", metavar="FILE_OR_URL", help=f"{option}.tgz (default: the one that the Hub keeps)"
        )
    parser.add_argument(
        "--url_lists", metavar="FOLDER_OR_URL", default=URL_LISTS,
        help="where all_train.txt, all_val.txt and all_test.txt are (default: abisee/cnn-dailymail on GitHub)",
    )  # fmt: skip
    parser.add_argument(
        "--datelines", choices=("keep", "strip"), default="keep",
        help="whether articles of CNN-DM keep a dateline such as `(CNN) -- ` (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--allow_other_sizes", action="store_true",
        help="take a set whose sizes, archives or URL lists are not the published ones",
    )  # fmt: skip
    parser.add_argument(
        "--keep_downloads", action="store_true", help="keep FOLDER/downloads/SET when the set is written"
    )
    parser.add_argument(
        "--tries", type=int, default=6, help="failures in a row after which to give up (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0,
        help="seconds after which a server that sends nothing has failed (default: %(default)g)",
    )  # fmt: skip
    # Folder and sets may stand anywhere among the options, which argparse does not know of positional arguments.
    args, words = parser.parse_known_args(with_underscores(sys.argv[1:] if argv is None else argv))
    unknown = [word for word in words if word.startswith("-")]
    if unknown:
        parser.parse_args(unknown[:1])
    args.folder, args.sets = _folder_and_sets(words)
    args.sources = _sources(args.sources, args.sets)
    if args.tries < 1:
        raise InputError(f"--tries is {args.tries}; it takes an integer of at least 1")
    if not 0 < args.timeout < float("inf"):
        raise InputError(f"--timeout is {args.timeout:g}; it takes seconds above 0")
    if "cnn_dm" not in args.sets and args.datelines != "keep":
        raise InputError(f"--datelines {args.datelines}: only cnn_dm has datelines, not {', '.join(args.sets)}")
    for option in (*ARCHIVES, "url_lists"):
        place = getattr(args, option)
        if place == parser.get_default(option):
            continue
        if "stories" not in args.sources or "cnn_dm" not in args.sets:
            raise InputError(f"--{option} {place}: is of use for cnn_dm with --sources stories only")
        names = [url_list_name(split) for split in SPLITS] if option == "url_lists" else [""]
        for path in [] if "://" in place else [Path(place).expanduser() / name for name in names]:
            if not path.is_file():
                raise InputError(f"--{option}: {path}: no such file")
    return args


def _folder_and_sets(words: Sequence[str]) -> tuple[Path, list[str]]:
    sets, folders = [], []
    for word in words:
        if word in SETS:
            sets.append(word)
            continue
        near = get_close_matches(word.lower().replace("-", "_"), SETS, n=1)
        if near and "/" not in word and not Path(word).is_dir():
            raise InputError(f"{word!r} is no set (did you mean {near[0]}?); write ./{word} for a folder of that name")
        folders.append(word)
    if len(folders) > 1:
        raise InputError(f"two folders, {folders[0]!r} and {folders[1]!r}: one is allowed; sets are {', '.join(SETS)}")
    folder = Path(*folders or ["data"]).expanduser()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is no folder; the sets are written into one")
    return folder, list(dict.fromkeys(sets)) or ["cnn_dm", "xsum"]


def _sources(text: str, sets: Sequence[str]) -> list[str]:
    sources = [word.strip() for word in text.split(",")]
    for source in sources:
        if source not in SOURCES or sources.count(source) > 1:
            raise InputError(
                f"--sources is {text!r}; it takes {' and '.join(SOURCES)}, one or both, with a comma between"
            )
    for name in sets:
        possible = SETS[name].sources
        if not {"sample", *sources} & set(possible):
            raise InputError(f"--sources {text}: {name} comes from {' or '.join(possible)} only")
    return sources


def main(argv: Sequence[str] | None = None) -> None:
    """Write the sets that the command line names.

    Raises:
        InputError, RunError: as `get_set`, and for a command line that cannot be.
    """
    args = parse_arguments(argv)
    start_log()
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(args.folder / ".get_data.lock", timeout=0):
            for name in args.sets:
                get_set(name, args)
    except Timeout:
        raise RunError(f"{args.folder}: another get_data is at work there") from None
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise unwritable(str(error.filename or args.folder), error) from None


if __name__ == "__main__":
    run_main(main)
