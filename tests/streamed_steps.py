"""The optimizer steps of a stream, collected and compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from utils.data import streaming
from utils.data.batches import Batch
from utils.data.streaming import TrainStream

WINDOW = 3  # steps
Steps = list[tuple[dict[str, Any], list[Batch]]]
# Steps of 12 examples: batch size, accumulation and ranks.
CUTS = [(12 // (k * ranks), k, ranks) for ranks in (1, 2, 3) for k in (1, 2, 4) if 12 % (k * ranks) == 0]


@pytest.fixture(autouse=True, scope="module")
def short_windows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "WINDOW", WINDOW)
        yield


def steps_of(stream: TrainStream, epoch: int) -> Steps:
    """The steps of one epoch."""
    steps: Steps = []
    for cursor, step in stream:
        if cursor["epoch"] > epoch:
            return steps
        if cursor["epoch"] == epoch:
            steps.append((cursor, step))
    raise AssertionError("a stream has no end")


def same(steps: Steps, expected: Steps) -> bool:
    """Return true if cursors and batches are equal."""
    return len(steps) == len(expected) and all(
        cursor == expected_cursor and len(step) == len(expected_step) and all(map(_same_batch, step, expected_step))
        for (cursor, step), (expected_cursor, expected_step) in zip(steps, expected, strict=True)
    )


def _same_batch(batch: Batch, expected: Batch) -> bool:
    facts, expected_facts = ((each.index, each.is_real, each.tokens) for each in (batch, expected))
    return facts == expected_facts and all(
        torch.equal(values, expected.inputs[name]) for name, values in batch.inputs.items()
    )
