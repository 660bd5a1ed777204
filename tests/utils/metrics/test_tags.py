"""Entities against seqeval."""

from __future__ import annotations

import random
import warnings
from itertools import chain

import pytest
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

from utils.metrics.tags import entity_counts, scores_of_tags

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = [*BIO, "E-PER", "S-PER", "E-LOC", "S-LOC"]


@pytest.mark.parametrize("tags", [BIO, BIOES, ["O", "B", "I"]], ids=["BIO", "BIOES", "no kinds"])
def test_seqeval_agrees(tags: list[str]) -> None:
    rng = random.Random(1)
    for _ in range(50):
        lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 6))]
        right = [rng.choices(tags, k=length) for length in lengths]
        predicted = [[tag if rng.random() < 0.7 else rng.choice(tags) for tag in row] for row in right]
        counts = [sum(each) for each in zip(*map(entity_counts, predicted, right), strict=True)]
        words = sum(lengths)
        pairs = zip(chain.from_iterable(predicted), chain.from_iterable(right), strict=True)
        hits = sum(guess == tag for guess, tag in pairs)
        measures = {"f1": f1_score, "entity_precision": precision_score, "entity_recall": recall_score}
        with warnings.catch_warnings(action="ignore"):  # of the division by no entities
            expected = {
                name: 100 * measure(right, predicted)
                for name, measure in {**measures, "accuracy": accuracy_score}.items()
            }
        assert scores_of_tags(words, hits, *counts) == pytest.approx(expected)


def test_tags_that_are_no_entities() -> None:
    assert entity_counts(["NOUN", "VERB"], ["NOUN", "NOUN"]) == (0, 0, 0)
    assert scores_of_tags(2, 1, 0, 0, 0) == {"f1": 0, "entity_precision": 0, "entity_recall": 0, "accuracy": 50}
