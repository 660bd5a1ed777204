"""Examples from sets on the Hub and from Parquet files anywhere, one after the other.

`datasets`, which reads them, is loaded only where one is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bart.errors import InputError
from utils.cli import RunError, brief
from utils.data.fields import fields_of
from utils.data.line_files import Pairs, one_line, read_pairs
from utils.data.places import HUB, HUB_NAME, SPLIT, SPLIT_NAMES, is_place

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """One split of a place, opened, of which no example is read yet.

    Attributes:
        dataset: a `datasets.IterableDataset`.
        fields: the names of its columns of documents and summaries.
        name: where it is, with the commit that was found on the Hub.
    """

    dataset: datasets.IterableDataset
    fields: tuple[str, str]
    name: str


def open_split(place: str, split: str, source_field: str | None = None, target_field: str | None = None) -> Table:
    """Find a split, and the columns in it.

    Args:
        place: see `utils.data.places`.
        split: train, val or test.

    Raises:
        InputError: there is no such place or split, or it cannot be reached; a column is missing or holds no text.
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        dataset, name = (_on_hub if place.startswith(HUB) else _parquet)(place, split)
        columns = dataset.column_names or list(next(iter(dataset), {}))
    except InputError:
        raise
    except Exception as error:  # whatever the file system, the Hub's client or the format's reader raises
        raise InputError(f"{place}: the {split} split cannot be opened ({_reason(error)})") from error
    fields = fields_of(columns, source_field, target_field, f"the {split} split of {place}")
    for field in fields:
        kind = datasets.Value("string") if dataset.features is None else dataset.features[field]
        if not (isinstance(kind, datasets.Value) and "string" in kind.dtype):
            raise InputError(f"{place}: the field {field!r} holds {kind}; texts are expected")
    return Table(dataset.select_columns(list(fields)), fields, name)


def _on_hub(place: str, split: str) -> tuple[datasets.IterableDataset, str]:
    splits, name = _hub_splits(place)
    for known in SPLIT_NAMES[split]:
        if known in splits:
            return splits[known], name
    raise InputError(f"{place}: no {split} split; there are {', '.join(splits)}")


@lru_cache(maxsize=1)
def _hub_splits(place: str) -> tuple[datasets.IterableDatasetDict, str]:
    from datasets import load_dataset
    from huggingface_hub import HfApi

    named = HUB_NAME.fullmatch(place.removeprefix(HUB))
    # A branch moves; a run that goes on later must find what it left.
    commit = HfApi().dataset_info(named["name"], revision=named["revision"]).sha
    # A bare name would also be that of a folder here.
    splits = load_dataset(f"hf://datasets/{named['name']}", named["config"], revision=commit, streaming=True)
    return splits, f"{place.partition('@')[0]}@{commit}"


def _parquet(place: str, split: str) -> tuple[datasets.IterableDataset, str]:
    from datasets import load_dataset
    from datasets.data_files import DataFilesList

    tried = []
    for known in SPLIT_NAMES[split]:
        files = place.replace(SPLIT, known)
        tried.append(files if "://" in files else str(Path(files).expanduser()))
        with suppress(FileNotFoundError):
            if DataFilesList.from_patterns([tried[-1]]):
                return load_dataset("parquet", data_files={split: tried[-1]}, split=split, streaming=True), place
    raise InputError(f"{place}: no files of the {split} split can be found or reached; tried {', '.join(tried)}")


def _reason(error: BaseException) -> str:
    text = brief(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Reader:
    """Examples of a split, each side one line; those with an empty side are left out.

    Args:
        order: of the table's files, by number; default: as they are.
        position: what `position` of another reader of that order gave; default: the beginning.

    Attributes:
        count: examples given so far.
        left_out: those that were not.
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
        """Where the next example is: plain values that a checkpoint can hold."""
        state = self._state if self._dataset is None else self._dataset.state_dict()
        return {"count": self.count, "left_out": self.left_out, "file": self._file, "state": state}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """
        Raises:
            RunError: the data cannot be read any further.
        """
        for file in range(self._file, len(self.order)):
            self._file = file
            dataset = self.table.dataset.shard(num_shards=len(self.order), index=self.order[file])
            if self._state is not None:
                dataset.load_state_dict(self._state)
                self._state = None
            self._dataset = dataset
            with closing(iter(dataset)) as rows:
                for row in self._guarded(rows):
                    source, target = (self._text(row, field) for field in self.table.fields)
                    if source and target:
                        self.count += 1
                        yield source, target
                    else:
                        self.left_out += 1

    def _guarded(self, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        while True:
            try:
                row = next(rows, None)
            except Exception as error:  # whatever the file system, the Hub's client or the format's reader raises
                raise RunError(
                    f"{self.table.name}: cannot be read after {self.count + self.left_out} examples ({_reason(error)})"
                ) from error
            if row is None:
                return
            yield row

    def _text(self, row: dict[str, Any], field: str) -> str:
        value = row[field]
        if value is not None and not isinstance(value, str):
            raise RunError(
                f"{self.table.name}: the field {field!r} of example {self.count + self.left_out + 1} holds a "
                f"{type(value).__name__}; texts are expected"
            )
        return one_line(value or "")


def read_split(
    data_dir: str, split: str, limit: int = -1, source_field: str | None = None, target_field: str | None = None
) -> Pairs:
    """A split's sources and targets, from line files or any other place; the first `limit` if that is not negative.

    Raises:
        InputError: they are not there, or not as they should be.
        RunError: the connection to where they are is lost.
    """
    if not is_place(data_dir):
        return read_pairs(data_dir, split, limit)
    reader = Reader(open_split(data_dir, split, source_field, target_field))
    with closing(iter(reader)) as examples:
        pairs = list(islice(examples, None if limit < 0 else limit))
    if not pairs:
        raise InputError(f"{data_dir}: the {split} split has no examples")
    if reader.left_out:
        logger.info("%s: %d examples of %s with an empty side are left out", data_dir, reader.left_out, split)
    sources, targets = zip(*pairs, strict=True)
    return list(sources), list(targets)
