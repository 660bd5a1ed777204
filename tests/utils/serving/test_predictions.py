"""Requests to a classifier share batches, and get what each would get alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.heads import BartForSequenceClassification
from tests.tiny_run import CONFIG
from tests.utils.long_texts import tokenizer
from tests.utils.serving.conftest import until
from utils.data.columns import Record
from utils.prediction.options import InferenceOptions, LongDocumentOptions
from utils.prediction.predictor import Predictor
from utils.serving.arguments import ServeArguments
from utils.serving.engine import DecodingFailed
from utils.serving.predictions import PredictionService

pytestmark = pytest.mark.usefixtures("one_thread")
FAULTS = {"bad": InputError("a bad text"), "worse": RuntimeError("a fault")}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(1)
    config = BartConfig(**{**CONFIG, "vocab_size": len(tokenizer()), "max_position_embeddings": 150, "init_std": 0.6})
    config.labels = ["a", "b", "c"]
    BartForSequenceClassification(config).save_pretrained(folder, tokenizer())
    return folder


class Held:
    """Replaces the call of Predictor: it notes the texts of each batch, and waits until it may begin."""

    def __init__(self, call: Any) -> None:
        self.call, self.begin, self.batches = call, threading.Event(), []

    def __call__(self, predictor: Predictor, records: Sequence[Record], columns: Sequence[str]) -> Iterator[Any]:
        self.batches.append([record.values["text"] for record in records])
        assert self.begin.wait(60)
        for record in records:
            if record.values["text"] in FAULTS:
                raise FAULTS[record.values["text"]]
        return self.call(predictor, records, columns)


@pytest.fixture
def service(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PredictionService, Held]]:
    held = Held(Predictor.__call__)
    monkeypatch.setattr(Predictor, "__call__", lambda *arguments: held(*arguments))
    inference, documents = InferenceOptions(model=str(classifier), gpus=0), LongDocumentOptions()
    service = PredictionService(
        ServeArguments(inference=inference, documents=documents, batch_size=16, task="classification")
    )
    yield service, held
    held.begin.set()
    asyncio.run(service.stop())
    assert not service.engine.thread.is_alive()


def ask(service: PredictionService, requests: Sequence[Sequence[str]], held: Held, drop: int = -1) -> list[Any]:
    """The answers to requests that all wait while the first is in work; the client of one of them leaves."""

    async def together() -> list[Any]:
        contents = [service.request_model(inputs=[{"text": text} for text in texts]) for texts in requests]
        work = [asyncio.ensure_future(service.compute(contents[0]))]
        while not held.batches:
            await asyncio.sleep(0.002)
        work += [asyncio.ensure_future(service.compute(content)) for content in contents[1:]]
        await asyncio.sleep(0)
        if drop >= 0:
            work[drop].cancel()
            await asyncio.sleep(0)
        held.begin.set()
        return await asyncio.gather(*work, return_exceptions=True)

    return asyncio.run(together())


def test_requests_that_wait_share_a_batch(
    service: tuple[PredictionService, Held], classifier: Path, texts: list[str]
) -> None:
    task = service[0].predictor.task
    answers = ask(service[0], [[text] for text in texts[:24]] + [texts[24:30]], service[1])
    assert [len(batch) for batch in service[1].batches] == [1, 16, 13]
    found = [row for answer in answers for row in answer["predictions"]]
    assert len({row["prediction"] for row in found}) > 1
    for text, row in zip(texts[:30], found, strict=True):
        [(alone, _)] = service[0].predictor([Record(text, {"text": text})], ["text"])
        assert row["prediction"] == alone[task.prediction_name]
        assert row["scores"] == pytest.approx(alone["scores"], abs=1e-6)


def test_each_request_fails_alone(service: tuple[PredictionService, Held], texts: list[str]) -> None:
    first, dropped, bad, worse, good = ask(
        service[0], [texts[:1], texts[1:2], [texts[2], "bad"], ["worse"], texts[3:6]], service[1], drop=1
    )
    assert service[1].batches[:2] == [texts[:1], [texts[2], "worse", texts[3], "bad", *texts[4:6]]]
    assert isinstance(dropped, asyncio.CancelledError)
    assert (bad, worse) == (FAULTS["bad"], FAULTS["worse"])
    assert [len(answer["predictions"]) for answer in (first, good)] == [1, 3]
    assert ask(service[0], [["bad", *texts[:30] * 8, "last"]], service[1]) == [FAULTS["bad"]]
    until(lambda: not service[0].engine.in_work)
    assert not any("last" in batch for batch in service[1].batches)  # the rest of a bad request has left the queue
    service[0].engine.stop()
    until(lambda: not service[0].engine.thread.is_alive())
    with pytest.raises(DecodingFailed):
        asyncio.run(service[0].compute(service[0].request_model(inputs=[{"text": "a"}])))
