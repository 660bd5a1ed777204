from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from bart.modeling.modeling_bart import IGNORE_INDEX
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.streamed_steps import CUTS, WINDOW, Steps, same, short_windows, steps_of  # noqa: F401
from utils.app.errors import RunError
from utils.data import streaming
from utils.data.batches import Batch, Inputs
from utils.data.options import BatchOptions
from utils.data.pairs import Pair, StreamedPairs, collate_pairs
from utils.data.streaming import StreamLoader, TrainStream
from utils.data.tables import Table, TableReader


@cache
def tokenizer() -> BartTokenizer:
    return BartTokenizer.train(["number 0 1 2 3 4 5 6 7 8 9 and so on"] * 3, vocab_size=280)


def collate(pairs: list[Pair]) -> Inputs:
    return collate_pairs(pairs, tokenizer().pad_token_id)


@cache
def pairs_of(count: int, files: int, empty: int = 0) -> StreamedPairs:
    """Examples of which every target is another; so many rows more have an empty source."""
    numbers = list(range(count))
    rows = {
        "article": [f"number {i}" + " and so on" * (i * 7 % 13) for i in numbers] + [" "] * empty,
        "highlights": [str(i) for i in numbers] + ["left out"] * empty,
    }
    dataset = datasets.Dataset.from_dict(rows).to_iterable_dataset(num_shards=files)
    return StreamedPairs(
        Table(dataset, ("article", "highlights"), "hub:org/name"), (tokenizer(), tokenizer()), 1024, 142
    )


def stream_of(
    pairs: StreamedPairs,
    rank: int = 0,
    world_size: int = 1,
    cursor: dict[str, Any] | None = None,
    start: int = 0,
    seed: int = 7,
    **options: Any,
) -> TrainStream:
    places = {"rank": rank, "world_size": world_size, "cursor": cursor, "start": start}
    grouped = options.pop("sortish_sampler", False)
    return TrainStream(pairs, collate, BatchOptions(**options), seed, grouped, **places)


def epoch_of(pairs: StreamedPairs, epoch: int = 0, **options: Any) -> Steps:
    """The steps of one epoch."""
    return steps_of(stream_of(pairs, **options), epoch)


def examples(batch: Batch) -> list[str]:
    """The targets that count."""
    rows = (row[row != IGNORE_INDEX].tolist() for row in batch.inputs["labels"])
    return [tokenizer().decode(row, skip_special_tokens=True) for row in rows] if batch.is_real else []


def contents(ranks: list[Steps]) -> list[set[str]]:
    """What each optimizer step holds, from the steps of all ranks."""
    return [
        {example for _, step in shares for batch in step for example in examples(batch)}
        for shares in zip(*ranks, strict=True)
    ]


def flat(steps: Steps) -> list[str]:
    return [example for _, step in steps for batch in step for example in examples(batch)]


# All that decides on an epoch's batches but for the rank.
options = st.fixed_dictionaries(
    {
        "pairs": st.builds(pairs_of, st.integers(1, 60), st.just(1), st.integers(0, 3))
        | st.builds(pairs_of, st.integers(12, 60), st.integers(2, 4), st.integers(0, 3)),
        "epoch": st.integers(0, 2),
        "world_size": st.integers(1, 3),
        "train_batch_size": st.integers(1, 4),
        "gradient_accumulation_steps": st.integers(1, 3),
        "sortish_sampler": st.booleans(),
        "n_train": st.just(-1) | st.integers(1, 70),
    }
)


