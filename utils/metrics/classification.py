"""Scores of classes, sets of labels, and numbers; the classes taken for others, and the errors a model is surest of."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from reprlib import repr as shortened
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass
from utils.data.columns import LABELS
from utils.metrics.files import FileOptions, Value, print_scores, refuse_module
from utils.metrics.significance import pearson_of
from utils.text.lines import list_in

PREDICTIONS, REFERENCES = ("prediction", *LABELS), (*LABELS, "reference")
JOINT = ", "  # stands between labels that a model predicts, in a line or a cell, where none of them holds it
ERRORS, EXCERPT = 20, 160  # errors that are listed, and characters of their texts
ByClass = dict[str, dict[str, float | int]]


def name_of(label: Any) -> str:
    """The name of a label; 1.0, as pandas writes 1 in a column that lacks values, is 1."""
    return re.sub(r"^(-?[0-9]+)\.0*$", r"\1", str(label))


def read_label(where: str, value: Any) -> Any:
    """The label that a value is, or the list of labels, which may be in JSON. `where` begins an error."""
    listed = list_in(value, True, f"{where}: ") if isinstance(value, str) else None
    labels = value if listed is None else listed
    every = labels if isinstance(labels, list) else [labels]
    every = [name_of(each.strip()) if isinstance(each, str) else each for each in every]
    for each in every:
        is_finite = not isinstance(each, float) or math.isfinite(each)
        if each is None or each == "" or isinstance(each, (list, dict)) or not is_finite:
            allowed = "a label that is not blank, a finite number, or a list of these"
            raise InputError(f"{where} is {shortened(value)}; allowed: {allowed}")
    return every if isinstance(labels, list) else every[0]


def number_of(value: Any) -> float:
    """The number that a value of a table or of JSON is, or is written as; nan where it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def of_classes(counts: ArrayLike, classes: int | None = None) -> dict[str, float]:
    """Accuracy, F1 and Matthews' correlation in percent, from counts (3, C): predicted rightly, predicted, and there.

    F1 is that of the second of two classes, as GLUE has it, or the mean over classes that are right or predicted.
    `classes` of the labels are the task's; the others are of labels that are none.
    """
    hits, predicted, right = np.asarray(counts, dtype=np.float64)
    examples, each = right.sum(), 2 * hits / np.maximum(predicted + right, 1)
    f1 = each[1] if (classes or len(hits)) == 2 else each.sum() / max(np.count_nonzero(predicted + right), 1)
    spread = (examples**2 - predicted @ predicted) * (examples**2 - right @ right)
    matthews = (hits.sum() * examples - predicted @ right) / math.sqrt(spread) if spread else 0.0
    values = {"accuracy": hits.sum() / examples, "f1": f1, "matthews": matthews}
    return {name: 100 * float(value) for name, value in values.items()}


def of_label_sets(counts: ArrayLike, examples: float, exact: float) -> dict[str, float]:
    """F1 over all labels together, its mean over labels, and the share of examples that are all right, in percent."""
    hits, predicted, right = np.asarray(counts, dtype=np.float64)
    each = 2 * hits / np.maximum(predicted + right, 1)
    micro = 2 * hits.sum() / max((predicted + right).sum(), 1)
    return {"f1": 100 * float(micro), "macro_f1": 100 * float(each.mean()), "accuracy": 100 * exact / examples}


def in_order(names: Iterable[str]) -> list[str]:
    """Labels in the order of a head's outputs: by number where all are whole numbers."""
    names = set(names)
    numeric = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return sorted(names, key=lambda name: (int(name) if numeric else 0, name))


def sets_of(labels: Sequence[Sequence[str]], names: Sequence[str]) -> np.ndarray:
    """True (N, L) where an example has a label."""
    places, sets = {name: number for number, name in enumerate(names)}, np.zeros((len(labels), len(names)), bool)
    for row, each in zip(sets, labels, strict=True):
        row[[places[name] for name in each]] = True
    return sets


