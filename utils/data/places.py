"""The forms of `--data_dir`, and sets on the Hub and Parquet files anywhere, which `datasets` finds, without torch."""

from __future__ import annotations

import gc
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from bart.errors import InputError, brief
from utils.app.stores import STORES, in_store
from utils.data.splits import SPLIT_NAMES, SPLITS, MissingSplit

SPLIT = "{split}"
PLACES = f"hub:NAME[:CONFIG][@REVISION], or a path or URL of Parquet files that contains {SPLIT}"
HUB = "hub:"
TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")  # files of examples; all but the last also as .gz
CONLL = (".conll", ".conllu", ".txt", ".bio", ".iob", ".iob2")  # files of a word a line
HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(:(?P<config>[^\s:@]+))?(@(?P<revision>\S+))?")
KINDS = (
    f"directory with {{train,val,test}}.{{source,target}}, or with a table of each split, a file {', '.join(TABLES)}, "
    f"that is split as by utils.corpora.prepare, here or as a {STORES}; or {PLACES}"
)

# A loader process that collected what its parent had left of connections would close them. That takes them out of the
# epoll that both processes share, and the parent would wait minutes for answers.
os.register_at_fork(after_in_child=gc.freeze)


def is_published(data_dir: str) -> bool:
    """Return true if `--data_dir` has the form of a published set, which a URL may be."""
    return data_dir.startswith(HUB) or SPLIT in data_dir


def is_reached(data_dir: str) -> bool:
    """Return true of the URLs that `--data_dir` takes."""
    return is_published(data_dir) or in_store(data_dir)


def is_table(data_dir: str) -> bool:
    """Return true if `--data_dir` names one file of examples, which are yet to be split."""
    return not is_published(data_dir) and suffix_of(Path(data_dir)) in TABLES and not Path(data_dir).is_dir()


def split_tables(data_dir: str | Path) -> dict[str, Path]:
    """The table of each split in a directory; empty if that has line files, or no table, or is no directory."""
    folder = Path(data_dir)
    if not folder.is_dir() or any(folder.glob("*.source")):
        return {}
    return {split: table for split in SPLITS if (table := table_in(folder, split)) is not None}


def table_in(folder: Path, split: str, suffixes: Sequence[str] = TABLES) -> Path | None:
    """The table of a split in a directory, such as train.jsonl, or None; other suffixes find other files.

    SQuAD's files may have names that go on, as train-v1.1.json. InputError where several files hold the split.
    """
    names = SPLIT_NAMES.get(split, (split,))
    tables = [folder / f"{name}{suffix}" for name in names for suffix in suffixes]
    present = [table for table in (*tables, *(Path(f"{table}.gz") for table in tables)) if table.is_file()]
    squad = (file for name in names for file in sorted(folder.glob(f"{name}*.json")) if is_squad(file))
    # Once each: validation.json begins with val, valid and validation.
    files = [*dict.fromkeys([*present, *squad])]
    if len(files) > 1:
        both = " and ".join(file.name for file in files)
        raise InputError(f"{folder}: {both} are {'both' if len(files) == 2 else 'all'} {split}; allowed: one of them")
    return next(iter(files), None)


def is_squad(file: Path) -> bool:
    """True for a .json file that begins as SQuAD's do; one of rows is a table."""
    if file.suffix == ".json" and file.is_file():
        with suppress(OSError), file.open("rb") as opened:  # who reads it says why it cannot be opened
            beginning = opened.read(1 << 20)
            # The first context may be a book.
            return b'"paragraphs"' in beginning and (b'"qas"' in beginning or b'"qas"' in opened.read())
    return False


def suffix_of(path: Path) -> str:
    """The suffix in lower case and without `.gz`: `.jsonl` of `news.JSONL.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def check_fields(data_dir: str | None, **fields: str | None) -> None:
    """Raise InputError where columns are named for a data directory, which has none."""
    for name, value in fields.items():
        place = data_dir or ""
        if value is not None and not (is_published(place) or is_table(place) or (place and split_tables(place))):
            raise InputError(f"--{name} is {value}; {data_dir} is no table, and line files have no columns")


@contextmanager
def opening(what: str) -> Iterator[None]:
    """Make one InputError of whatever a file system, the Hub's client or a format's reader raises."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if type(error).__name__ == "DatasetGenerationError" and error.__cause__:  # says only that there was an error
            error = error.__cause__
        is_missing = isinstance(error, FileNotFoundError) and error.filename
        reason = "no such file" if is_missing else ": ".join(filter(None, (type(error).__name__, brief(error))))
        raise InputError(f"{what} cannot be opened ({reason})") from error


@lru_cache(maxsize=1)
def load_from_hub(name: str, streaming: bool = False) -> tuple[dict[str, Any], str]:
    """The splits of the set `NAME[:CONFIG][@REVISION]` on the Hub, under our names, and `NAME[:CONFIG]@COMMIT`."""
    from datasets import disable_progress_bars, load_dataset
    from huggingface_hub import HfApi

    logging.getLogger("datasets").handlers.clear()  # which print what the log prints too
    if streaming:
        disable_progress_bars()
    if (parts := HUB_NAME.fullmatch(name)) is None:
        raise InputError(f"{name!r} names no set on the Hub; allowed: {PLACES}")
    # A branch moves, and a run that resumes must find what it left.
    commit = HfApi().dataset_info(parts["name"], revision=parts["revision"]).sha
    # A bare name could also be that of a folder here.
    path = f"hf://datasets/{parts['name']}"
    splits = load_dataset(path, parts["config"], revision=commit, streaming=streaming)
    our_names = {next((name for name in known if name in splits), None): ours for ours, known in SPLIT_NAMES.items()}
    splits = {our_names.get(split, split): rows for split, rows in splits.items()}
    return splits, f"{name.partition('@')[0]}@{commit}"


def parquet_files(pattern: str, split: str) -> dict[str, Path]:
    """Find the Parquet files of a split, by name; those behind URLs are downloaded, unless they were before."""
    from datasets import DownloadConfig, DownloadManager
    from datasets.data_files import DataFilesList

    logging.getLogger("datasets").handlers.clear()
    tried = []
    for name in SPLIT_NAMES.get(split, (split,)):
        path = pattern.replace(SPLIT, name)
        tried.append(path if "://" in path else str(Path(path).expanduser()))
        with suppress(FileNotFoundError):
            if files := DataFilesList.from_patterns([tried[-1]]):
                cache = DownloadManager(download_config=DownloadConfig(disable_tqdm=True))
                return {file: Path(cache.download(file) if "://" in file else file) for file in files}
    raise MissingSplit(f"{pattern}: no files of the {split} split can be found or reached; tried {', '.join(tried)}")
