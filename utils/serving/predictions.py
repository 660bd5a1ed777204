"""The service of models that classify, tag and answer questions."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, Field, create_model, model_validator

from utils.data.columns import Record
from utils.prediction.predictor import Predictor
from utils.serving.arguments import HEAD_PATHS, ServeArguments
from utils.serving.engine import Busy
from utils.serving.service import Body, Service, Text
from utils.tasks import find_task

_LEFT_OUT = ("index", "id", "source", "pair", "question", "source_tokens")  # clients know these, or need not


class TextInput(Body):
    text: Text
    pair: Text | None = Field(None, description="The second text, for a model that classifies pairs.")


class WordsInput(Body):
    """A text, which is split at spaces and marks, or its words."""

    alternatives = ("text", "words")

    text: Text | None = None
    words: list[Text] | None = Field(None, min_length=1)


class QuestionInput(Body):
    question: Text
    context: Text


INPUTS = {"classification": TextInput, "tagging": WordsInput, "question_answering": QuestionInput}


class _Inputs(Body):
    @model_validator(mode="before")
    @classmethod
    def _list_one(cls, body: Any) -> Any:
        return {"inputs": [body]} if isinstance(body, dict) and "inputs" not in body else body


def prediction_request(args: ServeArguments) -> type[BaseModel]:
    """Make the body of a POST to the path of a task."""
    inputs = list[INPUTS[args.task]], Field(min_length=1, max_length=args.max_articles_per_request)
    return create_model("PredictionRequest", __base__=_Inputs, inputs=inputs)


class Predictions(BaseModel):
    """The answer: a prediction for each input, in their order."""

    predictions: list[dict[str, Any]]
    seconds: float


class PredictionService(Service):
    """Answers requests with the predictions of a model with a head."""

    page_file, answer_model = "predictions.html", Predictions
    description = "Predict for each of the inputs. One input may also stand alone, without `inputs` around it."

    def __init__(self, args: ServeArguments) -> None:
        self.path = HEAD_PATHS[args.task]
        task = find_task(args.task)
        options = task.Options(max_source_length=args.documents.max_source_length)
        self.predictor = Predictor(task, options, task.EvalOptions(), args.inference, args.batch_size)
        loaded = self.predictor.loaded
        config = loaded.model.config
        self.title = f"{config.model_types[0].upper()}: {args.task.replace('_', ' ')}"
        super().__init__(args, prediction_request(args), self.predictor.task.read_length(loaded), config.vocab_size)
        self.executor = ThreadPoolExecutor(1)
        self.jobs: dict[Future[Any], int] = {}  # with the number of inputs

    @property
    def health(self) -> tuple[bool, int, int]:
        at_work = sum(count for job, count in self.jobs.items() if job.running())
        return True, sum(self.jobs.values()) - at_work, at_work

    async def stop(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)

    async def compute(self, content: BaseModel) -> dict[str, Any]:
        inputs = [each.model_dump(exclude_none=True) for each in content.inputs]
        _, waiting, _ = self.health
        if waiting + len(inputs) > self.args.max_queue:
            raise Busy(
                f"{waiting} inputs wait and this request has {len(inputs)}; allowed: {self.args.max_queue}; try again"
            )
        is_given_up = threading.Event()
        job = self.executor.submit(self._predict, inputs, is_given_up)
        self.jobs[job] = len(inputs)
        try:
            rows = await asyncio.wrap_future(job)
        finally:
            is_given_up.set()
            job.cancel()
            del self.jobs[job]
        return {"predictions": [{name: row[name] for name in row if name not in _LEFT_OUT} for row in rows]}

    def _predict(self, inputs: list[dict[str, Any]], is_given_up: threading.Event) -> list[dict[str, Any]]:
        """Predict in the thread, until nobody waits for it any more."""

        def check() -> None:
            if is_given_up.is_set():
                raise CancelledError

        records = [Record(f"input {number}", values) for number, values in enumerate(inputs)]
        columns = self.predictor.task.typed_columns({name for values in inputs for name in values})
        return [row for row, _ in self.predictor(records, columns, check)]
