"""Training on shards: their order, of which each process reads its own part, and the batches of an optimizer step.

An epoch takes the row groups of each bin file by file, in a random order. This order is cut into lanes, equally long
stretches, as MosaicML's streaming cuts it for its canonical nodes. Each step takes the next examples of every lane. So
the examples of a step depend on (seed, epoch) and its size alone, and a process reads the lanes of its share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from utils.app.errors import RunError
from utils.data.batches import Batch, Collate, padded_length
from utils.data.noise import places_of, rows_of, shuffle_of
from utils.data.options import BatchOptions
from utils.data.order import deal
from utils.data.shard_format import ShardRow
from utils.data.shards import Shard, StreamedShards, read_row_group

# With more of them, a process alone would hold more row groups in memory, and more processes would read different ones.
LANES = 128
# Multiples of the golden ratio, mod 1, fill the interval evenly, however few; those of the root of 2 go their own way.
_BY_SLOT, _BY_STEP = (5**0.5 - 1) / 2, 2**0.5 - 1


class BinOrder:
    """The order of a bin's examples in an epoch, cut into steps of `size` examples, each of which has a slot.

    Slots of a lane are neighbours, and so are those of a process. Within a row group the examples are arranged by
    length, so that neighbouring slots and steps have the same mix of lengths: no process has more to compute than
    another. Chance decides on examples of equal length. The last step has the rest.
    """

    def __init__(self, shards: Sequence[Shard], members: Sequence[int], size: int, seed: tuple[int, ...]) -> None:
        self.size, self.seed = size, seed
        generator = np.random.default_rng(seed)
        self.shift, files = generator.random(), generator.permutation(members)
        examples, rows = np.array([(shards[file].examples, shards[file].rows) for file in files]).T
        counts = -(-examples // rows)
        of_file, groups = rows_of(counts), places_of(counts)
        order = shuffle_of(of_file, generator.integers(1 << 64, size=len(of_file), dtype=np.uint64))
        self.files, self.groups = files[of_file[order]], groups[order]  # of each row group, in the order of reading
        sizes = np.minimum(rows[of_file], examples[of_file] - groups * rows[of_file])
        self.ends = np.cumsum(sizes[order])  # positions in the order
        self.full, self.rest = divmod(int(self.ends[-1]), size)  # steps with all slots, and examples of the last one
        # The first slot of each lane, and its first position; the last step is one more lane.
        lanes = min(LANES, size)
        self.slots = -(-np.arange(lanes + 1) * size // lanes)
        self.starts = self.slots * self.full
        self.widths = np.append(np.diff(self.slots), max(1, self.rest))

    @property
    def steps(self) -> int:
        return self.full + (self.rest > 0)

    def positions(self, number: int, slots: np.ndarray) -> np.ndarray:
        """Where the examples in some slots of a step are in the order."""
        if number == self.full:
            return self.starts[-1] + slots
        lanes = np.searchsorted(self.slots, slots, side="right") - 1
        return self.starts[lanes] + number * self.widths[lanes] + slots - self.slots[lanes]

    def arranged(self, place: int, lengths: np.ndarray) -> np.ndarray:
        """Which row of a row group, of rows of these lengths, comes at each of its positions."""
        positions = self.ends[place] - len(lengths) + np.arange(len(lengths))
        lanes = np.searchsorted(self.starts, positions, side="right") - 1
        steps, slots = np.divmod(positions - self.starts[lanes], self.widths[lanes])
        wanted = (self.shift + (self.slots[lanes] + slots) * _BY_SLOT + steps * _BY_STEP) % 1  # the place among lengths
        generator = np.random.default_rng((*self.seed, self.files[place], self.groups[place]))
        rows = np.empty(len(lengths), np.int64)
        rows[np.argsort(wanted, kind="stable")] = np.lexsort((generator.random(len(lengths)), padded_length(lengths)))
        return rows


class EpochOrder:
    """The order of an epoch: that of each bin, and the bin of each step, at random."""

    def __init__(self, examples: StreamedShards, size: int, seed: int, epoch: int) -> None:
        self.epoch = epoch
        numbered = enumerate(examples.bins)
        self.orders = [BinOrder(examples.shards, members, size, (seed, epoch, number)) for number, members in numbered]
        steps = np.array([order.steps for order in self.orders])
        self.bins = np.random.default_rng((seed, epoch)).permutation(rows_of(steps))
        self.numbers = np.empty_like(self.bins)  # of each step among those of its bin
        self.numbers[np.argsort(self.bins, kind="stable")] = places_of(steps)
        self.held: list[dict[int, list[ShardRow]]] = [{} for _ in self.orders]  # row groups that the last step used


@dataclass(eq=False)
class TrainStream(Dataset[list[Batch] | RunError]):
    """One process's optimizer steps by number, through all epochs, made of shards while they are read.

    Where the data cannot be read, a RunError stands in the place of a step: raised in a loader process, it would be
    many lines.
    """

    examples: StreamedShards
    collate: Collate
    options: BatchOptions
    seed: int
    rank: int = 0
    world_size: int = 1
    is_padded: bool = False  # see `TrainOrder`

    def __post_init__(self) -> None:
        options = self.options
        # Examples of an optimizer step on all processes, and optimizer steps of an epoch.
        self.examples_per_step = options.train_batch_size * options.gradient_accumulation_steps * self.world_size
        self.steps_per_epoch = sum(-(-count // self.examples_per_step) for count in self.examples.counts)
        self.order: EpochOrder | None = None

    def __getitem__(self, step: int) -> list[Batch] | RunError:
        epoch, place = divmod(step, self.steps_per_epoch)
        if self.order is None or self.order.epoch != epoch:
            self.order = EpochOrder(self.examples, self.examples_per_step, self.seed, epoch)
        try:
            return self._batches(self.order, int(self.order.bins[place]), int(self.order.numbers[place]))
        except RunError as error:
            return error

    def _batches(self, order: EpochOrder, number: int, step: int) -> list[Batch]:
        """The micro-batches of a step, which has a number among those of its bin."""
        of_bin = order.orders[number]
        size = of_bin.size if step < of_bin.full else of_bin.rest
        begin, end = (size * rank // self.world_size for rank in (self.rank, self.rank + 1))
        # A process without examples reads one nevertheless, of which its stand-ins are made.
        positions = of_bin.positions(step, np.arange(begin, max(end, begin + 1)))
        rows = sorted(self._rows(order, number, positions), key=lambda row: -len(row.ids))
        lengths, micro_batches = np.array([len(row.ids) for row in rows]), self.options.gradient_accumulation_steps
        numbers = np.arange(end - begin)
        cuts = np.array_split(numbers, micro_batches) if self.is_padded else deal(lengths[numbers], micro_batches)
        return [self._batch([rows[i] for i in cut] or rows[-1:], order.epoch, cut.size > 0) for cut in cuts]

    def _rows(self, order: EpochOrder, number: int, positions: np.ndarray) -> Iterator[ShardRow]:
        of_bin, held, used = order.orders[number], order.held[number], {}
        places = np.searchsorted(of_bin.ends, positions, side="right")
        for place, position in zip(places.tolist(), positions.tolist(), strict=True):
            if place not in used:
                used[place] = held.get(place) or self._row_group(of_bin, place)
            yield used[place][position - of_bin.ends[place]]  # from the end
        order.held[number] = used

    def _row_group(self, of_bin: BinOrder, place: int) -> list[ShardRow]:
        shard = self.examples.shards[of_bin.files[place]]
        rows = read_row_group(self.examples.directory, shard, int(of_bin.groups[place]))
        return [rows[i] for i in of_bin.arranged(place, np.array([len(row.ids) for row in rows]))]

    def _batch(self, rows: Sequence[ShardRow], epoch: int, is_real: bool) -> Batch:
        pairs = self.examples.noise.pairs(rows, epoch)
        tokens = sum(len(pair.source) + self.examples.noise.writes * len(pair.target) for pair in pairs)
        return Batch(self.collate(pairs), [row.number for row in rows], tokens, is_real)


class StreamLoader:
    """Loads the steps of a run from a TrainStream, from `start` up to `total`."""

    def __init__(self, stream: TrainStream, total: int, start: int = 0, **options: Any) -> None:
        self.loader = DataLoader(stream, batch_size=None, sampler=range(start, total), **options)
        self.total = total

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[list[Batch]]:
        for step in self.loader:
            if isinstance(step, RunError):
                raise RunError(f"{step}; --resume_from_checkpoint last goes on from the newest checkpoint")
            yield step
