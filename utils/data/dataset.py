"""Tokenised pairs, the batches made of them, and the order in which training reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from bart.errors import InputError
from bart.modeling.modeling_bart import IGNORE_INDEX
from bart.tokenization.tokenization_bart import BartTokenizer

# Tensor cores want sizes in multiples of 8, and fewer distinct shapes mean fewer memory layouts and compilations.
PAD_TO_MULTIPLE_OF = 8
# Texts handed to the tokenizer at once: enough to keep its threads busy, few enough to bound its memory.
_TOKENIZE_CHUNK = 4096


class TokenizedTexts:
    """Token ids of many texts in one flat array, an eighth of the memory of lists of Python integers."""

    def __init__(self, texts: Sequence[str], tokenizer: BartTokenizer, max_length: int) -> None:
        pieces, lengths = [], []
        for start in range(0, len(texts), _TOKENIZE_CHUNK):
            chunk = list(texts[start : start + _TOKENIZE_CHUNK])
            ids = tokenizer(chunk, max_length=max_length, truncation=True)["input_ids"]
            pieces.append(np.concatenate([np.asarray(row, dtype=np.int32) for row in ids]))
            lengths.extend(len(row) for row in ids)
        self.lengths = np.asarray(lengths, dtype=np.int64)  # (N,) tokens of each text
        self._flat = np.concatenate(pieces)
        self._ends = np.cumsum(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        end = self._ends[index]
        return self._flat[end - self.lengths[index] : end]


@dataclass
class Example:
    index: int  # the line in the data file, from 0
    source: np.ndarray  # (S,) token ids
    target: np.ndarray  # (T,)


class PairDataset(Dataset[Example]):
    """Sources and targets as token ids, cut to their maximum lengths with `</s>` kept last."""

    def __init__(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        tokenizer: BartTokenizer,
        max_source_length: int,
        max_target_length: int,
    ) -> None:
        self.sources = TokenizedTexts(sources, tokenizer, max_source_length)
        self.targets = TokenizedTexts(targets, tokenizer, max_target_length)
        self.references = list(targets)

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Example:
        return Example(index, self.sources[index], self.targets[index])


def pad(rows: Sequence[np.ndarray], value: int) -> Tensor:
    """Rows of ids -> (B, L) with L the longest row's length, rounded up to a multiple of 8."""
    longest = max(len(row) for row in rows)
    width = -(-longest // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF
    batch = torch.full((len(rows), width), value, dtype=torch.long)
    for target, row in zip(batch, rows, strict=True):
        target[: len(row)] = torch.from_numpy(row)
    return batch


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


class TrainBatches(Sampler[list[int]]):
    """One rank's training batches; an epoch's order depends on (seed, epoch, rank) alone.

    Every example is seen exactly once an epoch, and every rank gets equally many batches: the last, smaller global
    batch is spread over the ranks (and joined to the one before when it has fewer examples than there are ranks).

    Args:
        lengths: (N,) source lengths.
        batch_size: examples per batch and rank.
        group_by_length: sort by length within windows of 50 global batches, so that batches hold examples of like
            length and little padding; else the order is fully random.
        position: asked at the start of each iteration for the epoch and the number of its batches that an
            interrupted run has already seen, which are left out.

    Raises:
        InputError: there are fewer examples than ranks.
    """

    WINDOW = 50

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        group_by_length: bool = True,
        position: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        if len(lengths) < world_size:
            raise InputError(f"{len(lengths)} training examples cannot be shared by {world_size} processes")
        self.lengths = lengths
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.group_by_length = group_by_length
        self.position = position
        self.step = batch_size * world_size
        self.cuts = list(range(0, len(lengths), self.step))
        if len(self.cuts) > 1 and len(lengths) - self.cuts[-1] < world_size:
            self.cuts.pop()

    def batches(self, epoch: int) -> list[list[int]]:
        """All of an epoch's batches for this rank, as indices of examples."""
        generator = np.random.default_rng((self.seed, epoch))
        order = generator.permutation(len(self.lengths))
        if self.group_by_length:
            window = self.WINDOW * self.step
            parts = [order[start : start + window] for start in range(0, len(order), window)]
            order = np.concatenate([part[np.argsort(-self.lengths[part], kind="stable")] for part in parts])
        batches = np.split(order, self.cuts[1:])
        if self.group_by_length:
            # Within a window lengths fall; shuffled batches keep that out of the training signal.
            batches = [batches[i] for i in generator.permutation(len(batches))]
        return [np.array_split(batch, self.world_size)[self.rank].tolist() for batch in batches]

    def __iter__(self) -> Iterator[list[int]]:
        epoch, seen = self.position()
        return iter(self.batches(epoch)[seen:])

    def __len__(self) -> int:
        return len(self.cuts)


def evaluation_batches(lengths: np.ndarray, batch_size: int, rank: int = 0, world_size: int = 1) -> list[list[int]]:
    """A rank's share of a split, longest sources first: little padding, and memory runs out at once if at all."""
    order = np.argsort(-lengths, kind="stable")[rank::world_size]
    return [order[start : start + batch_size].tolist() for start in range(0, len(order), batch_size)]
