from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bart.errors import InputError
from bart.modeling.modeling_bart import IGNORE_INDEX
from tests.tiny_shards import tiny_tokenizer, write_tiny_shards
from utils.app.errors import RunError
from utils.data import shards as shards_module
from utils.data import streaming
from utils.data.batches import Batch, collate_pairs
from utils.data.corruption import Corruption
from utils.data.options import BatchOptions, CorruptionOptions
from utils.data.order import ORDER
from utils.data.shards import Manifest, Shard, ShardExamples, ShardRow, StreamedShards, read_shards
from utils.data.streaming import BinOrder, StreamLoader, TrainStream

BINS, TRAIN, VAL = (12, 20, 32), 23, 5
collate = partial(collate_pairs, pad_token_id=1)
Steps = list[list[Batch]]
# Steps of 12 examples: batch size, accumulation and ranks.
CUTS = [(12 // (k * ranks), k, ranks) for ranks in (1, 2, 3) for k in (1, 2, 4) if 12 % (k * ranks) == 0]


@pytest.fixture(scope="module", autouse=True)
def folders() -> Iterator[None]:
    with TemporaryDirectory() as folder:
        shards_of.folder = Path(folder)  # type: ignore[attr-defined]
        yield
        manifest_of.cache_clear()
        rows_of.cache_clear()


def shards_of(files: int) -> Path:
    folder: Path = shards_of.folder / str(files)  # type: ignore[attr-defined]
    if not folder.exists():
        write_tiny_shards(folder, bins=BINS, files=files, train=TRAIN, val=VAL)
    return folder


@cache
def manifest_of(files: int) -> Manifest:
    return Manifest.read(shards_of(files))


@cache
def corruption(seed: int = 7, **options: Any) -> Corruption:
    return Corruption(CorruptionOptions(**options), tiny_tokenizer(), seed)


@cache
def rows_of(files: int, split: str = "train") -> list[tuple[list[int], int]]:
    """The ids and the bin of every example by its number, as pyarrow reads them."""
    return [
        (row["ids"], shard["bin"])
        for shard in manifest_of(files).values["splits"][split]
        for row in pq.read_table(shards_of(files) / shard["file"]).to_pylist()
    ]


def stream_of(files: int = 2, limit: int = -1, **given: Any) -> TrainStream:
    places = {name: given.pop(name) for name in ("rank", "world_size", "seed") if name in given}
    shards = StreamedShards(manifest_of(files), corruption(), limit)
    return TrainStream(shards, collate, BatchOptions(n_train=limit, **given), 7, **places)


def epoch_of(epoch: int = 0, lanes: int = 128, **given: Any) -> Steps:
    """The steps of one epoch."""
    stream = stream_of(**given)
    with patch.object(streaming, "LANES", lanes):
        return [stream[epoch * stream.steps_per_epoch + step] for step in range(stream.steps_per_epoch)]


def plain(step: Sequence[Batch]) -> list[Any]:
    """A step as values that can be compared."""
    return [
        (batch.index, batch.is_real, batch.tokens, {name: each.tolist() for name, each in batch.inputs.items()})
        for batch in step
    ]


def examples(batches: Sequence[Batch]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Targets and sources, of those that count."""
    return [
        (tuple(target[target != IGNORE_INDEX].tolist()), tuple(source[mask.bool()].tolist()))
        for batch in batches
        if batch.is_real
        for target, source, mask in zip(
            *(batch.inputs[name] for name in ("labels", "input_ids", "attention_mask")), strict=True
        )
    ]


def contents(ranks: list[Steps]) -> list[set[Any]]:
    """What each optimizer step holds, from the steps of all ranks."""
    return [{example for step in shares for example in examples(step)} for shares in zip(*ranks, strict=True)]


# All that decides on an epoch's batches but for the rank.
options = st.fixed_dictionaries(
    {
        "files": st.integers(1, 3),
        "epoch": st.integers(0, 2),
        "world_size": st.integers(1, 3),
        "train_batch_size": st.integers(1, 4),
        "gradient_accumulation_steps": st.integers(1, 3),
        "limit": st.just(-1) | st.integers(1, 70),
        "lanes": st.sampled_from([1, 5, 128]),
    }
)


@settings(deadline=None, max_examples=15)
@given(options=options)
def test_every_example_once_an_epoch_and_one_bin_a_step_on_any_number_of_ranks(options: dict[str, Any]) -> None:
    ranks = [epoch_of(rank=rank, **options) for rank in range(options["world_size"])]
    rows = rows_of(options["files"])
    bins = {(0, *ids, 2): longest for ids, longest in rows}
    targets = [target for steps in ranks for step in steps for target, _ in examples(step)]
    count = len(rows) if options["limit"] < 0 else min(options["limit"], len(rows))
    assert len(targets) == len({*targets}) == count and {*targets} <= bins.keys()
    bins_of_steps = [{bins[target] for target, _ in step} for step in contents(ranks)]
    assert all(len(step) == 1 for step in bins_of_steps)
    batches = [batch for steps in ranks for step in steps for batch in step]
    numbers = {(0, *ids, 2): number for number, (ids, _) in enumerate(rows)}
    for batch in batches:
        assert batch.index == [numbers[target] for target, _ in examples([replace(batch, is_real=True)])]
    size = options["train_batch_size"] * options["gradient_accumulation_steps"] * options["world_size"]
    assert sum(len(step) < size for step in contents(ranks)) <= len(BINS)


@settings(deadline=None, max_examples=5)
@given(options=options)
def test_steps_are_the_same_however_they_are_cut_down_to_their_noise(options: dict[str, Any]) -> None:
    contents_of_cuts = []
    for batch_size, accumulation, ranks in CUTS:
        cut = {"train_batch_size": batch_size, "gradient_accumulation_steps": accumulation, "world_size": ranks}
        contents_of_cuts.append(contents([epoch_of(rank=rank, **{**options, **cut}) for rank in range(ranks)]))
    assert len(contents_of_cuts) > 5
    assert all(held == contents_of_cuts[0] for held in contents_of_cuts)


@settings(deadline=None, max_examples=15)
@given(options=options, data=st.data())
def test_a_step_is_the_same_whichever_steps_a_process_made_before_it(
    options: dict[str, Any], data: st.DataObject
) -> None:
    """So a run goes on from any step, and loader processes share the steps."""
    del options["lanes"]
    expected = [plain(step) for step in epoch_of(**options)]
    steps = len(expected)
    stream = stream_of(**{name: value for name, value in options.items() if name != "epoch"})
    for step in data.draw(st.lists(st.integers(0, 3 * steps - 1), max_size=4)):
        stream[step]
    step = data.draw(st.integers(0, steps - 1))
    assert plain(stream[options["epoch"] * steps + step]) == expected[step]


def test_noise_is_that_of_the_example_in_the_epoch() -> None:
    """A function of (seed, epoch, number), whatever is beside the example in its batch."""
    noise, numbers = corruption(), {(0, *ids, 2): number for number, (ids, _) in enumerate(rows_of(2))}
    sentences = [
        row["sentences"]
        for shard in manifest_of(2).values["splits"]["train"]
        for row in pq.read_table(shards_of(2) / shard["file"]).to_pylist()
    ]
    for epoch in (0, 1):
        for target, source in (pair for step in epoch_of(epoch, train_batch_size=5) for pair in examples(step)):
            number = numbers[target]
            (pair,) = noise.pairs([ShardRow(np.array(target[1:-1]), sentences[number], number=number)], epoch)
            assert source == tuple(pair.source.tolist())


def test_bins_are_mixed_and_orders_differ_between_epochs() -> None:
    bins = {(0, *ids, 2): longest for ids, longest in rows_of(3)}
    epochs = [[[*step] for step in contents([epoch_of(epoch, files=3, train_batch_size=2)])] for epoch in (0, 1)]
    orders = [[bins[step[0][0]] for step in steps] for steps in epochs]
    assert orders[0] != orders[1]
    for order in orders:  # of 12 steps of each of three bins; sorted, only two would change the bin
        assert sum(before != after for before, after in pairwise(order)) > 12


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_loader_processes_give_what_the_process_itself_reads(workers: int) -> None:
    expected = stream_of(train_batch_size=4)
    stream = pickle.loads(pickle.dumps(expected))
    loader = StreamLoader(stream, 40, 3, num_workers=workers)
    for step, ours in enumerate(loader, 3):
        assert plain(ours) == plain(expected[step])
    assert step == 39 and len(loader) == 40


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_process_reads_its_part_of_the_row_groups(tmp_path: Path, ranks: int) -> None:
    write_tiny_shards(tmp_path, bins=(24,), files=3, train=480)
    manifest = Manifest.read(tmp_path)
    for rank in range(ranks):
        batches = BatchOptions(train_batch_size=24 // ranks)
        stream = TrainStream(StreamedShards(manifest, corruption()), collate, batches, 7, rank, ranks)
        with patch.object(streaming, "read_row_group", wraps=streaming.read_row_group) as read:
            for step in range(stream.steps_per_epoch):
                stream[step]
        read_groups = [(call.args[1].file, call.args[2]) for call in read.call_args_list]
        assert len({*read_groups}) <= 60 // ranks + 2  # of 60
        assert len(read_groups) <= len({*read_groups}) + 24 // ranks  # one that belongs to two lanes, of 24, again


@pytest.mark.parametrize("batch_size, lanes", [(8, 128), (32, 128), (8, 12)])
def test_the_shares_of_processes_are_of_like_length(batch_size: int, lanes: int) -> None:
    """The share of the time for which processes wait, if it takes time in proportion to the tokens."""
    ranks, rng = 16, np.random.default_rng(0)
    shards = [Shard(str(file), 128, 8192, "", 8192 * file, 1024) for file in range(8)]
    lengths = {(file, group): rng.integers(10, 127, size=1024) for file in range(8) for group in range(8)}
    with patch.object(streaming, "LANES", lanes):
        order = BinOrder(shards, range(8), ranks * batch_size, (7, 0, 0))
    keys = zip(order.files.tolist(), order.groups.tolist(), strict=True)
    rows = [lengths[key][order.arranged(place, lengths[key])] for place, key in enumerate(keys)]
    arranged, slots = np.concatenate(rows), np.arange(ranks * batch_size)

    def waiting(in_order: np.ndarray) -> float:
        steps = np.stack([in_order[order.positions(step, slots)] for step in range(order.full)])
        work = steps.reshape(order.full, ranks, batch_size).sum(axis=2)
        return 1 - float(work.mean() / work.max(axis=1).mean())

    assert waiting(arranged) < 0.5 * waiting(rng.permutation(arranged))


def test_the_order_has_its_number() -> None:
    """Where this fails, the order has changed: raise ORDER, so that no run goes on from a checkpoint of the other."""
    shards = [Shard(str(file), 32, 150, "", 150 * file, 64) for file in range(5)]
    lengths, digest = np.random.RandomState(0).randint(5, 30, 64), hashlib.sha256()
    for size, members in ((7, [0, 1, 2]), (300, [3, 4])):
        order = BinOrder(shards, members, size, (7, 1, 0))
        for place, end in enumerate(order.ends):
            rows = order.arranged(place, lengths[: end - (order.ends[place - 1] if place else 0)])
            digest.update(json.dumps([*map(int, (order.files[place], order.groups[place], *rows))]).encode())
        for step in range(order.steps):
            digest.update(json.dumps(order.positions(step, np.arange(7)).tolist()).encode())
    assert (ORDER, digest.hexdigest()[:16]) == (3, "e9d1e226d2a8eef5")


# ---- Reading


def listed(rows: Iterator[ShardRow]) -> list[tuple[int, list[int], list[int]]]:
    return [(row.number, row.ids.tolist(), row.sentences.tolist()) for row in rows]


@settings(deadline=None)
@given(limit=st.integers(-1, 80))
def test_a_limit_takes_its_share_of_every_bin(limit: int) -> None:
    shards = manifest_of(2).shards("train", limit)
    count = 3 * TRAIN if limit < 0 else min(limit, 3 * TRAIN)
    counts = [sum(shard.examples for shard in shards if shard.bin == longest) for longest in BINS]
    assert sum(counts) == count and max(counts) - min(counts) <= 1
    rows = listed(read_shards(shards_of(2), shards))
    assert [ids for number, ids, _ in rows] == [rows_of(2)[number][0] for number, _, _ in rows]


def test_held_out_examples_have_the_same_noise_whatever_the_seed() -> None:
    held_out, reseeded = (ShardExamples(manifest_of(2), "val", corruption(seed)) for seed in (1, 2))
    rows = rows_of(2, "val")
    assert len(held_out) == len(rows) == 3 * VAL
    for number, (ids, _) in enumerate(rows):
        assert held_out[number].target.tolist() == [0, *ids, 2]
        assert held_out[number].source.tolist() == reseeded[number].source.tolist()
        assert held_out.lengths[number].tolist() == [len(held_out[number].source), len(ids) + 2]
    assert any(held_out[number].source.tolist() != held_out[number].target.tolist() for number in range(len(held_out)))
    assert held_out.identity == reseeded.identity
    assert held_out.identity != ShardExamples(manifest_of(2), "val", corruption(mlm_probability=0.2)).identity
    few = ShardExamples(manifest_of(2), "val", corruption(), 6)
    assert len(few) == 6 and few.identity != held_out.identity


# ---- Bad input


@pytest.fixture
def made(tmp_path: Path) -> Path:
    write_tiny_shards(tmp_path / "shards", bins=(16,), files=2, train=20)
    return tmp_path / "shards"


def message(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        Manifest.read(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_directories_that_hold_no_shards(made: Path, tmp_path: Path) -> None:
    assert message(tmp_path / "none").startswith(f"--data_dir {tmp_path / 'none'}: no manifest.json there; ")
    manifest = made / "manifest.json"
    text = manifest.read_text()
    odd = json.dumps({**json.loads(text), "splits": {"train": [1]}})
    for damaged in (text[:100], "[]", "{}", '{"format": 1}', odd):
        manifest.write_text(damaged)
        assert message(made).startswith(f"{manifest}: not a manifest of shards (")
    manifest.write_text(json.dumps({**json.loads(text), "format": 2}))
    assert message(made) == f"{manifest}: its format is 2; allowed: 1"
    manifest.write_text(json.dumps({**json.loads(text), "splits": {"train": []}}))
    assert message(made) == f"{manifest}: the train split has no examples"
    manifest.unlink()
    assert message(made) == (
        f"--data_dir {made}: no manifest.json there; python -m utils.corpora.make_shards writes it when all shards "
        "are made"
    )


def test_shards_that_are_not_whole_are_named(made: Path) -> None:
    shard = made / "train" / "16-00001.parquet"
    whole = shard.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 0):
        shard.write_bytes(whole[:size])
        assert message(made).startswith(f"{shard}: the shard is missing, cut off or damaged (")
    pq.write_table(pq.read_table(made / "train" / "16-00000.parquet").slice(1), shard)
    assert message(made) == f"{shard}: the shard has 9 examples; manifest.json says 10"
    pq.write_table(pq.read_table(made / "train" / "16-00000.parquet").drop_columns(["sentences"]), shard)
    assert message(made) == f"{shard}: the shard lacks the column sentences; allowed: ids, sentences"
    shard.unlink()
    assert message(made).startswith(f"{shard}: the shard is missing, ")
    shard.write_bytes(whole)
    manifest = made / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "task": "mlm_nsp"}))
    assert message(made).endswith(": the shard lacks the column label; allowed: ids, sentences, label")


def test_shards_whose_row_groups_are_not_those_of_the_manifest(made: Path) -> None:
    shard = made / "train" / "16-00001.parquet"
    pq.write_table(pq.read_table(shard), shard, 4)
    assert message(made) == f"{shard}: the shard has row groups of 4 examples; manifest.json says 8"


def test_one_process_of_a_machine_looks_at_all_shards(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made / "train" / "16-00001.parquet").unlink()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert len(Manifest.read(made).shards("train")) == 2
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert "16-00001.parquet: the shard is missing" in message(made)


def test_shards_of_another_length_or_vocabulary(made: Path) -> None:
    manifest = Manifest.read(made)
    manifest.check(tiny_tokenizer())
    manifest.check(tiny_tokenizer(), 16)
    with pytest.raises(InputError) as error:
        manifest.check(tiny_tokenizer(), 32)
    assert str(error.value) == "--max_source_length is 32; the shards have 16"
    with pytest.raises(InputError) as error:
        manifest.check(tiny_tokenizer(280), 16)
    assert str(error.value) == f"{made}: its shards are of another vocabulary, that in tokenizer there"
    # The same vocabulary, written in other words by another version of the library.
    path = made / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocabulary": "0" * 64}))
    Manifest.read(made).check(tiny_tokenizer(), 16)


def test_a_shard_that_disappears_while_it_is_read_ends_a_run_in_one_line(made: Path) -> None:
    stream = TrainStream(StreamedShards(Manifest.read(made), corruption()), collate, BatchOptions(), 7)
    for shard in (made / "train").iterdir():
        shard.unlink()
    with pytest.raises(RunError) as error:
        list(StreamLoader(stream, 2, num_workers=1))
    assert re.fullmatch(
        rf"{made / 'train'}/\S+: the shard cannot be read \(.+\); --resume_from_checkpoint last .*", str(error.value)
    )


def test_no_flipped_bit_of_a_shard_is_read_as_other_data(made: Path) -> None:
    manifest = Manifest.read(made)
    shard = manifest.shards("train")[0]
    path = made / shard.file
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(8 * len(whole), size=200):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        shards_module._sha256_of.cache_clear()  # as a new process has it
        with pytest.raises(RunError) as error:
            list(read_shards(made, [shard]))
        assert str(error.value) == f"{path}: the shard is damaged: its SHA-256 is not the one in manifest.json"


def test_no_flipped_bit_of_a_page_is_read_by_a_process_that_compares_no_digest(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest.read(made)
    shard = manifest.shards("train")[0]
    path = made / shard.file
    whole, right = path.read_bytes(), repr(list(read_shards(made, [shard])))
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # behind them comes what tells where they are
    monkeypatch.setenv("LOCAL_RANK", "1")
    refused = 0
    for place in np.random.default_rng(0).integers(8 * pages, size=200):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            assert repr(list(read_shards(made, [shard]))) == right  # not all bits say something
        except RunError:
            refused += 1
    assert refused > 150
