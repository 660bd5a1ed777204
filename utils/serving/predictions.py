"""The service of models of all tasks but summarization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, create_model, model_validator

from utils.data.columns import Record
from utils.prediction.predictor import Predictor
from utils.serving.arguments import ServeArguments
from utils.serving.engine import Arrivals
from utils.serving.service import Body, Service, Text
from utils.tasks import find_row_task

_LEFT_OUT = ("index", "id", "source", "pair", "question", "source_tokens")  # clients know these, or need not

# The types of a task's fields, as a request has them: type and default.
KINDS: dict[Any, tuple[Any, Any]] = {
    str: (Text, ...),
    str | None: (Text | None, None),
    list[str] | None: (list[Text] | None, Field(None, min_length=1)),
}


class _Inputs(Body):
    @model_validator(mode="before")
    @classmethod
    def _list_one(cls, body: Any) -> Any:
        return {"inputs": [body]} if isinstance(body, dict) and "inputs" not in body else body


def prediction_request(fields: Mapping[str, Any], most: int) -> type[BaseModel]:
    """Make the body of a POST to the path of a task: at most so many inputs, with its fields."""
    part = create_model("Input", __base__=Body, **{name: KINDS[kind] for name, kind in fields.items()})
    if not any(field.is_required() for field in part.model_fields.values()):
        part.alternatives = tuple(fields)
    inputs = list[part], Field(min_length=1, max_length=most)
    return create_model("PredictionRequest", __base__=_Inputs, inputs=inputs)


class Predictions(BaseModel):
    """The answer: a prediction for each input, in their order."""

    predictions: list[dict[str, Any]]
    seconds: float


class PredictionService(Service):
    """Answers requests with the predictions of a task."""

    page_file, answer_model = "predictions.html", Predictions
    description = "Predict for each of the inputs. One input may also stand alone, without `inputs` around it."

    def __init__(self, args: ServeArguments) -> None:
        task = find_row_task(args.task)
        self.path = task.endpoint
        options = task.Options(max_source_length=args.documents.max_source_length)
        self.predictor = Predictor(task, options, task.EvalOptions(), args.inference, args.batch_size)
        kind = self.predictor.loaded.model.config.model_types[0]
        self.title = f"{kind.upper()}: {Path(args.task).stem.replace('_', ' ')}"
        super().__init__(args, prediction_request(task.fields, args.max_queue), self._predict)

    async def compute(self, content: BaseModel) -> dict[str, Any]:
        inputs = [each.model_dump(exclude_none=True) for each in content.inputs]
        records = [Record(f"input {number}", values) for number, values in enumerate(inputs)]
        columns = self.predictor.task.typed_columns({name for values in inputs for name in values})
        rows = await self.results(records, {"columns": tuple(columns)})
        return {"predictions": [{name: row[name] for name in row if name not in _LEFT_OUT} for row in rows]}

    def _predict(
        self, arrivals: Arrivals, batch_size: int, columns: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, Any] | Exception]]:
        """The engine's work on records; those of many requests share a batch if they have the same columns."""
        if batch := arrivals(batch_size):
            numbers, records = zip(*batch, strict=True)
            yield from zip(numbers, self._rows(records, columns), strict=True)

    def _rows(self, records: Sequence[Record], columns: Sequence[str]) -> list[dict[str, Any] | Exception]:
        """The row of each record, or the error that it raises: others in its batch get their rows."""
        try:
            return [row for row, _ in self.predictor(records, columns)]
        except Exception as error:
            if len(records) == 1:
                return [error]
        half = len(records) // 2
        return self._rows(records[:half], columns) + self._rows(records[half:], columns)
