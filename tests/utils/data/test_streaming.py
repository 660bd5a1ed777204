from __future__ import annotations

import dataclasses
import pickle
from functools import cache
from typing import Any

import datasets
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from bart.modeling.modeling_bart import IGNORE_INDEX
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.arguments import TrainArguments, parse_train_arguments
from utils.cli import RunError
from utils.data.dataset import TrainBatches
from utils.data.streaming import CURSOR, ERROR, StreamLoader, TrainStream, take_cursor
from utils.data.tables import Reader, Table

WINDOW = 3  # steps


@pytest.fixture(autouse=True, scope="module")
def short_windows() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainBatches, "WINDOW", WINDOW)
        yield


@cache
def tokenizer() -> BartTokenizer:
    return BartTokenizer.train(["number 0 1 2 3 4 5 6 7 8 9 and so on"] * 3, vocab_size=280)


@cache
def arguments() -> TrainArguments:
    options = ["--do_train", "--data_dir", "hub:org/name", "--max_steps", "9", "--val_check_interval", "9"]
    return parse_train_arguments([*options, "--gpus", "0"])


@cache
def table(count: int, files: int, empty: int = 0) -> Table:
    """Examples of which every target is another; so many of them have an empty source, too."""
    numbers = list(range(count))
    rows = {
        "article": [f"number {i}" + " and so on" * (i * 7 % 13) for i in numbers] + [" "] * empty,
        "highlights": [str(i) for i in numbers] + ["left out"] * empty,
    }
    dataset = datasets.Dataset.from_dict(rows).to_iterable_dataset(num_shards=files)
    return Table(dataset, ("article", "highlights"), "hub:org/name")


Batches = list[dict[str, Any]]


def batches_of(
    table: Table,
    epoch: int = 0,
    seen: int = 0,
    rank: int = 0,
    world_size: int = 1,
    cursor: dict[str, Any] | None = None,
    **options: Any,
) -> Batches:
    args = dataclasses.replace(arguments(), **options)
    stream = TrainStream(table, tokenizer(), args, rank, world_size, cursor)
    stream.start = (epoch, seen)
    return list(stream)


def examples(batch: dict[str, Any]) -> list[str]:
    """The targets that count."""
    rows = (row[row != IGNORE_INDEX].tolist() for row in batch["labels"])
    return [tokenizer().decode(row, skip_special_tokens=True) for row in rows if row]


