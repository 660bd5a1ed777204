"""Published sets: examples from sets on the Hub and from Parquet files anywhere, one after the other.

Whatever reads such a set reads it here, by one rule. The columns of documents and summaries must hold texts, or the set
is refused when it is opened. A row in which one of the two is missing, null, no text, or empty once it is made one line
is no example, and is left out. A command that writes a data directory lists such rows with the reason in
dropped.jsonl; training and scoring count them in the log.

The library `datasets`, which reads the files, takes seconds to load and is imported only where a set is opened.
"""

from __future__ import annotations

import gc
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from bart.errors import InputError
from utils.app.errors import RunError, brief
from utils.app.progress import progress
from utils.data.line_files import SIDES, Pairs, one_line, read_pairs
from utils.data.places import HUB, HUB_NAME, SPLIT, SPLIT_NAMES, fields_of, is_streamed

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)
# --source_field and --target_field; the first alone where only documents are read.
Fields = tuple[str | None] | tuple[str | None, str | None]
# A loader process that collected what its parent had left of connections would close them. That takes them out of the
# epoll that both processes share, and the parent would wait minutes for answers.
os.register_at_fork(after_in_child=gc.freeze)


@dataclass(frozen=True)
class Row:
    """A row of a set.

    Attributes:
        name: tells a person which row it is.
        source, target: its texts, one line each.
        fault: why it is no example; None where it is one.
    """

    name: str
    source: str = ""
    target: str = ""
    fault: str | None = None

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any], fields: Sequence[str]) -> Row:
        """Apply the rule of this module to the values of a row."""
        texts = []
        for side, field in zip(SIDES, fields, strict=False):
            if field not in values:
                return cls(name, fault=f"no field {field}")
            value = values[field]
            if not isinstance(value, str):
                return cls(name, fault=f"{field} is {'null' if value is None else 'no text'}")
            texts.append(one_line(value))
            if not texts[-1]:
                return cls(name, fault=f"empty {side}")
        return cls(name, *texts)


@dataclass(frozen=True)
class Table:
    """One split of a set, opened, of which no row is read yet.

    Attributes:
        dataset: a `datasets.IterableDataset`.
        fields: the names of its columns of documents and, unless only those are read, of summaries.
        name: where it is; on the Hub with the commit that was found.
        digest: stands for the content of its files; "" where the commit does.
    """

    dataset: datasets.IterableDataset
    fields: tuple[str, ...]
    name: str
    digest: str = ""

    @property
    def identity(self) -> dict[str, Any]:
        """What a run that resumes must find again, as plain values for a checkpoint.

        The number of files is part of it, since the order of training depends on it.
        """
        files = self.dataset.num_shards
        return {"data": self.name, "fields": list(self.fields), "files": files, "digest": self.digest}


def open_split(place: str, split: str, fields: Fields = (None, None)) -> Table:
    """Find a split of a set that is streamed, and its columns.

    Args:
        place: one of `PLACES`.
        split: train, val or test.

    Raises:
        InputError: there is no such place or split, or it cannot be reached; a column is missing or holds no texts.
    """
    with opening(f"the {split} split of {place}"):
        if not place.startswith(HUB):
            return open_files(find_files_of(place, split), place, fields)
        splits, found = load_from_hub(place.removeprefix(HUB), streaming=True)
        if split in splits:
            return open_dataset(splits[split], f"{HUB}{found}", fields)
    raise InputError(f"{place}: no {split} split; there are {', '.join(splits)}")


