"""A process's share of a split, predicted under a clock and noted in the journal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from utils.data.batches import Examples
from utils.distributed import rank_and_world
from utils.evaluation.journal import Journal
from utils.evaluation.speed import ProcessSpeed
from utils.memory import FittingSize, peak_memory_gb
from utils.progress import Clock, progress
from utils.tasks.task import Prediction, Task

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
CONTINUOUS, STATIC = BATCHINGS = ("continuous", "static")


def predict_share(
    task: Task[Any],
    model: nn.Module,
    examples: Examples,
    todo: Sequence[int],
    *,
    fitting: FittingSize,
    batching: str,
    warmup_batches: int,
    journal: Journal,
) -> tuple[dict[int, Prediction], ProcessSpeed]:
    """Predict this process's share of some examples, each of which one process gets.

    Static batches are those of all examples by length, whatever the number N of processes; of these, every N-th is this
    process's. With continuous batching every N-th example by length is.

    Args:
        todo: numbers of the examples left, in any order.
        fitting: how many examples are in work at once.
        warmup_batches: batches, of all lengths, that are predicted before the clock runs; at most half of the share.

    Returns:
        The share's predictions by number, and the process's speed.
    """
    rank, world = rank_and_world()
    device = model.device
    longest_first = sorted(todo, key=lambda number: -examples.lengths[number, 0])
    predicted: dict[int, Prediction] = {}
    speed = ProcessSpeed(fitting.size, tokenise=examples.seconds)
    clock = Clock()

    def finish(number: int, prediction: Prediction) -> None:
        predicted[number] = prediction
        journal.add(number, prediction)
        bar.update()
        logger.debug("example %d: %d tokens, %.0f ms", number, prediction.tokens, 1000 * prediction.seconds)

    def continuous(left: list[int], size: int) -> Iterator[int]:
        for number, prediction in task.predict(model, examples, left, size, clock):
            speed.latencies.append(prediction.seconds)
            finish(number, prediction)
            yield number

    def static(left: list[int], size: int) -> Iterator[int]:
        for part in _chunks(left, size):
            start, paused = time.perf_counter(), clock.seconds["paused"]
            found = list(task.predict(model, examples, part, size, clock))
            speed.latencies.append(time.perf_counter() - start - (clock.seconds["paused"] - paused))
            for number, prediction in found:
                finish(number, prediction)
            yield from part

    work: Callable[[list[int], int], Iterator[int]]
    if batching == STATIC:
        batches = _chunks(longest_first, fitting.size)[rank::world]
        warmup, timed = _spread(batches, warmup_batches)
        work, mine = static, sum(map(len, batches))
    else:
        share = longest_first[rank::world]
        first, rest = _spread(share, warmup_batches * fitting.size)
        # All at once: examples join as others leave.
        warmup, timed = ([part] if part else [] for part in (first, rest))
        work, mine = continuous, len(share)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with progress("predicting" + (f" (process 1 of {world})" if world > 1 else ""), mine, "examples") as bar:
        for batch in warmup:
            fitting.run(batch, work)
        speed.warmup_articles = len(predicted)
        speed.latencies.clear()
        clock.seconds.clear()
        with clock.part("total"):
            for batch in timed:
                fitting.run(batch, work)
    timed_numbers = [number for batch in timed for number in batch]
    speed.articles, speed.tokens = len(timed_numbers), sum(predicted[number].tokens for number in timed_numbers)
    clock.seconds["total"] -= clock.seconds["paused"]
    speed.seconds = clock.seconds
    speed.batch_size, speed.peak_memory_gb = fitting.size, peak_memory_gb(device)
    return predicted, speed


def _chunks(items: Sequence[Item], size: int) -> list[list[Item]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def _spread(items: Sequence[Item], count: int) -> tuple[list[Item], list[Item]]:
    """So many items, at most half, evenly from all of them; and the rest, in order."""
    count = min(count, len(items) // 2)
    chosen = {place * len(items) // count for place in range(count)}
    return [items[place] for place in sorted(chosen)], [item for place, item in enumerate(items) if place not in chosen]
