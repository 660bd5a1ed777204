"""Masked tokens, from which BERT learns (Devlin et al., 2019, section 3.1), drawn anew in every epoch: see `noise`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bart.modeling.loss import IGNORE_INDEX
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.data.batches import Pair
from utils.data.noise import Noise, before_each, keys_of, part_of, places_of, random_bits, rows_of, shuffle_of, uniform
from utils.data.options import MaskingOptions
from utils.data.shard_format import ShardRow

CONTINUES = "##"  # how WordPiece writes a piece within a word
MASKED, RANDOM = 0.8, 0.1  # of the chosen tokens; the rest stay as they are
_CHOSEN, _KINDS, _DRAWN = range(3)  # the purposes of random numbers


class Masking(Noise):
    """Makes inputs and labels of texts, or of pairs of segments.

    Of an example of n tokens, special ones counted, the share of `mlm_probability`, rounded, at least one and at most
    `max_predictions_per_seq`, are chosen. Whole words are chosen in a random order as long as they have no more tokens
    together, the first one in any case. Of the chosen tokens 80 % become `[MASK]`, 10 % a random token, 10 % stay.
    Special tokens are neither chosen nor drawn.
    """

    writes = False

    def __init__(self, options: MaskingOptions, tokenizer: BertTokenizer, seed: int, of_pairs: bool = True) -> None:
        super().__init__(options, tokenizer, seed)
        self.cls, self.sep, self.of_pairs = tokenizer.cls_token_id, tokenizer.sep_token_id, of_pairs
        self.begins_word = ~self.begin_with(CONTINUES)

    def pairs(self, rows: Sequence[ShardRow], epoch: int) -> list[Pair]:
        """Make `[CLS] text [SEP]` or `[CLS] first [SEP] second [SEP]` of each row, masked, and labels.

        Labels are the ids of chosen tokens, and -100 elsewhere, but for the `[CLS]` of segments, whose label is theirs.
        """
        keys = keys_of(self.seed, epoch, [row.number for row in rows])
        cls, sep = np.array([self.cls]), np.array([self.sep])
        parts = []
        for row in rows:
            segments = np.split(row.ids, row.sentences[:1]) if self.of_pairs else [row.ids]
            parts += [cls, *(part for segment in segments for part in (segment, sep))]
        flat = np.concatenate(parts, dtype=np.int32, casting="unsafe")
        sizes = np.array([len(row.ids) + 2 + self.of_pairs for row in rows])
        chosen = self._chosen(keys, flat, sizes)
        labels = np.full(len(flat), IGNORE_INDEX, np.int32)
        labels[chosen] = flat[chosen]
        of, places = rows_of(sizes)[chosen], places_of(sizes)[chosen]
        kinds = uniform(random_bits(keys, _KINDS, of, places))
        drawn = self.draw(keys, _DRAWN, of, places)
        flat[chosen] = np.where(kinds < MASKED, self.mask, np.where(kinds < MASKED + RANDOM, drawn, flat[chosen]))
        ends = np.cumsum(sizes)
        if self.of_pairs:
            labels[ends - sizes] = [row.label for row in rows]
        return list(map(Pair, np.split(flat, ends[:-1]), np.split(labels, ends[:-1])))

    def _chosen(self, keys: np.ndarray, flat: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The places among the tokens (N,) of all examples that are chosen, in a rising order."""
        free = np.flatnonzero(~self.special[flat])
        rows = rows_of(sizes)[free]
        wanted = np.clip(part_of(self.options.mlm_probability, sizes), 1, self.options.max_predictions_per_seq)
        begins = np.ones(len(free), bool)
        if self.options.whole_word_mask:  # a piece that follows no other, as where a text was cut, begins one too
            begins = self.begins_word[flat[free]] | (np.diff(free, prepend=-2) > 1)
        words = np.cumsum(begins) - 1  # of each token
        rows_of_words, lengths = rows[begins], np.bincount(words)
        counts = np.bincount(rows_of_words, minlength=len(sizes))
        order = shuffle_of(rows_of_words, random_bits(keys, _CHOSEN, rows_of_words, places_of(counts)))
        behind = before_each(lengths[order], counts) + lengths[order]
        taken = np.zeros(len(lengths), bool)
        # The first word in any case, so that there is something to predict.
        taken[order] = (behind <= wanted[rows_of_words[order]]) | (behind == lengths[order])
        return free[taken[words]]
