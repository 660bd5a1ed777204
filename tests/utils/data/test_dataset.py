from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.dataset import Collate, Example, PairDataset, TrainBatches, evaluation_batches
from utils.data.padding import padded_length
from utils.training.loss import smoothed_loss


@pytest.fixture(scope="module")
def tokenizer() -> BartTokenizer:
    return BartTokenizer.train(["the cat sat on the mat", "a dog ran"] * 5, vocab_size=280)


def lengths_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 1000, count)


# All that TrainBatches is made of but for rank and position. Few tokens make batches of one, many those of hundreds.
options = st.fixed_dictionaries(
    {
        "count": st.integers(1, 200),
        "batch_size": st.integers(1, 9),
        "accumulation": st.integers(1, 4),
        "world_size": st.integers(1, 3),
        "group_by_length": st.booleans(),
        "max_tokens": st.none() | st.integers(100, 20_000),
    }
)


def train_batches(count: int, batch_size: int = 1, **others: Any) -> TrainBatches:
    return TrainBatches(lengths_of(count), lengths_of(count, seed=1) // 10, batch_size, **{"seed": 7, **others})


def steps(epoch: int, accumulation: int, world_size: int, **others: Any) -> list[set[int]]:
    """The examples that count in each optimizer step of an epoch, as Lightning takes them from all ranks."""
    found: list[set[int]] = []
    for rank in range(world_size):
        batches = train_batches(accumulation=accumulation, world_size=world_size, rank=rank, **others).batches(epoch)
        found += [set() for _ in range(len(batches) // accumulation - len(found))]
        for place, batch in enumerate(batches):
            found[place // accumulation] |= {index for index in batch if index >= 0}
    return found


@settings(deadline=None)
@given(options=options, epoch=st.integers(0, 3))
def test_every_example_once_an_epoch_on_any_number_of_ranks(options: dict[str, Any], epoch: int) -> None:
    ranks = [train_batches(rank=rank, **options) for rank in range(options["world_size"])]
    epochs = [rank.batches(epoch) for rank in ranks]
    assert {len(batches) for batches in epochs} == {len(rank) for rank in ranks}
    assert len(ranks[0]) % options["accumulation"] == 0
    batches = [batch for batches in epochs for batch in batches]
    assert all(batches)
    assert sorted(index for batch in batches for index in batch if index >= 0) == list(range(options["count"]))
    assert all(len(batch) == 1 for batch in batches if min(batch) < 0)
    sizes = [len(step) for step in steps(epoch, **options)]
    if options["max_tokens"] is None:
        assert max(map(len, batches)) <= options["batch_size"]
        assert all(size == ranks[0].examples_per_step for size in sizes[:-1])
    else:
        assert sum(sizes) / len(sizes) == pytest.approx(ranks[0].examples_per_step)


CUTS = [(12 // (k * ranks), k, ranks) for ranks in (1, 2, 3) for k in (1, 2, 3, 4, 6, 12) if 12 % (k * ranks) == 0]


@settings(deadline=None)
@given(options=options, epoch=st.integers(0, 3))
def test_steps_are_the_same_however_they_are_cut(options: dict[str, Any], epoch: int) -> None:
    """12 examples at once, as 4 micro-batches of 3, on 2 ranks in 6 micro-batches each; of tokens, 12 micro-batches."""
    cuts = [cut for cut in CUTS if options["max_tokens"] is None or cut[0] == 1]
    found = [
        steps(epoch, **{**options, "batch_size": batch_size, "accumulation": accumulation, "world_size": ranks})
        for batch_size, accumulation, ranks in cuts
    ]
    assert len(found) > 2
    assert all(other == found[0] for other in found)


@settings(deadline=None)
@given(options=options, epoch=st.integers(0, 3), data=st.data())
def test_the_order_is_reproducible_and_goes_on_from_any_position(
    options: dict[str, Any], epoch: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, options["world_size"] - 1))
    expected = train_batches(rank=rank, **options).batches(epoch)
    seen = data.draw(st.integers(0, len(expected)))
    resumed = train_batches(rank=rank, position=lambda: (epoch, seen), **options)
    assert list(resumed) == expected[seen:]
    assert len(resumed) == len(expected)


@pytest.mark.parametrize("how", [{"batch_size": 8}, {"max_tokens": 4000}])
def test_the_order_depends_on_seed_and_epoch(how: dict[str, int]) -> None:
    batches = train_batches(200, **how)
    assert batches.batches(0) != batches.batches(1)
    assert batches.batches(0) != train_batches(200, seed=8, **how).batches(0)


def test_the_order_has_its_number() -> None:
    """Where this fails, the order has changed: raise ORDER, so that no run goes on from a checkpoint of the other."""
    sources, targets = (np.random.RandomState(seed).randint(5, 900, 2000) for seed in (1, 2))
    digest = hashlib.sha256()
    for how in ({}, {"group_by_length": False}, {"max_tokens": 9000}, {"accumulation": 2, "world_size": 2, "rank": 1}):
        for epoch in (0, 1):
            batches = TrainBatches(sources, targets, 3, 7, **how).batches(epoch)
            digest.update(json.dumps(batches).encode())
    assert (TrainBatches.ORDER, digest.hexdigest()[:16]) == (1, "79ab6b35967e42ee")


@settings(deadline=None)
@given(options=options, max_tokens=st.integers(100, 20_000))
def test_batches_of_tokens_keep_to_their_budget_with_the_padding_that_they_get(
    options: dict[str, Any], max_tokens: int
) -> None:
    targets = lengths_of(options["count"], seed=1) // 10
    batches = train_batches(**{**options, "max_tokens": max_tokens})
    for batch in batches.batches(0):
        examples = [Example(i, np.zeros(batches.lengths[i]), np.zeros(targets[i])) for i in batch if i >= 0]
        if len(examples) > 1:
            tensors = Collate(pad_token_id=1)(examples)
            assert tensors["input_ids"].numel() + tensors["labels"].numel() <= max_tokens


def test_batches_of_tokens_stay_the_same_and_are_nearly_full() -> None:
    batches = train_batches(4000, max_tokens=16_000)
    sets = [{frozenset(batch) for batch in batches.batches(epoch)} for epoch in (0, 1)]
    assert sets[0] == sets[1]
    tokens = batches.lengths.sum() + (lengths_of(4000, seed=1) // 10).sum()
    assert tokens / (16_000 * len(batches)) > 0.85


def news_lengths(count: int, mean_words: float, spread: float, longest: int) -> np.ndarray:
    """Token counts as those of CNN-DM's articles (781 words on average) or summaries (56 words), cut to a maximum."""
    words = np.random.default_rng(count).lognormal(np.log(mean_words) - spread**2 / 2, spread, count)
    return np.clip((1.2 * words).astype(int) + 2, 8, longest)


@pytest.mark.parametrize(("batch_size", "accumulation", "world_size"), [(40, 1, 1), (40, 1, 3), (40, 4, 2)])
def test_batches_of_like_lengths_are_padded_by_less_than_a_twentieth(
    batch_size: int, accumulation: int, world_size: int
) -> None:
    sources, targets = news_lengths(40_000, 781, 0.5, 1024), news_lengths(40_001, 56, 0.4, 142)[:40_000]

    def padding(grouped: bool) -> float:
        """Share of the padding in what the network gets to read, of both sides."""
        padded = 0
        for rank in range(world_size):
            batches = TrainBatches(
                *(sources, targets, batch_size, 7),
                accumulation=accumulation, rank=rank, world_size=world_size, group_by_length=grouped,
            )  # fmt: skip
            for batch in batches.batches(0):
                batch = [index for index in batch if index >= 0]
                padded += sum(len(batch) * padded_length(side[batch].max()) for side in (sources, targets) if batch)
        return 1 - (sources.sum() + targets.sum()) / padded

    assert padding(grouped=True) < 0.05 < 0.1 < padding(grouped=False)


def test_micro_batches_of_a_step_hold_like_lengths() -> None:
    batches = train_batches(400, 10, accumulation=4, group_by_length=False)
    for start in range(0, len(batches), 4):
        longest, *_, shortest = (batches.lengths[batch] for batch in batches.batches(0)[start : start + 4])
        assert longest.min() >= shortest.max()


def test_a_stand_in_adds_nothing_to_the_loss(tokenizer: BartTokenizer) -> None:
    """One example on 2 ranks in 3 micro-batches each."""
    ranks = [train_batches(1, accumulation=3, world_size=2, rank=rank).batches(0) for rank in (0, 1)]
    assert ranks == [[[0], [~0], [~0]], [[~0], [~0], [~0]]]
    dataset = PairDataset.from_texts(["the cat sat"], ["cat"], tokenizer, 64, 64)
    batch = Collate(tokenizer.pad_token_id)([dataset[~0]])
    assert torch.equal(batch["input_ids"], Collate(tokenizer.pad_token_id)([dataset[0]])["input_ids"])
    logits = torch.randn(1, batch["labels"].shape[1], 300, requires_grad=True)
    loss, tokens = smoothed_loss(logits, batch["labels"], label_smoothing=0.1)
    loss.backward()
    assert (loss.item(), tokens.item()) == (0, 0)
    assert not logits.grad.any()


@given(count=st.integers(1, 50), batch_size=st.integers(1, 9), world_size=st.integers(1, 3))
def test_evaluation_sees_each_example_once(count: int, batch_size: int, world_size: int) -> None:
    lengths = lengths_of(count)
    shares = [evaluation_batches(lengths, batch_size, rank, world_size) for rank in range(world_size)]
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(count))
    for share in shares:
        seen = [lengths[i] for batch in share for i in batch]
        assert seen == sorted(seen, reverse=True)


def test_examples_are_what_the_tokenizer_gives(tokenizer: BartTokenizer) -> None:
    sources, targets = ["the cat sat", "a dog ran on the mat " * 5], ["cat", "a dog ran"]
    dataset = PairDataset.from_texts(sources, targets, tokenizer, max_source_length=12, max_target_length=4)
    for index, example in enumerate(dataset[i] for i in range(2)):
        assert example.index == index
        expected = tokenizer(sources[index], max_length=12, truncation=True)["input_ids"]
        assert example.source.tolist() == expected
        assert example.target.tolist() == tokenizer(targets[index], max_length=4, truncation=True)["input_ids"]
    assert len(dataset[1].source) == 12
    assert dataset[1].source[-1] == tokenizer.eos_token_id


def test_a_batch_is_padded_to_a_multiple_of_8(tokenizer: BartTokenizer) -> None:
    dataset = PairDataset.from_texts(["the cat sat", "a dog ran on the mat"], ["cat", "a dog"], tokenizer, 64, 64)
    batch = Collate(tokenizer.pad_token_id)([dataset[1], dataset[0]])
    assert batch["input_ids"].shape[1] % 8 == batch["labels"].shape[1] % 8 == 0
    assert batch["index"].tolist() == [1, 0]
    assert torch.equal(batch["input_ids"] != tokenizer.pad_token_id, batch["attention_mask"].bool())
    assert batch["attention_mask"].sum(1).tolist() == [len(dataset[1].source), len(dataset[0].source)]
    assert ((batch["labels"] >= 0).sum(1)).tolist() == [len(dataset[1].target), len(dataset[0].target)]
