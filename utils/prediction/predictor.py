"""A task's model that predicts what it is given, without a data directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from utils.app.memory import FittingSize
from utils.app.progress import Clock
from utils.data.columns import Record
from utils.data.options import Place
from utils.data.splits import WHOLE
from utils.models.loading import for_inference
from utils.prediction.options import InferenceOptions
from utils.tasks.task import Prediction, Task


class Predictor:
    """Predicts what it is given, perhaps of the table `place`; `options` and `evaluation` are those of the task."""

    def __init__(
        self,
        task: type[Task],
        options: Any,
        evaluation: Any,
        inference: InferenceOptions,
        batch_size: int,
        place: Place | None = None,
    ) -> None:
        self.task = task(place or Place(""), options, evaluation=replace(evaluation, **evaluation.only_predict))
        loaded = self.task.trained_model(inference.model, inference.config_path, inference.tokenizer)
        self.task = self.task.as_trained(loaded.model.config)
        model = for_inference(loaded.model.to(inference.device), inference.precision)
        self.loaded = replace(loaded, model=model)
        self.batches = FittingSize(batch_size, "--batch_size")

    def __call__(
        self, records: Sequence[Record], columns: Sequence[str], done: Callable[[], object] = lambda: None
    ) -> Iterator[tuple[dict[str, Any], Prediction]]:
        """Predict; yields for each record its row, with the prediction by the task's `prediction_name`, and more.

        The task chose the columns. `done` is called after each prediction.
        """
        task = self.task
        raw = task.given(records, columns)
        examples = task.encode(raw, WHOLE, self.loaded, for_scoring=True)
        predictions: dict[int, Prediction] = {}

        def predict(pending: list[int], batch_size: int) -> Iterator[int]:
            for number, prediction in task.predict(self.loaded, examples, pending, batch_size, Clock()):
                predictions[number] = prediction
                yield number
                done()

        longest_first = sorted(range(len(examples)), key=lambda number: -int(examples.lengths[number, 0]))
        self.batches.run(longest_first, predict)
        for number in range(len(examples)):
            yield task.row(raw, examples, number, predictions[number]), predictions[number]
