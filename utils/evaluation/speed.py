"""How fast a split was decoded: what a process measures, and the report over all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bart.modeling.modeling_bart import BartForConditionalGeneration

PERCENTILES = (50, 90, 95, 99, 100)
BINS = 20


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Timings:
    """What a process measured while the clock ran.

    Attributes:
        seconds: from the first article to the last.
        encode, detokenise: seconds of these, out of `seconds`.
        latencies: seconds of each article in the batch, or of each static batch.
        articles, tokens: done, and generated for their best sequences.
    """

    seconds: float = 0.0
    encode: float = 0.0
    detokenise: float = 0.0
    latencies: list[float] = field(default_factory=list)
    articles: int = 0
    tokens: int = 0

    @contextmanager
    def running(self, model: BartForConditionalGeneration) -> Iterator[None]:
        """The clock runs inside, and each encoding is timed, which a GPU is waited for to do."""
        encode = model.encode

        def timed(*inputs: Any, **named: Any) -> Tensor:
            synchronise(model.device)
            start = time.perf_counter()
            states = encode(*inputs, **named)
            synchronise(model.device)
            self.encode += time.perf_counter() - start
            return states

        synchronise(model.device)
        start = time.perf_counter()
        model.encode = timed
        try:
            yield
        finally:
            del model.encode
            synchronise(model.device)
            self.seconds += time.perf_counter() - start


@dataclass
class ProcessSpeed:
    """What the report needs to know of a process.

    Attributes:
        tokenise: seconds for all sources.
        warmup_articles: decoded before the clock ran.
        batch_size: at the end, when memory may have run out.
    """

    timings: Timings
    tokenise: float
    warmup_articles: int
    batch_size: int
    peak_memory_gb: float


def speed_report(
    processes: Sequence[ProcessSpeed], batching: str, device: torch.device, resumed: int
) -> dict[str, Any]:
    """What `<split>_speed.json` holds.

    Rates are those of all processes together, over the time of the slowest one; `seconds` is how that one spent it, and
    before it tokenising. What nothing was timed for is None.

    Args:
        resumed: articles that an earlier attempt at the run had decoded.
    """
    slowest = max(processes, key=lambda process: process.timings.seconds)
    timings = slowest.timings
    articles = sum(process.timings.articles for process in processes)
    tokens = sum(process.timings.tokens for process in processes)
    milliseconds = 1000 * np.concatenate([process.timings.latencies for process in processes])
    latency: dict[str, float | None] = dict.fromkeys(["mean", *(f"p{point}" for point in PERCENTILES)])
    counts, edges = np.zeros(0, dtype=int), np.zeros(0)
    if len(milliseconds):
        latency = {"mean": float(milliseconds.mean())}
        latency |= {f"p{point}": float(np.percentile(milliseconds, point)) for point in PERCENTILES}
        counts, edges = np.histogram(milliseconds, bins=BINS)
    return {
        "articles_per_second": articles / timings.seconds if articles else None,
        "generated_tokens_per_second": tokens / timings.seconds if articles else None,
        "generation_seconds": timings.seconds,
        "latency_ms": latency,
        "latency_histogram": {"edges_ms": edges.tolist(), "counts": counts.tolist()},
        "batching": batching,
        "batch_size": min(process.batch_size for process in processes),
        "seconds": {
            "tokenise": slowest.tokenise,
            "encode": timings.encode,
            "decode": timings.seconds - timings.encode - timings.detokenise,
            "detokenise": timings.detokenise,
        },
        "warmup_articles": sum(process.warmup_articles for process in processes),
        "timed_articles": articles,
        "resumed_articles": resumed,
        "peak_memory_gb": max(process.peak_memory_gb for process in processes),
        "processes": len(processes),
        "device": f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device),
    }