@settings(deadline=None, max_examples=40)
@given(options=options)
def test_every_example_once_an_epoch_on_any_number_of_ranks(options: dict[str, Any]) -> None:
    ranks = [epoch_of(rank=rank, **options) for rank in range(options["world_size"])]
    accumulation = options["gradient_accumulation_steps"]
    assert {len(step) for steps in ranks for _, step in steps} == {accumulation}
    count = sum(1 for _ in TableReader(options["pairs"].table))
    count = count if options["n_train"] < 0 else min(count, options["n_train"])
    assert sorted((example for steps in ranks for example in flat(steps)), key=int) == list(map(str, range(count)))
    size = options["train_batch_size"] * accumulation * options["world_size"]
    assert [len(step) for step in contents(ranks)[:-1]] == [size] * ((count - 1) // size)
    batches = [batch for steps in ranks for _, step in steps for batch in step]
    assert sorted(index for batch in batches if batch.is_real for index in batch.index) == list(range(count))
    for batch in batches:
        assert batch.tokens == batch.inputs["attention_mask"].sum() + (batch.inputs["labels"] >= 0).sum()


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(options=options)
def test_steps_are_the_same_however_they_are_cut(options: dict[str, Any]) -> None:
    contents_of_cuts = []
    for batch_size, accumulation, ranks in CUTS:
        cut = {"train_batch_size": batch_size, "gradient_accumulation_steps": accumulation, "world_size": ranks}
        contents_of_cuts.append(contents([epoch_of(rank=rank, **{**options, **cut}) for rank in range(ranks)]))
    assert len(contents_of_cuts) > 5
    assert all(held == contents_of_cuts[0] for held in contents_of_cuts)


@settings(deadline=None, max_examples=20)
@given(options=options, data=st.data())
def test_the_order_is_reproducible_and_goes_on_from_any_step(options: dict[str, Any], data: st.DataObject) -> None:
    """From the beginning, or from the cursor of a step at or before the place."""
    rank = data.draw(st.integers(0, options["world_size"] - 1))
    options = {**options, "rank": rank, "epoch": 0}
    expected = epoch_of(**options)
    start = data.draw(st.integers(0, len(expected) - 1))
    for cursor in (None, expected[max(0, start - 1)][0], expected[start][0]):
        assert same(epoch_of(**options, cursor=cursor, start=start), expected[start:])


def test_a_window_that_is_gone_on_from_is_the_first_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = pairs_of(60, 1)
    cursor = epoch_of(pairs, train_batch_size=4)[2 * WINDOW][0]
    read = []
    rows = TableReader.rows

    def noted(self: TableReader) -> Any:
        for row in rows(self):
            read.append(row.target)
            yield row

    monkeypatch.setattr(TableReader, "rows", noted)
    next(iter(stream_of(pairs, train_batch_size=4, start=2 * WINDOW, cursor=cursor)))
    assert read == [str(i) for i in range(2 * WINDOW * 4, 3 * WINDOW * 4)]


def test_the_order_depends_on_seed_and_epoch_and_so_does_that_of_files() -> None:
    pairs = pairs_of(60, 4)
    orders = [flat(epoch_of(pairs, epoch, seed=seed)) for seed, epoch in ((7, 0), (7, 0), (7, 1), (8, 0))]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2] and orders[0] != orders[3]
    firsts = {frozenset(int(example) // 15 for example in order[:15]) for order in orders}
    assert len(firsts) > 1  # not always from the first file
    # Windows are cut in ways of their own.
    drawn = [{index % (5 * WINDOW) for index in step[0].index} for _, step in epoch_of(pairs, train_batch_size=5)]
    assert len(drawn) == 4 * WINDOW and drawn[:WINDOW] != drawn[WINDOW : 2 * WINDOW]


def test_grouping_by_length_saves_padding_and_does_not_freeze_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "WINDOW", 12)
    pairs = pairs_of(96, 1)

    def padding(grouped: bool) -> float:
        steps = epoch_of(pairs, train_batch_size=8, sortish_sampler=grouped)
        masks = [batch.inputs["attention_mask"] for _, step in steps for batch in step]
        return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)

    assert padding(True) < padding(False) / 2
    epochs = [epoch_of(pairs, epoch, train_batch_size=8, sortish_sampler=True) for epoch in (0, 1)]
    first, second = ({frozenset(step) for step in contents([steps])} for steps in epochs)
    assert len(first & second) < 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_begins_where_training_is_and_knows_the_cursor_of_every_step(workers: int) -> None:
    pairs, total = pairs_of(30, 2), 34  # of 2 examples, 15 an epoch
    whole = [
        step[0].index for _, (_, step) in zip(range(total + 1), stream_of(pairs, train_batch_size=2), strict=False)
    ]
    for start in (0, 5, 15, 29, 34):
        loader = StreamLoader(stream_of(pairs, train_batch_size=2, start=start), total, num_workers=workers)
        assert len(loader) == total
        loaded = []
        for step, batches in enumerate(loader, start + 1):
            loaded.append(batches[0].index)
            cursor = loader.cursor(step)
            # The window that the step is of, or the first of the next epoch where nothing of that was read.
            assert step - WINDOW <= cursor["step"] <= step or cursor["step"] == 0 == start
            _, resumed = next(iter(stream_of(pairs, train_batch_size=2, cursor=cursor, start=step)))
            assert resumed[0].index == whole[step]
        assert loaded == whole[start:total]


def test_a_stream_can_be_sent_to_a_process() -> None:
    stream = pickle.loads(pickle.dumps(stream_of(pairs_of(30, 2), train_batch_size=4)))
    assert same([next(iter(stream))], epoch_of(pairs_of(30, 2), train_batch_size=4)[:1])


def broken(rows: list[dict[str, str]], error: Exception) -> StreamedPairs:
    def read() -> Any:
        yield from rows
        raise error

    table = Table(datasets.IterableDataset.from_generator(read), ("article", "highlights"), "hub:org/name")
    return StreamedPairs(table, (tokenizer(), tokenizer()), 1024, 142)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_read_ends_a_run_in_one_line_that_says_how_it_goes_on(workers: int) -> None:
    pairs = broken([{"article": "text", "highlights": "short"}] * 8, ConnectionError("the line\nis dead"))
    stream = stream_of(pairs, train_batch_size=2)
    *good, bad = DataLoader(stream, batch_size=None, num_workers=workers)
    assert len(good) == WINDOW and isinstance(bad, RunError)
    with pytest.raises(RunError) as error:
        list(StreamLoader(stream, 9, num_workers=workers))
    assert str(error.value) == (
        "hub:org/name: cannot be read after 8 examples (ConnectionError: the line is dead); "
        "--resume_from_checkpoint last goes on from the newest checkpoint of --output_dir"
    )


def test_a_stream_without_examples_is_an_error() -> None:
    (error,) = stream_of(pairs_of(0, 1, empty=3))
    assert str(error) == "hub:org/name: the train split has no examples"
