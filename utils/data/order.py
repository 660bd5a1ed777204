"""The order in which training reads examples: a function of (seed, epoch, process) alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
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


@dataclass(eq=False)
class TrainOrder:
    """One process's micro-batches, step by step and epoch by epoch.

    An epoch is cut into optimizer steps, and each step into `accumulation` micro-batches for each process, so the
    examples of a step do not depend on how the global batch is made up of micro-batches and processes. Every example is
    seen exactly once an epoch. Every step, also the last and smaller one, has equally many micro-batches; where there
    are fewer examples than micro-batches, stand-ins fill the gaps (see `Batch.is_real`).

    Args:
        lengths: (N, K), see `Examples`.
        max_tokens: if given, micro-batches are those of `batches_of_tokens` whatever batch_size is: the same in every
            epoch, in another order. Some are halved where steps would not come out even.
        group_by_length: sort by length within windows of 100 steps, so that batches of batch_size examples hold
            examples of like length and little padding; otherwise steps are drawn at random.
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

    def epoch(self, *number: int) -> list[Step]:
        """All steps of an epoch; of a window of a stream, which has the numbers of the epoch and the window."""
        generator = np.random.default_rng((self.seed, *number))
        if self.made is None:
            batches = self._cut(generator)
        else:
            batches = [self.made[i] for i in generator.permutation(len(self.made))]
        mine = [batch.tolist() or self.stand_in for batch in batches[self.rank :: self.world_size]]
        return [mine[start : start + self.accumulation] for start in range(0, len(mine), self.accumulation)]

    def _cut(self, generator: np.random.Generator) -> list[np.ndarray]:
        """The micro-batches of all steps and processes, of batch_size examples except in the last step."""
        order = generator.permutation(len(self.lengths))
        rest = len(order) % self.step_size
        steps = order[: len(order) - rest].reshape(-1, self.step_size)
        if self.group_by_length:
            for start in range(0, len(steps), self.WINDOW):
                window = steps[start : start + self.WINDOW]
                window[:] = self._like_lengths(window.ravel()).reshape(window.shape)
            # Within a window lengths fall; shuffled steps keep that out of the training signal.
            steps = generator.permutation(steps)
        last = [order[len(order) - rest :]] if rest else []
        # Sorted, so that the examples that processes take at the same time are of like length.
        steps_sorted = (self._longest_first(step, 0) for step in [*steps, *last])
        return [share for step in steps_sorted for share in np.array_split(step, self.shares)]

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
            for micro_batches in self.order.epoch(epoch)[seen : seen + self.total - step]:
                yield micro_batches
                step += 1
