"""Scores of classes, sets of labels, and numbers.

`python -m utils.metrics.classification PREDICTIONS REFERENCES` scores a file of labels.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.metrics.classification")

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass, part
from utils.data.columns import column_in
from utils.data.places import LABELS, TABLES, suffix_of
from utils.metrics.by_class import scores_by_class
from utils.metrics.files import FileOptions, print_scores
from utils.text.lines import check_counts, read_lines

PREDICTIONS, REFERENCES = ("prediction", *LABELS), (*LABELS, "reference")


def name_of(label: Any) -> str:
    """The name of a label; 1.0, as pandas writes 1 in a column that lacks values, is 1."""
    return re.sub(r"^(-?[0-9]+)\.0*$", r"\1", str(label))


def of_classes(counts: ArrayLike, classes: int | None = None) -> dict[str, float]:
    """Accuracy, F1 and Matthews' correlation in percent.

    F1 is that of the second of two classes, as GLUE has it, or the mean over classes that are right or predicted.
    Matthews' correlation is 0 where all examples are of one class, or are predicted to be.

    Args:
        counts: (3, C) of each class: examples predicted rightly, predicted, and there.
        classes: how many of them count for F1 as the two of a task with two; the others are of labels that are none.
    """
    hits, predicted, right = np.asarray(counts, dtype=np.float64)
    examples, each = right.sum(), 2 * hits / np.maximum(predicted + right, 1)
    f1 = each[1] if (classes or len(hits)) == 2 else each.sum() / max(np.count_nonzero(predicted + right), 1)
    spread = (examples**2 - predicted @ predicted) * (examples**2 - right @ right)
    matthews = (hits.sum() * examples - predicted @ right) / sqrt(spread) if spread else 0.0
    values = {"accuracy": hits.sum() / examples, "f1": f1, "matthews": matthews}
    return {name: 100 * float(value) for name, value in values.items()}


def of_label_sets(counts: ArrayLike, examples: float, exact: float) -> dict[str, float]:
    """F1 over all labels together, its mean over labels, and the share of examples that are all right, in percent.

    Args:
        counts: (3, L) of each label: examples where it is predicted rightly, predicted, and there.
    """
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


def each_count(predicted: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The counts of each example (N, 3, L) for `of_classes` and `of_label_sets`, from sets of labels (N, L)."""
    return np.stack([predicted & right, predicted, right], axis=1).astype(np.float64)


def of_numbers(predicted: Sequence[float], right: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation in percent; 0 where all numbers of one kind are equal."""
    import torch  # here, since the other scores need none
    from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef

    numbers = torch.tensor(predicted, dtype=torch.float64), torch.tensor(right, dtype=torch.float64)
    if min(len(values.unique()) for values in numbers) < 2:
        return {"pearson": 0.0, "spearman": 0.0}
    return {"pearson": 100 * float(pearson_corrcoef(*numbers)), "spearman": 100 * float(spearman_corrcoef(*numbers))}


@dataclass(frozen=True)
class ClassificationArguments:
    """The options of the command."""

    files: FileOptions = part(FileOptions)
    positive: str | None = option(
        None, section="labels", help="the class of two whose F1 is told; by default the second in order"
    )
    prediction_field: str | None = option(
        None, help="column of predicted labels; by default prediction, label, labels or class"
    )
    label_field: str | None = option(
        None, help="column of the right labels; by default label, labels, class or reference"
    )


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(
        ClassificationArguments, argv, "Score labels, one a line, or labels or lists of labels in a column of a table."
    )
    rows = [_rows(path, "prediction_field", args.prediction_field, PREDICTIONS) for path in args.files.systems]
    references = _rows(args.files.references, "label_field", args.label_field, REFERENCES)
    has_sets = any(isinstance(label, list) for _, label in references)
    right, *predicted = ([_labels_of(*row, has_sets) for row in of_file] for of_file in (references, *rows))
    for path, labels in zip(args.files.systems, predicted, strict=True):
        check_counts((path, args.files.references), len(labels), len(right))
    names = in_order(name for labels in (right, *predicted) for each in labels for name in each)
    if args.positive is not None:
        if has_sets or len(names) != 2 or args.positive not in names:
            raise InputError(
                f"--positive is {args.positive}; allowed: one of two classes; there are {', '.join(names)}"
            )
        names.sort(key=args.positive.__eq__)
    goal = sets_of(right, names)
    counts = [
        np.column_stack([(sets == goal).all(axis=1), each_count(sets, goal).reshape(len(goal), -1)])
        for sets in (sets_of(labels, names) for labels in predicted)
    ]

    def scores_of(sums: np.ndarray) -> dict[str, float]:
        counts = sums[1:].reshape(3, -1)
        return of_label_sets(counts, len(goal), sums[0]) if has_sets else of_classes(counts)

    by_class = scores_by_class(names, *counts[0][:, 1:].sum(axis=0).reshape(3, -1))
    facts: dict[str, Any] = {"examples": len(goal), "groups": {"label" if has_sets else "class": by_class}}
    facts |= {"positive": names[1]} if len(names) == 2 and not has_sets else {}
    of_one = f"; F1 is that of {facts['positive']}" if "positive" in facts else ""
    title = f"Scores in percent of {len(goal):,} examples with {len(names)} labels{of_one}"
    print_scores(args.files, title, counts, scores_of, facts)


def _rows(path: str, option_name: str, field: str | None, usual: Sequence[str]) -> list[tuple[str, Any]]:
    """The value of each line, or of a column of a table, with the place where it stands."""
    if suffix_of(Path(path)) in TABLES:
        records, chosen = column_in(path, option_name, field, usual)
        return [(record.name, record.values.get(chosen)) for record in records]
    if field is not None:
        raise InputError(
            f"--{option_name} is {field}, a column of a table, and {path} is none; allowed: {', '.join(TABLES)}"
        )
    return [(f"{path}, line {number}", line) for number, line in enumerate(read_lines(path, blank=True), 1)]


def _labels_of(where: str, value: Any, has_sets: bool) -> list[str]:
    """The labels of an example, of which there must be one, or a list if others have one.

    A text stands for a label, or for several as run_eval.py joins them.
    """
    if has_sets and isinstance(value, str):
        value = [label for label in value.split(", ") if label.strip()]
    labels = value if isinstance(value, list) else [value]
    labels = [name_of(label.strip()) if isinstance(label, str) else name_of(label) for label in labels]
    if isinstance(value, list) != has_sets or not {"", "None"}.isdisjoint(labels):
        allowed = "a list of labels" if has_sets else "one label"
        raise InputError(f"{where}: the label is {value!r}; allowed: {allowed} that is not blank")
    return labels
