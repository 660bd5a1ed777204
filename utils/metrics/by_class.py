"""Scores of each class, the classes that are taken for others, and the errors that a model is surest of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

ERRORS, EXCERPT = 20, 160  # errors that are listed, and characters of their texts
ByClass = dict[str, dict[str, float | int]]


def scores_by_class(names: Sequence[str], hits: ArrayLike, predicted: ArrayLike, right: ArrayLike) -> ByClass:
    """Precision, recall and F1 in percent of each class, and its support: the examples that are of it.

    A score that would be 0 / 0 is 0, as scikit-learn has it. The counts (C,) are those of examples predicted rightly,
    predicted, and there.
    """
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
    """The errors with the greatest measure, the greatest first, and the greatest of each example (N,), 0 without one.

    `wrong` gives the index of the example, its text, what is right, what was predicted, and the measure.
    """
    names = ("index", "text", "reference", "prediction", measure)
    # Rounded, since batches of other sizes round otherwise.
    rounded = [(*error, float(f"{value:.4g}")) for *error, value in wrong]
    errors, of_each = sorted(rounded, key=lambda error: -error[-1]), np.zeros(examples)
    for index, *_, value in reversed(errors):  # the greatest of an example is the last one
        of_each[index] = value
    listed = [dict(zip(names, error, strict=True)) for error in errors[:ERRORS]]
    return [{**error, "text": " ".join(error["text"].split())[:EXCERPT]} for error in listed], of_each
