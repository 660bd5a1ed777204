"""Examples as token ids, such as pairs of texts; and batches of them, put together, and moved to a device as one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from bart.backend import IGNORE_INDEX
from bart.errors import InputError
from bart.rows import Rows
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.tokenized import TokenizedTexts, tokenise
from utils.text.lines import references_of

# Tensor cores want sizes in multiples of 8, and fewer distinct shapes mean fewer memory layouts and compilations.
PAD_TO_MULTIPLE_OF = 8

Lengths = TypeVar("Lengths", int, np.ndarray)
Inputs = dict[str, Any]  # tensors (B, ...), lists of length B, or in training `Rows` and tensors (1, M)
Collate = Callable[[Sequence[Any]], Inputs]


class Examples(Protocol):
    """The encoded examples of a split, by number."""

    lengths: np.ndarray  # (N, K) tokens of the K sequences of each, such as source and target
    identity: dict[str, Any]  # plain values that are equal only for examples of equal content

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


@dataclass
class Pair:
    """An example: ids (S,) and (T,) and, where it is needed beside its ids, the target's text."""

    source: np.ndarray
    target: np.ndarray
    reference: str | None = None


@dataclass
class TokenPairs:
    """Sources and targets of a split as token ids; see `utils.data.batches.Examples`."""

    sources: TokenizedTexts
    targets: TokenizedTexts | None  # None where they are only to be predicted
    references: Sequence[str] | None = None  # the targets' texts, where they are needed beside their ids
    known_by: dict[str, Any] | None = None  # the identity of the pairs, such as digests of their files

    def __post_init__(self) -> None:
        self.lengths = np.stack([texts.lengths for texts in (self.sources, self.targets) if texts is not None], axis=1)

    @classmethod
    def from_texts(
        cls,
        sources: Sequence[str],
        targets: Sequence[str] | None,
        tokenizers: tuple[BartTokenizer, BartTokenizer],
        source_length: int,
        target_length: int,
    ) -> TokenPairs:
        """Tokenise texts, cut to these numbers of tokens; of a target that lists several references, the first."""
        source, target = tokenizers
        firsts = None if targets is None else [references_of(text)[0] for text in targets]
        return cls(
            TokenizedTexts(tokenise(sources, len(sources), source, source_length)),
            None if firsts is None else TokenizedTexts(tokenise(firsts, len(firsts), target, target_length)),
            targets,
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Plain values that are equal only for examples of equal content."""
        if self.known_by is not None:
            return self.known_by
        digest = hashlib.sha256(self.lengths.astype(np.int64).tobytes())
        for number in range(len(self)):
            for texts in (self.sources, self.targets):
                digest.update(b"" if texts is None else texts[number].tobytes())
        return {"examples": len(self), "ids": digest.hexdigest()}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Pair:
        reference = None if self.references is None else self.references[number]
        return Pair(self.sources[number], self.targets[number], reference)


def collate_pairs(pairs: Sequence[Pair], pad_token_id: int) -> Inputs:
    """Collate to input_ids and attention_mask (B, S), labels (B, T; -100 where padded) and, if any, references."""
    inputs = pad_ids([pair.source for pair in pairs], pad_token_id)
    inputs["labels"] = pad([pair.target for pair in pairs], IGNORE_INDEX)
    if pairs[0].reference is not None:
        inputs["references"] = [pair.reference for pair in pairs]
    return inputs


def as_rows(inputs: Inputs, multiple: int, of_tokens: Sequence[str] = ()) -> Inputs:
    """Inputs, padded behind, with `Rows` in place of input_ids and attention_mask; those of_tokens become (1, M)."""
    rows = Rows.of(inputs["input_ids"], inputs["attention_mask"], multiple)
    if rows is None:  # of a collate of a user's own
        raise InputError("as_rows() got an attention_mask with zeros inside a text; allowed: zeros behind it alone")
    packed = {
        name: rows.pack(inputs[name], IGNORE_INDEX if name == "labels" else 0) for name in of_tokens if name in inputs
    }
    return {name: value for name, value in inputs.items() if name != "attention_mask"} | {"input_ids": rows} | packed


def pairs_as_rows(inputs: Inputs, multiple: int) -> Inputs:
    """A batch of `collate_pairs`, with `Rows` of sources and of targets; pairs of their sizes are few."""
    rows, labels = as_rows(inputs, multiple), inputs["labels"]
    is_read = (labels != IGNORE_INDEX).long().flip(1).cummax(dim=1).values.flip(1)  # up to the last target
    return rows | {"labels": Rows.of(labels, is_read, multiple, IGNORE_INDEX, rows["input_ids"].tokens)}


def moved(inputs: Inputs, move: Callable[[Tensor], Tensor]) -> Inputs:
    """Inputs whose tensors are in the memory that `move` takes them to."""
    tensors = {name: move(values) for name, values in inputs.items() if isinstance(values, Tensor)}
    rows = {name: values.moved(move) for name, values in inputs.items() if isinstance(values, Rows)}
    return inputs | tensors | rows


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
        return replace(self, inputs=moved(self.inputs, lambda tensor: tensor.to(device, **options)))

    def pin_memory(self) -> Batch:
        """Move the tensors to page-locked memory for faster copies."""
        return replace(self, inputs=moved(self.inputs, Tensor.pin_memory))


@dataclass(eq=False)
class Batches(Dataset[Batch]):
    """Batches of examples. An index is a list of their numbers, or `[~i]` for a stand-in made of example i."""

    examples: Examples
    collate: Collate

    def __getitem__(self, index: list[int]) -> Batch:
        is_real = index[0] >= 0
        numbers = index if is_real else [~number for number in index]
        tokens = int(self.examples.lengths[numbers].sum())
        return Batch(self.collate([self.examples[number] for number in numbers]), numbers, tokens, is_real)


def evaluation_batches(lengths: np.ndarray, batch_size: int, rank: int = 0, world_size: int = 1) -> list[list[int]]:
    """Cut a split into one process's batches, longest first: little padding, and memory runs out at once if it does."""
    order = np.argsort(-lengths, kind="stable")[rank::world_size]
    return [order[start : start + batch_size].tolist() for start in range(0, len(order), batch_size)]
