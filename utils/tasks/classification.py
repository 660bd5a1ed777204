"""Classification: one text or a pair of texts, to one class, several labels, or a number; GLUE's tasks by name."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bart.configuration.configuration import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL
from bart.errors import InputError
from bart.modeling.heads import BartForSequenceClassification
from bart.modeling.pretrained import PretrainedModel
from bart.tokenization.tokenizer import PretrainedTokenizer
from bert.modeling.modeling_bert import BertForSequenceClassification
from utils.app.cli import option
from utils.data.batches import Inputs
from utils.data.columns import Record, column_of, read_records
from utils.data.options import DataOptions
from utils.data.places import is_streamed
from utils.metrics.classification import confusion_of, of_classes, of_label_sets, of_numbers
from utils.tasks.comprehension import (
    Comprehension,
    Example,
    HeadEvalOptions,
    HeadExamples,
    HeadOptions,
    logits_of,
)
from utils.tasks.glue import GLUE, HUB_SET, submission
from utils.tasks.task import Prediction, Scores, text_of

TEXTS = ("text", "sentence", "sentence1", "premise", "question1", "question")
PAIRS = ("sentence2", "hypothesis", "question2", "text2")
LABELS = ("label", "labels", "class")
# Of validation.
FIGURES = {
    SINGLE_LABEL: ("accuracy", "f1", "matthews"),
    MULTI_LABEL: ("f1", "macro_f1", "accuracy"),
    REGRESSION: ("pearson",),
}
TASK_NAME_HELP = f"a task of GLUE ({', '.join(GLUE)}): its columns, labels and, without --data_dir, its set on the Hub"


@dataclass(frozen=True)
class _ColumnOptions:
    """Which columns a table's examples are made of."""

    task_name: str | None = option(None, section="texts", choices=tuple(GLUE), help=TASK_NAME_HELP)
    text_field: str | None = option(None, help=f"column of the texts; by default {', '.join(TEXTS)}")
    pair_field: str | None = option(
        None,
        help=f"column of the second texts of pairs; by default {', '.join(PAIRS)}, where there is one, if --text_field "
        "is not given",
    )
    label_field: str | None = option(None, help=f"column of the labels; by default {', '.join(LABELS)}")
    mismatched: bool = option(False, help="read MNLI's mismatched validation or test set in place of the matched one")


@dataclass(frozen=True)
class ClassificationOptions(_ColumnOptions, HeadOptions):
    """The options of finetune.py."""

    problem_type: str | None = option(
        None,
        choices=PROBLEMS,
        help="what a label is; by default a list is any number of labels, a fraction a number, all else one class",
    )


@dataclass(frozen=True)
class ClassificationEvalOptions(_ColumnOptions, HeadEvalOptions):
    """The options of run_eval.py."""


@dataclass(frozen=True)
class Labelled:
    """Texts as they were read; labels are None where they are only to be predicted."""

    names: list[str]
    texts: list[str]
    pairs: list[str] | None
    labels: list[Any] | None

    def __len__(self) -> int:
        return len(self.texts)


