"""The order in which training reads examples: a function of (seed, epoch, process) alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
from torch.utils.data import Sampler

from utils.data.batches import padded_length

# To be raised with every change of the order, here or in streaming.py: a position means nothing in another order.
ORDER = 3
Step = list[list[int]]  # one process's micro-batches of an optimizer step, as numbers of examples


def batches_of_tokens(lengths: np.ndarray, max_tokens: int, seed: int) -> list[np.ndarray]:
    """All examples, of lengths (N, K), in batches of like length, each padded to at most max_tokens.

    An example that is longer is a batch alone. The seed decides which examples of equal length come together.
    """
    lengths = padded_length(lengths)
    order = np.random.default_rng(seed).permutation(len(lengths))
    order = order[np.lexsort(tuple(-lengths[order].T[::-1]))]
    cuts, start, widest = [], 0, [0] * lengths.shape[1]
    for place, row in enumerate(lengths[order].tolist()):
        wider = [max(pair) for pair in zip(widest, row, strict=True)]
        if place > start and sum(wider) * (place + 1 - start) > max_tokens:
            cuts.append(place)
            start, wider = place, row
        widest = wider
    return np.split(order, cuts)


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
        self.made: list[np.ndarray] | None = None
        if self.max_tokens is not None:
            self.made = batches_of_tokens(self.lengths, self.max_tokens, self.seed)
            while len(self.made) % self.shares:
                largest = max(range(len(self.made)), key=lambda i: len(self.made[i]))
                self.made[largest : largest + 1] = np.array_split(self.made[largest], 2)
            self.steps_per_epoch = len(self.made) // self.shares
            self.examples_per_step = len(self.lengths) / self.steps_per_epoch
        self.stand_in = [~int(self.lengths[:, 0].argmin())]

    def epoch(self, number: int) -> list[Step]:
        """All steps of an epoch."""
        return list(self.steps(number))

    def steps(self, number: int, start: int = 0) -> Iterator[Step]:
        """The steps of an epoch from `start` on, each dealt when it is asked for."""
        for step in self.of_all(number, start=start):
            yield [micro_batch.tolist() or self.stand_in for micro_batch in step[self.rank]]

    def of_all(self, number: int, start: int = 0) -> Iterator[list[list[np.ndarray]]]:
        """The micro-batches of each process, which may be empty, of the same steps."""
        for batches in self._steps(np.random.default_rng((self.seed, number)))[start:]:
            shares = self._shares(batches)
            yield [[shares[i] for i in mine] for mine in deal(self._tokens(shares), self.world_size)]

    def _steps(self, generator: np.random.Generator) -> list[list[np.ndarray]]:
        """The examples of all steps, in one batch or in those made; the last step may have fewer."""
        if self.made is not None:
            made = [self.made[i] for i in generator.permutation(len(self.made))]
            return [made[first : first + self.shares] for first in range(0, len(made), self.shares)]
        order = generator.permutation(len(self.lengths))
        rest = len(order) % self.step_size
        steps = order[: len(order) - rest].reshape(-1, self.step_size)
        if self.group_by_length:
            for start in range(0, len(steps), self.WINDOW):
                window = steps[start : start + self.WINDOW]
                window[:] = self._like_lengths(window.ravel()).reshape(window.shape)
            # Within a window lengths fall; shuffled steps keep that out of the training signal.
            steps = generator.permutation(steps)
        return [[step] for step in steps] + ([[order[len(order) - rest :]]] if rest else [])

    def _shares(self, batches: list[np.ndarray]) -> list[np.ndarray]:
        """The examples of a step in as many micro-batches as it has: of like work or, if padded, of like lengths."""
        examples = np.concatenate(batches)
        if not self.is_padded:
            shares = [examples[items] for items in deal(self.lengths[examples].sum(axis=1), self.shares)]
            if self.max_tokens is None or max(self._tokens(shares)) <= self.max_tokens:
                return shares
        return batches if self.made else np.array_split(self._longest_first(examples, 0), self.shares)

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
        step = self.start
        while step < self.total:
            epoch, seen = divmod(step, self.order.steps_per_epoch)
            for micro_batches in islice(self.order.steps(epoch, start=seen), self.total - step):
                yield micro_batches
                step += 1
