"""The speed at which the processes of a training run read shards.

    python scripts/benchmarks/reading.py SHARDS --processes 1 2 4

Each process makes its part of the same steps, all at the same time, after one to warm up. CPU seconds are those of its
loader processes, too.
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

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass
from utils.app.formatting import plain_table
from utils.data.options import BatchOptions, Place
from utils.data.shards import StreamedShards
from utils.data.streaming import StreamLoader, TrainStream
from utils.tasks.denoising import Denoising


@dataclass(frozen=True)
class ReadingOptions:
    shards: Path = option(positional=True, help="directory of shards, for BART")
    processes: tuple[int, ...] = option((1, 2, 4), least=1, help="numbers of processes to compare")
    num_workers: int = option(0, least=0, help="loader processes of each")
    step_size: int = option(768, least=1, help="examples of an optimizer step, of all processes")
    steps: int = option(300, least=1, help="optimizer steps")

    def __post_init__(self) -> None:
        if uneven := [each for each in self.processes if self.step_size % each]:
            raise InputError(f"--step_size is {self.step_size}; allowed: multiples of --processes, {uneven[0]}")


def read(options: ReadingOptions, processes: int, rank: int) -> tuple[float, float]:
    """The seconds in which a process makes its part of the steps, and its CPU seconds."""
    task = Denoising(Place(str(options.shards)))
    examples, collate = StreamedShards(task.manifest, task.noise), partial(task.collate, tokenizer=task.tokenizer)
    batches = BatchOptions(train_batch_size=options.step_size // processes)
    stream = TrainStream(examples, collate, batches, 0, rank, processes)
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


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_dataclass(ReadingOptions, argv, str(__doc__).splitlines()[0])
    rows = [measured(options, processes) for processes in options.processes]
    print(plain_table(rows, ["processes", "sequences/s", "CPU s of each"], words=0))
