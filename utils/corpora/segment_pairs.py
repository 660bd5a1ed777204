"""Pairs of segments of documents, from which BERT learns (Devlin et al., 2019, appendix A.2).

The random numbers of a document depend on the seed and its text alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from utils.corpora.shard_options import MakeShardsOptions


class ShardExample(NamedTuple):
    """An example of a shard.

    Attributes:
        parts: tokens of its sentences, or of its two segments.
        ids: its tokens, where they do not lie one behind the other in the documents.
        label: for a pair, 1 if the second segment is from another document, and 0 if it follows the first one.
    """

    parts: list[int]
    ids: np.ndarray | None = None
    label: int = 0


class TokenizedDocument(NamedTuple):
    """A document's tokens, and the bounds of its sentences: N + 1 for N sentences."""

    ids: np.ndarray
    bounds: list[int]


class SegmentPairs:
    """Makes pairs of segments; a random one is from another document of the same split, near by in the same piece.

    A document that is the only one of its split in a piece gives none.
    """

    def __init__(self, options: MakeShardsOptions) -> None:
        self.options = options
        self.last: dict[int, TokenizedDocument] = {}  # of each split, in the documents before

    def __call__(
        self, ids: np.ndarray, lengths: Sequence[Sequence[int]], keys: Sequence[bytes], splits: Sequence[int]
    ) -> list[list[ShardExample]]:
        """Make the pairs of some documents.

        Args:
            ids: tokens of all documents.
            lengths: the tokens of the sentences of each document.
            keys: hashes of the documents, from which the pairs are drawn.
            splits: the number of the split of each document.
        """
        ends = np.cumsum([sum(of_document) for of_document in lengths])[:-1]
        texts = [
            TokenizedDocument(part, np.cumsum([0, *of_document]).tolist())
            for part, of_document in zip(np.split(ids, ends), lengths, strict=True)
        ]
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

    def _pairs_of(self, texts: Sequence[TokenizedDocument], place: int, key: bytes) -> Iterator[ShardExample]:
        """Make the pairs of the document at this place in the texts."""
        options = self.options
        for copy in range(options.duplicate_factor):
            rng = random.Random(xxhash.xxh3_64_intdigest(key + b"pairs" + copy.to_bytes(4, "little"), options.seed))
            for first, second, random_text in pair_up(texts, place, options.room, options.short_seq_prob, rng):
                second_ids = (random_text or texts[place]).ids[slice(*second)]
                ids = np.concatenate([texts[place].ids[slice(*first)], second_ids])
                yield ShardExample([end - begin for begin, end in (first, second)], ids, int(random_text is not None))


class Segment(NamedTuple):
    """The tokens of a document from `begin` to before `end`."""

    begin: int
    end: int


def pair_up(
    texts: Sequence[TokenizedDocument], place: int, room: int, short_seq_prob: float, rng: random.Random
) -> Iterator[tuple[Segment, Segment, TokenizedDocument | None]]:
    """Gather the sentences of a document into pairs of segments (Devlin et al., 2019, appendix A.2).

    Half of the pairs, whatever their sentences, have a random second segment. A sentence that is left alone at the end
    begins none, so that this holds there too.

    Args:
        texts: two at least; random segments are from any but that of the document.
        place: of the document in texts.
        room: tokens of a pair at most; of a longer one the longer segment loses tokens, at either end.
        short_seq_prob: the probability that a document's pairs are to be shorter, by a length drawn from 2 to `room`.

    Yields:
        The segments, and the text that the second one is from, None if it is this one.
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
        first, second = Segment(bounds[begin], bounds[middle]), Segment(bounds[middle], bounds[end])
        if random_text is not None:
            start = rng.randrange(len(random_text.bounds) - 1)
            stop = _end_of(random_text.bounds, start, target - (first.end - first.begin), 1)
            second = Segment(random_text.bounds[start], random_text.bounds[stop])
            end = middle  # what is behind the first segment is used again
        yield *_trimmed(first, second, room, rng), random_text
        begin = end


def _end_of(bounds: Sequence[int], begin: int, target: int, least: int) -> int:
    """The bound at which the sentences from `begin` on have `target` tokens, and are at least `least` many."""
    end = begin + 1
    while end < len(bounds) - 1 and (bounds[end] - bounds[begin] < target or end - begin < least):
        end += 1
    return end


def _trimmed(first: Segment, second: Segment, room: int, rng: random.Random) -> tuple[Segment, Segment]:
    """Take tokens from either end of the longer segment, one after the other, until both have room."""
    for _ in range(first.end - first.begin + second.end - second.begin - room):
        longer = max(first, second, key=lambda segment: segment.end - segment.begin)
        shorter = Segment(longer.begin + 1, longer.end) if rng.random() < 0.5 else Segment(longer.begin, longer.end - 1)
        first, second = (shorter, second) if longer is first else (first, shorter)
    return first, second
