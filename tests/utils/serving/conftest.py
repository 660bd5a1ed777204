"""A tiny model for the service, and a decoder that takes its steps when a test tells it to."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bart.generation import GeneratedArticle
from tests.tiny_run import tiny_bart
from tests.utils.long_texts import WORDS, tokenizer
from utils.prediction.options import InferenceOptions, LongDocumentOptions
from utils.serving.arguments import ServeArguments
from utils.serving.summaries import SummaryService

POSITIONS = 150


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in Hub format, whose summaries differ from text to text."""
    folder = tmp_path_factory.mktemp("export")
    sizes = {"max_position_embeddings": POSITIONS, "vocab_size": len(tokenizer())}
    model = tiny_bart(seed=3, **sizes, init_std=0.6, num_beams=2, max_length=16, min_length=4)
    model.final_logits_bias[0, tokenizer().eos_token_id] = 6.0
    model.save_pretrained(folder, tokenizer())
    return folder


def service(model: Path, **options: Any) -> SummaryService:
    """The service of a model, with its options by name."""
    inference = InferenceOptions(model=str(model), gpus=0)
    args = ServeArguments(inference=inference, documents=LongDocumentOptions(), threads=1, **options)
    return SummaryService(args)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Texts of 3 to 60 words, and two that are longer than the model."""
    rng = random.Random(2)
    lengths = [rng.randint(3, 60) for _ in range(38)] + [120, 160]
    return [" ".join(rng.choices([*WORDS, "hill. The"], k=length)) + "." for length in lengths]


class Decoder:
    """Replaces `generate_live`: an article takes as many steps as its first id says, but at least one.

    It waits for `step` before each of them.

    Attributes:
        seen: for each step the options, and the sources in the batch.
        memory: articles for which there is memory.
        fault: raised in the next step.
        bad_options: options with which nothing can begin.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], list[list[int]]]] = []
        self.memory = 1000
        self.fault: BaseException | None = None
        self.bad_options: dict[str, Any] | None = None
        self.steps = threading.Semaphore(0)

    def __call__(
        self, model: object, arrivals: Callable[[int], Any], batch_size: int, **options: Any
    ) -> Iterator[GeneratedArticle]:
        options.pop("num_return_sequences")
        if options == self.bad_options:
            raise ValueError("bad options")
        batch = {number: [ids[0], ids] for number, ids in arrivals(batch_size)}
        while batch:
            if len(batch) > self.memory:
                raise torch.OutOfMemoryError(f"no memory for {len(batch)} articles")
            self.seen.append((options, [ids for _, ids in batch.values()]))
            self.steps.acquire()
            if self.fault is not None:
                raise self.fault
            for number in list(batch):
                batch[number][0] -= 1
                if batch[number][0] <= 0:
                    _, ids = batch.pop(number)
                    yield GeneratedArticle(number, torch.tensor([[7, *ids]]), 0.0)
            if room := batch_size - len(batch):
                batch |= {number: [ids[0], ids] for number, ids in arrivals(room)}

    def step(self, steps: int = 1) -> None:
        """Take steps, and wait until the one after them is asked for."""
        for _ in range(steps):
            seen = len(self.seen)
            self.steps.release()
            until(lambda seen=seen: len(self.seen) > seen)

    def run(self) -> None:
        """Take all steps from now on."""
        self.steps.release(1_000_000)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    decoder = Decoder()
    monkeypatch.setattr("utils.serving.summaries.generate_live", decoder)
    return decoder


def until(condition: Callable[[], object]) -> None:
    """Wait until something holds; the limit only ends a test that hangs."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never holds"
        time.sleep(0.002)
