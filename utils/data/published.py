"""Sets on the Hub and Parquet files anywhere, found by the library `datasets`, which takes seconds to load."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.errors import brief
from utils.data.places import HUB_NAME, PLACES, SPLIT
from utils.data.splits import SPLIT_NAMES, MissingSplit

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
        if type(error).__name__ == "DatasetGenerationError" and error.__cause__:  # says only that there was an error
            error = error.__cause__
        reason = ": ".join(filter(None, (type(error).__name__, brief(error))))
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
