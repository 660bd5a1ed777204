"""Training on shards: batches are made while the examples are read."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from utils.app.errors import RunError
from utils.data.batches import Batch, Collate, numbers_of, padded_length
from utils.data.options import BatchOptions
from utils.data.order import TrainOrder
from utils.data.shard_format import ShardRow
from utils.data.shards import StreamedShards

logger = logging.getLogger(__name__)
# Steps that a loader process makes ahead, to train on while it reads the next window; of at most AHEAD examples.
PREFETCHED, AHEAD = 32, 4096
# Optimizer steps whose examples are read, and shuffled, at a time; of at most MOST examples, since they are in memory.
WINDOW = TrainOrder.WINDOW
MOST = 1 << 16
BEGINNING = {"step": 0, "epoch": 0, "window": 0, "position": None}  # a cursor


@dataclass(eq=False)
class TrainStream(IterableDataset[tuple[dict[str, Any], list[Batch]] | RunError]):
    """One process's optimizer steps, epoch after epoch without end, made of shards while they are read.

    `TrainOrder` shuffles and cuts the examples of a window, which is at most WINDOW optimizer steps. Every
    process reads all examples and encodes its share, so that an epoch's order depends on (seed, epoch) alone, and all
    processes have equally many steps, of the same bins. Each bin has as many steps as it needs, in a random order.

    It yields a cursor, from which an interrupted run goes on, and the step's micro-batches. Where the data cannot be
    read any further, a RunError stands in their place: raised in a loader process, it would be many lines.
    """

    examples: StreamedShards
    collate: Collate
    options: BatchOptions
    seed: int
    rank: int = 0
    world_size: int = 1
    cursor: dict[str, Any] | None = None
    start: int = 0  # the optimizer steps that the run has taken
    is_padded: bool = False  # see `TrainOrder`

    @property
    def examples_per_step(self) -> int:
        """Examples of an optimizer step on all processes."""
        return self.options.train_batch_size * self.options.gradient_accumulation_steps * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return sum(map(self._steps_of, self.examples.counts))

    def _steps_of(self, examples: int) -> int:
        return -(-examples // self.examples_per_step)

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
        """Yield the steps from a cursor to the end of its epoch; return the next epoch's cursor."""
        epoch, step = cursor["epoch"], cursor["step"]
        orders, windows = self._plan(epoch)
        positions = cursor["position"] or [None] * len(orders)
        readers = [self.examples.reader(order, position) for order, position in zip(orders, positions, strict=True)]
        starts = [0, *accumulate(self.examples.counts)]  # numbers of the first example of each bin
        with ExitStack() as stack:
            records = [stack.enter_context(closing(iter(reader))) for reader in readers]
            for window, bins in islice(enumerate(windows), cursor["window"], None):
                position = [reader.position() for reader in readers]
                cursor = {"step": step, "epoch": epoch, "window": window, "position": position}
                firsts = [start + reader.count for start, reader in zip(starts, readers, strict=False)]
                read, steps = {}, {}  # of each bin
                for number in {*bins}:
                    read[number] = list(islice(records[number], bins.count(number) * self.examples_per_step))
                    steps[number] = self._order(read[number]).steps(epoch, window, number)
                for number in bins:
                    micro_batches = next(steps[number])
                    if step >= self.start:
                        of_bin, first = read[number], firsts[number]
                        yield cursor, [self._batch(index, of_bin, first, epoch) for index in micro_batches]
                    step += 1
        if self.rank == 0:
            logger.info("epoch %d of the shards: %d examples", epoch, sum(reader.count for reader in readers))
        return {"step": step, "epoch": epoch + 1, "window": 0, "position": None}

    def _plan(self, epoch: int) -> tuple[list[Sequence[int]], Iterable[list[int]]]:
        """The order of each bin's files in an epoch, and the bins of the steps of each of its windows."""
        bins, counts = self.examples.bins, self.examples.counts
        generator = np.random.default_rng((self.seed, epoch))
        orders = [files if self.options.n_train >= 0 else generator.permutation(files).tolist() for files in bins]
        size = max(1, min(WINDOW, MOST // self.examples_per_step))
        steps = generator.permutation(np.repeat(range(len(bins)), [*map(self._steps_of, counts)])).tolist()
        return orders, (steps[start : start + size] for start in range(0, len(steps), size))

    def _order(self, records: Sequence[ShardRow]) -> TrainOrder:
        # As coarse as padding is, so that examples of one length come together in another way in every epoch.
        lengths = padded_length(np.array([[len(record.ids) + self.examples.special] for record in records]))
        return TrainOrder(
            lengths,
            self.options.train_batch_size,
            self.seed,
            accumulation=self.options.gradient_accumulation_steps,
            rank=self.rank,
            world_size=self.world_size,
            group_by_length=False,
            is_padded=self.is_padded,
        )

    def _batch(self, index: list[int], records: Sequence[ShardRow], first: int, epoch: int) -> Batch:
        """Make a micro-batch of some of a window's records, of which the first has the number `first` in the epoch."""
        numbers, is_real = numbers_of(index)
        pairs = self.examples.noise.pairs([records[number] for number in numbers], epoch)
        tokens = sum(len(pair.source) + self.examples.noise.writes * len(pair.target) for pair in pairs)
        return Batch(self.collate(pairs), [first + number for number in numbers], tokens, is_real)


class StreamLoader:
    """Loads the steps of a run from a TrainStream up to `total`, and knows the cursor of every step that it gave."""

    def __init__(self, stream: TrainStream, total: int, **options: Any) -> None:
        if options.get("num_workers"):
            examples = stream.examples_per_step // stream.world_size
            options["prefetch_factor"] = max(1, min(PREFETCHED, AHEAD // examples))
        self.loader = DataLoader(stream, batch_size=None, **options)
        self.start, self.total = stream.start, total
        self.cursors: deque[dict[str, Any]] = deque([stream.cursor or BEGINNING])

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[list[Batch]]:
        for item in islice(self.loader, self.total - self.start):
            if isinstance(item, RunError):
                raise RunError(f"{item}; --resume_from_checkpoint last goes on from the newest checkpoint")
            cursor, step = item
            if cursor["step"] != self.cursors[-1]["step"]:
                self.cursors.append(cursor)
            yield step

    def cursor(self, step: int) -> dict[str, Any]:
        """The cursor from which to go on after so many optimizer steps. Steps must not fall from call to call."""
        while len(self.cursors) > 1 and self.cursors[1]["step"] <= step:
            self.cursors.popleft()
        return self.cursors[0]
