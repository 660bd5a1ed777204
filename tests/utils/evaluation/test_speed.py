"""Which examples a process predicts, and in which batches, with a task that only takes note of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from utils.app import progress
from utils.app.memory import FittingSize
from utils.app.progress import Clock
from utils.app.unfinished import Unfinished
from utils.evaluation import speed as module
from utils.evaluation.speed import Share, predict_share, speed_report
from utils.tasks.task import Prediction

LENGTHS = np.array([5, 9, 2, 7, 3, 8, 4, 6, 1, 11, 10])
EXAMPLES: Any = SimpleNamespace(lengths=LENGTHS[:, None], seconds=0.5)
LOADED: Any = SimpleNamespace(model=SimpleNamespace(device=torch.device("cpu")))


class Notes:
    """A task that notes the lengths of what it was given at once. Of each example encoding takes a second."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[int], int]] = []

    def predict(
        self, loaded: Any, examples: Any, numbers: Sequence[int], size: int, clock: Clock
    ) -> Iterator[tuple[int, Prediction]]:
        self.batches.append(([int(LENGTHS[number]) for number in numbers], size))
        for number in reversed(numbers):
            clock.seconds["encode"] += 1
            yield number, Prediction({"length": int(LENGTHS[number])}, 1.0, 1, tokens=2, seconds=0.25)


def share(
    monkeypatch: pytest.MonkeyPatch, folder: Path, rank: int, world: int, warmup: int, todo: list[int]
) -> tuple[Notes, Share]:
    monkeypatch.setattr(module, "rank_and_world", lambda: (rank, world))
    task, noted = Notes(), Unfinished(folder / f"rank{rank}.jsonl", {}, "")
    fitted: Any = task, LOADED, EXAMPLES, todo, FittingSize(3, "--bs"), warmup, noted
    predicted = predict_share(*fitted)
    assert noted.done == len(predicted.predicted)
    noted.finish()
    return task, predicted


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("todo", [[9, 0, 4, 7, 10], [3], []])
def test_every_example_left_is_predicted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: int, todo: list[int]
) -> None:
    found: dict[int, Prediction] = {}
    timed = 0
    for rank in range(world):
        _, each = share(monkeypatch, tmp_path, rank, world, 1, todo)
        assert not found.keys() & each.predicted.keys() and {*each.timed} <= each.predicted.keys()
        found |= each.predicted
        timed += len(each.timed)
        assert len(each.timed) == each.seconds["encode"]
    assert {number: entry.values["length"] for number, entry in found.items()} == {n: LENGTHS[n] for n in todo}
    assert timed > 0 or not todo


def test_batches_and_warm_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process decodes all of its examples at once, since new ones take the places of those that are done."""
    first = share(monkeypatch, tmp_path, 0, 2, 0, list(range(11)))[0]
    second = share(monkeypatch, tmp_path, 1, 2, 0, list(range(11)))[0]
    assert first.batches == [([11, 9, 7, 5, 3, 1], 3)]
    assert second.batches == [([10, 8, 6, 4, 2], 3)]
    task, each = share(monkeypatch, tmp_path, 0, 1, 1, list(range(11)))
    assert task.batches == [([11, 8, 4], 3), ([10, 9, 7, 6, 5, 3, 2, 1], 3)]
    assert len(each.timed) == 8


def test_time_that_is_no_part_of_a_prediction_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Time stands still but for a pause of a second, beside which everything else takes half of one."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])

    def predict(self: Notes, loaded: Any, examples: Any, numbers: Sequence[int], size: int, clock: Clock) -> Any:
        now[0] += 0.5
        with clock.part("paused"):
            now[0] += 1
        for number in numbers:
            yield number, Prediction({}, 1.0, 1)

    monkeypatch.setattr(Notes, "predict", predict)
    assert share(monkeypatch, tmp_path, 0, 1, 0, list(range(11)))[1].seconds["total"] == 0.5


def test_the_slowest_process_gives_the_time_and_all_give_the_articles() -> None:
    seconds = 0.1, 0.2, 0.3, 0.4, 1.0, 9.0, 9.0, 9.0  # of which the last three warmed up
    every = {number: Prediction({}, 0.0, 0, 16, each) for number, each in enumerate(seconds)}
    fast = Share({n: every[n] for n in (0, 1, 5)}, [0, 1], {"total": 2.0, "encode": 0.5, "detokenise": 0.25}, 8, 1.5)
    others = {n: every[n] for n in (2, 3, 4, 6, 7)}
    slow = Share(others, [2, 3, 4], {"total": 4.0, "encode": 1.0, "detokenise": 0.5}, 4, 1.25)
    report = speed_report([fast, slow], torch.device("cpu"), resumed=6)
    assert report.pop("latency_ms") == pytest.approx(
        {"mean": 400, "p50": 300, "p90": 760, "p95": 880, "p99": 976, "p100": 1000}
    )
    assert report == {
        "articles_per_second": 5 / 4,
        "generated_tokens_per_second": 80 / 4,
        "generation_seconds": 4.0,
        "batch_size": 4,
        "seconds": {"encode": 1.0, "decode": 2.5, "detokenise": 0.5},
        "warmup_articles": 3,
        "timed_articles": 5,
        "resumed_articles": 6,
        "peak_memory_gb": 1.5,
        "processes": 2,
        "device": "cpu",
    }
