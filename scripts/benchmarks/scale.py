"""A benchmark of many processes: the share of time in which they wait, simulated, or by --shards how fast they read.

Nothing is trained. To simulate waiting, lengths are drawn, and a process takes as long as bart-large's matrix products
for its share do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bart and utils, which Python does not find by itself

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.scale")

import numpy as np

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import training_operations
from utils.app.cli import option, parse_dataclass
from utils.app.formatting import markdown_table
from utils.app.machine import ROOT
from utils.data.batches import padded_length
from utils.data.options import BatchOptions, Place
from utils.data.order import TrainOrder
from utils.data.shard_format import ROWS
from utils.data.shards import Shard, StreamedShards
from utils.data.streaming import BinOrder, TrainStream
from utils.tasks.denoising import Denoising

SIZE, READ_SIZE = 40, 768  # examples of a process in a simulated step, and of all in a step that is read
# Medians of sources and targets, whose means are 492 and 760, 30 and 74 tokens; and log-normal spreads.
DATA = {"XSum": ((419, 28), (0.75, 0.35)), "CNN-DM": ((784, 70), (0.5, 0.35))}


@dataclass(frozen=True)
class ScaleOptions:
    examples: int = option(204_800, least=1, help="examples of an epoch that is simulated")
    ranks: tuple[int, ...] = option((8, 64, 1024), least=1, help="numbers of processes that are simulated")
    shards: Path | None = option(None, help="directory of shards for BART, which 1, 2 and 4 processes read")
    steps: int = option(300, least=1, help="optimizer steps that are read")


def waiting(times: np.ndarray) -> str:
    """The share of all time in which processes wait for the slowest one of each step; times are (steps, processes)."""
    return f"{100 * (1 - times.mean() / times.max(axis=1).mean()):.1f} %"


def times_of(order: TrainOrder, config: BartConfig) -> np.ndarray:
    def time_of(batch: np.ndarray) -> float:
        lengths = order.lengths[batch]
        if order.is_padded:
            lengths = np.full_like(lengths, padded_length(lengths.max(axis=0)))
        return training_operations(config, *lengths.T).sum()

    return np.array([[sum(map(time_of, share)) for share in step] for step in order.of_all(0)])


def times_of_shards(config: BartConfig, size: int, shortest: int, ranks: int = 320) -> np.ndarray:
    """Of shards of examples of the shortest to 128 tokens, in all 107 on average; a process has so many of them."""
    shards = [Shard(f"{number}", 128, 1 << 16, "", number << 16, ROWS) for number in range(-(-ranks * size >> 14))]
    order, generator = BinOrder(shards, range(len(shards)), ranks * size, (0, 0, 0)), np.random.default_rng(0)
    drawn = generator.lognormal(np.log(131), 0.6, 1 << 20).clip(8, 128).astype(int)
    lengths = generator.choice(drawn[drawn >= shortest], (len(order.ends), ROWS))
    read = np.concatenate([group[order.arranged(place, group)] for place, group in enumerate(lengths)])
    steps = np.stack([read[order.positions(step, np.arange(ranks * size))] for step in range(order.full)])
    return training_operations(config, steps, steps).reshape(-1, ranks, size).sum(axis=2)


def simulate(examples: int, numbers_of_ranks: Sequence[int]) -> None:
    """Print the shares of waiting for pairs of texts, and for shards."""
    config, generator = BartConfig.from_pretrained(ROOT / "configs/config.json"), np.random.default_rng(0)
    rows: dict[str, dict[str, str]] = {}
    for data, (medians, spreads) in DATA.items():
        lengths = generator.lognormal(np.log(medians), spreads, (examples, 2)).clip(8, 1024).astype(int)
        padded = {"group_by_length": False, "is_padded": True}
        orders = {
            "default": {"group_by_length": False},
            "`--sortish_sampler`": {},
            "`--max_tokens_per_batch`": {"max_tokens": int(SIZE * lengths.sum(axis=1).mean())},
            "padded, default": padded,
            "padded, 4 micro-batches": {**padded, "batch_size": SIZE // 4, "accumulation": 4},
        }
        for ranks in numbers_of_ranks:
            for name, options in orders.items():
                order = TrainOrder(lengths, **{"batch_size": SIZE, "seed": 0, "world_size": ranks, **options})
                rows.setdefault(name, {"order": name})[f"{data}, {ranks}"] = waiting(times_of(order, config))
    print_table([*rows.values()])
    of_shards: list[dict[str, Any]] = []
    for name, shortest in (("without bins", 8), ("a bin of 97 to 128 tokens", 97)):
        shares = {f"320 of {size}": waiting(times_of_shards(config, size, shortest)) for size in (1, 8, 32, 200)}
        of_shards.append({"shards": name, **shares})
    print_table(of_shards)


def read(directory: Path, steps: int, processes: int, rank: int) -> tuple[float, float]:
    """The seconds in which a process makes its part of the steps, after one to warm up, and its CPU seconds."""
    task = Denoising(Place(str(directory)))
    collate = partial(task.collate, tokenizer=task.tokenizer)
    batches, examples = BatchOptions(train_batch_size=READ_SIZE // processes), StreamedShards(task.manifest, task.noise)
    stream = TrainStream(examples, collate, batches, 0, rank, processes)
    stream[0]
    began, cpu = time.perf_counter(), time.process_time()
    for step in range(steps):
        stream[step]
    return time.perf_counter() - began, time.process_time() - cpu


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_dataclass(ScaleOptions, argv, str(__doc__).splitlines()[0])
    if options.shards is None:
        simulate(options.examples, options.ranks)
        return
    rows = []
    for processes in (1, 2, 4):
        with ProcessPoolExecutor(processes, get_context("fork")) as pool:  # as loader processes are
            results = list(pool.map(partial(read, options.shards, options.steps, processes), range(processes)))
        seconds, cpu = map(max, zip(*results, strict=True))
        speed = f"{READ_SIZE * options.steps / seconds:,.0f}"
        rows.append({"processes": processes, "sequences/s": speed, "CPU s of each": f"{cpu:.2f}"})
    print_table(rows)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    print(markdown_table(rows, {column: column for column in rows[0]}))
