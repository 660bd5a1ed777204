"""Classification: one text or a pair of texts, to one class, several labels, or a number; GLUE's tasks by name."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, compress, count
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bart.configuration.configuration import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from bart.errors import InputError
from bart.modeling.heads import BartForSequenceClassification
from bart.modeling.pretrained import PretrainedModel
from bart.tokenization.tokenizer import PretrainedTokenizer
from bert.modeling.modeling_bert import BertForSequenceClassification
from utils.data.batches import Inputs
from utils.data.columns import LABELS, PAIRS, TEXTS, Record, column_of, names_in, text_in, value_in, without_blank
from utils.data.options import PlaceOptions
from utils.data.places import is_published
from utils.data.splits import check_split
from utils.data.tables import read_records
from utils.data.tokenized import encode_cut, warn_of_cut, warn_of_unknown
from utils.metrics import classification as measures
from utils.metrics.classification import JOINT, counts_of, name_of, surest_errors
from utils.metrics.significance import pearson_of, scores_and_intervals
from utils.models.loading import LoadedModel
from utils.models.model_to_train import renamed
from utils.tasks.glue import GLUE, HUB_SET, submission
from utils.tasks.head import Example, HeadExamples, Labels, LabelTask
from utils.tasks.options import OPTIONS
from utils.tasks.task import Prediction, Scores
from utils.text.lines import joined

logger = logging.getLogger(__name__)
# The metrics of validation.
METRICS = {
    SINGLE_LABEL: ("accuracy", "f1", "matthews"),
    MULTI_LABEL: ("f1", "macro_f1", "accuracy"),
    REGRESSION: ("pearson",),
}


class LabelledText(NamedTuple):
    """A text, or a pair of them, as it was read."""

    name: str
    texts: tuple[str, ...]
    columns: tuple[str, ...]  # of the texts
    label: Any = None  # None where it is only to be predicted


class Classification(LabelTask):
    """Texts, or pairs of them, to classes, sets of labels or numbers."""

    Options, TrainingOptions, EvalOptions = OPTIONS["classification"]
    pipeline, target, endpoint = "text-classification", "label", "/classify"
    fields: ClassVar = {"text": str, "pair": str | None}
    model_classes = (BartForSequenceClassification, BertForSequenceClassification)
    kept = ("max_source_length", "label_field", "drop_label")
    separator = JOINT
    metrics: ClassVar[Mapping[str, str]] = {name: "max" for names in METRICS.values() for name in names}

    def check_options(self) -> None:
        super().check_options()
        task_name = self.options.task_name
        self.glue = GLUE.get(task_name)
        if self.options.mismatched and task_name != "mnli":
            raise InputError(f"--mismatched is of --task_name mnli; --task_name is {task_name}")
        if self.glue is not None and self.place.data_dir == PlaceOptions.data_dir:
            self.place = dataclasses.replace(self.place, data_dir=f"{HUB_SET}:{task_name}")

    @property
    def chosen_problem(self) -> str | None:
        """The kind of problem by the options; None where these do not tell it."""
        if self.glue is not None:
            return SINGLE_LABEL if self.glue.labels else REGRESSION
        return self.training.problem_type

    def metrics_for(self, learned: Labels) -> Sequence[str]:
        first = [] if self.glue is None else [self.glue.metric]
        return *first, *METRICS[learned.problem], "loss"

    # ---- Data

    @property
    def known_columns(self) -> Sequence[str]:
        """The columns of texts, and of second ones, by the task of GLUE or else by the model, if it tells any."""
        return self.columns if self.glue is None else self.glue.columns

    def columns_in(self, columns: Collection[str]) -> tuple[str, ...]:
        """Choose the columns of texts and, where they come in pairs, of the second ones."""
        text, pair, where = self.options.text_field, self.options.pair_field, self.place.data_dir
        known = self.known_columns
        texts_in, pairs_in = (known[:1], known[1:]) if known else (TEXTS, PAIRS)
        chosen = column_of("text_field", text, texts_in, columns, where)
        is_pair = len(known) > 1 if known else text is None and {*PAIRS} & {*columns}
        if pair is None and not is_pair:
            return (chosen,)
        pair = column_of("pair_field", pair, pairs_in, columns, where)
        if pair == chosen:
            raise InputError(f"{where}: --text_field and --pair_field are both {pair!r}; allowed: two columns")
        return chosen, pair

    def read(self, split: str, for_scoring: bool = False) -> list[LabelledText]:
        options, data_dir = self.options, self.place.data_dir
        place, choice = self.place.chosen(split)
        if options.task_name == "mnli" and split != "train" and is_published(data_dir):
            kind = "mismatched" if options.mismatched else "matched"
            place = f"{'validation' if split == 'val' else split}_{kind}"
        records = read_records(data_dir, place, lambda columns: self.columns_in(columns)[0], choice)
        names = names_in(records)
        columns = self.columns_in(names)
        if len(columns) == 1 and (more := {*PAIRS} & {*names} - {*columns}):
            logger.warning("%s: %s is not read; --pair_field makes pairs of it", data_dir, " or ".join(sorted(more)))
        records = without_blank(records, lambda record: self.given([record], columns), choice.tables.skip_blank)
        # Nobody but gluebenchmark.com knows the labels of its test sets.
        if not self.is_labelled or (self.glue is not None and split == "test" and is_published(data_dir)):
            return self.given(records, columns)
        known = [*filter(None, [self.trained.get("label_field")]), *LABELS]
        label = column_of("label_field", options.label_field, known, names, data_dir)
        return self._labelled(records, columns, label, split)

    def _labelled(
        self, records: Sequence[Record], columns: Sequence[str], column: str, split: str
    ) -> list[LabelledText]:
        """The texts, with their labels, that --drop_label does not leave out; the log counts the others."""
        where, dropped = self.place.data_dir, {*(self.options.drop_label or self.trained.get("drop_label") or ())}
        of_glue = () if self.glue is None else self.glue.labels
        numbered = {str(number): name for number, name in enumerate(of_glue)}  # which tables of other makers have
        kept = []
        for record, text in zip(records, self.given(records, columns), strict=True):
            value = value_in(record.values, column)
            if value is None and "-1" in dropped:
                continue
            if not dropped and value in (None, "-"):
                way = f"--drop_label {value or -1} leaves such rows out, and with another value keeps them"
                raise InputError(f"{record.name}: {column} is {value!r}; allowed: a label that is not blank; {way}")
            label = measures.read_label(f"{record.name}: {column}", value)
            if dropped.isdisjoint(_names_of(label)):
                named = self.named(record.name, label)
                if dropped.isdisjoint(_names_of(named)):
                    kept.append(text._replace(label=numbered.get(name_of(named), named)))
        if dropped:
            counted = f"{len(records) - len(kept):,} of {len(records):,} rows"
            logger.info("%s, %s: %s are left out, by --drop_label %s", where, split, counted, " ".join(sorted(dropped)))
            check_split(kept, where, split, "rows with other labels")
        return kept

    def typed_columns(self, columns: Collection[str]) -> Sequence[str]:
        typed = ("text", "pair") if "pair" in columns else ("text",)
        known = self.known_columns
        if known and len(known) != len(typed):
            allowed = "JSON objects with text and pair" if known[1:] else "a text without pair"
            raise InputError(f"the model was trained on {' with '.join(known)}; allowed: {allowed}")
        return typed

    def given(self, records: Sequence[Record], columns: Sequence[str]) -> list[LabelledText]:
        first, *others = columns
        given = []
        for record in records:
            seconds = (text_in(record, column, may_be_blank=self.glue is not None) for column in others)
            given.append(LabelledText(record.name, (text_in(record, first), *seconds), tuple(columns)))
        return given

    def learn(self, examples: Mapping[str, list[LabelledText]]) -> Labels:
        train, smoothing, class_weights = examples["train"], self.training.label_smoothing, self.training.class_weights
        problem, columns = self.chosen_problem or _problem_of([text.label for text in train]), train[0].columns
        if smoothing and problem != SINGLE_LABEL:
            raise InputError(f"--label_smoothing is {smoothing}; allowed with one class for each text")
        if problem == REGRESSION:
            if class_weights is not None:
                raise InputError(f"--class_weights is {class_weights!r}; the labels are numbers, which have no classes")
            return Labels(["score"], problem, columns)
        if self.glue is not None:
            names = list(self.glue.labels)
        else:
            names = measures.in_order(name for name, _ in self.labels_in(train))
            if len(names) < 2:
                raise InputError(f"{self.place.data_dir}: the training labels are {', '.join(names)}; allowed: two")
            if "-1" in names:
                logger.warning("the label -1 is a class; --drop_label -1 leaves its rows out")
        self.check_labels(examples, names)
        return Labels(names, problem, columns)

    def labels_in(self, raw: Sequence[LabelledText]) -> Iterator[tuple[str, str]]:
        for text in raw:
            for name in [] if text.label is None else _names_of(text.label):
                yield name, text.name

    # ---- Model

    def checked(self, loaded: LoadedModel, learned: Labels | None = None) -> LoadedModel:
        """A model whose config names the kind of problem; the labels of a task of GLUE get its names."""
        config = super().checked(loaded).model.config
        problem = self.chosen_problem if learned is None else learned.problem
        if self.glue is not None and self.glue.labels:
            names = list(self.glue.labels)
            numbered = [[f"{prefix}{number}" for number in range(len(names))] for prefix in ("", "LABEL_")]
            config.labels = names if config.labels in numbered else renamed(config.labels, names)
            if sorted(config.labels) != sorted(names):
                raise InputError(f"the labels are {', '.join(config.labels)}; --task_name allows {', '.join(names)}")
        stored = getattr(config, "problem_type", None)  # a field that configs may have
        config.problem_type = problem or stored or (SINGLE_LABEL if len(loaded.labels) > 1 else REGRESSION)
        return loaded

    def encode(
        self, raw: Sequence[LabelledText], split: str, loaded: LoadedModel, for_scoring: bool = False
    ) -> HeadExamples:
        tokenizer, length = loaded.tokenizer, self.read_length(loaded)
        read, kind = [" ".join(each.texts) for each in raw], (loaded.model.config.problem_type, loaded.labels)
        if len(raw[0].texts) == 1:
            ids, is_cut = encode_cut(tokenizer, read, length)
            rows = [(row, None) for row in ids]
        else:  # whole ones, since the longer text is cut first
            encoded = (tokenizer([*texts])["input_ids"] for texts in zip(*(each.texts for each in raw), strict=True))
            pairs = [(first[1:-1], second[1:-1]) for first, second in zip(*encoded, strict=True)]
            cut = [tokenizer.cut(*pair, length) for pair in pairs]
            rows = [tokenizer.join(*both) for both in cut]
            is_cut = np.array([both != pair for both, pair in zip(cut, pairs, strict=True)])
        texts = f"texts{self.of_split(split)}"
        warn_of_cut(int(is_cut.sum()), len(raw), texts, length, "--max_source_length")
        warn_of_unknown(tokenizer, [ids for ids, _ in rows], read, texts)
        examples = [
            Example(np.asarray(row, np.int32), _target(text, *kind), second, bool(was_cut))
            for (row, second), text, was_cut in zip(rows, raw, is_cut, strict=True)
        ]
        encoded = HeadExamples(examples)
        if split == "train" and not for_scoring:
            self.weigh(encoded, raw, loaded)
        return encoded

    def collate(self, examples: Sequence[Example], tokenizer: PretrainedTokenizer) -> Inputs:
        inputs = self.inputs_of(examples, tokenizer)
        if examples[0].labels is not None:
            kind = torch.long if isinstance(examples[0].labels, int) else torch.float32
            inputs["labels"] = torch.tensor([example.labels for example in examples], dtype=kind)
        return inputs

    def match(self, raw: Sequence[LabelledText], split: str, loaded: LoadedModel) -> None:
        """Give the labels of a published model the names that they have in data.

        Names are compared without case. Labels without names are the numbers in the data or, in order, the names there.
        """
        config = loaded.model.config
        if config.problem_type == REGRESSION:
            return
        # A model that was trained here has the columns and the names of its data.
        if raw[0].label is not None and "columns" not in config.extra:
            names = measures.in_order(name for name, _ in self.labels_in(raw))
            numbers = [str(number) for number in range(len(config.labels))]
            if not config.has_unnamed_labels:
                config.labels = renamed(config.labels, names)
            elif {*names} <= {*numbers}:
                config.labels = numbers
            elif len(names) == len(numbers) and not {*names} & {*config.labels}:
                logger.warning("the model's labels have no names; they are taken in the order %s", ", ".join(names))
                config.labels = names
        super().match(raw, split, loaded)

    # ---- Training and validation

    def loss(self, model: PretrainedModel, batch: Inputs) -> Tensor:
        logits = self.logits_of(model, batch)
        return model.loss(logits, batch["labels"], reduction="sum", **self.loss_options(model, logits))

    def validate(self, loaded: LoadedModel, batch: Inputs) -> Tensor:
        """Sums: loss, neither weighted nor smoothed, targets, and counts of labels or the moments of a regression."""
        predictions, targets = self.predict_batch(loaded, batch), batch["labels"].cpu().numpy()
        if loaded.model.config.problem_type == REGRESSION:
            x, y = np.array([prediction.values["number"] for prediction in predictions]), targets.astype(np.float64)
            counts = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y]).sum(axis=1)
        else:
            counts = counts_of(*_sets(targets, predictions, loaded)).sum(axis=0)
        return self.sums_of(predictions, torch.from_numpy(counts), loaded)

    def metrics_of(self, sums: Sequence[float], loaded: LoadedModel) -> dict[str, float]:
        loss, targets, *parts = sums
        classes, problem = len(loaded.labels), loaded.model.config.problem_type
        if problem == REGRESSION:
            metrics = {"pearson": pearson_of(parts)}
        else:
            metrics = _metrics_of(parts, targets / classes, loaded)
        return {"loss": loss / max(targets, 1), **{name: metrics[name] for name in METRICS[problem]}}

    # ---- Prediction

    def predict_batch(self, loaded: LoadedModel, batch: Inputs) -> list[Prediction]:
        problem, labels = loaded.model.config.problem_type, loaded.labels
        logits = self.logits_of(loaded.model, batch)
        losses = [(0.0, 0)] * len(logits)
        if "labels" in batch:
            each = loaded.model.loss(logits, batch["labels"], reduction="none").view(len(logits), -1)
            losses = [(loss, each.shape[1]) for loss in each.sum(dim=1).tolist()]
        if problem == REGRESSION:
            values = [{"chosen": number, "number": number} for number in logits[:, 0].tolist()]
        else:
            shares = logits.softmax(dim=1) if problem == SINGLE_LABEL else logits.sigmoid()
            values = []
            for row in shares.tolist():
                scores = dict(zip(labels, row, strict=True))
                likely = [label for label, score in scores.items() if score > 0.5]
                chosen = max(scores, key=scores.get) if problem == SINGLE_LABEL else likely
                values.append({"chosen": chosen, "scores": scores})
        return [Prediction(value, *loss) for value, loss in zip(values, losses, strict=True)]

    def score(self, raw: Sequence[LabelledText], predictions: Sequence[Prediction], loaded: LoadedModel) -> Scores:
        names, problem, texts = loaded.labels, loaded.model.config.problem_type, [text.texts[0] for text in raw]
        targets, right = [_target(text, problem, names) for text in raw], [_names_of(text.label) for text in raw]
        if problem == REGRESSION:
            chosen = [prediction.values["number"] for prediction in predictions]
            apart = np.abs(np.subtract(chosen, targets))
            wrong = zip(count(), texts, chain(*right), map("{:.4g}".format, chosen), apart, strict=False)
            errors, surest = surest_errors(wrong, len(chosen), "difference")
            return {**measures.of_numbers(chosen, targets), "errors": errors}, {"error": surest}
        is_single = problem == SINGLE_LABEL
        chosen = [_names_of(prediction.values["chosen"]) for prediction in predictions]
        predicted, goal = _sets(np.array(targets), predictions, loaded)
        counts = counts_of(predicted, goal)
        scores = scores_and_intervals(counts, lambda sums: _metrics_of(sums, len(goal), loaded))
        common = np.frombuffer(Counter(map(bytes, goal)).most_common(1)[0][0], bool)
        always = counts_of(np.tile(common, (len(goal), 1)), goal).sum(axis=0)
        named = JOINT.join(compress(names, common)) or "none"
        scores["baselines"] = {f"always {named}": _metrics_of(always, len(goal), loaded)}
        of_labels = counts[:, 1:].sum(axis=0).reshape(3, -1)
        scores["groups"] = {"class" if is_single else "label": measures.scores_by_class(names, *of_labels)}
        shares = np.array([list(prediction.values["scores"].values()) for prediction in predictions])
        if is_single:
            scores["confusion"] = measures.confusion_of_classes(names, *map(chain.from_iterable, (right, chosen)))
            confidence = shares.max(axis=1)
        else:  # the one of the label that is wrong by most
            confidence = np.where(goal == predicted, 0, np.where(predicted, shares, 1 - shares)).max(axis=1)
        every = zip(count(), texts, map(JOINT.join, right), map(JOINT.join, chosen), 100 * confidence, strict=False)
        is_right = counts[:, 0]
        scores["errors"], surest = surest_errors(compress(every, 1 - is_right), len(goal))
        return scores, {"accuracy": 100.0 * is_right, "confident_error": surest}

    def row(
        self, raw: Sequence[LabelledText], examples: HeadExamples, number: int, prediction: Prediction
    ) -> dict[str, Any]:
        values, label = dict(prediction.values), raw[number].label
        chosen = values.pop("chosen")
        row = {"index": number, **dict(zip(("source", "pair"), raw[number].texts, strict=False))}
        if label is not None:
            row["reference"] = label if isinstance(chosen, (list, float)) else name_of(label)
        row["prediction"] = joined(chosen, self.separator) if isinstance(chosen, list) else str(chosen)
        return {**row, **values, **examples.counts(number)}

    def cells(self, row: Mapping[str, Any], prediction: Prediction) -> dict[str, Any]:
        chosen, scores = prediction.values["chosen"], prediction.values.get("scores")
        if scores is None:  # of a number
            return {"prediction": chosen}
        score = [scores[label] for label in chosen] if isinstance(chosen, list) else scores[chosen]
        return {"prediction": chosen, "score": score}

    def files(self, raw: Sequence[LabelledText], predictions: Sequence[Prediction], split: str) -> dict[str, str]:
        if self.glue is None or raw[0].label is not None:
            return {}
        chosen = [str(prediction.values["chosen"]) for prediction in predictions]
        return dict([submission(self.options.task_name, self.options.mismatched, chosen)])

    def settings(self, loaded: LoadedModel) -> dict[str, Any]:
        problem = loaded.model.config.problem_type
        return {**super().settings(loaded), "problem_type": problem, "mismatched": self.options.mismatched}


def _problem_of(labels: Sequence[Any]) -> str:
    """The kind of problem that training labels are of."""
    if any(isinstance(label, list) for label in labels):
        return MULTI_LABEL
    if any(isinstance(label, float) and not label.is_integer() for label in labels):
        return REGRESSION
    are_numbers = all(math.isfinite(measures.number_of(label)) for label in labels)
    # As pandas writes the numbers of classes, or as CSV holds fractions.
    if numbers := [each for each in labels if isinstance(each, float) or (are_numbers and "." in str(each))]:
        logger.info("labels such as %s are classes; --problem_type regression predicts numbers", numbers[0])
    return SINGLE_LABEL


def _names_of(label: Any) -> list[str]:
    """The name of a label, or the names of a list of them."""
    return [*map(name_of, label if isinstance(label, list) else [label])]


def _target(text: LabelledText, problem: str, names: Sequence[str]) -> int | float | list[float] | None:
    """The label of a text as the loss takes it, None if there is none; InputError if it is none of such a problem."""
    label = text.label
    if label is None:
        return None
    if problem == REGRESSION:
        if not math.isfinite(number := measures.number_of(label)):
            raise InputError(f"{text.name}: the label is {label!r}; allowed: a number")
        return number
    if isinstance(label, list) != (problem == MULTI_LABEL):
        allowed = "a list of labels" if problem == MULTI_LABEL else "one label"
        raise InputError(f"{text.name}: the label is {label!r}; allowed: {allowed}")
    given = _names_of(label)
    return names.index(given[0]) if problem == SINGLE_LABEL else [float(name in given) for name in names]


def _sets(targets: np.ndarray, predictions: Sequence[Prediction], loaded: LoadedModel) -> tuple[np.ndarray, np.ndarray]:
    """True (N, L) for the labels that are predicted, and for those that are right."""
    is_single = loaded.model.config.problem_type == SINGLE_LABEL
    goal = targets[:, None] == np.arange(len(loaded.labels)) if is_single else targets > 0
    chosen = [_names_of(prediction.values["chosen"]) for prediction in predictions]
    return measures.sets_of(chosen, loaded.labels), goal


def _metrics_of(counts: Sequence[float], examples: float, loaded: LoadedModel) -> dict[str, float]:
    """The metrics of labels, from the sum of their `counts_of`."""
    of_labels = np.reshape(counts[1:], (3, -1))
    if loaded.model.config.problem_type == SINGLE_LABEL:
        return measures.of_classes(of_labels)
    return measures.of_label_sets(of_labels, examples, counts[0])
