"""The speed at which a split was predicted: the measurements of a process, and the report over all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

PERCENTILES = (50, 90, 95, 99, 100)
BINS = 20


@dataclass
class ProcessSpeed:
    """The measurements of a process while the clock ran.

    Attributes:
        seconds: of the parts of the work: "total", and of it "encode" and "detokenise".
        latencies: seconds of each example.
        articles, tokens: articles done, and tokens generated for their best sequences.
        tokenise: seconds for all sources, before the clock ran.
        warmup_articles: articles predicted before the clock ran.
        batch_size: the batch size at the end; it shrinks where memory runs out.
    """

    batch_size: int
    seconds: Mapping[str, float]
    latencies: Sequence[float]
    articles: int
    tokens: int
    tokenise: float
    warmup_articles: int
    peak_memory_gb: float


def speed_report(processes: Sequence[ProcessSpeed], device: torch.device, resumed: int) -> dict[str, Any]:
    """The content of `<split>_speed.json`.

    Rates are those of all processes together, over the time of the slowest one. `seconds` splits the time of that one,
    and adds the tokenising before it. A value for which nothing was timed is None.

    Args:
        resumed: articles that an earlier attempt at the run had predicted.
    """
    slowest = max(processes, key=lambda process: process.seconds["total"])
    total, encode, detokenise = (slowest.seconds[part] for part in ("total", "encode", "detokenise"))
    articles = sum(process.articles for process in processes)
    tokens = sum(process.tokens for process in processes)
    milliseconds = 1000 * np.concatenate([process.latencies for process in processes])
    latency: dict[str, float | None] = dict.fromkeys(["mean", *(f"p{point}" for point in PERCENTILES)])
    counts, edges = np.zeros(0, dtype=int), np.zeros(0)
    if len(milliseconds):
        values = [milliseconds.mean(), *np.percentile(milliseconds, PERCENTILES)]
        latency = dict(zip(latency, map(float, values), strict=True))
        counts, edges = np.histogram(milliseconds, bins=BINS)
    return {
        "articles_per_second": articles / total if articles else None,
        "generated_tokens_per_second": tokens / total if articles else None,
        "generation_seconds": total,
        "latency_ms": latency,
        "latency_histogram": {"edges_ms": edges.tolist(), "counts": counts.tolist()},
        "batch_size": min(process.batch_size for process in processes),
        "seconds": {
            "tokenise": slowest.tokenise,
            "encode": encode,
            "decode": total - encode - detokenise,
            "detokenise": detokenise,
        },
        "warmup_articles": sum(process.warmup_articles for process in processes),
        "timed_articles": articles,
        "resumed_articles": resumed,
        "peak_memory_gb": max(process.peak_memory_gb for process in processes),
        "processes": len(processes),
        "device": f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device),
    }
