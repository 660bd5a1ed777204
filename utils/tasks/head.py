"""Tasks that read a text and predict something of it by a head on the network: a class, tags, an answer in it."""

from __future__ import annotations

import hashlib
import logging
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bart.configuration.configuration import MULTI_LABEL, ModelConfig
from bart.errors import InputError
from bart.files import PathName
from bart.modeling.loss import IGNORE_INDEX
from bart.modeling.pretrained import PretrainedModel
from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.app.cli import all_settings
from utils.app.progress import Clock
from utils.data.batches import Batch, Inputs, as_rows, pad_ids
from utils.metrics.classification import name_of
from utils.models import loading
from utils.models.loading import LoadedModel, check_lengths
from utils.models.model_to_train import initial_model
from utils.models.options import ModelOptions
from utils.tasks.options import MOST_READ, HeadEvalOptions, HeadTrainingOptions
from utils.tasks.task import Prediction, Task

logger = logging.getLogger(__name__)
LEAST_READ = 0.7  # of a row that is padded to its batch's longest; a smaller batch is faster than more padding


@dataclass(frozen=True)
class Labels:
    """The labels that a head learns, and where the texts were, which the model's config keeps."""

    names: list[str]  # in the order of the head's outputs
    problem: str | None = None  # one of `bart.configuration.configuration.PROBLEMS`, of a head that classifies texts
    columns: tuple[str, ...] | Mapping[str, str] = ()  # of the texts, or the options that named them


@dataclass
class Example:
    """An example of a task with a head."""

    ids: np.ndarray  # (S,)
    labels: Any = None  # the right ones, as the task's `collate` takes them; None where nobody knows
    second: int | None = None  # where the second text begins; None of a single one
    is_cut: bool = False  # true if the model reads a part of it alone


class HeadExamples:
    """Examples in memory; see `utils.data.batches.Examples`."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples
        self.lengths = np.array([[len(example.ids)] for example in examples])
        digest = hashlib.sha256()
        for example in examples:
            digest.update(example.ids.tobytes() + repr(example.labels).encode())
        self.identity: dict[str, Any] = {"examples": len(examples), "content": digest.hexdigest()}

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, number: int) -> Example:
        return self.examples[number]

    def counts(self, number: int) -> dict[str, Any]:
        """The end of an example's row: the tokens that were read, and, where there were more, that it was cut."""
        read = {"source_tokens": int(self.lengths[number, 0])}
        return read | {"is_cut": True} if self.examples[number].is_cut else read


