"""A task: the one thing to write for a new use of the network."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import numpy as np
from torch import Tensor, nn

from bart.configuration.configuration import ModelConfig
from bart.files import PathName
from bart.modeling.loss import IGNORE_INDEX
from bart.modeling.pretrained import PretrainedModel
from bart.rows import Rows
from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.app.progress import Clock
from utils.data.batches import Batch, Examples, Inputs, collate_pairs
from utils.data.columns import FromTraining, Record
from utils.data.options import Place
from utils.data.rows import rows_of, whole
from utils.data.splits import WHOLE
from utils.models.loading import LoadedModel, Model
from utils.models.options import DEFAULT_CONFIG, ModelOptions
from utils.tasks.options import TOKEN, NoOptions

if TYPE_CHECKING:
    from typing import Self

    from utils.data.shards import StreamedShards

Scores = tuple[dict[str, Any], Mapping[str, Sequence[float] | np.ndarray]]  # of all together, and of each


@dataclass
class Prediction:
    """The prediction of a model for an example."""

    values: dict[str, Any]  # of JSON, which `score` and `row` read, and a run that was broken off keeps
    loss: float  # the sum over the example's targets
    targets: int  # their number; 0 where none are known
    tokens: int = 0  # generated for it
    seconds: float = 0.0  # that it was in work, apart from the time when the clock was paused


class TrainedTask(ABC, Generic[Model]):
    """The part of a task that training needs, and its report and card.

    The training loop divides the loss by the number of targets, over all micro-batches and processes of an optimizer
    step. No call depends on an earlier one but by its arguments.
    """

    Options: ClassVar[type] = NoOptions  # in all programs: a dataclass with fields by `utils.app.cli.option`
    TrainingOptions: ClassVar[type] = NoOptions  # that finetune.py adds
    means: ClassVar[int] = 1  # that the loss is the sum of; `count` and `loss` give (means,) if there are several
    metrics: ClassVar[Mapping[str, str]] = {}  # that `metrics_of` may give, with "max" or "min", which is better
    model_classes: ClassVar[tuple[type[PretrainedModel], ...]]  # one for each architecture
    default_config: ClassVar[str] = DEFAULT_CONFIG  # of a model from random weights
    target: ClassVar[str] = TOKEN  # what the loss is the mean over
    pipeline: ClassVar[str] = "text2text-generation"  # what the Hub calls its like
    validation: str = ""  # words for the log, about how validation predicts

    def __init__(self, place: Place, options: Any = None, training: Any = None) -> None:
        self.place = place
        self.options = self.Options() if options is None else options
        self.training = self.TrainingOptions() if training is None else training

    @classmethod
    def config_classes(cls) -> list[type[ModelConfig]]:
        """The configs of `model_classes`."""
        return [each.config_class for each in cls.model_classes]

    # ---- Metrics

    def metrics_for(self, learned: Any) -> Sequence[str]:
        """The metrics that validation gives for such data; by default the first one chooses the best checkpoint."""
        return *self.metrics, "loss"

    def validation_name(self, metric: str) -> str:
        """The name of a metric in logs, which tells where it is not computed as scoring does it."""
        return f"val_{metric}"

    # ---- Data

    @property
    def pair_fields(self) -> tuple[str | None, str | None] | None:
        """The columns of sources and targets, if tables become a data directory before `read`; else None."""
        return None

    def with_parts(self, **parts: Any) -> Self:
        """This task with other attributes, such as its place or its options."""
        changed = copy.copy(self)
        vars(changed).update(parts)
        return changed

    def of_split(self, split: str) -> str:
        """Words that name a split in a message; none of rows or typed texts."""
        return f" of the {split} split" if self.place.data_dir and split != WHOLE else ""

    @abstractmethod
    def read(self, split: str, for_scoring: bool = False) -> Any:
        """Find the examples of train, val or test; with `for_scoring` as `score` and `row` read them."""

    def learn(self, examples: Mapping[str, Any]) -> Any:
        """Learn from train what a model must know, such as labels of its head; InputError if other splits have more."""
        return ()

    @abstractmethod
    def encode(
        self, raw: Any, split: str, loaded: LoadedModel[Model], for_scoring: bool = False
    ) -> Examples | StreamedShards:
        """Turn what `read` or `given` gave into token ids; with `for_scoring` those to score."""

    def collate(self, examples: Sequence[Any], tokenizer: PretrainedTokenizer) -> Inputs:
        """Put examples, by default each a `Pair`, together to a batch: tensors (B, ...) and lists of length B."""
        return collate_pairs(examples, tokenizer.pad_token_id)

    def as_rows(self, inputs: Inputs, multiple: int) -> Inputs:
        """A batch of `collate` without its padding, if `count` and `loss` take `bart.rows.Rows`; here as it is."""
        return inputs

    def collate_rows(self, examples: Sequence[Any], tokenizer: PretrainedTokenizer, multiple: int) -> Inputs:
        """A training batch, whose numbers of rows are multiples of `multiple` or of less (see `bart.rows.Rows.of`)."""
        inputs, of_class = self.collate(examples, tokenizer), type(self)
        # A class of a user's own may count on padding in what it overrides.
        is_known = of_class.__module__.startswith(f"{__package__}.") or "as_rows" in vars(of_class)
        return self.as_rows(inputs, multiple) if is_known else inputs

    # ---- Model

    def config(self, model: ModelOptions) -> ModelConfig:
        """The config that training starts with."""
        return model.config(self.config_classes())

    def fitted(self, config: ModelConfig) -> Self:
        """This task with options whose default depends on the config."""
        return self

    @abstractmethod
    def initial_model(self, model: ModelOptions, learned: Any, checkpoint: Path | None = None) -> LoadedModel[Model]:
        """The model that a run starts from or goes on from; `learn` gave `learned`."""

    # ---- Training and validation

    def operations(self, model: Model, batch: Batch) -> float:
        """Operations of a training step's matrix products, for MFU; 0 where nobody counts them."""
        return 0.0

    def count(self, model: Model, batch: Inputs) -> Tensor:
        """The number of targets in a batch, or the sum of their weights; a scalar, or (means,)."""
        labels = batch["labels"]
        return ((labels.ids if isinstance(labels, Rows) else labels) != IGNORE_INDEX).sum()

    @abstractmethod
    def loss(self, model: nn.Module, batch: Inputs) -> Tensor:
        """The loss of a batch in fp32, summed over its targets; a scalar, or (means,).

        It may not read the states of padding, which are zeros (see `bart.backend.Backend`).
        """

    @property
    def is_recordable(self) -> bool:
        """True if `loss` launches the same work for inputs of the same sizes, and does not make the host wait."""
        return False

    def for_validation(self, loaded: LoadedModel[Model], precision: str) -> LoadedModel[Model]:
        """The model for one validation, with what only that needs; training computes in `precision`."""
        return loaded

    @abstractmethod
    def validate(self, loaded: LoadedModel[Model], batch: Inputs) -> Tensor:
        """Sums over a validation batch (F,), which are added up for `metrics_of`."""

    @abstractmethod
    def metrics_of(self, sums: Sequence[float], loaded: LoadedModel[Model]) -> dict[str, float]:
        """The loss and the metrics of a split, from the sums of all its batches."""


