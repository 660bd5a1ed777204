"""Sets on the Hub and Parquet files anywhere, opened by the library `datasets`.

The library takes seconds to load and is imported only where a set is opened.
"""

from __future__ import annotations

import gc
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from bart.errors import InputError
from utils.app.errors import brief
from utils.data.places import HUB_NAME, SPLIT
from utils.data.splits import SPLIT_NAMES, MissingSplit

if TYPE_CHECKING:
    import datasets

# A loader process that collected what its parent had left of connections would close them. That takes them out of the
# epoll that both processes share, and the parent would wait minutes for answers.
os.register_at_fork(after_in_child=gc.freeze)


@contextmanager
def opening(what: str) -> Iterator[None]:
    """Make one InputError of whatever a file system, the Hub's client or a format's reader raises."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what} cannot be opened ({reason_of(error)})") from error


def reason_of(error: BaseException) -> str:
    """The kind and message of an error of a library, in one line."""
    if type(error).__name__ == "DatasetGenerationError" and error.__cause__:  # says only that there was an error
        error = error.__cause__
    text = brief(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@lru_cache(maxsize=1)
def load_from_hub(name: str, streaming: bool) -> tuple[dict[str, Any], str]:
    """Find a set on the Hub.

    Args:
        name: `NAME[:CONFIG][@REVISION]`.
        streaming: read rows from the Hub when they are needed; otherwise all files are downloaded, unless they were
            before.

    Returns:
        Its splits, under our names if we have a name for them, and `NAME[:CONFIG]@COMMIT`.
    """
    from datasets import disable_progress_bars, load_dataset
    from huggingface_hub import HfApi

    logging.getLogger("datasets").handlers.clear()  # which print what the log prints too
    if streaming:
        disable_progress_bars()
    parts = HUB_NAME.fullmatch(name)
    # A branch moves, and a run that resumes must find what it left.
    commit = HfApi().dataset_info(parts["name"], revision=parts["revision"]).sha
    # A bare name could also be that of a folder here.
    path = f"hf://datasets/{parts['name']}"
    splits = load_dataset(path, parts["config"], revision=commit, streaming=streaming)
    our_names = {next((name for name in known if name in splits), None): ours for ours, known in SPLIT_NAMES.items()}
    splits = {our_names.get(split, split): rows for split, rows in splits.items()}
    return splits, f"{name.partition('@')[0]}@{commit}"


def find_files_of(place: str, split: str) -> list[str]:
    """Find the Parquet files of a split: their absolute paths or URLs.

    Raises:
        InputError: there are none, or none can be reached.
    """
    from datasets.data_files import DataFilesList

    tried = []
    for name in SPLIT_NAMES.get(split, (split,)):
        pattern = place.replace(SPLIT, name)
        tried.append(pattern if "://" in pattern else str(Path(pattern).expanduser()))
        with suppress(FileNotFoundError):
            if files := DataFilesList.from_patterns([tried[-1]]):
                return files
    raise MissingSplit(f"{place}: no files of the {split} split can be found or reached; tried {', '.join(tried)}")


def parquet_rows(files: Sequence[str]) -> datasets.IterableDataset:
    """Open the rows of Parquet files, named by absolute paths or URLs."""
    from datasets import disable_progress_bars, load_dataset
    from datasets.data_files import DataFilesList

    logging.getLogger("datasets").handlers.clear()
    disable_progress_bars()
    # The names in a DataFilesList are not taken for patterns.
    listed = files if isinstance(files, DataFilesList) else DataFilesList(list(files), [()] * len(files))
    return load_dataset("parquet", data_files={"train": listed}, split="train", streaming=True)


def digest_of_files(files: Sequence[str]) -> str:
    """A digest of what tells the content of Parquet files: their sizes and footers, or their ETags behind URLs."""
    from datasets.data_files import DataFilesList

    if isinstance(files, DataFilesList) and any("://" in file for file in files):
        marks = [_mark_of_url(*each) for each in zip(files, files.origin_metadata, strict=True)]
    else:
        marks = [_mark_of_file(file) for file in files]
    return xxhash.xxh3_128_hexdigest(json.dumps(marks).encode())


def _mark_of_file(path: str) -> list[Any]:
    """The size of a Parquet file, and a digest of its footer, which has counts and bounds of all columns."""
    from pyarrow.parquet import read_metadata

    footer = read_metadata(path).serialized_size
    with open(path, "rb") as file:
        file.seek(-8 - footer, os.SEEK_END)
        return [os.path.getsize(path), xxhash.xxh3_128_hexdigest(file.read())]


def _mark_of_url(url: str, etag: tuple[str, ...]) -> list[Any]:
    """The ETag of a file, which `datasets` has asked for, or its size if there is none."""
    from fsspec.core import url_to_fs

    if etag:
        return list(etag)
    # As `datasets` asks: by the proxy of the environment.
    files, path = url_to_fs(url, **({"client_kwargs": {"trust_env": True}} if url.startswith("http") else {}))
    return [files.info(path).get("size")]
