"""Batches: examples put together, and moved to a device as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from bart.backend import IGNORE_INDEX
from bart.cuda.backend import CudaRows
from bart.unpadding import KnownRows, carrying, known_rows

# Inputs that tell which positions of rows are used, and their value where none is.
MASKS = {"attention_mask": 0, "labels": IGNORE_INDEX}
# Tensor cores want sizes in multiples of 8, and fewer distinct shapes mean fewer memory layouts and compilations.
PAD_TO_MULTIPLE_OF = 8

Lengths = TypeVar("Lengths", int, np.ndarray)
Inputs = dict[str, Any]  # tensors (B, ...) or lists of length B
Collate = Callable[[Sequence[Any]], Inputs]


class Examples(Protocol):
    """The encoded examples of a split, by number."""

    lengths: np.ndarray  # (N, K) tokens of the K sequences of each, such as source and target
    identity: dict[str, Any]  # plain values that are equal only for examples of equal content
    seconds: float  # that encoding the first sequence of all examples took

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


def padded_length(longest: Lengths) -> Lengths:
    """The length to which rows are padded, of which the longest has so many tokens."""
    return -(-longest // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF


def pad(rows: Sequence[np.ndarray], value: int) -> Tensor:
    """Pad rows of ids to (B, L), with L the longest row's length rounded up to a multiple of 8."""
    width = padded_length(max(len(row) for row in rows))
    batch = np.full((len(rows), width), value, dtype=np.int64)
    for padded, row in zip(batch, rows, strict=True):
        padded[: len(row)] = row
    return torch.from_numpy(batch)


def pad_ids(rows: Sequence[np.ndarray], pad_token_id: int) -> Inputs:
    """Pad rows of ids to input_ids and attention_mask, (B, S) each."""
    input_ids = pad(rows, pad_token_id)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": input_ids, "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()}


@dataclass(frozen=True)
class Batch:
    """A micro-batch of the examples of these numbers; a stand-in keeps a process busy that has no examples left."""

    inputs: Inputs
    index: list[int]
    tokens: int  # without padding
    is_real: bool = True  # False for a stand-in, which has no part in the loss

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, rows: Sequence[int]) -> Inputs:
        """Select the inputs of some of the examples."""
        return {
            name: values[list(rows)] if isinstance(values, Tensor) else [values[row] for row in rows]
            for name, values in self.inputs.items()
        }

    def to(self, device: torch.device, **options: Any) -> Batch:
        """Move the tensors to a device; Lightning calls this."""
        # Lightning sets this for plain tensors alone. A copy from page-locked memory then waits for no work of the GPU.
        options.setdefault("non_blocking", torch.device(device).type == "cuda")
        return self._moved(lambda tensor: tensor.to(device, **options))

    def pin_memory(self) -> Batch:
        """Move the tensors to page-locked memory for faster copies; masks then carry their rows, so no GPU is waited
        for.
        """
        for name, nothing in MASKS.items():
            mask = self.inputs.get(name)
            if isinstance(mask, Tensor) and mask.dim() == 2 and not mask.is_floating_point():
                carrying(mask, KnownRows.of(mask != nothing, CudaRows))
        return self._moved(Tensor.pin_memory)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Batch:
        inputs = dict(self.inputs)
        for name, values in inputs.items():
            if isinstance(values, Tensor):
                inputs[name] = move(values)
                if (known := known_rows(values)) is not None:
                    carrying(inputs[name], known.moved(move))
        return replace(self, inputs=inputs)


def numbers_of(index: list[int]) -> tuple[list[int], bool]:
    """Decode the index of a batch: the numbers of its examples, and False where it is `[~i]`, a stand-in."""
    if index[0] >= 0:
        return index, True
    return [~number for number in index], False


@dataclass(eq=False)
class Batches(Dataset[Batch]):
    """Batches of examples. An index is a list of their numbers, or `[~i]` for a stand-in made of example i."""

    examples: Examples
    collate: Collate

    def __getitem__(self, index: list[int]) -> Batch:
        numbers, is_real = numbers_of(index)
        tokens = int(self.examples.lengths[numbers].sum())
        return Batch(self.collate([self.examples[number] for number in numbers]), numbers, tokens, is_real)


def evaluation_batches(lengths: np.ndarray, batch_size: int, rank: int = 0, world_size: int = 1) -> list[list[int]]:
    """Cut a split into one process's batches, longest first: little padding, and memory runs out at once if it does."""
    order = np.argsort(-lengths, kind="stable")[rank::world_size]
    return [order[start : start + batch_size].tolist() for start in range(0, len(order), batch_size)]
