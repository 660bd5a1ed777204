"""Scores of classes, tags and numbers, by torchmetrics."""

from __future__ import annotations

from utils.app.commands import refuse

if __name__ == "__main__":
    refuse("utils.metrics.classification", "run_eval.py --task classification predicts and scores")

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics.functional import matthews_corrcoef, pearson_corrcoef, spearman_corrcoef
from torchmetrics.functional.classification import binary_f1_score, multiclass_f1_score


def confusion_of(right: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count examples (C, C) by right class and predicted class, which are given as numbers (N,)."""
    return torch.bincount(right * classes + predicted, minlength=classes**2).view(classes, classes)


def of_classes(confusion: Tensor, classes: int | None = None) -> dict[str, float]:
    """Accuracy, F1 and Matthews' correlation in percent.

    F1 is that of the second of two classes, as GLUE has it, or the mean over classes that are right or predicted.

    Args:
        confusion: (C, C), as `confusion_of` gives it.
        classes: how many of them count for F1 as the two of a task with two; the others are of labels that are none.
    """
    size = len(confusion)
    right, predicted = (
        axis.repeat_interleave(confusion.long().flatten())
        for axis in torch.cartesian_prod(torch.arange(size), torch.arange(size)).unbind(1)
    )
    if (classes or size) == 2:
        f1 = binary_f1_score(predicted == 1, right == 1)
    else:
        f1 = multiclass_f1_score(predicted, right, size, average="macro")
    matthews = 0.0
    if min(len(right.unique()), len(predicted.unique())) > 1:  # torchmetrics gives other values than 0 otherwise
        matthews = matthews_corrcoef(predicted, right, "multiclass", num_classes=size)
    values = {"accuracy": (right == predicted).double().mean(), "f1": f1, "matthews": matthews}
    return {name: 100 * float(value) for name, value in values.items()}


def of_label_sets(counts: Tensor, examples: float, exact: float) -> dict[str, float]:
    """F1 over all labels together, its mean over labels, and the share of examples that are all right, in percent.

    Args:
        counts: (L, 3) of each label: predicted and right, predicted and wrong, right and not predicted.
    """
    hits, false, missed = counts.double().unbind(1)
    each = torch.where(hits + false + missed > 0, 2 * hits / (2 * hits + false + missed).clamp(min=1), 0.0)
    micro = 2 * hits.sum() / (2 * hits + false + missed).sum().clamp(min=1)
    return {"f1": 100 * float(micro), "macro_f1": 100 * float(each.mean()), "accuracy": 100 * exact / examples}


def of_numbers(predicted: Sequence[float], right: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation in percent; 0 where all numbers of one kind are equal."""
    numbers = torch.tensor(predicted, dtype=torch.float64), torch.tensor(right, dtype=torch.float64)
    if min(len(values.unique()) for values in numbers) < 2:
        return {"pearson": 0.0, "spearman": 0.0}
    return {"pearson": 100 * float(pearson_corrcoef(*numbers)), "spearman": 100 * float(spearman_corrcoef(*numbers))}
