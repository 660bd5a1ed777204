"""Published summarisation sets as line files: `python -m utils.corpora.get_data [folder] [cnn_dm] [xsum] [sample]`.

Each set is built in a folder of its own, and moves into its place when all of it is right. A `provenance.json` beside
the files lists their SHA-256, so that another run can tell whether the set is whole and as it was written.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bart.errors import InputError
from utils.cli import option, parse_dataclass, run_main
from utils.corpora.data_directory import building_in, put_in_place, read_provenance, write_dropped, write_provenance
from utils.corpora.published import ARCHIVES, BUILDERS, SETS, URL_LISTS, Job, url_list
from utils.corpora.sample_corpus import request_of
from utils.data.line_files import SPLITS, writing_pairs
from utils.errors import RunError, unwritable
from utils.progress import start_log

logger = logging.getLogger("utils.corpora.get_data")
SOURCES = ("hub", "stories")


@dataclass(frozen=True)
class Options:
    """The command line."""

    folder_and_sets: tuple[str, ...] = option(
        (), positional=True, help="a folder (default: data), and any of cnn_dm, xsum, sample (default: cnn_dm and xsum)"
    )
    sources: str = option(
        ",".join(SOURCES),
        help="where to look for a set, in this order: hub (its Parquet files), stories (CNN-DM's archives of stories)",
    )
    cnn_stories: str | None = option(
        None, metavar="FILE_OR_URL", help="cnn_stories.tgz (default: the one that the Hub keeps)"
    )
    dailymail_stories: str | None = option(
        None, metavar="FILE_OR_URL", help="dailymail_stories.tgz (default: the one that the Hub keeps)"
    )
    url_lists: str = option(
        URL_LISTS, metavar="FOLDER_OR_URL", help="where all_train.txt, all_val.txt and all_test.txt are"
    )
    datelines: str = option(
        "keep", choices=("keep", "strip"), help="whether articles of CNN-DM keep a dateline such as `(CNN) -- `"
    )
    allow_other_sizes: bool = option(
        False, help="take a set whose sizes, archives or URL lists are not the published ones"
    )
    keep_downloads: bool = option(False, help="keep FOLDER/downloads/SET when the set is written")

    def __post_init__(self) -> None:
        """Refuse options that do not fit each other."""
        for name in self.sets:
            if not {"sample", *self.ordered_sources} & set(SETS[name].sources):
                raise InputError(f"--sources {self.sources}: {name} comes from {' or '.join(SETS[name].sources)} only")
        if "cnn_dm" not in self.sets and self.datelines != "keep":
            raise InputError(f"--datelines {self.datelines}: only cnn_dm has datelines, not {', '.join(self.sets)}")
        for name in (*ARCHIVES, "url_lists"):
            place = getattr(self, name)
            if place in (None, URL_LISTS):
                continue
            if "stories" not in self.ordered_sources or "cnn_dm" not in self.sets:
                raise InputError(f"--{name} {place}: is of use for cnn_dm with --sources stories only")
            files = [url_list(split) for split in SPLITS] if name == "url_lists" else [""]
            for path in [] if "://" in place else [Path(place).expanduser() / file for file in files]:
                if not path.is_file():
                    raise InputError(f"--{name}: {path}: no such file")

    @cached_property
    def folder(self) -> Path:
        """Where sets and downloads lie."""
        folders = [word for word in self.folder_and_sets if word not in SETS]
        for word in folders:
            near = get_close_matches(word.lower().replace("-", "_"), SETS, n=1)
            if near and "/" not in word and not Path(word).is_dir():
                raise InputError(
                    f"{word!r} is no set (did you mean {near[0]}?); write ./{word} for a folder of that name"
                )
        if len(folders) > 1:
            raise InputError(
                f"two folders, {folders[0]!r} and {folders[1]!r}: one is allowed; sets are {', '.join(SETS)}"
            )
        folder = Path(*folders or ["data"]).expanduser()
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is no folder; the sets are written into one")
        return folder

    @cached_property
    def sets(self) -> list[str]:
        """The sets to get."""
        named = [word for word in self.folder_and_sets if word in SETS]
        return list(dict.fromkeys(named)) or ["cnn_dm", "xsum"]

    @cached_property
    def ordered_sources(self) -> list[str]:
        """--sources, one by one."""
        sources = [word.strip() for word in self.sources.split(",")]
        if not set(sources) <= set(SOURCES) or len(set(sources)) < len(sources):
            raise InputError(
                f"--sources is {self.sources!r}; it takes {' and '.join(SOURCES)}, one or both, with a comma between"
            )
        return sources


def get_set(name: str, options: Options) -> None:
    """Build a set, unless it is there as the options want it.

    Raises:
        InputError: no source can give it, or files are in the way that this program did not write.
        RunError: a source may give it at another time.
    """
    folder, downloads = options.folder / name, options.folder / "downloads" / name
    sources = [source for source in options.ordered_sources if source in SETS[name].sources]
    request: dict[str, Any] = {"set": name, "sources": sources, "allow_other_sizes": options.allow_other_sizes}
    if name == "cnn_dm":
        request |= {option: getattr(options, option) for option in ("datelines", *ARCHIVES, "url_lists")}
    if name == "sample":
        sources, request = ["sample"], request_of(SETS[name].sizes)
    provenance = read_provenance(folder, name)
    missing = [file for file in provenance["files"] if not (folder / file).exists()] if provenance else []
    if provenance and not missing and provenance["request"] == request:
        logger.info("%s: is there already, from %s; nothing to do", folder, provenance["source"])
    else:
        if provenance:
            why = f"{', '.join(missing)} missing" if missing else "was made with other options"
            logger.info("%s: %s; building it anew", folder, why)
        with building_in(folder) as building:
            provenance = _build(name, sources, request, building, downloads, options)
            put_in_place(building, folder)
    if not options.keep_downloads:
        shutil.rmtree(downloads, ignore_errors=True)
        if downloads.parent.is_dir() and not any(downloads.parent.iterdir()):
            downloads.parent.rmdir()
    counts = " + ".join(str(provenance["counts"][split]["written"]) for split in SPLITS)
    print(f"{folder}: {counts} examples from {provenance['source']}")


def _build(
    name: str, sources: Sequence[str], request: Mapping[str, Any], building: Path, downloads: Path, options: Options
) -> dict[str, Any]:
    """Write a set's files into `building`, from the first source that gives it; returns the provenance."""
    places = {option: getattr(options, option) for option in (*ARCHIVES, "url_lists")}
    strip = options.datelines == "strip"
    failures: dict[str, InputError | RunError] = {}
    for source in sources:
        if failures:
            logger.warning("%s: %s fails: %s; trying %s", name, *list(failures.items())[-1], source)
        downloads.mkdir(parents=True, exist_ok=True)
        logger.info("%s: from %s", name, source)
        try:
            facts = _write(source, Job(name, building, downloads, places, strip, options.allow_other_sizes))
            return write_provenance(building, {"source": source, **facts, "request": request})
        except (InputError, RunError) as error:
            failures[source] = error
    if len(failures) == 1:
        raise next(iter(failures.values()))
    kind = RunError if any(isinstance(error, RunError) for error in failures.values()) else InputError
    raise kind("; ".join([f"{name}: no source gives it", *(f"{key}: {error}" for key, error in failures.items())]))


def _write(source: str, job: Job) -> dict[str, Any]:
    with ExitStack() as files:
        writers = {split: files.enter_context(writing_pairs(job.building, split)) for split in SPLITS}
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
    return {**details, "downloads": job.records, "counts": counts}


def main(argv: Sequence[str] | None = None) -> None:
    """Write the sets that the command line names."""
    options = parse_dataclass(
        Options,
        argv,
        "Write CNN-DM, XSum and the sample corpus to FOLDER/SET/{train,val,test}.{source,target}.",
        "get_data.sh",
    )
    start_log()
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(options.folder / ".get_data.lock", timeout=0):
            for name in options.sets:
                get_set(name, options)
    except Timeout:
        raise RunError(f"{options.folder}: another get_data is at work there") from None
    except OSError as error:
        raise unwritable(str(error.filename or options.folder), error) from None


if __name__ == "__main__":
    run_main(main)
