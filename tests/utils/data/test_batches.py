"""Examples put together: padding, stand-ins, rows of a batch, and pairs of texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bart.backend import IGNORE_INDEX
from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.batches import (
    Batch,
    Batches,
    Pair,
    TokenPairs,
    as_rows,
    collate_pairs,
    evaluation_batches,
    pairs_as_rows,
)


@pytest.fixture(scope="module")
def tokenizer() -> BartTokenizer:
    return BartTokenizer.train(["the cat sat on the mat", "a dog ran"] * 5, vocab_size=280)


@pytest.fixture(scope="module")
def pairs(tokenizer: BartTokenizer) -> TokenPairs:
    return TokenPairs.from_texts(
        ["the cat sat", "a dog ran on the mat " * 5], ["cat", "a dog ran"], (tokenizer, tokenizer), 12, 4
    )


@given(count=st.integers(1, 50), batch_size=st.integers(1, 9), world_size=st.integers(1, 3))
def test_evaluation_sees_each_example_once(count: int, batch_size: int, world_size: int) -> None:
    lengths = np.random.default_rng(0).integers(3, 1000, count)
    shares = [evaluation_batches(lengths, batch_size, rank, world_size) for rank in range(world_size)]
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(count))
    for share in shares:
        seen = [lengths[i] for batch in share for i in batch]
        assert seen == sorted(seen, reverse=True)


def test_examples_are_what_the_tokenizer_gives(pairs: TokenPairs, tokenizer: BartTokenizer) -> None:
    for number, (source, target) in enumerate([("the cat sat", "cat"), ("a dog ran on the mat " * 5, "a dog ran")]):
        pair = pairs[number]
        assert pair.source.tolist() == tokenizer(source, max_length=12, truncation=True)["input_ids"]
        assert pair.target.tolist() == tokenizer(target, max_length=4, truncation=True)["input_ids"]
        assert pair.reference == target
        assert pairs.lengths[number].tolist() == [len(pair.source), len(pair.target)]
    assert len(pairs[1].source) == 12
    assert pairs[1].source[-1] == tokenizer.eos_token_id


def test_a_batch_is_padded_to_a_multiple_of_8(pairs: TokenPairs, tokenizer: BartTokenizer) -> None:
    inputs = collate_pairs([pairs[1], pairs[0]], tokenizer.pad_token_id)
    assert inputs["input_ids"].shape == (2, 16)
    assert inputs["labels"].shape == (2, 8)
    assert torch.equal(inputs["input_ids"] != tokenizer.pad_token_id, inputs["attention_mask"].bool())
    assert inputs["attention_mask"].sum(1).tolist() == [len(pairs[1].source), len(pairs[0].source)]
    assert (inputs["labels"] != -100).sum(1).tolist() == [len(pairs[1].target), len(pairs[0].target)]
    assert inputs["references"] == ["a dog ran", "cat"]


def test_batches_know_their_examples_and_a_stand_in_does_not_count(pairs: TokenPairs) -> None:
    batches = Batches(pairs, lambda examples: collate_pairs(examples, 1))
    both, stand_in = batches[[1, 0]], batches[[~1]]
    assert (both.index, both.is_real, both.tokens, len(both)) == ([1, 0], True, int(pairs.lengths.sum()), 2)
    assert (stand_in.index, stand_in.is_real, len(stand_in)) == ([1], False, 1)
    assert stand_in.inputs["references"] == ["a dog ran"]
    some = both.rows([1])
    assert some["references"] == ["cat"]
    assert torch.equal(some["input_ids"], both.inputs["input_ids"][1:])


def test_a_batch_goes_to_a_device_as_one() -> None:
    batch = Batch({"ids": torch.ones(2, 3), "names": ["a", "b"]}, [4, 7], 6, is_real=False)
    moved = batch.to(torch.device("meta"))
    assert moved.inputs["ids"].device.type == "meta" and moved.inputs["names"] == ["a", "b"]
    assert (moved.index, moved.tokens, moved.is_real) == ([4, 7], 6, False)
    assert batch.inputs["ids"].device.type == "cpu"


def test_pairs_of_sizes_are_few() -> None:
    """Targets are rounded like sources, of which there are more, up to a sixteenth of these."""
    pairs = [Pair(np.full(100, 5), np.full(3, 5)) for _ in range(6)]
    for multiple, sizes in ((1, (601, 19)), (8, (608, 24)), (4096, (608, 32))):
        inputs = pairs_as_rows(collate_pairs(pairs, 1), multiple)
        assert tuple(len(inputs[name].texts) for name in ("input_ids", "labels")) == sizes


def test_rows_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page-locked memory is a GPU's; here the tensors only change their place."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 100)
    pairs = [Pair(np.array(source), np.array(target)) for source, target in (([5, 6, 2], [7, 2]), ([2], [8, 9, 2]))]
    inputs = pairs_as_rows({**collate_pairs(pairs, 1), "texts": ["a", "b"]}, multiple=1)
    assert inputs.keys() == {"input_ids", "labels", "texts"}
    sources, targets = inputs["input_ids"], inputs["labels"]
    assert sources.ids.tolist() == [[5, 6, 2, 2, 0]] and targets.ids.tolist() == [[7, 2, 8, 9, 2, IGNORE_INDEX]]
    assert targets.positions.tolist() == [[0, 1, 0, 1, 2, 0]] and targets.starts.tolist() == [0, 2, 5, 6]
    batch = Batch(inputs, [0, 1], 4).pin_memory().to(torch.device("cpu"))
    assert batch.inputs["labels"].starts.tolist() == [100, 102, 105, 106] and batch.inputs["texts"] == ["a", "b"]
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    of_tokens = as_rows({"input_ids": mask + 4, "attention_mask": mask, "labels": mask * 3}, 1, ("labels",))
    assert of_tokens["labels"].tolist() == [[3, 3, 3, IGNORE_INDEX]] and of_tokens["input_ids"].tokens == 3
    between = {"input_ids": mask, "attention_mask": mask, "labels": torch.tensor([[-100, 5, -100], [7, -100, 2]])}
    assert pairs_as_rows(between, 1)["labels"].ids.tolist() == [[IGNORE_INDEX, 5, 7, IGNORE_INDEX, 2, IGNORE_INDEX]]
    with pytest.raises(InputError, match="attention_mask with zeros inside"):
        pairs_as_rows({**between, "attention_mask": mask.flip(1)}, 1)
