"""What a task is: the one thing to write for a new use of the network."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from torch import Tensor, nn

from bart.errors import InputError
from bart.modeling.loss import IGNORE_INDEX
from bart.modeling.pretrained import PretrainedModel
from bart.tokenization.tokenizer import PretrainedTokenizer
from utils import loading
from utils.data.batches import Batch, Examples, Inputs
from utils.data.options import DataOptions
from utils.data.streaming import StreamedExamples
from utils.progress import Clock

Options = TypeVar("Options")
Scores = tuple[dict[str, Any], Mapping[str, Sequence[float] | np.ndarray]]  # of all together, and of each


@dataclass
class Prediction:
    """What a model made of an example.

    Attributes:
        values: JSON values. `Task.score` and `Task.row` read them, and the journal of a run keeps them.
        loss, targets: sum of the loss over the example's targets, and how many these are; 0 where nothing is known but
            what to predict from.
        tokens: generated for it.
        seconds: that it was in work, apart from the time when the clock was paused.
    """

    values: dict[str, Any]
    loss: float
    targets: int
    tokens: int = 0
    seconds: float = 0.0


class Task(ABC, Generic[Options]):
    """One use of the network.

    Training and evaluation call the methods in the order in which they stand here. A task owns its options, the reading
    and encoding of its examples, its model, its loss and its figures. It knows nothing of optimizers, precisions,
    processes and checkpoints: the training loop divides the loss by the number of targets, over all micro-batches and
    processes of an optimizer step.

    Args:
        options: an `Options` of finetune.py, or an `EvalOptions` of run_eval.py.
        data: where the examples are.

    Attributes:
        Options: dataclass of the task's own options of finetune.py, a `ModelOptions`; fields by `utils.cli.option`.
        EvalOptions: the same for run_eval.py. Its `only_predict` are the fields that let a task read nothing but what
            to predict from.
        streams: whether it can read a training set while it trains on it.
        prediction_name: what `row` calls a prediction's text.
        means: how many means the loss is the sum of; `count` and `loss` give (means,) if there are several.
        figures: the figures that `figures_of` gives, each with "max" or "min", the direction in which it gets better.
            "loss" is a figure of every task.
        model_class, tokenizer: of the model, once there is one.
    """

    Options: ClassVar[type]
    EvalOptions: ClassVar[type]
    streams: ClassVar[bool] = False
    prediction_name: ClassVar[str] = "prediction"
    means: ClassVar[int] = 1
    figures: Mapping[str, str] = {}
    model_class: type[PretrainedModel]
    tokenizer: PretrainedTokenizer

    def __init__(self, options: Options, data: DataOptions) -> None:
        self.options = options
        self.data = data

    def default_metric(self) -> str:
        """The figure by which the best checkpoint is chosen where the command line names none."""
        return next(iter(self.figures), "loss")

    def validation_name(self, figure: str) -> str:
        """What logs call a figure of validation. It tells where the figure is not computed as scoring does it."""
        return f"val_{figure}"

    # ---- Data

    @abstractmethod
    def read(self, split: str, for_scoring: bool = False) -> Any:
        """Find a split's examples (train, val or test) and check them as far as that goes without a vocabulary.

        Args:
            for_scoring: whether `score` and `row` will need the examples themselves.

        Raises:
            InputError: they are not there, or malformed.
        """

    def given(self, inputs: Sequence[Any]) -> Any:
        """What `read` would give for examples that are only to be predicted, as users and clients type them.

        Args:
            inputs: texts, or JSON objects.

        Raises:
            InputError: one is nothing that the task can read; it is counted from 0.
        """
        raise InputError(
            f"{type(self).__name__} cannot predict what is typed; allowed: run_eval.py with a data directory"
        )

    @abstractmethod
    def encode(self, raw: Any, split: str) -> Examples | StreamedExamples:
        """What `read` gave, as token ids. Comes after one of the methods that load a model and its vocabulary."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Inputs:
        """Examples as one batch: tensors (B, ...) and lists of length B, by name."""

    # ---- Model

    @abstractmethod
    def initial_model(self) -> nn.Module:
        """The model that training starts from, and its vocabulary."""

    @abstractmethod
    def resumed_model(self, checkpoint: Path) -> nn.Module:
        """The model of a training checkpoint, and its vocabulary; the optimizer comes later.

        Raises:
            InputError: it has another architecture than the options ask for.
        """

    @abstractmethod
    def trained_model(
        self, path: str | os.PathLike[str], config_path: str | None = None, tokenizer: str | None = None
    ) -> nn.Module:
        """A trained model for evaluation, and its vocabulary.

        Args:
            config_path: JSON with the architecture and decoding options, for a model that has none of its own.
            tokenizer: a vocabulary in place of the one that lies with the weights.
        """

    def checkpoint_parts(self, model: PretrainedModel) -> dict[str, Any]:
        """What a checkpoint must hold besides the weights for `resumed_model` and `trained_model` to load it."""
        return {**loading.checkpoint_parts(model, self.tokenizer), "lora_scale": self.options.lora_scale}

    def export(self, checkpoint: Path, directory: Path) -> None:
        """Write a checkpoint's model in Hub format."""
        self.model_class.from_pretrained(checkpoint).save_pretrained(directory, self.tokenizer)

    # ---- Training and validation

    def operations(self, model: nn.Module, batch: Batch) -> float:
        """Operations of a training step's matrix products on the tokens of a batch, for MFU; 0 where nobody counts."""
        return 0.0

    def count(self, batch: Inputs) -> Tensor:
        """How many targets of a batch the loss is the mean over, by default its labels; a scalar, or (means,)."""
        return (batch["labels"] != IGNORE_INDEX).sum()

    @abstractmethod
    def loss(self, model: nn.Module, batch: Inputs) -> Tensor:
        """The loss of a batch in fp32, summed over its targets; a scalar, or (means,).

        It may not read the states of padding (see `bart.cpu.backend.CpuBackend`).
        """

    @abstractmethod
    def validate(self, model: nn.Module, batch: Inputs) -> Tensor:
        """Sums over a validation batch (F,) of which `figures_of` can tell the figures of many batches together."""

    @abstractmethod
    def figures_of(self, sums: Sequence[float]) -> dict[str, float]:
        """The loss and all `figures` of a split, from the sum of what `validate` gave for its batches."""

    # ---- Prediction

    @abstractmethod
    def predict(
        self, model: nn.Module, examples: Examples, numbers: Sequence[int], batch_size: int, clock: Clock
    ) -> Iterator[tuple[int, Prediction]]:
        """Predict some examples, at most batch_size of them at once, in any order.

        Args:
            clock: gets the seconds of the parts "encode" and "detokenise", and is "paused" while what is computed is no
                part of a prediction, such as the loss.
        """

    @abstractmethod
    def score(self, raw: Any, predictions: Sequence[Prediction]) -> Scores:
        """The figures of all predictions together and, where there are such, of each; only if there are any targets.

        Reports show what stands among the former under `intervals` (figure -> [low, high]) and under `baselines`
        (name -> figures of what needs no training).

        Args:
            raw: what `read` gave.
        """

    @abstractmethod
    def row(self, raw: Any, examples: Examples, number: int, prediction: Prediction) -> dict[str, Any]:
        """What `<split>_articles.jsonl` says of an example, apart from its figures."""

    def line_of(self, row: Mapping[str, Any]) -> str:
        """What `row` calls a prediction's text, as one line."""
        return " ".join(row[self.prediction_name].split("\n"))

    def files(self, raw: Any, predictions: Sequence[Prediction], split: str) -> dict[str, str]:
        """Further files of a split's predictions by name, such as a benchmark takes."""
        return {}

    @abstractmethod
    def settings(self, model: nn.Module) -> dict[str, Any]:
        """All settings that bear on predictions, as JSON; they are stored with the scores."""


def text_of(given: Any, number: int, name: str, required: bool = True) -> str | None:
    """A text among the inputs of `Task.given`: the input itself, or a field of it.

    Raises:
        InputError: it is no text, or blank; or it is missing where it is required.
    """
    value = given.get(name) if isinstance(given, dict) else given
    if value is None and not required:
        return None
    if not isinstance(value, str) or not value.strip():
        where = f"{name} of input {number}" if isinstance(given, dict) else f"input {number}"
        raise InputError(f"{where} is {str(value)[:40]!r}; allowed: a text that is not blank")
    return value
