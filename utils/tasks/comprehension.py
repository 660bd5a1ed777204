"""Tasks that read a text and say something of it by a head on the network: a class, tags, an answer in it."""

from __future__ import annotations

import hashlib
import os
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bart.configuration.configuration import ModelConfig
from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.pretrained import PretrainedModel
from bart.tokenization.tokenizer import PretrainedTokenizer
from bert.configuration.configuration_bert import BertConfig
from utils.app.cli import option
from utils.app.progress import Clock
from utils.data.batches import Batch, Inputs, pad_ids
from utils.data.options import DataOptions
from utils.models import loading, model_to_train
from utils.models.loading import check_lengths
from utils.models.model_to_train import ModelOptions
from utils.tasks.task import Prediction, Task


@dataclass(frozen=True)
class _LengthOptions:
    """How much of a text is read."""

    max_source_length: int | None = option(
        None, section="texts", least=8, help="tokens read at once; by default 512 at most"
    )


@dataclass(frozen=True)
class HeadOptions(_LengthOptions, ModelOptions):
    """The options of finetune.py that all these tasks have."""

    new_head: bool = option(False, section="model", help="begin a new head where the weights have one")
    classifier_dropout: float | None = option(
        None, section="regularisation", least=0, most=0.99, help="of the head; by default the config's"
    )
    labelled = True  # run_eval.py has an option --predict
    config_classes = (BartConfig, BertConfig)

    def config(self) -> ModelConfig:
        config = super().config()
        if self.classifier_dropout is not None:
            config.classifier_dropout = self.classifier_dropout
        return config


@dataclass(frozen=True)
class HeadEvalOptions(_LengthOptions):
    """The options of run_eval.py that all these tasks have."""

    only_predict: ClassVar[dict[str, Any]] = {"predict": True}
    predict: bool = option(False, help="only predict: nothing that examples say of the answer is read")

    @property
    def labelled(self) -> bool:
        """Whether examples say what is right."""
        return not self.predict


@dataclass
class Example:
    """An example of which a head says something.

    Attributes:
        ids: (S,).
        second: where the second text begins; None of a single one.
        labels: what is right, as the task's `collate` takes it; None where nobody knows.
    """

    ids: np.ndarray
    labels: Any = None
    second: int | None = None


class HeadExamples:
    """Examples in memory; see `utils.data.batches.Examples`."""

    def __init__(self, examples: Sequence[Example], seconds: float) -> None:
        self.examples, self.seconds = examples, seconds
        self.lengths = np.array([[len(example.ids)] for example in examples])
        digest = hashlib.sha256()
        for example in examples:
            digest.update(example.ids.tobytes() + repr(example.labels).encode())
        self.identity = {"examples": len(examples), "content": digest.hexdigest()}

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, number: int) -> Example:
        return self.examples[number]


class Comprehension(Task[HeadOptions | HeadEvalOptions]):
    """What the tasks with a head share: their model, and prediction in batches."""

    model_classes: ClassVar[tuple[type[PretrainedModel], ...]]  # for each of HeadOptions.config_classes
    positions: int  # tokens read at once

    def __init__(self, options: HeadOptions | HeadEvalOptions, data: DataOptions) -> None:
        super().__init__(options, data)
        # Of the training data; None until these, or a model, tell them.
        self.labels: list[str] | None = None

    # ---- Model

    def initial_model(self) -> PretrainedModel:
        return self._with(*model_to_train.initial_model(self.options, self.model_classes, self.labels))

    def resumed_model(self, checkpoint: Path) -> PretrainedModel:
        return self._with(*model_to_train.resumed_model(self.options, checkpoint, self.model_classes))

    def trained_model(
        self, path: str | os.PathLike[str], config_path: str | None = None, tokenizer: str | None = None
    ) -> PretrainedModel:
        return self._with(*loading.load_for_evaluation(path, config_path, tokenizer, self.model_classes))

    def _with(self, model: PretrainedModel, tokenizer: PretrainedTokenizer) -> PretrainedModel:
        check_lengths(model.config, max_source_length=self.options.max_source_length)
        if tokenizer.has_types and model.config.type_vocab_size < 2:
            raise InputError(
                f"config field 'type_vocab_size' is {model.config.type_vocab_size}; allowed here: at least 2"
            )
        self.model_class, self.tokenizer, self.labels = type(model), tokenizer, model.config.labels
        self.positions = self.options.max_source_length or min(512, model.config.max_position_embeddings)
        return model

    # ---- Data

    def inputs_of(self, examples: Sequence[Example]) -> Inputs:
        """input_ids and attention_mask (B, S) of examples; and token_type_ids, of an architecture that has types."""
        inputs = pad_ids([example.ids for example in examples], self.tokenizer.pad_token_id)
        if self.tokenizer.has_types:
            width = inputs["input_ids"].shape[1]
            seconds = [width if example.second is None else example.second for example in examples]
            is_second = torch.arange(width) >= torch.tensor(seconds)[:, None]
            inputs["token_type_ids"] = is_second.long() * inputs["attention_mask"]
        return inputs

    def output_of(self, model: PretrainedModel, batch: Inputs) -> Any:
        """What the network gives for a batch of `inputs_of`."""
        names = ("input_ids", "attention_mask", "token_type_ids")
        return model(**{name: batch[name] for name in names if name in batch})

    # ---- Prediction

    @abstractmethod
    def predict_batch(self, model: PretrainedModel, batch: Inputs) -> list[Prediction]:
        """Predict the examples of a batch, whose seconds nobody need tell."""

    def predict(
        self,
        model: PretrainedModel,
        examples: HeadExamples,
        numbers: Sequence[int],
        batch_size: int,
        clock: Clock,
    ) -> Iterator[tuple[int, Prediction]]:
        for start in range(0, len(numbers), batch_size):
            began, chunk = time.perf_counter(), numbers[start : start + batch_size]
            batch = Batch(self.collate([examples[number] for number in chunk]), list(chunk), 0).to(model.device)
            with torch.no_grad():
                predictions = self.predict_batch(model, batch.inputs)
            seconds = time.perf_counter() - began
            for number, prediction in zip(chunk, predictions, strict=True):
                prediction.seconds = seconds
                yield number, prediction

    def settings(self, model: PretrainedModel) -> dict[str, Any]:
        return {"labels": self.labels, "max_source_length": self.positions}


def logits_of(output: Any) -> Tensor:
    """The logits of a head in fp32, whatever the network computes in."""
    return output.logits.float()
