"""A task's model that predicts what it is given, without a data directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from utils.app.progress import Clock
from utils.data.options import Place
from utils.data.splits import WHOLE
from utils.prediction.options import InferenceOptions
from utils.runs.memory import FittingSize
from utils.tasks.task import Prediction, Task


class Predictor:
    """Predicts what it is given. It alone calls the task's methods.

    Args:
        task: the class of the task.
        options, evaluation: an `Options` and an `EvalOptions` of the task.
        batch_size: inputs that are predicted at once; halved for good where memory runs out.
        table: the path of a table to predict.

    Attributes:
        loaded: the model, laid out for prediction.

    Raises:
        InputError: the task does not fit the model, or there is no such model.
    """

    def __init__(
        self,
        task: type[Task],
        options: Any,
        evaluation: Any,
        inference: InferenceOptions,
        batch_size: int,
        table: str = "",
    ) -> None:
        self.task = task(Place(table), options, evaluation=replace(evaluation, **evaluation.only_predict))
        loaded = self.task.trained_model(inference.model, inference.config_path, inference.tokenizer)
        self.task = self.task.as_trained(loaded.model.config)
        self.loaded = replace(loaded, model=inference.prepare(loaded.model))
        self.batches = FittingSize(batch_size, "--batch_size")

    def line_of(self, row: Mapping[str, Any]) -> str:
        """The prediction of a row, as one line."""
        return self.task.line_of(row)

    def __call__(self, inputs: Sequence[Any] | None, check: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Predict; returns a row for each input, with its prediction by the task's `prediction_name`, and more.

        Args:
            inputs: texts, or objects with what the task reads: text and pair; text or words; question and context; None
                stands for the rows of the table.
            check: called before each prediction; what it raises ends the work.

        Raises:
            InputError: an input is nothing of that kind, or the table is missing or malformed.
        """
        task = self.task
        raw = task.read(WHOLE) if inputs is None else task.given(inputs)
        examples = task.encode(raw, "test", self.loaded)
        predictions: dict[int, Prediction] = {}

        def predict(pending: list[int], batch_size: int) -> Iterator[int]:
            check()
            for number, prediction in task.predict(self.loaded, examples, pending, batch_size, Clock()):
                predictions[number] = prediction
                yield number
                check()

        longest_first = sorted(range(len(examples)), key=lambda number: -int(examples.lengths[number, 0]))
        self.batches.run(longest_first, predict)
        return [task.row(raw, examples, number, predictions[number]) for number in range(len(examples))]
