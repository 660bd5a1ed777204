"""Which articles a process decodes, and in which batches, with a model that only takes note of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bart.generation import GeneratedArticle
from utils.evaluation import decoding
from utils.evaluation.decoding import decode_share
from utils.evaluation.journal import Decoded, Journal

LENGTHS = [5, 9, 2, 7, 3, 8, 4, 6, 1, 11, 10]  # an article's ids are all its length


class Sources:
    """As much of TokenizedTexts as decoding reads."""

    lengths = np.array(LENGTHS)
    seconds = 0.5

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(LENGTHS[index], LENGTHS[index])


class Notes:
    """A model that returns each source's first id after a start token, and notes what it was given at once."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.batches: list[tuple[list[int], int]] = []

    def encode(self) -> None: ...

    def generate_many(self, sources: list[list[int]], size: int) -> Iterator[GeneratedArticle]:
        self.batches.append(([len(source) for source in sources], size))
        for index, source in reversed(list(enumerate(sources))):
            yield GeneratedArticle(index, torch.tensor([[2, source[0], 0, 0]]), 0.25)


TOKENIZER: Any = SimpleNamespace(pad_token_id=0, batch_decode=lambda rows, **_: [f" {int(row[1])}\n." for row in rows])


def share(
    monkeypatch: pytest.MonkeyPatch, folder: Path, rank: int, world: int, batching: str, warmup: int, todo: list[int]
) -> tuple[Notes, dict[int, Decoded], decoding.ProcessSpeed]:
    monkeypatch.setattr(decoding, "rank_and_world", lambda: (rank, world))
    model, journal = Notes(), Journal(folder, "test")
    journal.open(rank)
    decoded, speed = decode_share(
        model,
        TOKENIZER,
        Sources(),
        todo,
        {},
        batch_size=3,
        batching=batching,
        warmup_batches=warmup,
        journal=journal,
    )
    journal.close()
    return model, decoded, speed


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0, 1])
def test_static_batches_do_not_depend_on_the_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: int, warmup: int
) -> None:
    batches = []
    for rank in range(world):
        model, _, speed = share(monkeypatch, tmp_path, rank, world, "static", warmup, list(range(11)))
        batches += [lengths for lengths, _ in model.batches]
        assert len(speed.timings.latencies) == len(model.batches) - (warmup if len(model.batches) > 1 else 0)
    assert sorted(batches, reverse=True) == [[11, 10, 9], [8, 7, 6], [5, 4, 3], [2, 1]]


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("todo", [list(range(11)), [9, 0, 4, 7, 10], [3], []])
def test_every_article_left_is_decoded_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, batching: str, world: int, todo: list[int]
) -> None:
    found: dict[int, Decoded] = {}
    timed = warm = 0
    for rank in range(world):
        _, decoded, speed = share(monkeypatch, tmp_path, rank, world, batching, 1, todo)
        assert not found.keys() & decoded.keys()
        found |= decoded
        timed += speed.timings.articles
        warm += speed.warmup_articles
        assert speed.timings.tokens == speed.timings.articles
    assert found == {index: Decoded([f"{LENGTHS[index]} ."], 1) for index in todo}
    assert timed + warm == len(todo) and (timed > 0 or not todo)
    noted = [line for path in (tmp_path / ".test_progress").glob("rank*") for line in path.read_text().splitlines()]
    assert len(noted) == len(todo)


def test_continuous_batches_get_all_articles_at_once_shared_by_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = share(monkeypatch, tmp_path, 0, 2, "continuous", 0, list(range(11)))[0]
    second = share(monkeypatch, tmp_path, 1, 2, "continuous", 0, list(range(11)))[0]
    assert first.batches == [([11, 9, 7, 5, 3, 1], 3)]
    assert second.batches == [([10, 8, 6, 4, 2], 3)]
    model, _, speed = share(monkeypatch, tmp_path, 0, 1, "continuous", 1, list(range(11)))
    assert model.batches == [([11, 8, 4], 3), ([10, 9, 7, 6, 5, 3, 2, 1], 3)]
    assert speed.timings.latencies == [0.25] * 8
