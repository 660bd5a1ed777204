"""The speed at which the processes of a run read shards, and the share of the time for which they would wait.

    python scripts/benchmarks/reading.py SHARDS --processes 1 2 4

Each process makes its part of the same steps, all at the same time, after one to warm up. CPU seconds are those of its
loader processes, too. Waiting is simulated: a share takes time in proportion to its tokens, a step that of its longest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bart and utils, which Python does not find by itself

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.reading")

import numpy as np

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass
from utils.app.formatting import plain_table
from utils.data.options import BatchOptions, Place
from utils.data.shards import StreamedShards
from utils.data.streaming import StreamLoader, TrainStream
from utils.tasks.denoising import Denoising

MOST = 1 << 17  # examples of which waiting is simulated


@dataclass(frozen=True)
class ReadingOptions:
    shards: Path = option(positional=True, help="directory of shards, for BART")
    processes: tuple[int, ...] = option((1, 2, 4), least=1, help="numbers of processes to compare")
    num_workers: int = option(0, least=0, help="loader processes of each")
    step_size: int = option(768, least=1, help="examples of an optimizer step, of all processes")
    steps: int = option(300, least=1, help="optimizer steps")
    waiting: tuple[int, ...] = option((8, 64, 320), least=1, help="numbers of processes of which waiting is simulated")
    batch_sizes: tuple[int, ...] = option((1, 8, 32, 200), least=1, help="examples of each of them in a step")

    def __post_init__(self) -> None:
        if uneven := [each for each in self.processes if self.step_size % each]:
            raise InputError(f"--step_size is {self.step_size}; allowed: multiples of --processes, {uneven[0]}")


def stream_of(shards: Path, batch_size: int, rank: int = 0, processes: int = 1) -> TrainStream:
    task = Denoising(Place(str(shards)))
    collate, batches = partial(task.collate, tokenizer=task.tokenizer), BatchOptions(train_batch_size=batch_size)
    return TrainStream(StreamedShards(task.manifest, task.noise), collate, batches, 0, rank, processes)


def read(options: ReadingOptions, processes: int, rank: int) -> tuple[float, float]:
    """The seconds in which a process makes its part of the steps, and its CPU seconds."""
    stream = stream_of(options.shards, options.step_size // processes, rank, processes)
    stream[0]
    began, before = time.perf_counter(), cpu_seconds()
    for _ in StreamLoader(replace(stream), options.steps, num_workers=options.num_workers):
        pass
    return time.perf_counter() - began, cpu_seconds() - before


def cpu_seconds() -> float:
    return sum(usage.ru_utime + usage.ru_stime for usage in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


def measured(options: ReadingOptions, processes: int) -> list[str]:
    """A row of the table of speeds: figures of all processes together, and of the slowest one."""
    context = get_context("fork")  # as that of loader processes
    with ProcessPoolExecutor(processes, context, context.Barrier(processes).wait) as pool:
        results = pool.map(partial(read, options, processes), range(processes))
        seconds, cpu = map(max, zip(*results, strict=True))
    examples = options.step_size * options.steps
    return [str(processes), f"{examples / seconds:,.0f}", f"{cpu:.2f}"]


def waiting(shards: Path, processes: int, batch_size: int) -> str:
    stream = stream_of(shards, processes * batch_size)
    steps = range(min(stream.steps_per_epoch, max(1, MOST // stream.examples_per_step)))
    full = [rows for rows, count in map(stream.share, steps) if count == stream.examples_per_step]
    work = np.array([[len(row.ids) for row in rows] for rows in full]).reshape(-1, processes, batch_size).sum(axis=2)
    return f"{1 - work.mean() / work.max(axis=1).mean():.1%}" if full else "too few"


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_dataclass(ReadingOptions, argv, str(__doc__).splitlines()[0])
    rows = [measured(options, processes) for processes in options.processes]
    print(plain_table(rows, ["processes", "sequences/s", "CPU s of each"], words=0))
    sizes = options.batch_sizes
    rows = [[str(each), *(waiting(options.shards, each, size) for size in sizes)] for each in options.waiting]
    print(plain_table(rows, ["waiting", *(f"{size} examples each" for size in sizes)], words=0))