def counts_of(predicted: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of sets of labels (N, L), (N, 1 + 3 L): 1 for an example that is all right, and what `of_classes` counts."""
    return np.column_stack([(predicted == right).all(axis=1), predicted & right, predicted, right]).astype(np.float64)


def of_numbers(predicted: Sequence[float], right: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation in percent; 0 where all numbers of one kind are equal."""
    import torch  # here, since the other scores need none
    from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef

    numbers = torch.tensor(predicted, dtype=torch.float64), torch.tensor(right, dtype=torch.float64)
    if min(len(values.unique()) for values in numbers) < 2:
        return {"pearson": 0.0, "spearman": 0.0}
    return {"pearson": 100 * float(pearson_corrcoef(*numbers)), "spearman": 100 * float(spearman_corrcoef(*numbers))}


def scores_by_class(names: Sequence[str], hits: ArrayLike, predicted: ArrayLike, right: ArrayLike) -> ByClass:
    """Precision, recall and F1 in percent of each class, 0 where they would be 0 / 0, and its support."""
    scores: ByClass = {}
    counts = np.stack([hits, predicted, right], axis=1).astype(int).tolist()
    for name, (hit, guessed, support) in zip(names, counts, strict=True):
        scores[name] = {
            "precision": 100 * hit / max(guessed, 1),
            "recall": 100 * hit / max(support, 1),
            "f1": 200 * hit / max(guessed + support, 1),
            "support": support,
        }
    return scores


def confusion_of_classes(
    names: Sequence[str], right: Iterable[str], predicted: Iterable[str]
) -> dict[str, dict[str, int]]:
    """Right class -> predicted class -> number of examples, without zeros; the names come first, in order."""
    pairs = Counter(zip(right, predicted, strict=True))
    order = list(dict.fromkeys([*names, *sorted({name for pair in pairs for name in pair})]))
    return {row: {column: pairs[row, column] for column in order if (row, column) in pairs} for row in order}


def surest_errors(
    wrong: Iterable[tuple[int, str, str, str, float]], examples: int, measure: str = "confidence"
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """The errors of the greatest measure, the greatest first, and the greatest of each example (N,), 0 without one."""
    names = ("index", "text", "reference", "prediction", measure)
    # Rounded, since batches of other sizes round otherwise.
    rounded = [(*error, float(f"{value:.4g}")) for *error, value in wrong]
    errors, of_each = sorted(rounded, key=lambda error: -error[-1]), np.zeros(examples)
    for index, *_, value in reversed(errors):  # the greatest of an example is the last one
        of_each[index] = value
    listed = [dict(zip(names, error, strict=True)) for error in errors[:ERRORS]]
    return [{**error, "text": " ".join(error["text"].split())[:EXCERPT]} for error in listed], of_each


@dataclass(frozen=True)
class ClassificationOptions(FileOptions):
    label_field: str | None = option(
        None, section="labels", help="column of the right labels; by default label, labels, class or reference"
    )


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    text = "Score labels or numbers, one a line or in a column of a table. A column may hold lists of labels."
    files = parse_dataclass(ClassificationOptions, argv, text, prog)
    references, systems = files.values("label_field", files.label_field, REFERENCES, PREDICTIONS)
    right, *predicted = (np.array([number_of(row.value) for row in rows]) for rows in (references, *systems))
    measured = np.concatenate([right, predicted[0]]) if np.isfinite(predicted[0]).all() else right
    has_fractions = np.isfinite(right).all() and (measured % 1).any()
    if not has_fractions:
        _print_labels(files, references, systems)
        return
    for rows, numbers in zip(systems, predicted, strict=True):
        if not np.isfinite(numbers).all():
            where, value, *_ = rows[int(np.isfinite(numbers).argmin())]
            raise InputError(f"{where}: the prediction is {value!r}; allowed: a number, as in {files.references}")
    spearman = of_numbers(predicted[0], right)["spearman"]  # which is of no sums and so has no interval
    moved, *numbers = (values - values[0] for values in (right, *predicted))  # so that sums lose few digits
    counts = [np.stack([np.ones_like(x), x, moved, x * x, moved * moved, x * moved], axis=1) for x in numbers]
    title = f"Correlation in percent of {len(right):,} numbers; Spearman's is {spearman:.2f}"
    print_scores(files, title, counts, lambda sums: {"pearson": pearson_of(sums)}, {"spearman": spearman})


def _print_labels(files: FileOptions, references: Sequence[Value], systems: Sequence[Sequence[Value]]) -> None:
    """Print the scores of predicted classes or, where the references are lists of labels, of sets of labels."""
    has_sets = any(isinstance(read_label(f"{row.place}: the label", row.value), list) for row in references)

    def labels_of(row: Value, is_joined: bool = False) -> list[str]:
        value = row.value
        if is_joined and isinstance(value, str) and list_in(value, True) is None:
            value = value.split(JOINT) if value.strip() else []
        label = read_label(f"{row.place}: the label", value)
        if isinstance(label, list) != has_sets:
            allowed = "a list of labels" if has_sets else "one label"
            raise InputError(f"{row.place}: the label is {label!r}; allowed: {allowed}")
        return [*map(name_of, label if has_sets else [label])]

    right = [*map(labels_of, references)]
    predicted = [[labels_of(row, is_joined=has_sets) for row in rows] for rows in systems]
    in_right, *in_systems = ({*chain.from_iterable(labels)} for labels in (right, *predicted))
    # A score of PREDICTIONS must not depend on OTHER, nor the measure on a predicted class that is never right.
    classes = in_order(in_right if len(in_right) > 1 else in_right | in_systems[0])
    is_binary = len(classes) == 2 and not has_sets
    shown = list(dict.fromkeys([*classes, *in_order(in_right | in_systems[0])]))
    names = list(dict.fromkeys([*shown, *in_order(chain.from_iterable(in_systems))]))
    goal = sets_of(right, names)
    counts = [counts_of(sets_of(labels, names), goal) for labels in predicted]

    def scores_of(sums: np.ndarray) -> dict[str, float]:
        exact, by_label = sums[0], sums[1:].reshape(3, -1)
        if not has_sets:
            return of_classes(by_label, len(classes))
        occurs = by_label[1:].any(axis=0)  # labels of OTHER alone do not
        return of_label_sets(by_label[:, occurs] if occurs.any() else by_label, len(goal), exact)

    by_class = scores_by_class(shown, *counts[0][:, 1:].sum(axis=0).reshape(3, -1)[:, : len(shown)])
    facts: dict[str, Any] = {"groups": {"label" if has_sets else "class": by_class}}
    facts |= {"positive": classes[1]} if is_binary else {}
    of_one = f"; F1 is that of {classes[1]}" if is_binary else ""
    title = f"Scores in percent of {len(goal):,} examples with {len(shown)} labels{of_one}"
    print_scores(files, title, counts, scores_of, facts)


if __name__ == "__main__":
    refuse_module()
