"""Token ids of many texts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.progress import Progress

# Texts that the tokenizer gets at once: enough to keep its threads busy, few enough to bound its memory.
_AT_ONCE = 512
_CHUNK = 16 * _AT_ONCE  # texts of a record batch; a mapped file has some pages of each in memory
Chunk = tuple[np.ndarray, np.ndarray]  # ids of _CHUNK texts (the last chunk has fewer), one after another; lengths


class TokenizedTexts:
    """Token ids of many texts in flat arrays, which take a sixteenth of the memory of lists of Python integers.

    Args:
        chunks: the ids, which may be made while they are taken.
        limit: how many texts to take, the first ones; all if negative.

    Attributes:
        lengths: (N,) int64, tokens of each text.
        seconds: how long it took to make them or to find them.
    """

    def __init__(self, chunks: Iterable[Chunk], limit: int = -1) -> None:
        began = time.perf_counter()
        self._flat, lengths = zip(*chunks, strict=True)
        self.lengths = np.concatenate(lengths).astype(np.int64)[: None if limit < 0 else limit]
        self._ends = [np.cumsum(part, dtype=np.int64) for part in lengths]
        self.seconds = time.perf_counter() - began

    @classmethod
    def from_texts(cls, texts: Sequence[str], tokenizer: BartTokenizer, max_length: int) -> TokenizedTexts:
        """Tokenise texts, cut to max_length tokens with `</s>` kept last."""
        return cls(tokenise(texts, len(texts), tokenizer, max_length))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """(S,) ids of a text, not to be written to."""
        chunk, place = divmod(index, _CHUNK)
        end = self._ends[chunk][place]
        return self._flat[chunk][end - self.lengths[index] : end]


def kind_of_ids(tokenizer: BartTokenizer) -> type[np.integer]:
    """The smallest type of integers that holds a vocabulary."""
    return np.uint16 if len(tokenizer) <= 1 << 16 else np.int32


def tokenise(texts: Iterable[str], total: int, tokenizer: BartTokenizer, max_length: int) -> Iterator[Chunk]:
    """Give the ids of `total` texts chunk by chunk, cut to max_length tokens with `</s>` kept last."""
    kind = kind_of_ids(tokenizer)
    progress = Progress("tokenising", total, "texts", shown=total > _AT_ONCE)
    texts = iter(texts)
    flat: list[np.ndarray] = []
    lengths: list[int] = []
    while some := list(islice(texts, _AT_ONCE)):
        rows = tokenizer.encode_many(some, max_length)
        flat.append(np.fromiter(chain.from_iterable(rows), kind))
        lengths += map(len, rows)
        if len(lengths) == _CHUNK:
            yield np.concatenate(flat), np.array(lengths)
            flat, lengths = [], []
        progress.advance(len(some))
    if lengths:
        yield np.concatenate(flat), np.array(lengths)
