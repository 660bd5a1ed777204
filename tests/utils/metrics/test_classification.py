"""Scores of classes, label sets and numbers against scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from utils.metrics.classification import confusion_of, of_classes, of_label_sets, of_numbers


@pytest.mark.parametrize("classes", [2, 3, 36])
def test_classes(classes: int) -> None:
    rng = np.random.default_rng(classes)
    right = rng.integers(0, classes - (classes > 2), 200)  # of several classes the last is never right
    predicted = np.where(rng.random(200) < 0.6, right, rng.integers(0, classes, 200))
    confusion = torch.zeros(classes, classes).index_put_(
        (torch.tensor(right), torch.tensor(predicted)), torch.ones(200), accumulate=True
    )
    average = "binary" if classes == 2 else "macro"
    expected = {
        "accuracy": accuracy_score(right, predicted),
        "f1": f1_score(right, predicted, average=average),
        "matthews": matthews_corrcoef(right, predicted),
    }
    assert of_classes(confusion) == pytest.approx({name: 100 * value for name, value in expected.items()}, abs=1e-4)


@pytest.mark.parametrize("classes", [2, 5])
def test_labels_that_are_no_class_are_missed(classes: int) -> None:
    rng = np.random.default_rng(classes)
    right, predicted = rng.integers(0, classes + 1, 200), rng.integers(0, classes, 200)
    confusion = confusion_of(torch.tensor(right), torch.tensor(predicted), classes + 1)
    f1 = f1_score(right == 1, predicted == 1) if classes == 2 else f1_score(right, predicted, average="macro")
    expected = {"accuracy": accuracy_score(right, predicted), "f1": f1, "matthews": matthews_corrcoef(right, predicted)}
    scores = of_classes(confusion, classes)
    assert scores == pytest.approx({name: 100 * value for name, value in expected.items()}, abs=1e-4)


def test_one_class_alone_is_found() -> None:
    assert of_classes(torch.tensor([[5.0, 0], [3, 0]])) == {"accuracy": 62.5, "f1": 0, "matthews": 0}


def test_label_sets() -> None:
    rng = np.random.default_rng(3)
    right = rng.random((100, 5)) < [0.5, 0.2, 0.1, 0.05, 0]
    predicted = right ^ (rng.random((100, 5)) < [0.1, 0.1, 0.1, 0.1, 0])
    counts = torch.tensor(np.stack([predicted & right, predicted & ~right, ~predicted & right], 2).sum(0))
    expected = {
        "f1": f1_score(right, predicted, average="micro"),
        "macro_f1": f1_score(right, predicted, average="macro", zero_division=0),
        "accuracy": accuracy_score(right, predicted),
    }
    scores = of_label_sets(counts, 100, float((right == predicted).all(1).sum()))
    assert scores == pytest.approx({name: 100 * value for name, value in expected.items()})


def test_numbers() -> None:
    rng = np.random.default_rng(4)
    right = rng.integers(0, 6, 50) / 1.0  # with ties
    predicted = right + rng.normal(size=50)
    expected = {"pearson": pearsonr(right, predicted)[0], "spearman": spearmanr(right, predicted)[0]}
    scores = of_numbers(predicted.tolist(), right.tolist())
    assert scores == pytest.approx({name: 100 * value for name, value in expected.items()})
