"""Tokenised pairs, the batches made of them, and the order in which training reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from bart.modeling.modeling_bart import IGNORE_INDEX
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.padding import padded_length
from utils.data.tokenized import TokenizedTexts


@dataclass
class Example:
    index: int  # the line in the data file, from 0
    source: np.ndarray  # (S,) token ids
    target: np.ndarray  # (T,)


class PairDataset(Dataset[Example]):
    """Sources and targets as token ids.

    The index `~i` gives example i with no target that counts.
    """

    def __init__(self, sources: TokenizedTexts, targets: TokenizedTexts) -> None:
        self.sources = sources
        self.targets = targets

    @classmethod
    def from_texts(
        cls,
        sources: Sequence[str],
        targets: Sequence[str],
        tokenizer: BartTokenizer,
        max_source_length: int,
        max_target_length: int,
    ) -> PairDataset:
        return cls(
            TokenizedTexts.from_texts(sources, tokenizer, max_source_length),
            TokenizedTexts.from_texts(targets, tokenizer, max_target_length),
        )

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Example:
        if index < 0:
            return Example(~index, self.sources[~index], np.full(len(self.targets[~index]), IGNORE_INDEX))
        return Example(index, self.sources[index], self.targets[index])


def pad(rows: Sequence[np.ndarray], value: int) -> Tensor:
    """Rows of ids -> (B, L) with L the longest row's length, rounded up to a multiple of 8."""
    width = padded_length(max(len(row) for row in rows))
    batch = np.full((len(rows), width), value, dtype=np.int64)
    for target, row in zip(batch, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(batch)


@dataclass
class Collate:
    """Examples -> a batch: input_ids, attention_mask (B, S), labels (B, T; -100 where padded), index (B,)."""

    pad_token_id: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        lengths = torch.tensor([len(example.source) for example in examples])
        input_ids = pad([example.source for example in examples], self.pad_token_id)
        return {
            "input_ids": input_ids,
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
            "labels": pad([example.target for example in examples], IGNORE_INDEX),
            "index": torch.tensor([example.index for example in examples]),
        }


def batches_of_tokens(sources: np.ndarray, targets: np.ndarray, max_tokens: int, seed: int) -> list[np.ndarray]:
    """All examples in batches of like length, each padded to max_tokens at most.

    Args:
        sources, targets: (N,) lengths.
        max_tokens: bounds (padded source length + padded target length) * examples, but for an example alone.
        seed: decides which examples of one length come together.
    """
    sources, targets = padded_length(sources), padded_length(targets)
    order = np.random.default_rng(seed).permutation(len(sources))
    order = order[np.lexsort((-targets[order], -sources[order]))]
    cuts, start, widest = [], 0, 0
    source_lengths, target_lengths = sources[order].tolist(), targets[order].tolist()
    for place, target in enumerate(target_lengths):
        widest = max(widest, target)
        if place > start and (source_lengths[start] + widest) * (place + 1 - start) > max_tokens:
            cuts.append(place)
            start, widest = place, target
    return np.split(order, cuts)


class TrainBatches(Sampler[list[int]]):
    """One rank's micro-batches; an epoch's order depends on (seed, epoch, rank) alone.

    An epoch is cut into optimizer steps, and these into `accumulation` micro-batches on each rank. So the examples of a
    step do not depend on how the global batch is made up of micro-batches and ranks. Every example is seen exactly once
    an epoch, and every step, the last and smaller one as well, has equally many micro-batches: batches counted through
    epochs count whole steps. Where there are fewer examples than micro-batches, stand-ins fill the gaps, examples whose
    targets do not count (see PairDataset).

    Args:
        sources, targets: (N,) lengths.
        batch_size: examples per micro-batch.
        max_tokens: if given, micro-batches are those of `batches_of_tokens`, whatever batch_size is: the same in every
            epoch, in another order. Some are halved where steps would not come out even.
        accumulation: micro-batches per rank and optimizer step.
        group_by_length: sort by length within windows of 100 steps, so that batches of batch_size examples hold
            examples of like length and little padding; else steps are drawn at random.
        position: asked at the start of each iteration for the epoch and the number of its batches that an
            interrupted run has already seen, which are left out.
    """

    ORDER = 1  # to be raised with every change of the order, or of a stream's: a position means nothing in another
    WINDOW = 100  # steps; more would leave less to chance which examples come together
    GROUP = 4  # steps; more would save padding of targets and cost more of sources

    def __init__(
        self,
        sources: np.ndarray,
        targets: np.ndarray,
        batch_size: int,
        seed: int,
        *,
        max_tokens: int | None = None,
        accumulation: int = 1,
        rank: int = 0,
        world_size: int = 1,
        group_by_length: bool = True,
        position: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.lengths, self.target_lengths = sources, targets
        self.seed = seed
        self.accumulation = accumulation
        self.rank = rank
        self.world_size = world_size
        self.group_by_length = group_by_length
        self.position = position
        self.shares_per_step = accumulation * world_size
        self.step = batch_size * self.shares_per_step
        self.steps = math.ceil(len(sources) / self.step)
        self.made: list[np.ndarray] | None = None
        if max_tokens is not None:
            self.made = batches_of_tokens(sources, targets, max_tokens, seed)
            while len(self.made) % self.shares_per_step:
                largest = max(range(len(self.made)), key=lambda i: len(self.made[i]))
                self.made[largest : largest + 1] = np.array_split(self.made[largest], 2)
            self.steps = len(self.made) // self.shares_per_step
        self.stand_in = [~int(sources.argmin())]

    @property
    def examples_per_step(self) -> float:
        """Examples of an optimizer step on all ranks; with max_tokens, their mean."""
        return self.step if self.made is None else len(self.lengths) / self.steps

    def batches(self, *number: int) -> list[list[int]]:
        """All of an epoch's batches for this rank, as indices of examples.

        Args:
            number: the epoch; where these are the examples of a stream's window, the epoch and the window.
        """
        generator = np.random.default_rng((self.seed, *number))
        if self.made is None:
            shares = self._cut(generator)
        else:
            shares = [self.made[i] for i in generator.permutation(len(self.made))]
        return [share.tolist() or self.stand_in for share in shares[self.rank :: self.world_size]]

    def _cut(self, generator: np.random.Generator) -> list[np.ndarray]:
        """The micro-batches of all steps and ranks, of batch_size examples but for those of the last step."""
        order = generator.permutation(len(self.lengths))
        rest = len(order) % self.step
        steps = order[: len(order) - rest].reshape(-1, self.step)
        if self.group_by_length:
            for start in range(0, len(steps), self.WINDOW):
                window = steps[start : start + self.WINDOW]
                window[:] = self._like_lengths(window.ravel()).reshape(window.shape)
            # Within a window lengths fall; shuffled steps keep that out of the training signal.
            steps = generator.permutation(steps)
        last = [order[len(order) - rest :]] if rest else []
        # Sorted, so that what the ranks take at once is of like length.
        steps_sorted = (self._longest_first(step, self.lengths) for step in [*steps, *last])
        return [share for step in steps_sorted for share in np.array_split(step, self.shares_per_step)]

    def _like_lengths(self, indices: np.ndarray) -> np.ndarray:
        """Examples by the lengths of their sources, and among few of like sources by those of their targets."""
        indices = self._longest_first(indices, self.lengths)
        size = self.GROUP * self.step
        groups = np.split(indices, range(size, len(indices), size))
        return np.concatenate([self._longest_first(group, self.target_lengths) for group in groups])

    @staticmethod
    def _longest_first(indices: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return indices[np.argsort(-lengths[indices], kind="stable")]

    def __iter__(self) -> Iterator[list[int]]:
        epoch, seen = self.position()
        return iter(self.batches(epoch)[seen:])

    def __len__(self) -> int:
        return self.steps * self.accumulation


def evaluation_batches(lengths: np.ndarray, batch_size: int, rank: int = 0, world_size: int = 1) -> list[list[int]]:
    """A rank's share of a split, longest sources first: little padding, and memory runs out at once if at all."""
    order = np.argsort(-lengths, kind="stable")[rank::world_size]
    return [order[start : start + batch_size].tolist() for start in range(0, len(order), batch_size)]
