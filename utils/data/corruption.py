"""Noise for denoising: the five ways in which BART's paper corrupts a text (Lewis et al., 2020, section 2.2).

Sentences are permuted first; then tokens are taken, by infilling, masking and deletion in this order; the insertions of
infilling follow, and rotation comes last. The corruption of an example depends on the seed, the epoch, the example's
number and its tokens alone: see `noise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.batches import Pair
from utils.data.noise import Noise, before_each, keys_of, part_of, places_of, random_bits, rows_of, shuffle_of, uniform
from utils.data.options import CorruptionOptions
from utils.data.shard_format import ShardRow

SPACE = "Ġ"  # how byte-level BPE writes the space before a word
# The purposes of random numbers.
_SENTENCES, _LENGTHS, _SPANS, _WORDS, _TOKENS, _REPLACED, _REPLACEMENTS, _ROTATED, _BEGINNINGS = range(9)


class Corruption(Noise):
    """Makes the sources of a denoising model.

    An option's share of N things is rounded to the nearest whole number, halves up, except that of sentences, which is
    rounded up as in fairseq. Special tokens in a text are neither taken nor drawn.

    Infilling. Span lengths are drawn from Poisson(λ), in words, until the spans that are not empty hold the share of
    the tokens. They are put among the other words in a random order, so that none overlap, though two may touch. Each
    begins where a word does, and only the last that is drawn may end within one: it is cut so that exactly the share is
    taken. Every span, an empty one too, is one `<mask>`.
    """

    writes = True

    def __init__(self, options: CorruptionOptions, tokenizer: BartTokenizer, seed: int) -> None:
        super().__init__(options, tokenizer, seed)
        self.bos, self.eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        self.begins_word = self.begin_with(SPACE)
        self.poisson = _cumulated_poisson(options.poisson_lambda)

    def pairs(self, rows: Sequence[ShardRow], epoch: int) -> list[Pair]:
        """Make pairs of B rows of a shard, corrupted tokens and original ones, each between `<s>` and `</s>`."""
        keys = keys_of(self.seed, epoch, [row.number for row in rows])
        first, last = np.array([self.bos]), np.array([self.eos])
        parts = [part for row in rows for part in (first, row.ids, last)]
        flat = np.concatenate(parts, dtype=np.int32, casting="unsafe")
        sizes = np.array([len(row.ids) + 2 for row in rows])
        targets = np.split(flat, np.cumsum(sizes)[:-1])
        # `<s>` and `</s>` count as sentences, which stay where they are.
        edge = np.ones(1, np.int64)
        lengths = np.concatenate([part for row in rows for part in (edge, row.sentences, edge)], dtype=np.int64)
        order = self._order(keys, np.array([len(row.sentences) for row in rows]))
        flat = flat[np.repeat((np.cumsum(lengths) - lengths)[order], lengths[order]) + places_of(lengths[order])]
        begins = self.begins_word[flat]
        begins[np.cumsum(lengths[order]) - lengths[order]] = True
        flat, sizes = self._without_taken(keys, flat, begins, sizes)
        if self.options.rotate_ratio:
            flat = flat[self._rotated(keys, sizes)]
        return list(map(Pair, np.split(flat, np.cumsum(sizes)[:-1]), targets))

    def _order(self, keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The sentences of all examples, with `<s>` and `</s>`, in their new order; counts (B,) are without these."""
        rows, places = rows_of(counts), places_of(counts)
        shuffled = shuffle_of(rows, random_bits(keys, _SENTENCES, rows, places))
        # The first of this random order, as many as are to move, change places among each other.
        moves = places < np.ceil(np.round(self.options.permute_sentence_ratio * counts, 9))[rows]
        moving = (shuffled + 2 * rows + 1)[moves]
        order = np.arange(len(rows) + 2 * len(counts))
        order[np.sort(moving)] = moving
        return order

    def _without_taken(
        self, keys: np.ndarray, flat: np.ndarray, begins: np.ndarray, sizes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Apply infilling, masking and deletion to tokens (N,) of examples of these sizes (B,); return both anew."""
        free = np.flatnonzero(~self.special[flat])  # the tokens that may be taken
        rows = rows_of(sizes)[free]
        counts = np.bincount(rows, minlength=len(sizes))
        taken, masked = np.zeros(len(free), bool), np.zeros(len(flat), bool)
        inserted = np.zeros(len(flat), np.int64)  # masks before each token
        if self.options.mlm_probability:
            starts, ends, rows_of_spans = self._spans(keys, rows, begins[free], counts)
            empty = starts == ends
            masked[free[starts[~empty]]] = True
            edges = np.bincount(starts, minlength=len(free) + 1) - np.bincount(ends, minlength=len(free) + 1)
            taken = np.cumsum(edges[:-1]) > 0
            # Behind the last word of an example comes its `</s>`.
            starts, rows_of_spans = starts[empty], rows_of_spans[empty]
            behind = starts == np.cumsum(counts)[rows_of_spans]
            at = np.where(behind, np.cumsum(sizes)[rows_of_spans] - 1, free[np.minimum(starts, len(free) - 1)])
            inserted = np.bincount(at, minlength=len(flat))
        if self.options.token_mask_ratio or self.options.token_delete_ratio:
            left = np.flatnonzero(~taken)
            left = left[shuffle_of(rows[left], random_bits(keys, _TOKENS, rows[left], places_of(counts)[left]))]
            places = places_of(np.bincount(rows[left], minlength=len(sizes)))
            to_mask = part_of(self.options.token_mask_ratio, counts)[rows[left]]
            to_delete = part_of(self.options.token_delete_ratio, counts)[rows[left]]
            masked[free[left[places < to_mask]]] = True
            taken[left[(places >= to_mask) & (places < to_mask + to_delete)]] = True
        kept = np.ones(len(flat), bool)
        kept[free[taken]] = False
        kept |= masked
        amounts = inserted + kept
        noisy = np.repeat(flat, amounts)
        fresh = np.ones(len(noisy), bool)
        fresh[(np.cumsum(amounts) - 1)[kept]] = masked[kept]
        noisy[fresh] = self.mask
        sizes = np.bincount(rows_of(sizes), amounts).astype(np.int64)
        if self.options.random_ratio:
            rows, places = rows_of(sizes)[fresh], places_of(sizes)[fresh]
            replaced = uniform(random_bits(keys, _REPLACED, rows, places)) < self.options.random_ratio
            noisy[fresh] = np.where(replaced, self.draw(keys, _REPLACEMENTS, rows, places), self.mask)
        return noisy, sizes

    def _spans(
        self, keys: np.ndarray, rows: np.ndarray, begins: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The spans of infilling: begins and ends, as numbers among the F tokens that may be taken, and examples.

        `rows` (F,) has the example of each such token, `begins` (F,) those that begin a word, and `counts` (B,) their
        number in each example.
        """
        begins = begins.copy()
        begins[(np.cumsum(counts) - counts)[counts > 0]] = True
        words = np.append(np.flatnonzero(begins), len(begins))  # where each begins, and where the last ends
        counts_of_words = np.bincount(rows[words[:-1]], minlength=len(counts))
        budgets = part_of(self.options.mlm_probability, counts)
        # So many words surely hold the tokens to take. The spans that are used are known only when their places are
        # known, and thus their tokens.
        most = np.minimum(budgets, counts_of_words)
        lengths, counts_of_spans = self._span_lengths(keys, most)
        counts_of_rest = counts_of_words - most  # words that are in no span
        spans, rest = rows_of(counts_of_spans), rows_of(counts_of_rest)
        items = np.concatenate([spans, rest])
        of_spans = random_bits(keys, _SPANS, spans, places_of(counts_of_spans))
        of_rest = random_bits(keys, _WORDS, rest, places_of(counts_of_rest))
        order = shuffle_of(items, np.concatenate([of_spans, of_rest]))
        items_lengths = np.concatenate([lengths, np.ones(len(rest), np.int64)])
        before = np.empty(len(items), np.int64)
        before[order] = before_each(items_lengths[order], counts_of_spans + counts_of_rest)
        first = (np.cumsum(counts_of_words) - counts_of_words)[spans] + before[: len(spans)]
        starts, ends = words[first], words[first + lengths]
        room = budgets[spans] - before_each(ends - starts, counts_of_spans)
        used = room > 0
        return starts[used], np.minimum(ends, starts + room)[used], spans[used]

    def _span_lengths(self, keys: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw spans of `most` (B,) words in all; return their lengths, row after row, and how many each row has."""
        draws = 8 + int(1.5 * most.max() / self.options.poisson_lambda)
        rows = np.arange(len(keys))[:, None]
        while True:
            random = random_bits(keys, _LENGTHS, rows, np.arange(draws))
            lengths = np.searchsorted(self.poisson, uniform(random), side="right")
            before = np.cumsum(lengths, axis=1) - lengths
            if (before[:, -1] >= most).all():
                break
            draws *= 2
        used = before < most[:, None]
        return np.minimum(lengths, most[:, None] - before)[used], used.sum(axis=1)

    def _rotated(self, keys: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """(N,) the token that comes in the place of each when some examples are rotated."""
        rows, zeros = np.arange(len(keys)), np.zeros(len(keys), np.int64)
        rotates = uniform(random_bits(keys, _ROTATED, rows, zeros)) < self.options.rotate_ratio
        inner = sizes - 2
        offsets = (uniform(random_bits(keys, _BEGINNINGS, rows, zeros)) * inner * rotates).astype(np.int64)
        starts = np.cumsum(sizes) - sizes + 1
        order = np.arange(sizes.sum())
        rows, places = rows_of(inner), places_of(inner)
        order[starts[rows] + places] = starts[rows] + (places + offsets[rows]) % inner[rows]
        return order


def _cumulated_poisson(mean: float) -> np.ndarray:
    """P(X <= 0), P(X <= 1), ... up to 1 in double precision, for Poisson's distribution."""
    mass = exp(-mean)
    sums = [mass]
    while mass > 1e-18 or len(sums) <= mean:
        mass *= mean / len(sums)
        sums.append(sums[-1] + mass)
    return np.array(sums[:-1])
