"""Pairs of segments of documents, from which BERT learns (Devlin et al., 2019, appendix A.2).

The random numbers of a document depend on the seed and its text alone.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from utils.corpora.shard_options import MakeShardsOptions
from utils.data.shard_format import ShardRow


class TokenizedDocument(NamedTuple):
    ids: np.ndarray
    bounds: list[int]  # of its N sentences, N + 1


class SegmentPairs:
    """Makes pairs of segments; a random one is of another document of its split with a hash near by, if any."""

    def __init__(self, options: MakeShardsOptions) -> None:
        self.options = options
        self.last: dict[int, TokenizedDocument] = {}  # of each split, in the documents before

    def __call__(
        self, texts: Sequence[TokenizedDocument], keys: Sequence[bytes], splits: Sequence[int]
    ) -> list[list[ShardRow]]:
        """Make the pairs of some documents, whose random numbers are drawn from their keys."""
        of_split: dict[int, list[TokenizedDocument]] = {split: [last] for split, last in self.last.items()}
        places = []
        for text, split in zip(texts, splits, strict=True):
            places.append(len(of_split.setdefault(split, [])))
            of_split[split].append(text)
        self.last |= dict(zip(splits, texts, strict=True))
        return [
            [*self._pairs_of(of_split[split], place, key)] if len(of_split[split]) > 1 else []
            for key, split, place in zip(keys, splits, places, strict=True)
        ]

    def _pairs_of(self, texts: Sequence[TokenizedDocument], place: int, key: bytes) -> Iterator[ShardRow]:
        options = self.options
        for copy in range(options.duplicate_factor):
            rng = random.Random(xxhash.xxh3_64_intdigest(key + b"pairs" + copy.to_bytes(4, "little"), options.seed))
            for first, second, random_text in pair_up(texts, place, options.room, options.short_seq_prob, rng):
                first_ids = texts[place].ids[first.start : first.stop]
                second_ids = (random_text or texts[place]).ids[second.start : second.stop]
                lengths = [len(first), len(second)]
                yield ShardRow(np.concatenate([first_ids, second_ids]), lengths, int(random_text is not None))


def pair_up(
    texts: Sequence[TokenizedDocument], place: int, room: int, short_seq_prob: float, rng: random.Random
) -> Iterator[tuple[range, range, TokenizedDocument | None]]:
    """Gather the sentences of the document at `place` into pairs of segments, ranges of at most `room` tokens in all.

    Half of the pairs have a random second segment, of another text, which is yielded, too; a sentence that is left
    alone at the end begins none, so that this holds there. The pairs of some documents are shorter, from 2 tokens on.
    """
    bounds = texts[place].bounds
    count = len(bounds) - 1
    target = rng.randint(2, room) if rng.random() < short_seq_prob else room
    begin = 0
    while count - begin > 1:
        random_text = None
        if rng.random() < 0.5:
            index = rng.randrange(len(texts) - 1)
            random_text = texts[index + 1 if index >= place else index]
        end = _end_of(bounds, begin, target, 2 if random_text is None else 1)
        middle = begin + (1 if end - begin == 1 else rng.randint(1, end - begin - 1))
        first, second = range(bounds[begin], bounds[middle]), range(bounds[middle], bounds[end])
        if random_text is not None:
            start = rng.randrange(len(random_text.bounds) - 1)
            stop = _end_of(random_text.bounds, start, target - len(first), 1)
            second = range(random_text.bounds[start], random_text.bounds[stop])
            end = middle  # what is behind the first segment is used again
        yield *_trimmed(first, second, room, rng), random_text
        begin = end


def _end_of(bounds: Sequence[int], begin: int, target: int, least: int) -> int:
    """The bound at which the sentences from `begin` on have `target` tokens, and are at least `least` many."""
    end = bisect_left(bounds, bounds[begin] + target)
    return min(max(end, begin + least), len(bounds) - 1)


def _trimmed(first: range, second: range, room: int, rng: random.Random) -> tuple[range, range]:
    """Take tokens from either end of the longer segment, one after the other, until both have room."""
    for _ in range(len(first) + len(second) - room):
        longer = max(first, second, key=len)
        shorter = longer[1:] if rng.random() < 0.5 else longer[:-1]
        first, second = (shorter, second) if longer is first else (first, shorter)
    return first, second
