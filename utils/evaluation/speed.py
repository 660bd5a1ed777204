"""A process's share of a split, predicted under a clock and noted as it is done; the speed of all processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from utils.app.distributed import rank_and_world
from utils.app.memory import FittingSize, peak_memory_gb
from utils.app.progress import LOG_SECONDS, Clock, progress
from utils.app.unfinished import Unfinished
from utils.data.batches import Examples
from utils.models.loading import LoadedModel
from utils.tasks.task import Prediction, ScoredTask

logger = logging.getLogger(__name__)
PERCENTILES = (50, 90, 95, 99, 100)


@dataclass
class Share:
    """The predictions of a process, and its measurements while the clock ran."""

    predicted: dict[int, Prediction]  # by the numbers of their examples
    timed: Sequence[int]  # those that were predicted while the clock ran
    seconds: Mapping[str, float]  # of "total", and of it "encode" and "detokenise"
    batch_size: int  # at the end; it shrinks where memory runs out
    peak_memory_gb: float


def predict_share(
    task: ScoredTask,
    loaded: LoadedModel,
    examples: Examples,
    todo: Sequence[int],
    fitting: FittingSize,
    warmup_batches: int,
    noted: Unfinished,
) -> Share:
    """Predict this process's share: every N-th of `todo` by length, where N are at work.

    `warmup_batches`, of all lengths and at most half of the share, come before the clock runs.
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
    count = min(warmup_batches * fitting.size, len(share) // 2)
    chosen = {place * len(share) // count for place in range(count)}  # evenly from all lengths
    warmup = [share[place] for place in sorted(chosen)]
    timed = [number for place, number in enumerate(share) if place not in chosen]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    what = "predicting" + (f" (process 1 of {world})" if world > 1 else "")
    with progress(what, len(share), "examples", wait=0) as bar:
        bar.log_every(LOG_SECONDS)
        fitting.run(warmup, work)
        clock.seconds.clear()
        with clock.part("total"):
            fitting.run(timed, work)
    clock.seconds["total"] -= clock.seconds["paused"]
    return Share(predicted, timed, clock.seconds, fitting.size, peak_memory_gb(device))


def speed_report(shares: Sequence[Share], device: torch.device, resumed: int) -> dict[str, Any]:
    """The content of `<split>_speed.json`, where an earlier attempt had predicted `resumed` articles.

    Rates are those of all processes together, over the time of the slowest one, which `seconds` splits.
    """
    slowest = max(shares, key=lambda share: share.seconds["total"])
    total, encode, detokenise = (slowest.seconds[part] for part in ("total", "encode", "detokenise"))
    timed = [share.predicted[number] for share in shares for number in share.timed]
    milliseconds = 1000 * np.array([prediction.seconds for prediction in timed])
    latency: dict[str, float | None] = dict.fromkeys(["mean", *(f"p{point}" for point in PERCENTILES)])
    if timed:
        values = [milliseconds.mean(), *np.percentile(milliseconds, PERCENTILES)]
        latency = dict(zip(latency, map(float, values), strict=True))
    return {
        "articles_per_second": len(timed) / total if timed else None,
        "generated_tokens_per_second": sum(prediction.tokens for prediction in timed) / total if timed else None,
        "generation_seconds": total,
        "latency_ms": latency,
        "batch_size": min(share.batch_size for share in shares),
        "seconds": {"encode": encode, "decode": total - encode - detokenise, "detokenise": detokenise},
        "warmup_articles": sum(len(share.predicted) for share in shares) - len(timed),
        "timed_articles": len(timed),
        "resumed_articles": resumed,
        "peak_memory_gb": max(share.peak_memory_gb for share in shares),
        "processes": len(shares),
        "device": f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device),
    }