class HeadTask(Task[PretrainedModel]):
    """The model of a task with a head, and prediction in batches."""

    TrainingOptions = HeadTrainingOptions
    EvalOptions = HeadEvalOptions
    of_tokens: ClassVar[tuple[str, ...]] = ("token_type_ids",)  # inputs that have a value for each token
    kept: ClassVar[tuple[str, ...]] = ("max_source_length",)  # options that the model's config keeps as fields

    @property
    def is_labelled(self) -> bool:
        """True if the labels of examples are read."""
        return not self.evaluation.predict

    # ---- Model

    def config(self, model: ModelOptions) -> ModelConfig:
        config = super().config(model)
        if self.training.classifier_dropout is not None:
            config.classifier_dropout = self.training.classifier_dropout
        for name in self.kept:
            setattr(config, name, all_settings(self.options)[name])
        return config

    def initial_model(self, model: ModelOptions, learned: Labels | None, checkpoint: Path | None = None) -> LoadedModel:
        labels, columns = (learned.names, learned.columns) if learned else (None, ())
        of_head = labels, self.training.new_head, columns
        loaded = initial_model(model, self.config(model), self.model_classes, *of_head, checkpoint)
        loaded.model.config.extra.pop("problem_type", None)  # of weights that classified texts
        return self.checked(loaded, learned or None)

    def trained_model(
        self, path: PathName, config_path: str | None = None, tokenizer: str | None = None
    ) -> LoadedModel:
        return self.checked(LoadedModel(*loading.load_for_evaluation(path, config_path, tokenizer, self.model_classes)))

    def checked(self, loaded: LoadedModel, learned: Labels | None = None) -> LoadedModel:
        """A model that was loaded, if it fits the options."""
        config = loaded.model.config
        check_lengths(config, max_source_length=self.options.max_source_length)
        if loaded.tokenizer.has_types and getattr(config, "type_vocab_size", 2) < 2:
            raise InputError(f"config field 'type_vocab_size' is {config.type_vocab_size}; allowed here: at least 2")
        return loaded

    def read_length(self, loaded: LoadedModel) -> int:
        return self.options.max_source_length or min(MOST_READ, loaded.model.config.max_position_embeddings)

    def inputs_of(self, examples: Sequence[Example], tokenizer: PretrainedTokenizer) -> Inputs:
        """input_ids and attention_mask (B, S) of examples; and token_type_ids, of an architecture that has types."""
        inputs = pad_ids([example.ids for example in examples], tokenizer.pad_token_id)
        if tokenizer.has_types:
            width = inputs["input_ids"].shape[1]
            seconds = [width if example.second is None else example.second for example in examples]
            is_second = torch.arange(width) >= torch.tensor(seconds)[:, None]
            inputs["token_type_ids"] = is_second.long() * inputs["attention_mask"]
        return inputs

    def as_rows(self, inputs: Inputs, multiple: int) -> Inputs:
        return as_rows(inputs, multiple, self.of_tokens)

    def output_of(self, model: PretrainedModel, batch: Inputs) -> Any:
        """The output of the network for a batch of `inputs_of`."""
        names = ["input_ids", "attention_mask"]
        if "type_vocab_size" in model.config.types:  # BART has none, even with BERT's vocabulary
            names.append("token_type_ids")
        return model(**{name: batch[name] for name in names if name in batch})

    def sums_of(self, predictions: Sequence[Prediction], counts: Tensor, loaded: LoadedModel) -> Tensor:
        """The sums of a batch's validation: loss, targets, and what metrics are made of."""
        of_loss = [sum(getattr(prediction, name) for prediction in predictions) for name in ("loss", "targets")]
        return torch.cat([torch.tensor(of_loss, dtype=torch.float64), counts.double()]).to(loaded.model.device)

    # ---- Prediction

    @abstractmethod
    def predict_batch(self, loaded: LoadedModel, batch: Inputs) -> list[Prediction]:
        """Predict the examples of a batch; the caller fills in the seconds."""

    def predict(
        self, loaded: LoadedModel, examples: HeadExamples, numbers: Sequence[int], batch_size: int, clock: Clock
    ) -> Iterator[tuple[int, Prediction]]:
        for chunk in _batches(numbers, examples.lengths[:, 0], batch_size, loaded.model.device.type == "cpu"):
            began = time.perf_counter()
            inputs = self.collate([examples[number] for number in chunk], loaded.tokenizer)
            batch = Batch(inputs, list(chunk), 0).to(loaded.model.device)
            with torch.no_grad():
                predictions = self.predict_batch(loaded, batch.inputs)
            seconds = time.perf_counter() - began
            for number, prediction in zip(chunk, predictions, strict=True):
                prediction.seconds = seconds
                yield number, prediction

    def settings(self, loaded: LoadedModel) -> dict[str, Any]:
        return {"labels": loaded.labels, "max_source_length": self.read_length(loaded)}


def _batches(numbers: Sequence[int], lengths: np.ndarray, batch_size: int, has_padding: bool) -> Iterator[list[int]]:
    """The examples of each batch; where padding is computed, a text that would have much of it begins a new one."""
    batch: list[int] = []
    for number in numbers:
        if len(batch) == batch_size or (has_padding and batch and lengths[number] < LEAST_READ * lengths[batch[0]]):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


