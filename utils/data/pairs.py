"""Pairs of texts as token ids: examples of every task that turns a text into another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bart.modeling.modeling_bart import IGNORE_INDEX
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.batches import Inputs, pad, pad_ids
from utils.data.tokenized import TokenizedTexts, tokenise
from utils.text.lines import references_of


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
        self.seconds = self.sources.seconds

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
        digest = hashlib.sha256(self.lengths.tobytes())
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
