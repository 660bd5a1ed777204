"""A process's share of a split, predicted under a clock and noted as it is done."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TypeVar

import torch

from utils.app.distributed import rank_and_world
from utils.app.memory import FittingSize, peak_memory_gb
from utils.app.progress import Clock, progress
from utils.app.unfinished import Unfinished
from utils.data.batches import Examples
from utils.evaluation.options import STATIC, ScoringOptions
from utils.evaluation.speed import ProcessSpeed
from utils.models.loading import LoadedModel
from utils.tasks.task import Prediction, ScoredTask

logger = logging.getLogger(__name__)
Item = TypeVar("Item")


def predict_share(
    task: ScoredTask,
    loaded: LoadedModel,
    examples: Examples,
    todo: Sequence[int],
    *,
    fitting: FittingSize,
    options: ScoringOptions,
    noted: Unfinished,
) -> tuple[dict[int, Prediction], ProcessSpeed]:
    """Predict this process's share of some examples; each example is in the share of one process.

    The examples are sorted by length. Static batches are cut from all of them, and of N processes each takes every N-th
    batch. With continuous batching each takes every N-th example.

    Args:
        todo: numbers of the examples left, in any order.
        fitting: how many examples are in work at once.
        options: its `warmup_batches`, of all lengths and at most half of the share, come before the clock runs.
        noted: gets each number with its prediction.

    Returns:
        The share's predictions by number, and the process's speed.
    """
    rank, world = rank_and_world()
    device, is_static = loaded.model.device, options.batching == STATIC
    longest_first = sorted(todo, key=lambda number: -examples.lengths[number, 0])
    predicted: dict[int, Prediction] = {}
    latencies: list[float] = []  # of static batches
    clock = Clock()

    def work(left: list[int], size: int) -> Iterator[int]:
        at_once = size if is_static else len(left)
        for begin in range(0, len(left), at_once):
            start, paused = time.perf_counter(), clock.seconds["paused"]
            for number, prediction in task.predict(loaded, examples, left[begin : begin + at_once], size, clock):
                predicted[number] = prediction
                noted.add([number, asdict(prediction)])
                bar.update()
                logger.debug("example %d: %d tokens, %.0f ms", number, prediction.tokens, 1000 * prediction.seconds)
                yield number
            latencies.append(time.perf_counter() - start - (clock.seconds["paused"] - paused))

    if is_static:
        chunks = range(0, len(longest_first), fitting.size)
        batches = [longest_first[start : start + fitting.size] for start in chunks][rank::world]
        warmup, timed = _spread(batches, options.warmup_batches)
    else:
        share = longest_first[rank::world]
        batches = [share]
        # All at once: examples join as others leave.
        warmup, timed = ([part] for part in _spread(share, options.warmup_batches * fitting.size))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    what = "predicting" + (f" (process 1 of {world})" if world > 1 else "")
    with progress(what, sum(map(len, batches)), "examples", wait=0) as bar:
        for batch in warmup:
            fitting.run(batch, work)
        warmed_up = len(predicted)
        clock.seconds.clear()
        latencies.clear()
        with clock.part("total"):
            for batch in timed:
                fitting.run(batch, work)
    clock.seconds["total"] -= clock.seconds["paused"]
    done = [predicted[number] for batch in timed for number in batch]
    return predicted, ProcessSpeed(
        batch_size=fitting.size,
        seconds=clock.seconds,
        latencies=latencies if is_static else [prediction.seconds for prediction in done],
        articles=len(done),
        tokens=sum(prediction.tokens for prediction in done),
        tokenise=examples.seconds,
        warmup_articles=warmed_up,
        peak_memory_gb=peak_memory_gb(device),
    )


def _spread(items: Sequence[Item], count: int) -> tuple[list[Item], list[Item]]:
    """So many items, at most half, evenly from all of them; and the rest, in order."""
    count = min(count, len(items) // 2)
    chosen = {place * len(items) // count for place in range(count)}
    return [items[place] for place in sorted(chosen)], [item for place, item in enumerate(items) if place not in chosen]