class ScoredTask(TrainedTask[Model]):
    """A task that can be scored, with what predicting and scoring a split need on top of training."""

    # The options that run_eval.py adds. `only_predict` are the fields that let a task read nothing but its inputs.
    EvalOptions: ClassVar[type]
    prediction_name: ClassVar[str] = "prediction"  # of a prediction's text in `row`
    columns: Sequence[str] = ()  # of texts, and then of targets or tags, in training's tables, where a model tells them
    trained: Mapping[str, Any] = MappingProxyType({})  # the fields that a trained model's config keeps

    def __init__(self, place: Place, options: Any = None, training: Any = None, evaluation: Any = None) -> None:
        super().__init__(place, options, training)
        self.evaluation = self.EvalOptions() if evaluation is None else evaluation
        self.check_options()

    def check_options(self) -> None:
        """Note what the options stand for, when the task is made, and check that they fit together."""

    @abstractmethod
    def trained_model(
        self, path: PathName, config_path: str | None = None, tokenizer: str | None = None
    ) -> LoadedModel[Model]:
        """A trained model for evaluation; a config is for weights that have none, a vocabulary replaces theirs."""

    def as_trained(self, config: ModelConfig) -> Self:
        """This task, reading the columns that training read and as many tokens, as far as the config says."""
        columns, options = config.extra.get("columns", ()), self.options
        of_table = () if isinstance(columns, Mapping) else columns
        if getattr(options, "max_source_length", 0) is None:
            options = replace(options, max_source_length=config.extra.get("max_source_length"))
        return self.with_parts(columns=[*map(FromTraining, of_table)], options=options, trained=config.extra)

    def match(self, raw: Any, split: str, loaded: LoadedModel[Model]) -> None:
        """Check that the model knows the labels in what is to be scored; they may get the names in it."""

    @abstractmethod
    def predict(
        self, loaded: LoadedModel[Model], examples: Examples, numbers: Sequence[int], batch_size: int, clock: Clock
    ) -> Iterator[tuple[int, Prediction]]:
        """Predict some examples, at most batch_size of them at once, in any order.

        The clock gets the seconds of "encode" and "detokenise", and is "paused" for what is no prediction: the loss.
        """

    @abstractmethod
    def score(self, raw: Any, predictions: Sequence[Prediction], loaded: LoadedModel[Model]) -> Scores:
        """The metrics of all predictions together and, where there are such, of each; only if there are any targets.

        Reports show what stands among the former under `intervals` (metric -> [low, high]), under `baselines` (name ->
        metrics of what needs no training), under `groups` (a word for their kind -> group of examples -> its metrics,
        and a number: how many there are), and, as `utils.metrics.classification` has them, `confusion` and `errors`.
        """

    def checks(self, raw: Any, predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Counts in the predictions that need no targets, which are stored with the scores; by default none."""
        return {}

    @abstractmethod
    def row(self, raw: Any, examples: Examples, number: int, prediction: Prediction) -> dict[str, Any]:
        """The row of an example in `<split>_articles.jsonl`, apart from its metrics."""

    def files(self, raw: Any, predictions: Sequence[Prediction], split: str) -> dict[str, str]:
        """Further files of a split's predictions by name, such as a benchmark takes."""
        return {}

    @abstractmethod
    def settings(self, loaded: LoadedModel[Model]) -> dict[str, Any]:
        """All settings on which predictions depend, as JSON; they are stored with the scores."""


class Task(ScoredTask[Model]):
    """A task that also predicts rows of tables, lines and what clients send to the service."""

    suffixes: ClassVar[Collection[str]] = ()  # of other files than tables that the task reads
    separator: ClassVar[str] = " "  # between the parts of a prediction that is a list, where it is printed
    endpoint: ClassVar[str] = "/predict"  # of the service
    # Of a line of JSON or a request, with their types. Where all may be missing, exactly one is given.
    fields: ClassVar[Mapping[str, Any]] = {"text": str}

    def records(self, file: Path) -> Iterable[Record]:
        """The rows of a table, or of another file that the task reads."""
        return whole(rows_of(file, self.place.tables))

    @abstractmethod
    def columns_in(self, columns: Collection[str]) -> Sequence[str]:
        """Choose the columns of a table that are read to predict from."""

    def typed_columns(self, columns: Collection[str]) -> Sequence[str]:
        """Choose among the fields of what users and clients type."""
        return tuple(self.fields)

    @abstractmethod
    def given(self, records: Sequence[Record], columns: Sequence[str]) -> Any:
        """Examples that are only to be predicted, from what `columns_in` or `typed_columns` chose."""

    @abstractmethod
    def read_length(self, loaded: LoadedModel[Model]) -> int:
        """Tokens that the model reads of a text at once."""

    def cells(self, row: Mapping[str, Any], prediction: Prediction) -> dict[str, Any]:
        """The columns that a prediction adds to a table; `score` has its probability, or those of a list's parts."""
        return {"prediction": row[self.prediction_name]}
