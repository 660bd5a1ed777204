"""A process's share of a split, predicted under a clock and noted as it is done."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import torch

from utils.app.distributed import rank_and_world
from utils.app.memory import FittingSize, peak_memory_gb
from utils.app.progress import Clock, progress
from utils.app.unfinished import Unfinished
from utils.data.batches import Examples
from utils.evaluation.options import ScoringOptions
from utils.evaluation.speed import ProcessSpeed
from utils.models.loading import LoadedModel
from utils.tasks.task import Prediction, ScoredTask

logger = logging.getLogger(__name__)


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
    """Predict this process's share of some examples: of N processes each takes every N-th one by length.

    Args:
        todo: numbers of the examples left, in any order.
        fitting: how many examples are in work at once.
        options: its `warmup_batches`, of all lengths and at most half of the share, come before the clock runs.
        noted: gets each number with its prediction.

    Returns:
        The share's predictions by number, and the process's speed.
    """
    rank, world = rank_and_world()
    device = loaded.model.device
    longest_first = sorted(todo, key=lambda number: -examples.lengths[number, 0])
    predicted: dict[int, Prediction] = {}
    clock = Clock()

    def work(left: list[int], size: int) -> Iterator[int]:
        for number, prediction in task.predict(loaded, examples, left, size, clock):
            predicted[number] = prediction
            noted.add([number, asdict(prediction)])
            bar.update()
            logger.debug("example %d: %d tokens, %.0f ms", number, prediction.tokens, 1000 * prediction.seconds)
            yield number

    share = longest_first[rank::world]
    warmup, timed = _spread(share, options.warmup_batches * fitting.size)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    what = "predicting" + (f" (process 1 of {world})" if world > 1 else "")
    with progress(what, len(share), "examples", wait=0) as bar:
        fitting.run(warmup, work)
        warmed_up = len(predicted)
        clock.seconds.clear()
        with clock.part("total"):
            fitting.run(timed, work)
    clock.seconds["total"] -= clock.seconds["paused"]
    done = [predicted[number] for number in timed]
    return predicted, ProcessSpeed(
        batch_size=fitting.size,
        seconds=clock.seconds,
        latencies=[prediction.seconds for prediction in done],
        articles=len(done),
        tokens=sum(prediction.tokens for prediction in done),
        tokenise=examples.seconds,
        warmup_articles=warmed_up,
        peak_memory_gb=peak_memory_gb(device),
    )


def _spread(items: Sequence[int], count: int) -> tuple[list[int], list[int]]:
    """So many items, at most half, evenly from all of them; and the rest, in order."""
    count = min(count, len(items) // 2)
    chosen = {place * len(items) // count for place in range(count)}
    return [items[place] for place in sorted(chosen)], [item for place, item in enumerate(items) if place not in chosen]