class LabelTask(HeadTask):
    """A task whose head gives labels: their names, and their weights in the loss."""

    def check_options(self) -> None:
        names = self.options.tag_names
        if names is not None and len({*names}) < max(2, len(names)):
            raise InputError(f"--label_names {' '.join(names)}: allowed: two or more different names, in their order")

    def named(self, where: str, label: Any) -> Any:
        """A label, or each of a list, by its name where it is a number that --label_names names."""
        if isinstance(label, list):
            return [self.named(where, each) for each in label]
        number, names = name_of(label), self.options.tag_names
        if names is None or not number.removeprefix("-").isdecimal():
            return label
        if not 0 <= int(number) < len(names):
            raise InputError(f"{where}: a label is {label}; allowed: 0 to {len(names) - 1}, for {', '.join(names)}")
        return names[int(number)]

    @abstractmethod
    def labels_in(self, raw: Any) -> Iterator[tuple[str, str]]:
        """The labels of examples, each with the place where it stands."""

    def match(self, raw: Any, split: str, loaded: LoadedModel) -> None:
        self.check_labels({split: raw}, loaded.labels)

    def check_labels(self, examples: Mapping[str, Any], known: Sequence[str]) -> None:
        """Raise InputError for labels of splits that a model does not know."""
        names, unknown = {*known}, dict[tuple[str, str], list[str]]()
        for split, raw in examples.items():
            for label, place in self.labels_in(raw):
                if label not in names:
                    unknown.setdefault((label, split), []).append(place)
        if unknown:
            listed = (
                f"{label!r} of {split} ({len(places)} in all, the first one {places[0]})"
                for (label, split), places in unknown.items()
            )
            raise InputError(f"labels that training has not seen: {_shortened(listed)}; allowed: {_shortened(known)}")

    # ---- Training

    def weigh(self, examples: HeadExamples, raw: Any, loaded: LoadedModel) -> None:
        """Let the model's config hold the weights of its labels in the training loss.

        They are scikit-learn's: all labels over the number of labels times each one's count. Where an example may have
        several labels, a label's weight is the examples without it over those with it.
        """
        config = loaded.model.config
        config.extra.pop("class_weights", None)  # of the run that the weights come from
        if self.training.class_weights is None:
            return
        counts = Counter(label for label, _ in set(self.labels_in(raw)))  # some lists name a label twice
        mean, weights = counts.total() / len(counts), {}
        for name in loaded.labels:
            others = len(raw) - counts[name] if getattr(config, "problem_type", None) == MULTI_LABEL else mean
            weights[name] = others / counts[name] if others and counts[name] else 1.0
        config.class_weights = examples.identity["class_weights"] = weights
        logger.info("class weights: %s", ", ".join(f"{name} {weight:.4g}" for name, weight in weights.items()))

    def count(self, model: PretrainedModel, batch: Inputs) -> Tensor:
        """The number of targets or, of classes that have weights, the sum of the targets' weights, as torch divides."""
        labels, weights = batch["labels"], class_weights_of(model)
        if labels.is_floating_point():  # numbers, or sets of labels
            return torch.ones_like(labels, dtype=torch.long).sum()
        is_target = labels != IGNORE_INDEX
        return is_target.sum() if weights is None else (weights[labels.clamp(min=0)] * is_target).sum()

    def logits_of(self, model: PretrainedModel, batch: Inputs) -> Tensor:
        """The logits of the head in fp32, whatever the network computes in."""
        return self.output_of(model, batch).logits.float()

    def loss_options(self, model: PretrainedModel, logits: Tensor) -> dict[str, Any]:
        """The `weight` (N,), if there is one, and the `label_smoothing` of the training loss, for torch."""
        weights = class_weights_of(model)
        weights = None if weights is None else weights.to(logits.dtype)
        return {"weight": weights, "label_smoothing": self.training.label_smoothing}


def class_weights_of(model: PretrainedModel) -> Tensor | None:
    """The weights (N,) of labels in the training loss, which the config holds."""
    weights = model.config.extra.get("class_weights")
    if weights is None:
        return None
    return torch.tensor([*weights.values()], dtype=torch.float64).to(model.device, non_blocking=True)


def _shortened(names: Iterable[str], most: int = 20) -> str:
    """Names in a message, of which many are not all told."""
    first = [*islice(names, most + 1)]
    return ", ".join(first[:most]) + " and more" * (len(first) > most)