def steps(batches: list[Batches], accumulation: int) -> list[set[str]]:
    """What each optimizer step holds, from the batches of all ranks."""
    found: list[set[str]] = [set() for _ in range(len(batches[0]) // accumulation)]
    for rank in batches:
        for place, batch in enumerate(rank):
            found[place // accumulation].update(examples(batch))
    return found


def same(ours: Batches, theirs: Batches) -> bool:
    return len(ours) == len(theirs) and all(
        one[CURSOR] == other[CURSOR] and all(torch.equal(one[name], other[name]) for name in one if name != CURSOR)
        for one, other in zip(ours, theirs, strict=True)
    )


# All that decides on an epoch's batches but for the rank.
options = st.fixed_dictionaries(
    {
        "table": st.builds(table, st.integers(1, 60), st.just(1), st.integers(0, 3))
        | st.builds(table, st.integers(12, 60), st.integers(2, 4), st.integers(0, 3)),
        "epoch": st.integers(0, 2),
        "world_size": st.integers(1, 3),
        "train_batch_size": st.integers(1, 4),
        "gradient_accumulation_steps": st.integers(1, 3),
        "sortish_sampler": st.booleans(),
        "n_train": st.just(-1) | st.integers(1, 70),
    }
)


def expected_of(options: dict[str, Any]) -> list[str]:
    count = sum(1 for _ in Reader(options["table"]))
    return [str(i) for i in range(count if options["n_train"] < 0 else min(count, options["n_train"]))]


@settings(deadline=None, max_examples=60)
@given(options=options)
def test_every_example_once_an_epoch_on_any_number_of_ranks(options: dict[str, Any]) -> None:
    ranks = [batches_of(rank=rank, **options) for rank in range(options["world_size"])]
    accumulation = options["gradient_accumulation_steps"]
    assert len({len(batches) for batches in ranks}) == 1
    assert len(ranks[0]) % accumulation == 0
    expected = expected_of(options)
    found = [example for batches in ranks for batch in batches for example in examples(batch)]
    assert sorted(found, key=int) == expected
    size = options["train_batch_size"] * accumulation * options["world_size"]
    assert [len(step) for step in steps(ranks, accumulation)[:-1]] == [size] * ((len(expected) - 1) // size)
    indices = [
        index
        for batches in ranks
        for batch in batches
        for index, row in zip(batch["index"].tolist(), batch["labels"], strict=True)
        if (row != IGNORE_INDEX).any()
    ]
    assert sorted(indices) == list(range(len(expected)))


CUTS = [(12 // (k * ranks), k, ranks) for ranks in (1, 2, 3) for k in (1, 2, 4) if 12 % (k * ranks) == 0]


@settings(deadline=None, max_examples=15)
@given(options=options)
def test_steps_are_the_same_however_they_are_cut(options: dict[str, Any]) -> None:
    found = []
    for batch_size, accumulation, ranks in CUTS:
        cut = {"train_batch_size": batch_size, "gradient_accumulation_steps": accumulation, "world_size": ranks}
        found.append(steps([batches_of(rank=rank, **{**options, **cut}) for rank in range(ranks)], accumulation))
    assert len(found) > 5
    assert all(other == found[0] for other in found)


@settings(deadline=None, max_examples=60)
@given(options=options, data=st.data())
def test_the_order_is_reproducible_and_goes_on_from_any_position(options: dict[str, Any], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, options["world_size"] - 1))
    expected = batches_of(rank=rank, **options)
    seen = data.draw(st.integers(0, len(expected)))
    # A checkpoint holds the cursor of the batch that was to come or, behind a validation, of the one before.
    cursors = [None, *(expected[place][CURSOR] for place in (seen - 1, seen) if 0 <= place < len(expected))]
    for cursor in cursors:
        assert same(batches_of(rank=rank, seen=seen, cursor=cursor, **options), expected[seen:])


def test_a_window_that_is_gone_on_from_is_the_first_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    place = table(60, 1)
    cursor = batches_of(place, train_batch_size=4)[2 * WINDOW][CURSOR]
    read = []
    text = Reader._text
    monkeypatch.setattr(Reader, "_text", lambda self, row, field: read.append(row[field]) or text(self, row, field))
    batches_of(place, train_batch_size=4, seen=2 * WINDOW, cursor=cursor)
    assert read[1::2] == [str(i) for i in range(2 * WINDOW * 4, 60)]


def test_the_order_depends_on_seed_and_epoch_and_so_does_that_of_files() -> None:
    place = table(60, 4)
    orders = [
        [example for batch in batches_of(place, epoch, seed=seed) for example in examples(batch)]
        for seed, epoch in ((7, 0), (7, 0), (7, 1), (8, 0))
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2] and orders[0] != orders[3]
    firsts = {frozenset(int(example) // 15 for example in order[:15]) for order in orders}
    assert len(firsts) > 1  # not always from the first file
    drawn = [set((batch["index"] % (5 * WINDOW)).tolist()) for batch in batches_of(place, train_batch_size=5)]
    assert len(drawn) == 4 * WINDOW and drawn[:WINDOW] != drawn[WINDOW : 2 * WINDOW]


def test_n_train_takes_the_same_examples_in_every_epoch() -> None:
    for epoch in range(3):
        batches = batches_of(table(60, 4), epoch, n_train=7, train_batch_size=2)
        assert sorted(int(example) for batch in batches for example in examples(batch)) == list(range(7))


def test_grouping_by_length_saves_padding_and_does_not_freeze_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainBatches, "WINDOW", 12)

    def padding(grouped: bool) -> float:
        masks = [b["attention_mask"] for b in batches_of(place, train_batch_size=8, sortish_sampler=grouped)]
        return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)

    place = table(96, 1)
    assert padding(True) < padding(False) / 2
    batches = [
        {frozenset(examples(batch)) for batch in batches_of(place, epoch, train_batch_size=8, sortish_sampler=True)}
        for epoch in (0, 1)
    ]
    assert len(batches[0] & batches[1]) < 4


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_begin_where_training_is(workers: int) -> None:
    args = dataclasses.replace(arguments(), train_batch_size=2)
    stream = TrainStream(table(30, 2), tokenizer(), args)
    position = [0, 0]
    loader = StreamLoader(stream, lambda: tuple(position), num_workers=workers)
    for epoch, seen in ((0, 0), (0, 5), (1, 0), (1, 14)):
        position[:] = epoch, seen
        assert same(list(loader), batches_of(table(30, 2), epoch, seen, train_batch_size=2))


def test_a_stream_can_be_sent_to_a_process() -> None:
    stream = pickle.loads(pickle.dumps(TrainStream(table(30, 2), tokenizer(), arguments())))
    assert same(list(stream), batches_of(table(30, 2)))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_read_ends_a_run_in_one_line_that_says_how_it_goes_on(workers: int) -> None:
    def rows() -> Any:
        yield from ({"article": "text", "highlights": "short"} for _ in range(8))
        raise ConnectionError("the line\nis dead")

    place = Table(datasets.IterableDataset.from_generator(rows), ("article", "highlights"), "hub:org/name")
    stream = TrainStream(place, tokenizer(), dataclasses.replace(arguments(), train_batch_size=2))
    *good, bad = DataLoader(stream, batch_size=None, num_workers=workers)
    assert len(good) == WINDOW and set(bad) == {ERROR}
    with pytest.raises(RunError) as error:
        take_cursor(bad)
    assert str(error.value) == (
        "hub:org/name: cannot be read after 8 examples (ConnectionError: the line is dead); "
        "--resume_from_checkpoint last goes on from the newest checkpoint of --output_dir"
    )


def test_a_stream_without_examples_is_an_error() -> None:
    (batch,) = batches_of(table(0, 1, empty=3))
    assert batch == {ERROR: "hub:org/name: the train split has no examples"}