@contextmanager
def opening(what: str) -> Iterator[None]:
    """Make one InputError of whatever a file system, the Hub's client or a format's reader raises."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what} cannot be opened ({_reason(error)})") from error


@lru_cache(maxsize=1)
def load_from_hub(name: str, streaming: bool) -> tuple[dict[str, Any], str]:
    """Find a set on the Hub.

    Args:
        name: `NAME[:CONFIG][@REVISION]`.
        streaming: whether rows are read from the Hub when they are needed; otherwise all files are downloaded, unless
            they were before.

    Returns:
        Its splits, under our names where we have one, and `NAME[:CONFIG]@COMMIT`.
    """
    from datasets import disable_progress_bars, load_dataset
    from huggingface_hub import HfApi

    logging.getLogger("datasets").handlers.clear()  # which print what the log prints too
    if streaming:
        disable_progress_bars()
    named = HUB_NAME.fullmatch(name)
    # A branch moves, and a run that resumes must find what it left.
    commit = HfApi().dataset_info(named["name"], revision=named["revision"]).sha
    # A bare name could also be that of a folder here.
    path = f"hf://datasets/{named['name']}"
    splits = load_dataset(path, named["config"], revision=commit, streaming=streaming)
    ours = {}
    for split, names in SPLIT_NAMES.items():
        present = [known for known in names if known in splits]
        if present:
            ours[present[0]] = split
    return {ours.get(known, known): rows for known, rows in splits.items()}, f"{name.partition('@')[0]}@{commit}"


def open_dataset(
    dataset: datasets.IterableDataset, name: str, fields: Fields = (None, None), digest: str = ""
) -> Table:
    """Find the columns of a dataset.

    Args:
        name, digest: see `Table`.

    Raises:
        InputError: a column is missing or holds no texts.
    """
    from datasets import Value

    features = dataset.features or {column: Value("string") for column in next(iter(dataset), {})}
    found = _text_fields(features, fields, name)
    return Table(dataset.select_columns(list(found)), found, name, digest)


def _text_fields(features: Mapping[str, Any], fields: Fields, where: str) -> tuple[str, ...]:
    from datasets import Value

    found = fields_of(features.keys(), fields, where)
    for field in found:
        kind = features[field]
        if not (isinstance(kind, Value) and "string" in kind.dtype):
            raise InputError(f"{where}: the field {field!r} holds {kind}; texts are expected")
    return found


def find_files_of(place: str, split: str) -> list[str]:
    """The Parquet files of a split, by absolute paths or URLs.

    Raises:
        InputError: there are none, or none can be reached.
    """
    from datasets.data_files import DataFilesList

    tried = []
    for known in SPLIT_NAMES.get(split, (split,)):
        pattern = place.replace(SPLIT, known)
        tried.append(pattern if "://" in pattern else str(Path(pattern).expanduser()))
        with suppress(FileNotFoundError):
            if files := DataFilesList.from_patterns([tried[-1]]):
                return files
    raise InputError(f"{place}: no files of the {split} split can be found or reached; tried {', '.join(tried)}")


def open_files(files: Sequence[str], name: str, fields: Fields = (None, None)) -> Table:
    """Open Parquet files, named by absolute paths or URLs, as one table.

    Raises:
        InputError: a column is missing or holds no texts.
        Exception: a file is missing, or is no Parquet file (see `opening`).
    """
    from datasets import Features
    from datasets.data_files import DataFilesList
    from pyarrow.parquet import read_metadata

    marks: list[Any] = []
    if isinstance(files, DataFilesList) and any("://" in file for file in files):
        marks += map(_mark_of_url, files, files.origin_metadata)
    else:
        for file in files:
            footer = read_metadata(file)
            # `datasets` would turn numbers into texts where only the first file holds texts.
            fields = _text_fields(Features.from_arrow_schema(footer.schema.to_arrow_schema()), fields, file)
            with open(file, "rb") as raw:
                raw.seek(-8 - footer.serialized_size, os.SEEK_END)
                marks.append([os.path.getsize(file), xxhash.xxh3_128_hexdigest(raw.read())])
    digest = xxhash.xxh3_128_hexdigest(json.dumps(marks).encode())
    return open_dataset(parquet_rows(files), name, fields, digest)


def parquet_rows(files: Sequence[str]) -> datasets.IterableDataset:
    """The rows of Parquet files, named by absolute paths or URLs."""
    from datasets import disable_progress_bars, load_dataset
    from datasets.data_files import DataFilesList

    logging.getLogger("datasets").handlers.clear()
    disable_progress_bars()
    # The names in a DataFilesList are not taken for patterns.
    listed = files if isinstance(files, DataFilesList) else DataFilesList(list(files), [()] * len(files))
    return load_dataset("parquet", data_files={"train": listed}, split="train", streaming=True)


def _mark_of_url(url: str, found: tuple[str, ...]) -> list[Any]:
    """What stands for the content of a file: its ETag, which `datasets` has found, or its size if there is none."""
    from fsspec.core import url_to_fs

    if found:
        return list(found)
    # As `datasets` asks: by the proxy of the environment.
    files, path = url_to_fs(url, **({"client_kwargs": {"trust_env": True}} if url.startswith("http") else {}))
    return [files.info(path).get("size")]


def _reason(error: BaseException) -> str:
    if type(error).__name__ == "DatasetGenerationError" and error.__cause__:  # says only that there was an error
        error = error.__cause__
    text = brief(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Reader:
    """Reads a table row by row, from any position on.

    Args:
        order: the order of the table's files, by number; by default as they are.
        position: what `position` of another reader with this order gave; by default the beginning.

    Attributes:
        count: examples read so far.
        left_out: rows read so far that are none.
    """

    def __init__(self, table: Table, order: Sequence[int] | None = None, position: dict[str, Any] | None = None):
        self.table = table
        self.order = range(table.dataset.num_shards) if order is None else order
        begun = position or {"count": 0, "left_out": 0, "file": 0, "state": None}
        self.count, self.left_out, self._file, self._state = (
            begun[name] for name in ("count", "left_out", "file", "state")
        )
        self._dataset: datasets.IterableDataset | None = None

    def position(self) -> dict[str, Any]:
        """Where the next row is, as plain values for a checkpoint."""
        state = self._state if self._dataset is None else self._dataset.state_dict()
        return {"count": self.count, "left_out": self.left_out, "file": self._file, "state": state}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Read the examples, as (source, target). Rows that are none are left out.

        Raises:
            RunError: the data cannot be read any further.
        """
        with closing(self.rows()) as rows:
            for row in rows:
                if row.fault is None:
                    yield row.source, row.target

    def rows(self) -> Iterator[Row]:
        """Read all rows. A row's name is its number in this order, from 1.

        Raises:
            RunError: the data cannot be read any further.
        """
        for file in range(self._file, len(self.order)):
            self._file = file
            self._dataset = self.table.dataset.shard(num_shards=len(self.order), index=self.order[file])
            if self._state is not None:
                self._dataset.load_state_dict(self._state)
                self._state = None
            with closing(iter(self._dataset)) as rows:
                while (values := self._next(rows)) is not None:
                    row = Row.of(str(self.count + self.left_out + 1), values, self.table.fields)
                    self.count += row.fault is None
                    self.left_out += row.fault is not None
                    yield row

    def _next(self, rows: Iterator[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The next row of a file, which is opened for its first one; None at the end."""
        try:
            return next(rows, None)
        except Exception as error:  # whatever the file system, the Hub's client or the format's reader raises
            raise RunError(
                f"{self.table.name}: cannot be read after {self.count + self.left_out} examples ({_reason(error)})"
            ) from error


def read_split(data_dir: str, split: str, limit: int = -1, fields: Fields = (None, None)) -> Pairs:
    """Read a split of line files or of a published set into memory, the first `limit` examples unless it is negative.

    Raises:
        InputError: the data are missing or malformed.
        RunError: the connection to where they are is lost.
    """
    if not is_streamed(data_dir):
        return read_pairs(data_dir, split, limit)
    reader = Reader(open_split(data_dir, split, fields))
    with closing(iter(reader)) as examples:
        total = None if limit < 0 else limit
        pairs = list(progress(f"reading {split}", total, "examples", islice(examples, total)))
    if not pairs:
        raise InputError(f"{data_dir}: the {split} split has no examples")
    if reader.left_out:
        logger.info("%s: %d rows of the %s split are no examples and are left out", data_dir, reader.left_out, split)
    sources, targets = zip(*pairs, strict=True)
    return list(sources), list(targets)
