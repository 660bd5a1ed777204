from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.dataset import Collate, PairDataset, TrainBatches, evaluation_batches


@pytest.fixture(scope="module")
def tokenizer() -> BartTokenizer:
    return BartTokenizer.train(["the cat sat on the mat", "a dog ran"] * 5, vocab_size=280)


def lengths_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 1000, count)


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(3, 400),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 3),
    epoch=st.integers(0, 3),
    grouped=st.booleans(),
)
def test_every_example_once_an_epoch_on_any_number_of_ranks(
    count: int, batch_size: int, world_size: int, epoch: int, grouped: bool
) -> None:
    ranks = [
        TrainBatches(lengths_of(count), batch_size, 7, rank, world_size, grouped).batches(epoch)
        for rank in range(world_size)
    ]
    assert sorted(i for batches in ranks for batch in batches for i in batch) == list(range(count))
    assert len({len(batches) for batches in ranks}) == 1
    assert len(ranks[0]) == len(TrainBatches(lengths_of(count), batch_size, 7, 0, world_size, grouped))
    sizes = [len(batch) for batches in ranks for batch in batches]
    assert min(sizes) >= 1
    assert max(sizes) <= batch_size + 1


def test_the_order_depends_on_seed_and_epoch_and_goes_on_from_a_position() -> None:
    lengths = lengths_of(200)
    batches = TrainBatches(lengths, 8, seed=1)
    assert batches.batches(0) == TrainBatches(lengths, 8, seed=1).batches(0)
    assert batches.batches(0) != batches.batches(1)
    assert batches.batches(0) != TrainBatches(lengths, 8, seed=2).batches(0)
    resumed = TrainBatches(lengths, 8, seed=1, position=lambda: (3, 10))
    assert list(resumed) == batches.batches(3)[10:]
    assert len(resumed) == 25


def test_grouping_by_length_saves_padding() -> None:
    lengths = lengths_of(4000)

    def padding(grouped: bool) -> float:
        batches = TrainBatches(lengths, 40, seed=1, group_by_length=grouped).batches(0)
        padded = sum(len(batch) * lengths[batch].max() for batch in batches)
        return 1 - lengths.sum() / padded

    assert padding(grouped=True) < 0.05 < 0.4 < padding(grouped=False)


def test_fewer_examples_than_processes() -> None:
    with pytest.raises(InputError, match="2 training examples.*3 processes"):
        TrainBatches(lengths_of(2), 1, seed=0, rank=0, world_size=3)


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
    dataset = PairDataset(sources, targets, tokenizer, max_source_length=12, max_target_length=4)
    for index, example in enumerate(dataset[i] for i in range(2)):
        assert example.index == index
        expected = tokenizer(sources[index], max_length=12, truncation=True)["input_ids"]
        assert example.source.tolist() == expected
        assert example.target.tolist() == tokenizer(targets[index], max_length=4, truncation=True)["input_ids"]
    assert len(dataset[1].source) == 12
    assert dataset[1].source[-1] == tokenizer.eos_token_id
    assert dataset.references == targets


def test_a_batch_is_padded_to_a_multiple_of_8(tokenizer: BartTokenizer) -> None:
    dataset = PairDataset(["the cat sat", "a dog ran on the mat"], ["cat", "a dog"], tokenizer, 64, 64)
    batch = Collate(tokenizer.pad_token_id)([dataset[1], dataset[0]])
    assert batch["input_ids"].shape[1] % 8 == batch["labels"].shape[1] % 8 == 0
    assert batch["index"].tolist() == [1, 0]
    assert torch.equal(batch["input_ids"] != tokenizer.pad_token_id, batch["attention_mask"].bool())
    assert batch["attention_mask"].sum(1).tolist() == [len(dataset[1].source), len(dataset[0].source)]
    assert ((batch["labels"] >= 0).sum(1)).tolist() == [len(dataset[1].target), len(dataset[0].target)]
