"""Training on data that do not fit the disk: batches are made while the examples are read."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from utils.data.batches import Batch, Collate, padded_length
from utils.data.options import DataOptions
from utils.data.order import TrainOrder
from utils.errors import RunError

logger = logging.getLogger(__name__)
# Batches that a loader process makes ahead: enough to train on while it reads the next window.
PREFETCHED = 32
WINDOW = TrainOrder.WINDOW  # optimizer steps whose examples are read, and shuffled, at a time
BEGINNING = {"step": 0, "epoch": 0, "window": 0, "position": None}  # a cursor


class Reader(Protocol):
    """Reads records one after another.

    Attributes:
        count: records given so far.
        left_out: records that were not fit to be given.
    """

    count: int
    left_out: int

    def __iter__(self) -> Iterator[Any]: ...

    def position(self) -> dict[str, Any]:
        """Where the next record is: plain values that a checkpoint can hold."""


@runtime_checkable
class StreamedExamples(Protocol):
    """The examples of a split that is read while training goes on.

    Attributes:
        name: where they are.
        files: how many files there are; they can be read in any order.
        identity: see `utils.data.batches.Examples`.
    """

    name: str
    files: int
    identity: dict[str, Any]

    def reader(self, order: Sequence[int] | None, position: dict[str, Any] | None) -> Reader:
        """Read from the beginning or, if it is given, from a position that a reader of this order gave.

        Args:
            order: of the files, by number; None for their own order.
        """

    def estimated_lengths(self, record: Any) -> Sequence[int]:
        """About how many tokens the sequences of an example have, without encoding it."""

    def encode(self, records: Sequence[Any]) -> tuple[list[Any], int]:
        """Records as the task's examples, and the number of their tokens."""


@dataclass(eq=False)
class TrainStream(IterableDataset[tuple[dict[str, Any], list[Batch]] | RunError]):
    """One process's optimizer steps, epoch after epoch without end, made of a stream while it is read.

    `TrainOrder` shuffles, groups and cuts the examples of WINDOW optimizer steps at a time. Every process reads all
    examples and encodes its share. So an epoch's order depends on (seed, epoch) alone, the examples of a step do not
    depend on how it is cut into micro-batches and processes, each example is seen once an epoch, and all processes have
    equally many steps. Files are read in another order in every epoch, unless `--n_train` takes the first examples.

    Yields:
        A cursor, which says where the step's window begins, and the step's micro-batches. Where the data cannot be read
        any further, a RunError stands in their place: raised here, it would reach the training process from a loader
        process as many lines.

    Args:
        cursor: where an interrupted run goes on; None for the beginning.
        start: optimizer steps that the run has taken.
    """

    examples: StreamedExamples
    collate: Collate
    options: DataOptions
    seed: int
    rank: int = 0
    world_size: int = 1
    cursor: dict[str, Any] | None = None
    start: int = 0

    @property
    def examples_per_step(self) -> int:
        """Examples of an optimizer step on all processes."""
        return self.options.train_batch_size * self.options.gradient_accumulation_steps * self.world_size

    def __iter__(self) -> Iterator[tuple[dict[str, Any], list[Batch]] | RunError]:
        if get_worker_info() is not None:
            # Threads of the tokenizer do not survive the fork that made a loader process.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        try:
            cursor = self.cursor or BEGINNING
            while True:
                cursor = yield from self._epoch(cursor)
        except RunError as error:
            yield error

    def _epoch(self, cursor: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[Batch]]]:
        """The steps from a cursor to the end of its epoch; returns the next epoch's cursor."""
        epoch, step, limit = cursor["epoch"], cursor["step"], self.options.n_train
        files = np.random.default_rng((self.seed, epoch)).permutation(self.examples.files).tolist()
        reader = self.examples.reader(files if limit < 0 else None, cursor["position"])
        size = WINDOW * self.examples_per_step
        with closing(iter(reader)) as records:
            for window in count(cursor["window"]):
                cursor = {"step": step, "epoch": epoch, "window": window, "position": reader.position()}
                first = reader.count
                read = list(islice(records, size if limit < 0 else min(size, limit - first)))
                if not read:
                    break
                for numbers in self._order(read).epoch(epoch, window):
                    if step >= self.start:
                        yield cursor, [self._batch(read, micro_batch, first) for micro_batch in numbers]
                    step += 1
        if not reader.count:
            raise RunError(f"{self.examples.name}: the train split has no examples")
        if self.rank == 0:
            logger.info(
                "epoch %d of the stream: %d examples; %d rows that are none are left out",
                *(epoch, reader.count, reader.left_out),
            )
        return {"step": step, "epoch": epoch + 1, "window": 0, "position": None}

    def _order(self, records: Sequence[Any]) -> TrainOrder:
        # As coarse as padding is, so that examples of one length come together in another way in every epoch.
        lengths = padded_length(np.array([self.examples.estimated_lengths(record) for record in records]))
        return TrainOrder(
            lengths,
            self.options.train_batch_size,
            self.seed,
            accumulation=self.options.gradient_accumulation_steps,
            rank=self.rank,
            world_size=self.world_size,
            group_by_length=self.options.sortish_sampler,
        )

    def _batch(self, records: Sequence[Any], numbers: list[int], first: int) -> Batch:
        """A micro-batch of some of a window's records, of which the first has the number `first` in the epoch."""
        counts = numbers[0] >= 0
        numbers = numbers if counts else [~number for number in numbers]
        examples, tokens = self.examples.encode([records[number] for number in numbers])
        return Batch(self.collate(examples), [first + number for number in numbers], tokens, counts)


class StreamLoader:
    """Loads the steps of a run from a TrainStream, and knows the cursor of every step that it has given.

    Args:
        total: optimizer steps of the run, the first `stream.start` of which are taken already.
    """

    def __init__(self, stream: TrainStream, total: int, **options: Any) -> None:
        self.loader = DataLoader(stream, batch_size=None, **options)
        self.start, self.total = stream.start, total
        self.cursors: deque[dict[str, Any]] = deque([stream.cursor or BEGINNING])

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[list[Batch]]:
        """
        Raises:
            RunError: the data cannot be read any further.
        """
        for item in islice(self.loader, self.total - self.start):
            if isinstance(item, RunError):
                raise RunError(
                    f"{item}; --resume_from_checkpoint last goes on from the newest checkpoint of --output_dir"
                )
            cursor, step = item
            if cursor["step"] != self.cursors[-1]["step"]:
                self.cursors.append(cursor)
            yield step

    def cursor(self, step: int) -> dict[str, Any]:
        """The cursor to go on from after so many optimizer steps of the run. Steps must not fall from call to call."""
        while len(self.cursors) > 1 and self.cursors[1]["step"] <= step:
            self.cursors.popleft()
        return self.cursors[0]
