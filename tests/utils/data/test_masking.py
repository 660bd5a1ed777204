from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny_shards import tiny_tokenizer
from tests.utils.data.test_corruption import assert_uniform
from utils.data.batches import Pair
from utils.data.masking import Masking
from utils.data.options import MaskingOptions
from utils.data.shard_format import MLM_NSP, ShardRow

WIDE = 50_000  # ids of a vocabulary in which every token of a text can be another
CLS, SEP, MASK = 2, 3, 4
TOKENIZER = tiny_tokenizer(task=MLM_NSP)


def masking_of(most: int = 1000, seed: int = 3, continues: float = 0.0, **options: Any) -> Masking:
    """Of texts of WIDE ids, of which a share continues a word."""
    made = Masking(MaskingOptions(max_predictions_per_seq=most, **options), TOKENIZER, seed)
    made.begins_word = np.random.default_rng(0).random(WIDE) >= continues
    made.special = np.append(made.special, np.zeros(WIDE - len(made.special), bool))
    made.ordinary = np.flatnonzero(~made.special).astype(np.int32)
    return made


def rows_of(lengths: Sequence[tuple[int, int]]) -> list[ShardRow]:
    """Pairs of segments of so many tokens, of which no two are alike; every third is random."""
    return [
        ShardRow(np.arange(500, 500 + sum(pair), dtype=np.uint16), np.array(pair), int(n % 3 == 0), 7 + n)
        for n, pair in enumerate(lengths)
    ]


def whole(row: ShardRow) -> list[int]:
    ids, first = row.ids.tolist(), int(row.sentences[0])
    return [CLS, *ids[:first], SEP, *ids[first:], SEP]


def chosen(pair: Pair) -> np.ndarray:
    """Where tokens are to be predicted."""
    return np.flatnonzero(pair.target != -100)[1:]  # without [CLS], whose label is that of the segments


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=6),
    st.sampled_from([0.05, 0.15, 0.5, 1.0]),
    st.integers(1, 30),
    st.booleans(),
)
def test_laws(lengths: list[tuple[int, int]], share: float, most: int, whole_words: bool) -> None:
    masking = masking_of(most, mlm_probability=share, whole_word_mask=whole_words, continues=0.4)
    rows = rows_of(lengths)
    pairs = masking.pairs(rows, 2)
    for row, pair in zip(rows, pairs, strict=True):
        text, places = np.array(whole(row)), chosen(pair)
        assert pair.source.dtype == pair.target.dtype == np.int32
        assert pair.target[0] == row.label and len(pair.source) == len(pair.target) == len(text)
        assert (pair.target[places] == text[places]).all()
        untouched = np.setdiff1d(np.arange(len(text)), places)
        assert (pair.source[untouched] == text[untouched]).all()
        assert not np.isin(text[places], (CLS, SEP)).any()
        wanted = min(max(1, int(share * len(text) + 0.5 + 1e-9)), most, len(row.ids))
        if not whole_words:
            assert len(places) == wanted
        else:
            begins = masking.begins_word[text]
            begins[[0, 1, row.sentences[0] + 1, row.sentences[0] + 2, len(text) - 1]] = True
            words = np.cumsum(begins)
            assert not np.isin(words[untouched], words[places]).any()
            assert len(places) > 0 and (len(places) <= wanted or len({*words[places]}) == 1)
    # Whatever the batch; other ones in another epoch, for another seed.
    alone = [masking.pairs([row], 2)[0] for row in rows]
    for pair, pair_together in zip(alone, pairs, strict=True):
        assert (pair.source == pair_together.source).all() and (pair.target == pair_together.target).all()


def test_what_chosen_tokens_become() -> None:
    """80 % masks, 10 % random tokens, drawn uniformly, 10 % themselves, at uniform places."""
    rows = rows_of([(20, 30)] * 6000)
    pairs = masking_of().pairs(rows, 0)
    places = np.concatenate([chosen(pair) for pair in pairs])
    got = np.concatenate([pair.source[chosen(pair)] for pair in pairs])
    was = np.concatenate([pair.target[chosen(pair)] for pair in pairs])
    assert len(places) == 6000 * 8  # 0.15 of 53
    kinds = np.where(got == MASK, 0, np.where(got == was, 2, 1))
    free = np.array([*range(1, 21), *range(22, 52)])
    assert_uniform((places % 5).tolist(), range(5), np.bincount(free % 5).tolist())
    shares = np.bincount(kinds) / len(kinds)
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=4 * (0.16 / len(kinds)) ** 0.5)
    drawn = got[kinds == 1]
    assert drawn.min() > MASK
    assert_uniform((drawn.astype(np.int64) * 5 // WIDE).tolist(), range(5))


@pytest.mark.parametrize("whole_words", [False, True])
def test_texts_that_are_no_pairs(whole_words: bool) -> None:
    """One `[SEP]` behind all sentences, and `[CLS]` has no label."""
    masking = masking_of(whole_word_mask=whole_words, continues=0.4)
    masking.of_pairs = False
    rows = rows_of([(20, 30), (7, 4)])
    for row, pair in zip(rows, masking.pairs(rows, 1), strict=True):
        text = np.array([CLS, *row.ids, SEP])
        places = np.flatnonzero(pair.target != -100)
        assert len(places) > 0 and (whole_words or len(places) == {52: 8, 13: 2}[len(text)])
        assert (pair.target[places] == text[places]).all() and not np.isin(text[places], (CLS, SEP)).any()
        rest = np.setdiff1d(np.arange(len(text)), places)
        assert (pair.source[rest] == text[rest]).all() and len(pair.source) == len(text)
