"""A task's model that predicts what it is given, without a data directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from utils.app.progress import Clock
from utils.data.options import Place
from utils.models.loading import for_inference
from utils.runs.memory import FittingSize
from utils.tasks import find_task
from utils.tasks.task import Prediction


class Unwanted(Exception):
    """Nobody waits for a prediction any more."""


class Predictor:
    """Predicts.

    Args:
        task: one of `utils.tasks.TASKS`, or the path of a Python file that defines one.
        options, evaluation: an `Options` and an `EvalOptions` of the task; None for the defaults.
        model: checkpoint file, Hub-format or run directory, or Hub name.
        changes: options of the task in place of those of `options`.

    Raises:
        InputError: the task does not fit the model, or there is no such model.
    """

    def __init__(
        self,
        task: str,
        model: str,
        options: Any = None,
        evaluation: Any = None,
        *,
        config_path: str | None = None,
        tokenizer: str | None = None,
        precision: str = "fp32",
        device: str = "cpu",
        batch_size: int = 8,
        batch_size_option: str = "--batch_size",
        **changes: Any,
    ) -> None:
        kind = find_task(task)
        options = kind.Options() if options is None else options
        evaluation = kind.EvalOptions() if evaluation is None else evaluation
        evaluation = replace(evaluation, **evaluation.only_predict)
        self.task = kind(Place(""), replace(options, **changes), evaluation=evaluation)
        loaded = self.task.trained_model(model, config_path, tokenizer)
        self.loaded = replace(loaded, model=for_inference(loaded.model.to(device), precision))
        self.fitting = FittingSize(batch_size, batch_size_option)

    def __call__(self, inputs: Sequence[Any], wanted: Callable[[], bool] = lambda: True) -> list[dict[str, Any]]:
        """A row for each input: its prediction by the task's `prediction_name`, and more.

        Args:
            inputs: texts, or objects with what the task reads: text and pair; text or words; question and context.
            wanted: whether anybody still waits; asked after each batch.

        Raises:
            InputError: an input is nothing of that kind.
            Unwanted: nobody waits any more.
        """
        task, raw = self.task, self.task.given(inputs)
        examples = task.encode(raw, "test", self.loaded)
        predicted: dict[int, Prediction] = {}

        def work(left: list[int], size: int) -> Iterator[int]:
            if not wanted():
                raise Unwanted
            for number, prediction in task.predict(self.loaded, examples, left, size, Clock()):
                predicted[number] = prediction
                yield number
                if not wanted():
                    raise Unwanted

        by_length = sorted(range(len(examples)), key=lambda number: -int(examples.lengths[number, 0]))
        self.fitting.run(by_length, work)
        return [task.row(raw, examples, number, predicted[number]) for number in range(len(examples))]