class Classification(Comprehension):
    """Texts, or pairs of them, to classes, sets of labels or numbers."""

    Options = ClassificationOptions
    EvalOptions = ClassificationEvalOptions
    model_classes = (BartForSequenceClassification, BertForSequenceClassification)

    def __init__(self, options: ClassificationOptions | ClassificationEvalOptions, data: DataOptions) -> None:
        self.problem: str | None = getattr(options, "problem_type", None)
        self.glue = GLUE.get(options.task_name)
        if options.mismatched and options.task_name != "mnli":
            raise InputError(f"--mismatched is of --task_name mnli; --task_name is {options.task_name}")
        if self.glue is not None:
            if data.data_dir == DataOptions.data_dir:
                data = dataclasses.replace(data, data_dir=f"{HUB_SET}:{options.task_name}")
            self.problem = SINGLE_LABEL if self.glue.labels else REGRESSION
        super().__init__(options, data)

    @property
    def figures(self) -> Mapping[str, str]:
        """Those of the kind of problem; of all kinds until it is known."""
        kinds = FIGURES.values() if self.problem is None else [FIGURES[self.problem]]
        return {name: "max" for names in kinds for name in names}

    def default_metric(self) -> str:
        return super().default_metric() if self.glue is None else self.glue.metric

    # ---- Data

    def read(self, split: str, for_scoring: bool = False) -> Labelled:
        data, options = self.data, self.options
        place = split
        if options.task_name == "mnli" and split != "train" and is_streamed(data.data_dir):
            kind = "mismatched" if options.mismatched else "matched"
            place = f"{'validation' if split == 'val' else split}_{kind}"
        known = (TEXTS, PAIRS) if self.glue is None else ([name] for name in (*self.glue.columns, None)[:2])
        texts_in, pairs_in = known
        text_column = partial(column_of, "text_field", options.text_field, texts_in, where=data.data_dir)
        records = read_records(data.data_dir, place, text_column, data.limit(split))
        columns = list(records[0].values)
        text = text_column(columns)
        pair = options.pair_field
        if pair is not None or (set(pairs_in) & set(columns) and options.text_field is None):
            pair = column_of("pair_field", pair, pairs_in, columns, data.data_dir)
        read = Labelled(
            [record.name for record in records],
            [_text(record, text) for record in records],
            None if pair is None else [_text(record, pair, self.glue is not None) for record in records],
            None,
        )
        # Nobody but gluebenchmark.com knows the labels of its test sets.
        if not options.labelled or (self.glue is not None and split == "test" and is_streamed(data.data_dir)):
            return read
        label = column_of("label_field", options.label_field, LABELS, columns, data.data_dir)
        labels = [record.values.get(label) for record in records]
        if self.glue is not None and self.glue.labels:  # tables of other makers have numbers
            names = dict(zip(map(str, count()), self.glue.labels, strict=False))
            labels = [names.get(str(label), label) for label in labels]
        if split == "train":
            self._learn(labels)
        return dataclasses.replace(read, labels=labels)

    def given(self, inputs: Sequence[Any]) -> Labelled:
        names = [f"input {number}" for number in range(len(inputs))]
        texts = [text_of(one, number, "text") for number, one in enumerate(inputs)]
        pairs = [
            text_of(one, number, "pair", False) if isinstance(one, dict) else None for number, one in enumerate(inputs)
        ]
        if None in pairs and any(pairs):
            raise InputError(f"input {pairs.index(None)} has no pair, and others have; allowed: all or none")
        return Labelled(names, texts, None if None in pairs else pairs, None)

    def _learn(self, labels: Sequence[Any]) -> None:
        """Find out from the training labels which there are, and of what kind."""
        if self.problem is None:
            kinds = {type(label) for label in labels}
            self.problem = MULTI_LABEL if list in kinds else REGRESSION if float in kinds else SINGLE_LABEL
        if self.problem == REGRESSION:
            self.labels = ["score"]
        elif self.glue is not None:
            self.labels = list(self.glue.labels)
        else:
            lists = labels if self.problem == MULTI_LABEL else [[label] for label in labels]
            found = {str(label) for one in lists if isinstance(one, list) for label in one if label is not None}
            numeric = all(re.fullmatch("-?[0-9]+", label) for label in found)
            self.labels = sorted(found, key=lambda label: (int(label) if numeric else 0, label))
            if len(self.labels) < 2:
                raise InputError(
                    f"{self.data.data_dir}: the training labels are {', '.join(self.labels) or 'none'}; allowed: at "
                    "least two"
                )

    def _with(self, model: PretrainedModel, tokenizer: PretrainedTokenizer) -> PretrainedModel:
        model = super()._with(model, tokenizer)
        if self.problem is None:
            stored = getattr(model.config, "problem_type", None)
            self.problem = stored or (SINGLE_LABEL if len(self.labels) > 1 else REGRESSION)
        model.config.problem_type = self.problem
        return model

    def encode(self, raw: Labelled, split: str) -> HeadExamples:
        began = time.perf_counter()
        if raw.pairs is None:
            rows = [(row, None) for row in self.tokenizer.encode_many(raw.texts, self.positions)]
        else:  # whole ones, since the longer text is cut first
            pairs = zip(*(self.tokenizer(texts)["input_ids"] for texts in (raw.texts, raw.pairs)), strict=True)
            cut = (self.tokenizer.cut(one[1:-1], other[1:-1], self.positions) for one, other in pairs)
            rows = [self.tokenizer.join(*both) for both in cut]
        took = time.perf_counter() - began
        labels = [None] * len(raw) if raw.labels is None else map(self._target, raw.names, raw.labels)
        examples = [
            Example(np.asarray(row, np.int32), label, second) for (row, second), label in zip(rows, labels, strict=True)
        ]
        return HeadExamples(examples, took)

    def _target(self, where: str, label: Any) -> int | float | list[float]:
        """A label as the loss takes it.

        Raises:
            InputError: it is none that the model knows.
        """
        if self.problem == REGRESSION:
            try:
                number = float(label)
            except (TypeError, ValueError):
                number = math.nan
            if not math.isfinite(number):
                raise InputError(f"{where}: the label is {label!r}; allowed: a number")
            return number
        several = label if self.problem == MULTI_LABEL else [label]
        if not isinstance(several, list):
            raise InputError(f"{where}: the label is {label!r}; allowed: a list of labels")
        for one in several:
            if str(one) not in self.labels:
                named = ", ".join(self.labels[:20]) + (" and more" if len(self.labels) > 20 else "")
                raise InputError(f"{where}: the label is {one!r}, which training has not seen; allowed: {named}")
        if self.problem == SINGLE_LABEL:
            return self.labels.index(str(label))
        return [float(name in map(str, several)) for name in self.labels]

    def collate(self, examples: Sequence[Example]) -> Inputs:
        inputs = self.inputs_of(examples)
        if examples[0].labels is not None:
            kind = torch.long if self.problem == SINGLE_LABEL else torch.float32
            inputs["labels"] = torch.tensor([example.labels for example in examples], dtype=kind)
        return inputs

    # ---- Training and validation

    def count(self, batch: Inputs) -> Tensor:
        labels = batch["labels"]
        return torch.tensor(labels.numel(), device=labels.device)

    def loss(self, model: BartForSequenceClassification, batch: Inputs) -> Tensor:
        logits = logits_of(self.output_of(model, batch))
        return model.loss(logits, batch["labels"], reduction="sum")

    def validate(self, model: BartForSequenceClassification, batch: Inputs) -> Tensor:
        """Sums: loss, targets, and what the figures are made of.

        These are the table (C·C,) of right and predicted classes; or, of any number of labels, examples that are right
        and each label's hits, false and missed ones (3L,); or the moments (6,) of a regression.
        """
        labels = batch["labels"]
        logits = logits_of(self.output_of(model, batch))
        loss = model.loss(logits, labels, reduction="sum")
        if self.problem == SINGLE_LABEL:
            parts = confusion_of(labels, logits.argmax(dim=1), len(self.labels)).flatten()
        elif self.problem == MULTI_LABEL:
            chosen, right = logits > 0, labels > 0
            each = torch.stack([chosen & right, chosen & ~right, ~chosen & right]).sum(dim=1)
            parts = torch.cat([(chosen == right).all(dim=1).sum()[None], each.flatten()])
        else:
            x, y = logits[:, 0].double(), labels.double()
            parts = torch.stack([torch.ones_like(x), x, y, x * x, y * y, x * y], dim=1).sum(dim=0)
        return torch.cat([loss.double()[None], self.count(batch).double()[None], parts.double()])

    def figures_of(self, sums: Sequence[float]) -> dict[str, float]:
        loss, targets, *parts = sums
        if self.problem == SINGLE_LABEL:
            figures = of_classes(torch.tensor(parts).view(len(self.labels), -1))
        elif self.problem == MULTI_LABEL:
            counts = torch.tensor(parts[1:]).view(3, -1).t()
            figures = of_label_sets(counts, targets / len(self.labels), parts[0])
        else:
            n, x, y, xx, yy, xy = parts
            spread = math.sqrt(max(0.0, n * xx - x * x) * max(0.0, n * yy - y * y))
            figures = {"pearson": 100 * (n * xy - x * y) / spread if spread else 0.0}
        return {"loss": loss / targets, **{name: figures[name] for name in self.figures}}

    # ---- Prediction

    def predict_batch(self, model: BartForSequenceClassification, batch: Inputs) -> list[Prediction]:
        logits = logits_of(self.output_of(model, batch))
        losses = [(0.0, 0)] * len(logits)
        if "labels" in batch:
            each = model.loss(logits, batch["labels"], reduction="none").view(len(logits), -1)
            losses = [(loss, each.shape[1]) for loss in each.sum(dim=1).tolist()]
        if self.problem == REGRESSION:
            values = [{"number": number} for number in logits[:, 0].tolist()]
        else:
            shares = logits.softmax(dim=1) if self.problem == SINGLE_LABEL else logits.sigmoid()
            values = [{"scores": dict(zip(self.labels, row, strict=True))} for row in shares.tolist()]
        return [Prediction(value, *loss) for value, loss in zip(values, losses, strict=True)]

    def chosen(self, prediction: Prediction) -> str | float | list[str]:
        """The class, labels or number that a prediction says."""
        scores = prediction.values.get("scores")
        if self.problem == REGRESSION:
            return prediction.values["number"]
        if self.problem == SINGLE_LABEL:
            return max(scores, key=scores.get)
        return [label for label, score in scores.items() if score > 0.5]

    def score(self, raw: Labelled, predictions: Sequence[Prediction]) -> Scores:
        chosen = list(map(self.chosen, predictions))
        targets = list(map(self._target, raw.names, raw.labels))
        if self.problem == REGRESSION:
            return of_numbers(chosen, targets), {}
        if self.problem == SINGLE_LABEL:
            numbers = torch.tensor([self.labels.index(label) for label in chosen])
            return of_classes(confusion_of(torch.tensor(targets), numbers, len(self.labels))), {}
        right = torch.tensor(targets) > 0
        found = torch.tensor([[label in labels for label in self.labels] for labels in chosen])
        counts = torch.stack([found & right, found & ~right, ~found & right], dim=2).sum(dim=0)
        return of_label_sets(counts, len(chosen), float((found == right).all(dim=1).sum())), {}

    def row(self, raw: Labelled, examples: HeadExamples, number: int, prediction: Prediction) -> dict[str, Any]:
        chosen = self.chosen(prediction)
        row = {"index": number, "source": raw.texts[number]}
        if raw.pairs is not None:
            row["pair"] = raw.pairs[number]
        if raw.labels is not None:
            row["reference"] = raw.labels[number]
        row["prediction"] = ", ".join(chosen) if isinstance(chosen, list) else str(chosen)
        return {**row, **prediction.values, "source_tokens": int(examples.lengths[number, 0])}

    def files(self, raw: Labelled, predictions: Sequence[Prediction], split: str) -> dict[str, str]:
        if self.glue is None or raw.labels is not None:
            return {}
        said = [str(self.chosen(prediction)) for prediction in predictions]
        return dict([submission(self.options.task_name, self.options.mismatched, said)])

    def settings(self, model: PretrainedModel) -> dict[str, Any]:
        return {**super().settings(model), "problem_type": self.problem, "mismatched": self.options.mismatched}


def _text(record: Record, column: str, may_be_blank: bool = False) -> str:
    """A text of a row; two second texts of QQP are blank."""
    value = record.values.get(column)
    if not isinstance(value, str) or not (value.strip() or may_be_blank):
        raise InputError(f"{record.name}: {column} is {value!r}; allowed: a text that is not blank")
    return value
