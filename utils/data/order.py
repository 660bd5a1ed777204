"""The order in which training reads examples: a function of (seed, epoch, process) alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain, count, islice
from typing import ClassVar

import numpy as np
from torch.utils.data import Sampler

from utils.data.batches import padded_length

# To be raised with every change of the order, here or in streaming.py: a position means nothing in another order.
ORDER = 3
Step = list[list[int]]  # one process's micro-batches of an optimizer step, as numbers of examples


def shuffled(count: int, generator: np.random.Generator) -> np.ndarray:
    """The numbers below `count` at random, as `permutation` gives them in twice the memory."""
    numbers = np.arange(count, dtype=np.int32)
    generator.shuffle(numbers)
    return numbers


def batches_of_tokens(lengths: np.ndarray, max_tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """All examples, of lengths (N, K), by batches of like length, each padded to at most max_tokens; and their starts.

    An example that is longer is a batch alone. The seed decides which examples of equal length come together.
    """
    order = shuffled(len(lengths), np.random.default_rng(seed))
    for column in reversed(lengths.T):
        order = order[np.argsort(-padded_length(column[order]), kind="stable")]
    starts, start = [], 0
    while start < len(order):
        starts.append(start)
        fewest = padded_length(lengths[order[start]]).sum()  # tokens of each example, if no other is wider
        widths = padded_length(np.maximum.accumulate(lengths[order[start : start + max(1, max_tokens // fewest)]]))
        tokens = widths.sum(axis=1) * np.arange(1, len(widths) + 1)
        start += max(1, int(np.searchsorted(tokens, max_tokens, side="right")))
    return order, np.array(starts)


def deal(work: Sequence[float] | np.ndarray, parts: int) -> list[np.ndarray]:
    """Numbers of items in parts of like work, whose sizes differ by one at most; `work` (N,) is that of each item.

    Of every `parts` items, from the largest on, the larger ones go to the parts that have less so far: the list
    scheduling of Graham (1969), with equal counts.
    """
    work = np.asarray(work)
    if parts == 1:
        return [np.arange(len(work))]
    order, sums = np.argsort(-work, kind="stable"), np.zeros(parts)
    table = np.full((-(-len(order) // parts), parts), -1)
    for row, start in zip(table, range(0, len(order), parts), strict=True):
        items = order[start : start + parts]
        places = np.argsort(sums, kind="stable")[: len(items)]
        row[places] = items
        sums[places] += work[items]
    return [column[column >= 0] for column in table.T]


@dataclass(eq=False)
class TrainOrder:
    """One process's micro-batches, step by step and epoch by epoch.

    An epoch is cut into optimizer steps, and each step into `accumulation` micro-batches for each process, so the
    examples of a step do not depend on how the global batch is made up of micro-batches and processes. They are dealt
    so that micro-batches and processes have like numbers of tokens, and no process waits long for another. Every
    example is seen exactly once an epoch. Every step, also the last and smaller one, has equally many micro-batches;
    where there are fewer examples than micro-batches, stand-ins fill the gaps (see `Batch.is_real`).

    Args:
        lengths: (N, K), see `Examples`.
        max_tokens: if given, the examples of a step are those of some of `batches_of_tokens` whatever batch_size is:
            the same batches in every epoch, in another order. Some are halved where steps would not come out even.
        group_by_length: sort by length within windows of 100 steps, so that steps hold examples of like length;
            otherwise steps are drawn at random.
        is_padded: keep examples of like length together in a micro-batch, since padding takes as long as tokens. It
            changes which process takes an example, and not the step.
    """

    WINDOW: ClassVar[int] = 100  # steps; with more of them, less is left to chance which examples come together
    GROUP: ClassVar[int] = 4  # steps; more would save padding of later sequences and cost more of the first

    lengths: np.ndarray
    batch_size: int
    seed: int
    _: KW_ONLY
    max_tokens: int | None = None
    accumulation: int = 1
    rank: int = 0
    world_size: int = 1
    group_by_length: bool = True
    is_padded: bool = False

    def __post_init__(self) -> None:
        self.shares = self.accumulation * self.world_size  # micro-batches of a step
        self.step_size = self.batch_size * self.shares
        self.steps_per_epoch = math.ceil(len(self.lengths) / self.step_size)
        self.examples_per_step: float = self.step_size
        if self.max_tokens is not None:
            self.made, starts = batches_of_tokens(self.lengths, self.max_tokens, self.seed)
            while len(starts) % self.shares:
                sizes = np.diff(starts, append=len(self.made))
                largest = sizes.argmax()
                starts = np.insert(starts, largest + 1, starts[largest] + (sizes[largest] + 1) // 2)
            self.bounds = np.append(starts, len(self.made))
            self.steps_per_epoch = len(starts) // self.shares
            self.examples_per_step = len(self.lengths) / self.steps_per_epoch
        self.stand_in = [~int(self.lengths[:, 0].argmin())]

    def steps(self, number: int, start: int = 0) -> Iterator[Step]:
        """The steps of an epoch from `start` on, each dealt when it is asked for."""
        for step in self.of_all(number, start=start):
            yield [micro_batch.tolist() or self.stand_in for micro_batch in step[self.rank]]

    def of_all(self, number: int, start: int = 0) -> Iterator[list[list[np.ndarray]]]:
        """The micro-batches of each process, which may be empty, of the same steps."""
        for batches in self._batches(np.random.default_rng((self.seed, number)), start):
            shares = self._shares(batches)
            yield [[shares[i] for i in mine] for mine in deal(self._tokens(shares), self.world_size)]

    def _batches(self, generator: np.random.Generator, start: int) -> Iterator[list[np.ndarray]]:
        """The examples of each step from `start` on, in one batch or in those made; the last step may have fewer."""
        if self.max_tokens is not None:
            places = shuffled(len(self.bounds) - 1, generator)
            for first in range(start * self.shares, len(places), self.shares):
                yield [self.made[slice(*self.bounds[i : i + 2])] for i in places[first : first + self.shares]]
            return
        order, size, places = shuffled(len(self.lengths), generator), self.step_size, np.arange(self.steps_per_epoch)
        if self.group_by_length:
            whole = len(order) // size
            for first in range(0, whole, self.WINDOW):
                window = order[first * size : min(first + self.WINDOW, whole) * size]
                window[:] = self._like_lengths(window)
            # Within a window lengths fall; shuffled steps keep that out of the training signal.
            generator.shuffle(places[:whole])
        for place in places[start:]:
            yield [order[place * size : (place + 1) * size]]

    def _shares(self, batches: list[np.ndarray]) -> list[np.ndarray]:
        """The examples of a step in as many micro-batches as it has: of like work or, if padded, of like lengths."""
        examples = np.concatenate(batches)
        if not self.is_padded:
            shares = [examples[items] for items in deal(self.lengths[examples].sum(axis=1), self.shares)]
            if self.max_tokens is None or max(self._tokens(shares)) <= self.max_tokens:
                return shares
        return batches if self.max_tokens else np.array_split(self._longest_first(examples, 0), self.shares)

    def _tokens(self, batches: list[np.ndarray]) -> list[int]:
        return [int(self.lengths[batch].sum()) for batch in batches]

    def _like_lengths(self, indices: np.ndarray) -> np.ndarray:
        """Examples by their first length and, in small groups of these, by the other lengths."""
        indices = self._longest_first(indices, 0)
        size = self.GROUP * self.step_size
        groups = np.split(indices, range(size, len(indices), size))
        if self.lengths.shape[1] > 1:
            groups = [self._longest_first(group, slice(1, None)) for group in groups]
        return np.concatenate(groups)

    def _longest_first(self, indices: np.ndarray, columns: int | slice) -> np.ndarray:
        lengths = self.lengths[indices, columns].reshape(len(indices), -1).sum(axis=1)
        return indices[np.argsort(-lengths, kind="stable")]


@dataclass(eq=False)
class RunOrder(Sampler[Step]):
    """The steps of a whole run, `total` in number, without those that an interrupted run has taken up to `start`."""

    order: TrainOrder
    total: int
    start: int = 0

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Step]:
        epoch, seen = divmod(self.start, self.order.steps_per_epoch)
        epochs = chain([self.order.steps(epoch, seen)], map(self.order.steps, count(epoch + 1)))
        return islice(chain.from_iterable(epochs), max(0, self.total - self.start))
