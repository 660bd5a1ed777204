from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from utils.evaluation.decoding import _spread
from utils.evaluation.speed import ProcessSpeed, Timings, speed_report

CPU = torch.device("cpu")


def test_the_slowest_process_gives_the_time_and_all_give_the_articles() -> None:
    fast = ProcessSpeed(Timings(2.0, 0.5, 0.25, [0.1, 0.2], articles=2, tokens=30), 0.7, 1, 8, 1.5)
    slow = ProcessSpeed(Timings(4.0, 1.0, 0.5, [0.3, 0.4, 1.0], articles=3, tokens=50), 0.6, 2, 4, 1.25)
    report = speed_report([fast, slow], "static", CPU, resumed=6)
    milliseconds = [100, 200, 300, 400, 1000]
    assert report["latency_ms"] == pytest.approx(
        {"mean": 400, "p50": 300, "p90": 760, "p95": 880, "p99": 976, "p100": 1000}
    )
    histogram = report.pop("latency_histogram")
    assert len(histogram["edges_ms"]) == len(histogram["counts"]) + 1
    assert histogram["edges_ms"][0] == pytest.approx(100) and histogram["edges_ms"][-1] == pytest.approx(1000)
    for low, high, count in zip(histogram["edges_ms"], histogram["edges_ms"][1:], histogram["counts"], strict=False):
        last = high == histogram["edges_ms"][-1]
        assert count == sum(low <= value < high or (last and value >= high) for value in milliseconds)
    report.pop("latency_ms")
    assert report == {
        "articles_per_second": 5 / 4,
        "generated_tokens_per_second": 80 / 4,
        "generation_seconds": 4.0,
        "batching": "static",
        "batch_size": 4,
        "seconds": {"tokenise": 0.6, "encode": 1.0, "decode": 2.5, "detokenise": 0.5},
        "warmup_articles": 3,
        "timed_articles": 5,
        "resumed_articles": 6,
        "peak_memory_gb": 1.5,
        "processes": 2,
        "device": "cpu",
    }


def test_nothing_timed_is_none() -> None:
    report = speed_report([ProcessSpeed(Timings(), 0.1, 0, 8, 1.0)], "continuous", CPU, resumed=9)
    assert report["articles_per_second"] is report["generated_tokens_per_second"] is None
    assert set(report["latency_ms"].values()) == {None}
    assert report["latency_histogram"] == {"edges_ms": [], "counts": []}


def test_encoding_is_timed_inside_the_clock_and_only_there() -> None:
    class Model(SimpleNamespace):
        def encode(self, ids: int, mask: int | None = None) -> tuple[int, int | None]:
            time.sleep(0.02)
            return ids, mask

    model, timings = Model(device=CPU), Timings()
    with timings.running(model):
        assert model.encode(1, mask=2) == (1, 2)
        time.sleep(0.03)
        model.encode(3)
    assert 0.04 <= timings.encode < timings.seconds - 0.02
    before = timings.encode
    model.encode(4)
    assert timings.encode == before
    with pytest.raises(ZeroDivisionError), timings.running(model):
        raise ZeroDivisionError
    assert "encode" not in vars(model)


@pytest.mark.parametrize(("length", "count"), [(0, 3), (1, 1), (2, 1), (9, 4), (9, 9), (10, 0), (10, 3), (100, 7)])
def test_warm_up_takes_at_most_half_and_from_everywhere(length: int, count: int) -> None:
    chosen, rest = _spread(range(length), count)
    assert len(chosen) == min(count, length // 2)
    assert sorted([*chosen, *rest]) == list(range(length))
    if len(chosen) > 1:
        assert chosen[-1] >= length * (len(chosen) - 1) // len(chosen)
        assert np.ptp(np.diff(chosen)) <= 1
