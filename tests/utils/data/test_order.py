from __future__ import annotations

import hashlib
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.data.batches import padded_length
from utils.data.order import ORDER, RunOrder, Step, TrainOrder, deal


def lengths_of(count: int) -> np.ndarray:
    """(count, 2) lengths of sources and targets."""
    sides = (np.random.default_rng(seed).integers(3, 1000, count) for seed in (0, 1))
    return np.stack([side // divisor for side, divisor in zip(sides, (1, 10), strict=True)], axis=1)


# All that TrainOrder is made of but for the rank. Few tokens make batches of one, many those of hundreds.
options = st.fixed_dictionaries(
    {
        "count": st.integers(1, 200),
        "batch_size": st.integers(1, 9),
        "accumulation": st.integers(1, 4),
        "world_size": st.integers(1, 3),
        "group_by_length": st.booleans(),
        "max_tokens": st.none() | st.integers(100, 20_000),
        "is_padded": st.booleans(),
    }
)


def order_of(count: int, batch_size: int = 1, seed: int = 7, **options: Any) -> TrainOrder:
    return TrainOrder(lengths_of(count), batch_size, seed, **options)


def steps(epoch: int, world_size: int, **options: Any) -> list[set[int]]:
    """The examples that count in each optimizer step of an epoch, of all ranks together."""
    return [
        {index for share in shares for batch in share for index in batch if index >= 0}
        for shares in steps_of_ranks(epoch, world_size=world_size, **options)
    ]


def steps_of_ranks(epoch: int = 0, **options: Any) -> list[tuple[Step, ...]]:
    """The steps of an epoch, as each rank has them."""
    ranks = [list(order_of(rank=rank, **options).steps(epoch)) for rank in range(options["world_size"])]
    return list(zip(*ranks, strict=True))


@settings(deadline=None)
@given(options=options, epoch=st.integers(0, 3))
def test_every_example_once_an_epoch_on_any_number_of_ranks(options: dict[str, Any], epoch: int) -> None:
    ranks = [order_of(rank=rank, **options) for rank in range(options["world_size"])]
    epochs = [list(rank.steps(epoch)) for rank in ranks]
    assert {len(epoch) for epoch in epochs} == {rank.steps_per_epoch for rank in ranks}
    assert {len(step) for epoch in epochs for step in epoch} == {options["accumulation"]}
    batches = [batch for epoch in epochs for step in epoch for batch in step]
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
    """12 examples at once, as 4 micro-batches of 3, on 2 ranks in 6 micro-batches each; of tokens, 12 micro-batches.

    Nor does it matter whether they are padded.
    """
    cuts = [cut for cut in CUTS if options["max_tokens"] is None or cut[0] == 1]
    steps_of_cuts = [
        steps(epoch, **{**options, "batch_size": size, "accumulation": k, "world_size": ranks, "is_padded": padded})
        for size, k, ranks in cuts
        for padded in (False, True)
    ]
    assert len(steps_of_cuts) > 2
    assert all(held == steps_of_cuts[0] for held in steps_of_cuts)


@settings(deadline=None)
@given(options=options, total=st.integers(1, 60), data=st.data())
def test_a_run_goes_through_epochs_and_on_from_any_step(
    options: dict[str, Any], total: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, options["world_size"] - 1))
    whole = list(RunOrder(order_of(rank=rank, **options), total))
    order = order_of(rank=rank, **options)
    epochs = (step for epoch in range(total) for step in order.steps(epoch))
    assert whole == [step for step, _ in zip(epochs, range(total), strict=False)]
    start = data.draw(st.integers(0, total + 2))  # a run may go on with fewer steps than it has taken
    resumed = RunOrder(order_of(rank=rank, **options), total, start)
    assert list(resumed) == whole[start:]
    assert len(resumed) == total
    assert list(order.steps(1, start=1)) == list(order.steps(1))[1:]


def test_the_order_has_its_number() -> None:
    """Where this fails, the order has changed: raise ORDER, so that no run goes on from a checkpoint of the other."""
    lengths = np.stack([np.random.RandomState(seed).randint(5, 900, 2000) for seed in (1, 2)], axis=1)
    digest = hashlib.sha256()
    two = {"accumulation": 2, "world_size": 2, "rank": 1}
    for how in ({}, {"group_by_length": False}, {"max_tokens": 9000}, two, {**two, "is_padded": True}):
        for epoch in (0, 1):
            batches = [batch for step in TrainOrder(lengths, 3, 7, **how).steps(epoch) for batch in step]
            digest.update(json.dumps(batches).encode())
    assert (ORDER, digest.hexdigest()[:16]) == (3, "17671ec5b7733aa2")


@settings(deadline=None)
@given(options=options, max_tokens=st.integers(100, 20_000))
def test_batches_of_tokens_keep_to_their_budget_with_the_padding_that_they_get(
    options: dict[str, Any], max_tokens: int
) -> None:
    order = order_of(**{**options, "max_tokens": max_tokens})
    for batch in (batch for step in order.steps(0) for batch in step):
        if len(batch) > 1:
            padded = len(batch) * padded_length(order.lengths[batch].max(axis=0)).sum()
            assert (padded if options["is_padded"] else order.lengths[batch].sum()) <= max_tokens


def test_batches_of_tokens_stay_the_same_and_are_nearly_full() -> None:
    order = order_of(4000, max_tokens=16_000, is_padded=True)
    sets = [{frozenset(batch) for step in order.steps(epoch) for batch in step} for epoch in (0, 1)]
    assert sets[0] == sets[1]
    assert order.lengths.sum() / (16_000 * order.steps_per_epoch) > 0.85


@given(work=st.lists(st.integers(0, 50), max_size=60), parts=st.integers(1, 9))
def test_parts_have_like_counts_and_differ_by_no_more_than_one_item(work: list[int], parts: int) -> None:
    dealt = deal(work, parts)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(work))) and len(dealt) == parts
    counts, sums = [len(part) for part in dealt], [sum(work[item] for item in part) for part in dealt]
    assert max(counts) - min(counts) <= 1
    assert max(sums) - min(sums) <= max(work, default=0)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"batch_size": 8}, 0.05),
        ({"batch_size": 2, "accumulation": 4, "group_by_length": False}, 0.05),
        ({"batch_size": 1, "accumulation": 8}, 0.05),
        ({"max_tokens": 4000}, 0.05),
        ({"max_tokens": 4000, "accumulation": 3}, 0.05),
        ({"batch_size": 2, "accumulation": 4, "is_padded": True}, 0.3),
    ],
)
def test_ranks_have_like_work(options: dict[str, Any], most: float) -> None:
    """The share of the time in which ranks wait, if it is that of tokens; four ranks, 63 whole steps and a half one."""
    order, pads = order_of(2032, **options), options.get("is_padded", False)

    def tokens(batch: list[int]) -> int:
        lengths = order.lengths[batch]
        return int(padded_length(lengths.max(axis=0)).sum() * len(batch) if pads else lengths.sum())

    steps = steps_of_ranks(count=2032, world_size=4, **options)
    work = np.array([[sum(map(tokens, share)) for share in step] for step in steps])
    assert 0 <= 1 - work.mean(axis=1).sum() / work.max(axis=1).sum() < most


