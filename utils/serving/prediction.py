"""Requests to models that classify, tag and answer questions."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from utils.predict.predictor import Predictor, Unwanted
from utils.serving.arguments import HEAD_PATHS, ServeArguments
from utils.serving.endpoint import Endpoint
from utils.serving.engine import Busy
from utils.serving.requests import Text

# What clients know, or need not.
_LEFT_OUT = ("index", "id", "source", "pair", "question", "source_tokens")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TextOrPair(_Strict):
    text: Text
    pair: Text | None = Field(None, description="The second text, for a model that classifies pairs.")


class Words(_Strict):
    """A text, which is split at spaces and marks, or its words."""

    text: Text | None = None
    words: list[Text] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Words:
        if (self.text is None) == (self.words is None):
            raise ValueError("either 'text' or 'words' is expected")
        return self


class Question(_Strict):
    question: Text
    context: Text


INPUTS: dict[str, type[BaseModel]] = {"classification": TextOrPair, "tagging": Words, "question_answering": Question}


class Predictions(BaseModel):
    """The answer: a prediction for each input, in their order."""

    predictions: list[dict[str, Any]]
    seconds: float


@dataclass(eq=False)
class _Work:
    """The inputs of a request, and whether its client still waits."""

    inputs: list[dict[str, Any]]
    wanted: bool = True


class PredictionService(Endpoint):
    """Answers requests with the predictions of a model with a head."""

    answer_model = Predictions
    doc = """Predict for each of the inputs."""

    def __init__(self, args: ServeArguments) -> None:
        self.path = HEAD_PATHS[args.task]  # of this service alone
        self.predictor = Predictor(
            args.task,
            args.model,
            config_path=args.config_path,
            tokenizer=args.tokenizer,
            precision=args.precision,
            device=args.device,
            batch_size=args.batch_size,
            max_source_length=args.max_source_length,
        )
        inputs = list[INPUTS[args.task]], Field(min_length=1, max_length=args.max_articles_per_request)
        request_model = create_model("PredictionRequest", __base__=_Strict, inputs=inputs)
        loaded = self.predictor.loaded
        model = loaded.model
        self.title = f"{model.config.model_types[0].upper()}: {args.task.replace('_', ' ')}"
        super().__init__(args, request_model, self.predictor.task.read_length(loaded), model.config.vocab_size)
        self.queue: set[_Work] = set()
        self.at_work = 0  # inputs
        self.stopped = False
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="predicting")

    @property
    def executor(self) -> ThreadPoolExecutor:
        return self.thread

    @property
    def health(self) -> tuple[bool, int, int]:
        return True, sum(len(work.inputs) for work in tuple(self.queue)), self.at_work

    def start(self) -> None:
        """The thread is there when the first request comes."""

    async def stop(self) -> None:
        self.stopped = True
        self.thread.shutdown(wait=False, cancel_futures=True)

    def page(self) -> str:
        return f"<!doctype html><title>{self.title}</title><p>{self.about}<p>POST {self.path}; see /openapi.json"

    async def fields(self, wanted: BaseModel) -> dict[str, Any]:
        inputs = [one.model_dump(exclude_none=True) for one in wanted.inputs]
        _, waiting, _ = self.health
        if waiting + len(inputs) > self.args.max_queue:
            raise Busy(
                f"{waiting} inputs wait and this request has {len(inputs)}; allowed: {self.args.max_queue}; try again"
            )
        work = _Work(inputs)
        self.queue.add(work)
        try:
            rows = await asyncio.get_running_loop().run_in_executor(self.thread, self._predict, work)
        except Unwanted:
            raise Busy("the service is shutting down") from None
        finally:
            work.wanted = False
            self.queue.discard(work)
        return {"predictions": [{name: row[name] for name in row if name not in _LEFT_OUT} for row in rows]}

    def _predict(self, work: _Work) -> list[dict[str, Any]]:
        """Predict in the thread, while somebody waits for it."""
        self.queue.discard(work)
        self.at_work = len(work.inputs)
        try:
            return self.predictor(work.inputs, lambda: work.wanted and not self.stopped)
        finally:
            self.at_work = 0
