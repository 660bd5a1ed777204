"""Speed of one loader process of pretraining on shards, noise included, beside two other loaders on the same shards.

    python scripts/benchmarks/training.py loading SHARDS --batch_size 64

- ours: the loader of run_pretraining.py;
- without noise: the same with the sources left as they are;
- one by one: rows read by the library datasets and corrupted by numpy, example by example, with fairseq's scheme of
  masking: the sentences permuted, Poisson spans at random word starts, which may overlap, and masks inserted.

Every run is a process of its own with one loader process. The first steps, of the first window, warm up. Memory is the
most that the loader process ever holds; it must not grow with --steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks import measuring
from utils.app.cli import option, parse_dataclass
from utils.app.machine import environment, process_memory_gb
from utils.data.batches import Inputs
from utils.data.corruption import Corruption
from utils.data.options import BatchOptions, CorruptionOptions
from utils.data.pairs import Pair, collate_pairs
from utils.data.shard_format import TOKENIZER
from utils.data.shards import Manifest, StreamedShards
from utils.data.streaming import WINDOW, StreamLoader, TrainStream

OURS, WITHOUT_NOISE, ONE_BY_ONE = MODES = ("ours", "without noise", "one by one")
COLUMNS = {"mode": "mode", "rate": "sequences/s", "speed_up": "speed-up", "megabytes": "peak MB"}


@dataclass(frozen=True, kw_only=True)
class LoadingArguments(measuring.BenchmarkOptions):
    """The options of the measure."""

    data_dir: str = option(positional=True, help="directory of shards, which utils.corpora.make_shards makes")
    batch_size: int = option(64, least=1, help="examples per micro-batch")
    steps: int = option(1000, least=1, help=f"micro-batches that are timed, after {WINDOW} to warm up")


class OneByOne(IterableDataset[Inputs]):
    """Batches of the shards' rows in their order, each corrupted by itself."""

    def __init__(self, manifest: Manifest, corruption: Corruption, batch_size: int, collate: Any) -> None:
        self.files = [str(manifest.directory / shard.file) for shard in manifest.shards("train")]
        self.corruption, self.batch_size, self.collate = corruption, batch_size, collate

    def __iter__(self) -> Iterator[Inputs]:
        from datasets import load_dataset

        rows = load_dataset("parquet", data_files={"train": self.files}, split="train", streaming=True)
        numbered = enumerate(chain.from_iterable(repeat(rows)))
        while True:
            yield self.collate([self.pair(number, row) for number, row in islice(numbered, self.batch_size)])

    def pair(self, number: int, row: dict[str, list[int]]) -> Pair:
        """An example with the noise of fairseq's denoising_dataset.py, which puts one mask in the place of a span."""
        mask, rng = self.corruption.mask, np.random.default_rng((0, number))
        ids = np.array(row["ids"], np.int32)
        sentences = np.split(ids, np.cumsum(row["sentences"])[:-1])
        source = np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])
        starts = np.append(np.flatnonzero(self.corruption.begins_word[source]), len(source))
        lengths: list[int] = []
        while sum(lengths) < 0.3 * (len(starts) - 1):
            lengths.append(int(rng.poisson(3.0)))
        keep, spans = np.ones(len(source), bool), [length for length in lengths if length]
        for word, length in zip(rng.permutation(len(starts) - 1), spans, strict=False):
            keep[starts[word] : starts[min(word + length, len(starts) - 1)]] = False
            keep[starts[word]] = True
            source[starts[word]] = mask
        source = source[keep]
        source = np.insert(source, rng.integers(0, len(source) + 1, len(lengths) - len(spans)), mask)
        return Pair(*(np.concatenate(([self.corruption.bos], side, [self.corruption.eos])) for side in (source, ids)))


def collate(pad_token_id: int, examples: Sequence[Pair]) -> Inputs:
    """A batch, and the most memory that this process ever held."""
    return {**collate_pairs(examples, pad_token_id), "peak_memory_gb": process_memory_gb()}


def load(mode: str, args: LoadingArguments) -> dict[str, Any]:
    """Load in one of MODES: sequences per second, and the memory of the loader process."""
    manifest = Manifest.read(args.data_dir)
    tokenizer = BartTokenizer.from_pretrained(manifest.directory / TOKENIZER)
    noise = CorruptionOptions()
    if mode == WITHOUT_NOISE:
        noise = CorruptionOptions(mlm_probability=0, permute_sentence_ratio=0)
    corruption = Corruption(noise, tokenizer, seed=0)
    collate_with_memory = partial(collate, tokenizer.pad_token_id)
    total = WINDOW + args.steps
    if mode == ONE_BY_ONE:
        batches = DataLoader(OneByOne(manifest, corruption, args.batch_size, collate_with_memory), None, num_workers=1)
    else:
        options = BatchOptions(train_batch_size=args.batch_size)
        stream = TrainStream(StreamedShards(manifest, corruption), collate_with_memory, options, seed=0)
        batches = StreamLoader(stream, total, num_workers=1)
    begun, sequences, peak = 0.0, 0, 0.0
    for step, batch in enumerate(islice(batches, total), 1):
        inputs = batch if mode == ONE_BY_ONE else batch[0].inputs
        if step == WINDOW:
            begun = time.perf_counter()
        elif step > WINDOW:
            sequences += len(inputs["input_ids"])
            peak = inputs["peak_memory_gb"]
    return {"rate": sequences / (time.perf_counter() - begun), "peak_memory_gb": peak}


def main(argv: Sequence[str]) -> None:
    args = parse_dataclass(LoadingArguments, argv, str(__doc__), prog="training.py loading")
    Manifest.read(args.data_dir)  # refuses what is no folder of shards
    measuring.restrain_peers()
    results = measuring.compared(measuring.in_turns(MODES, args.rounds, load, args), ONE_BY_ONE)
    for row in results:
        row["megabytes"] = 1000 * row["peak_memory_gb"]
    measuring.report(args, COLUMNS, results, environment(0))