def news_lengths(count: int, mean_words: float, spread: float, longest: int) -> np.ndarray:
    """Token counts as those of CNN-DM's articles (781 words on average) or summaries (56 words), cut to a maximum."""
    words = np.random.default_rng(count).lognormal(np.log(mean_words) - spread**2 / 2, spread, count)
    return np.clip((1.2 * words).astype(int) + 2, 8, longest)


@pytest.mark.parametrize(("accumulation", "world_size"), [(1, 1), (1, 3), (4, 2)])
def test_batches_of_like_lengths_are_padded_by_less_than_a_twentieth(accumulation: int, world_size: int) -> None:
    sources, targets = news_lengths(40_000, 781, 0.5, 1024), news_lengths(40_001, 56, 0.4, 142)[:40_000]
    lengths = np.stack([sources, targets], axis=1)

    def padding(grouped: bool) -> float:
        """Share of the padding in what the network gets to read, of both sides."""
        padded = 0
        for rank in range(world_size):
            places = {"accumulation": accumulation, "rank": rank, "world_size": world_size, "is_padded": True}
            order = TrainOrder(lengths, 40, 7, group_by_length=grouped, **places)
            for batch in (batch for step in order.steps(0) for batch in step if batch[0] >= 0):
                padded += len(batch) * padded_length(lengths[batch].max(axis=0)).sum()
        return 1 - lengths.sum() / padded

    assert padding(grouped=True) < 0.05 < 0.1 < padding(grouped=False)


def test_a_process_without_examples_gets_the_shortest_as_a_stand_in() -> None:
    """One example on 2 ranks in 3 micro-batches each."""
    assert steps_of_ranks(count=1, accumulation=3, world_size=2) == [([[0], [~0], [~0]], [[~0], [~0], [~0]])]
    order = order_of(50, 60, accumulation=2)
    last = order_of(1 + 2 * 60, 60, accumulation=2)
    assert list(last.steps(0))[-1][1] == [~int(last.lengths[:, 0].argmin())]
    assert all(index >= 0 for step in order.steps(0) for batch in step for index in batch)


@pytest.mark.parametrize(("how", "most"), [({"group_by_length": False}, 6), ({}, 6), ({"max_tokens": 16_000}, 24)])
def test_an_order_takes_few_bytes_an_example(how: dict[str, Any], most: int) -> None:
    count = 400_000
    lengths = lengths_of(count).astype(np.int32)
    tracemalloc.start()
    try:
        assert next(TrainOrder(lengths, 8, 7, **how).steps(0))
        assert tracemalloc.get_traced_memory()[1] / count < most
    finally:
        tracemalloc.stop()
