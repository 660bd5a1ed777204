"""Exact match and F1 of answers against torchmetrics, and the cases in which SQuAD 2.0's script goes beyond it."""

from __future__ import annotations

import random

import pytest
from torchmetrics.functional.text import squad

from utils.metrics.squad import best, exact_match, f1

PIECES = "the The a an An cat CAT cat's 3.5 — ’s naïve İstanbul ﬁsh 他们 (the) U.S. US don't dont".split()
PIECES += ["\u00a0", " ", "\t", "\n", *"- well-known theater thethe a. !? ǅ".split()]


def hostile(rng: random.Random) -> str:
    return rng.choice(["", " ", "  "]).join(rng.choices(PIECES, k=rng.randint(1, 6)))


def test_torchmetrics_agrees() -> None:
    rng = random.Random(0)
    for _ in range(500):
        answers = [hostile(rng) for _ in range(rng.randint(1, 4))]
        # torchmetrics compares with answers that are empty once normalised; SQuAD 2.0 leaves them out.
        answers = [*answers, "cat"]
        predicted = rng.choice([hostile(rng), rng.choice(answers), rng.choice(answers).upper()]) + " cat"
        expected = squad(
            {"prediction_text": predicted, "id": "1"},
            {"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": "1"},
        )
        scores = best(exact_match, predicted, answers), best(f1, predicted, answers)
        assert scores == pytest.approx((float(expected["exact_match"]), float(expected["f1"])), abs=1e-4), answers


@pytest.mark.parametrize(
    ("predicted", "answers", "expected"),
    [
        pytest.param("", (), (100, 100), id="no answer, none given"),
        pytest.param("the", (), (100, 100), id="nothing but an article is no answer"),
        pytest.param("cat", (), (0, 0), id="no answer, one given"),
        pytest.param("", ("cat",), (0, 0), id="an answer, none given"),
        pytest.param("", ("the", "cat"), (0, 0), id="right answers that are empty once normalised do not count"),
        pytest.param("", ("the", "!"), (100, 100), id="unless all are"),
        pytest.param("The  Cat.", ("cat",), (100, 100), id="case, article, punctuation, spaces"),
        pytest.param("black cat", ("the cat", "black dog sat"), (0, 200 / 3), id="the nearest of the answers"),
        pytest.param("cat cat", ("cat",), (0, 200 / 3), id="a word counts as often as both have it"),
    ],
)
def test_edge_cases(predicted: str, answers: tuple[str, ...], expected: tuple[float, float]) -> None:
    assert (best(exact_match, predicted, answers), best(f1, predicted, answers)) == pytest.approx(expected)
