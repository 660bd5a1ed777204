from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain, permutations
from math import ceil, factorial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_shards import tiny_tokenizer
from utils.data.corruption import Corruption
from utils.data.options import CorruptionOptions
from utils.data.shard_format import ShardRow

NONE = {"mlm_probability": 0.0, "permute_sentence_ratio": 0.0}
WIDE = 50_000  # ids of a vocabulary in which every token of a text can be another
# Quantiles of chi-square by degrees of freedom: 1 in 1,000 is above (any table, such as NIST's handbook, 1.3.6.7.4).
CHI_SQUARE = {4: 18.467, 5: 20.515, 6: 22.458, 7: 24.322, 8: 26.125}
ENOUGH = 8000  # examples for a distribution


@cache
def tokenizer() -> BartTokenizer:
    return tiny_tokenizer()


def corruption_of(seed: int = 3, begins_word: float = 1.0, **options: Any) -> Corruption:
    """A corruption of texts of WIDE ids, of which a share begins a word."""
    made = Corruption(CorruptionOptions(**{**NONE, **options}), tokenizer(), seed)
    made.begins_word = np.random.default_rng(0).random(WIDE) < begins_word
    made.special = np.append(made.special, np.zeros(WIDE - len(made.special), bool))
    return made


def ids_of(count: int, first: int = 300) -> np.ndarray:
    """Ids of which no two are alike, and none is special."""
    return np.arange(first, first + count, dtype=np.uint16)


def sources_of(made: Corruption, ids: Any, sentences: Any, epoch: int, numbers: Sequence[int]) -> list[np.ndarray]:
    rows = [ShardRow(*row[:2], number=row[2]) for row in zip(ids, sentences, numbers, strict=True)]
    return [pair.source for pair in made.pairs(rows, epoch)]


def corrupted(corruption: Corruption, count: int, sentences: Sequence[int] = (), examples: int = 1) -> list[list[int]]:
    """The sources of one text of so many tokens under many numbers, without `<s>` and `</s>`."""
    texts = [ids_of(count)] * examples
    sources = sources_of(corruption, texts, [np.array(sentences or [count])] * examples, 0, range(examples))
    assert all(row[0] == corruption.bos and row[-1] == corruption.eos for row in sources)
    return [row[1:-1].tolist() for row in sources]


def assert_uniform(drawn: Sequence[Any], values: Sequence[Any], weights: Sequence[float] | None = None) -> None:
    """As often as their weights say, by Pearson's chi-square test."""
    shares = np.array(weights or [1.0] * len(values)) / sum(weights or [1.0] * len(values))
    counts = Counter(drawn)
    assert counts.keys() <= set(values)
    expected = shares * len(drawn)
    statistic = sum((counts[value] - mean) ** 2 / mean for value, mean in zip(values, expected, strict=True))
    assert statistic < CHI_SQUARE[len(values) - 1]


# Texts by the numbers of tokens of their sentences.
texts = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=5)
shares = st.sampled_from([0.0, 0.1, 0.15, 0.3, 0.5, 0.9, 1.0])


def batch_of(texts: list[list[int]]) -> tuple[list[np.ndarray], list[np.ndarray], range]:
    rows = [ids_of(sum(sentences), 300 + 1000 * row) for row, sentences in enumerate(texts)]
    return rows, [np.array(sentences, np.uint16) for sentences in texts], range(7, 7 + len(texts))


def rounded(share: float, count: int) -> int:
    """To the nearest, halves up, in decimals and not in what floats make of them."""
    return (round(share * 100) * count + 50) // 100


@settings(deadline=None, max_examples=300)
@given(texts, shares, st.sampled_from([0.5, 3.0, 20.0]), st.sampled_from([0.0, 0.3, 1.0]))
def test_infilling_takes_exactly_its_share_in_spans_that_begin_with_words(
    texts: list[list[int]], share: float, mean: float, begins_word: float
) -> None:
    corruption = corruption_of(mlm_probability=share, poisson_lambda=mean, begins_word=begins_word)
    rows, sentences, numbers = batch_of(texts)
    for row, lengths, source in zip(rows, texts, sources_of(corruption, rows, sentences, 0, numbers), strict=True):
        words = {int(row[0]) + sum(lengths[:i]) for i in range(len(lengths))}
        words |= {i for i in row.tolist() if corruption.begins_word[i]}
        left = source[1:-1][source[1:-1] != corruption.mask].tolist()
        assert left == sorted(left) and set(left) <= set(row.tolist())  # a subsequence
        assert len(row) - len(left) == rounded(share, len(row))
        # Spans: each gap holds at least one mask, and no more gaps begin than there are masks.
        last, masks, parted = int(row[0]) - 1, 0, 0
        for token in [*source[1:-1].tolist(), int(row[-1]) + 1]:
            if token == corruption.mask:
                masks += 1
                continue
            if token - last > 1:
                assert masks and last + 1 in words
            elif masks:
                assert token in words or token == row[-1] + 1  # an insertion does not part a word
            parted += token - last > 1 and token not in words and token != row[-1] + 1
            last, masks = token, 0
        assert parted <= 1  # only the last span that was drawn


