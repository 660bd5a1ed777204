"""How fast one loader process feeds pretraining from shards, noise included, beside two others on the same shards.

    python scripts/benchmarks/benchmark_loading.py DIR --batch_size 64

- ours: the loader of run_pretraining.py;
- without noise: the same with the sources left as they are;
- one by one: rows read by the library datasets and corrupted by numpy, example by example, with fairseq's scheme of
  masking: the sentences permuted, Poisson spans at random word starts, which may overlap, and masks inserted.

Every run is a process of its own with one loader process. The first steps, of the first window, warm up. Memory is the
most that the loader process ever holds; it must not grow with --steps.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from bart.files import write_json
from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks.measuring import compared, in_turns
from utils.app.cli import option, parse_dataclass, run_main
from utils.app.tables import table
from utils.data.batches import Inputs
from utils.data.corruption import Corruption, CorruptionOptions
from utils.data.options import DataOptions
from utils.data.pairs import Pair, collate_pairs
from utils.data.shard_format import TOKENIZER
from utils.data.shards import Manifest, StreamedShards
from utils.data.streaming import WINDOW, StreamLoader, TrainStream
from utils.runs.machine import environment, process_memory_gb
from utils.runs.outputs import check_output

OURS, PLAIN, THEIRS = MODES = ("ours", "without noise", "one by one")
COLUMNS = {"mode": "mode", "rate": "sequences/s", "speed_up": "speed-up", "megabytes": "peak MB"}


@dataclass(frozen=True)
class Arguments:
    data_dir: str = option(positional=True, help="directory of shards, which utils.corpora.make_shards makes")
    batch_size: int = option(64, least=1, help="examples per micro-batch")
    steps: int = option(1000, least=1, help=f"micro-batches that are timed, after {WINDOW} to warm up")
    rounds: int = option(3, least=1, help="runs of each, in turns; the table has their medians")
    output: str | None = option(None, help="JSON file for all figures")

    def __post_init__(self) -> None:
        check_output("output", self.output)


class OneByOne(IterableDataset[Inputs]):
    """Batches of the shards' rows in their order, each corrupted by itself."""

    def __init__(self, manifest: Manifest, corruption: Corruption, batch_size: int, collate: Any) -> None:
        self.files = [str(manifest.directory / shard.file) for shard in manifest.shards("train")]
        self.facts, self.batch_size, self.collate = corruption, batch_size, collate

    def __iter__(self) -> Iterator[Inputs]:
        from datasets import load_dataset

        rows = load_dataset("parquet", data_files={"train": self.files}, split="train", streaming=True)
        numbered = enumerate(chain.from_iterable(repeat(rows)))
        while True:
            yield self.collate([self.pair(*given) for given in islice(numbered, self.batch_size)])

    def pair(self, number: int, row: dict[str, list[int]]) -> Pair:
        """An example and its noise, as facts about fairseq's denoising_dataset.py have it, for one mask a span."""
        facts, rng = self.facts, np.random.default_rng((0, number))
        ids = np.array(row["ids"], np.int32)
        sentences = np.split(ids, np.cumsum(row["sentences"])[:-1])
        source = np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])
        starts = np.append(np.flatnonzero(facts.begins_word[source]), len(source))
        lengths: list[int] = []
        while sum(lengths) < 0.3 * (len(starts) - 1):
            lengths.append(int(rng.poisson(3.0)))
        keep, spans = np.ones(len(source), bool), [length for length in lengths if length]
        for word, length in zip(rng.permutation(len(starts) - 1), spans, strict=False):
            keep[starts[word] : starts[min(word + length, len(starts) - 1)]] = False
            keep[starts[word]], source[starts[word]] = True, facts.mask
        source = source[keep]
        source = np.insert(source, rng.integers(0, len(source) + 1, len(lengths) - len(spans)), facts.mask)
        return Pair(*(np.concatenate(([facts.bos], side, [facts.eos])) for side in (source, ids)))


def collate(pad_token_id: int, examples: Sequence[Pair]) -> Inputs:
    """A batch, and the most memory that this process ever held."""
    return {**collate_pairs(examples, pad_token_id), "peak_memory_gb": process_memory_gb()}


def load(mode: str, args: Arguments) -> dict[str, Any]:
    """Load in one of MODES: sequences per second, and the memory of the loader process."""
    manifest = Manifest.read(args.data_dir)
    tokenizer = BartTokenizer.from_pretrained(manifest.directory / TOKENIZER)
    none = CorruptionOptions(mlm_probability=0, permute_sentence_ratio=0)
    corruption = Corruption(none if mode == PLAIN else CorruptionOptions(), tokenizer, seed=0)
    noted = partial(collate, tokenizer.pad_token_id)
    total = WINDOW + args.steps
    if mode == THEIRS:
        batches = DataLoader(OneByOne(manifest, corruption, args.batch_size, noted), None, num_workers=1)
    else:
        options = DataOptions(train_batch_size=args.batch_size)
        stream = TrainStream(StreamedShards(manifest, corruption), noted, options, seed=0)
        batches = StreamLoader(stream, total, num_workers=1)
    begun, sequences, peak = 0.0, 0, 0.0
    for step, batch in enumerate(islice(batches, total), 1):
        inputs = batch if mode == THEIRS else batch[0].inputs
        if step == WINDOW:
            begun = time.perf_counter()
        elif step > WINDOW:
            sequences += len(inputs["input_ids"])
            peak = inputs["peak_memory_gb"]
    return {"rate": sequences / (time.perf_counter() - begun), "peak_memory_gb": peak}


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(Arguments, argv, str(__doc__))
    Manifest.read(args.data_dir)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    results = compared(in_turns(MODES, args.rounds, load, args), THEIRS)
    for row in results:
        row["megabytes"] = 1000 * row["peak_memory_gb"]
    print(table(results, COLUMNS))
    if args.output is not None:
        write_json(Path(args.output), {"machine": environment(0), "arguments": asdict(args), "results": results})


if __name__ == "__main__":
    run_main(main)