@settings(deadline=None)
@given(texts, shares)
def test_permutation_moves_whole_sentences_and_no_more_than_its_share(texts: list[list[int]], share: float) -> None:
    rows, sentences, numbers = batch_of(texts)
    sources = sources_of(corruption_of(permute_sentence_ratio=share), rows, sentences, 0, numbers)
    for row, lengths, source in zip(rows, sentences, sources, strict=True):
        parts = [part.tolist() for part in np.split(row, np.cumsum(lengths)[:-1])]
        inner = source[1:-1].tolist()
        order = sorted(range(len(parts)), key=lambda i: inner.index(parts[i][0]))
        assert inner == [token for i in order for token in parts[i]]
        assert sum(i != place for place, i in enumerate(order)) <= -(-round(share * 100) * len(parts) // 100)


@settings(deadline=None)
@given(texts, shares, shares)
def test_masking_and_deletion_take_exactly_their_shares(texts: list[list[int]], mask: float, delete: float) -> None:
    if mask + delete > 1:
        mask, delete = mask / 2, delete / 2
    corruption = corruption_of(token_mask_ratio=mask, token_delete_ratio=delete)
    rows, sentences, numbers = batch_of(texts)
    for row, source in zip(rows, sources_of(corruption, rows, sentences, 0, numbers), strict=True):
        inner = source[1:-1]
        left = inner[inner != corruption.mask].tolist()
        assert left == sorted(left) and set(left) <= set(row.tolist())
        masked, taken = len(inner) - len(left), len(row) - len(left)
        assert masked == int(np.floor(np.round(mask * len(row), 9) + 0.5))
        # Both shares round up at most by one token more than there is.
        assert taken - masked == min(int(np.floor(np.round(delete * len(row), 9) + 0.5)), len(row) - masked)
        if not delete:
            assert [token for token in row if token in left] == left and len(inner) == len(row)
            assert all(token in (corruption.mask, token_before) for token, token_before in zip(inner, row, strict=True))


@settings(deadline=None)
@given(texts, st.sampled_from([0.0, 1.0]))
def test_rotation_keeps_the_circle(texts: list[list[int]], share: float) -> None:
    rows, sentences, numbers = batch_of(texts)
    sources = sources_of(corruption_of(rotate_ratio=share), rows, sentences, 0, numbers)
    for row, source in zip(rows, sources, strict=True):
        first = source[1] - row[0]
        assert source.tolist() == [0, *np.roll(row, -first).tolist(), 2]
        assert share or not first


@settings(deadline=None)
@given(texts, st.fixed_dictionaries({"seed": st.integers(0, 2**63), "begins_word": shares, "rotate_ratio": shares}))
def test_an_example_is_corrupted_alike_in_every_batch(texts: list[list[int]], options: dict[str, Any]) -> None:
    options |= {"mlm_probability": 0.3, "permute_sentence_ratio": 0.7, "random_ratio": 0.2}
    corruption = corruption_of(token_mask_ratio=0.1, token_delete_ratio=0.1, **options)
    rows, sentences, numbers = batch_of(texts)
    together = sources_of(corruption, rows, sentences, 5, numbers)
    backwards = sources_of(corruption, rows[::-1], sentences[::-1], 5, numbers[::-1])[::-1]
    for i, (source, source_backwards) in enumerate(zip(together, backwards, strict=True)):
        (alone,) = sources_of(corruption, rows[i : i + 1], sentences[i : i + 1], 5, numbers[i : i + 1])
        assert source.tolist() == alone.tolist() == source_backwards.tolist()


def test_noise_differs_between_seeds_epochs_and_numbers() -> None:
    corruption, ids, sentences = corruption_of(mlm_probability=0.3), [ids_of(100)], [np.array([100])]
    reseeded = corruption_of(mlm_probability=0.3, seed=4)
    places = ((0, [0]), (1, [0]), (0, [1]), (1, [1]), (0, [0]))
    sources = [sources_of(corruption, ids, sentences, *place)[0].tolist() for place in places]
    sources.append(sources_of(reseeded, ids, sentences, 0, [0])[0].tolist())
    assert sources[0] == sources.pop(4)
    assert len(set(map(tuple, sources))) == 5
    assert corruption.identity != reseeded.identity


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lengths_of_spans_are_poisson(seed: int) -> None:
    """Of spans that touch no other, whose lengths can be told apart; what is beside a span does not depend on it."""
    corruption = corruption_of(mlm_probability=0.3, seed=seed)
    (row,) = corrupted(corruption, 40_000)
    lengths, last, masks = [], 299, 0
    for token in row:
        if token == corruption.mask:
            masks += 1
            continue
        if masks == 1:
            lengths.append(token - last - 1)
        last, masks = token, 0
    assert len(lengths) > 2000
    mass = [np.exp(-3) * 3**length / factorial(length) for length in range(8)]
    assert_uniform([min(length, 8) for length in lengths], range(9), [*mass, 1 - sum(mass)])


def test_masks_are_as_many_as_in_fairseq() -> None:
    """There, lengths are drawn until they come to the share; the last is cut, and those of length 0 are inserted.

    Whether spans that touch become one is where the two differ, so spans are counted before they are placed.
    """
    generator, counts = np.random.default_rng(0), []
    for _ in range(ENOUGH):
        lengths = generator.poisson(3.0, 60)
        counts.append(int(np.argmax(np.cumsum(lengths) >= ceil(100 * 0.3))) + 1)
    corruption = corruption_of(mlm_probability=0.3)
    rows = corrupted(corruption, 100, examples=ENOUGH)
    ours = [row.count(corruption.mask) for row in rows]
    error = np.sqrt((np.var(counts) + np.var(ours)) / ENOUGH)
    assert abs(np.mean(ours) - np.mean(counts)) < 4 * error
    assert {len(row) - masks for row, masks in zip(rows, ours, strict=True)} == {70}


def test_permutations_are_uniform() -> None:
    sentences = (2, 1, 3)
    rows = corrupted(corruption_of(permute_sentence_ratio=1.0), 6, sentences, ENOUGH)
    parts = [part.tolist() for part in np.split(ids_of(6), [2, 3])]
    assert_uniform([*map(tuple, rows)], [tuple(chain(*order)) for order in permutations(parts)])


def test_special_tokens_are_neither_taken_nor_drawn() -> None:
    """Whatever kind of noise, however much of it."""
    specials = [tokenizer().bos_token_id, tokenizer().eos_token_id, tokenizer().unk_token_id, tokenizer().pad_token_id]
    text = np.array([7, 8, specials[0], 9, 10, specials[1], specials[2], 11, specials[3], 12])
    for options in ({"mlm_probability": 1.0}, {"token_mask_ratio": 1.0}, {"token_delete_ratio": 1.0}):
        corruption = Corruption(CorruptionOptions(**{**NONE, **options}), tokenizer(), 0)
        for source in sources_of(corruption, [text] * 50, [np.array([10])] * 50, 0, range(50)):
            left = source[1:-1].tolist()
            assert [token for token in left if token != corruption.mask] == specials
    corruption = Corruption(CorruptionOptions(**{**NONE, "token_mask_ratio": 1.0, "random_ratio": 1.0}), tokenizer(), 0)
    rows = sources_of(corruption, [np.full(100, 9)] * 100, [np.array([100])] * 100, 0, range(100))
    drawn = np.concatenate([row[1:-1] for row in rows])
    assert set(drawn.tolist()) == {*range(300)} - {*specials, corruption.mask}


def test_a_share_of_masks_becomes_random_tokens() -> None:
    corruption = Corruption(CorruptionOptions(random_ratio=0.25), tokenizer(), 0)
    plain = Corruption(CorruptionOptions(), tokenizer(), 0)
    texts = [np.full(100, 9)] * 500, [np.array([100])] * 500
    of_both = (sources_of(made, *texts, 0, range(500)) for made in (plain, corruption))
    masks, left = (sum(int((row == plain.mask).sum()) for row in rows) for rows in of_both)
    assert abs(left / masks - 0.75) < 4 * np.sqrt(0.25 * 0.75 / masks)


def test_words_are_those_of_the_vocabulary() -> None:
    """In text, without a wide vocabulary of the test's own."""
    text = "the old cat and the young bird flew on over the hill"
    ids = np.array(tokenizer()([text]).input_ids[0][1:-1])
    corruption = Corruption(CorruptionOptions(permute_sentence_ratio=0, mlm_probability=0.2), tokenizer(), 0)
    pieces = [tokenizer().decode([i]) for i in ids]
    assert any(not piece.startswith(" ") for piece in pieces[1:])  # words of several tokens
    for number in range(200):
        (source,) = sources_of(corruption, [ids], [np.array([len(ids)])], 0, [number])
        before = tokenizer().decode(source[1:-1].tolist()).partition("<mask>")[0]
        assert text.startswith(before) and (not before or text[len(before)] == " ")
