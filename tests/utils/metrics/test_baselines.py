from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from utils.metrics.baselines import leads, oracle, oracle_sentences

SCORER = RougeScorer(["rouge1", "rouge2"], use_stemmer=True)


def score(sentences: list[str], chosen: list[int], reference: str) -> float:
    """The package's mean of ROUGE-1 and ROUGE-2 F for the text of these sentences, which the search raises."""
    scores = SCORER.score(reference, " ".join(sentences[i] for i in sorted(chosen)))
    return (scores["rouge1"].fmeasure + scores["rouge2"].fmeasure) / 2


def greedy(sentences: list[str], reference: str) -> list[int]:
    """The search as its paper tells it, each candidate scored anew."""
    chosen: list[int] = []
    best = 0.0
    while True:
        scores = {i: score(sentences, [*chosen, i], reference) for i in range(len(sentences)) if i not in chosen}
        highest = max(scores.values(), default=0.0)
        if highest <= best + 1e-12:
            return sorted(chosen)
        best = highest
        chosen.append(next(i for i, value in scores.items() if value > highest - 1e-12))


SENTENCES = st.lists(st.text(st.sampled_from("abc  ."), min_size=0, max_size=8), max_size=6)


@given(sentences=SENTENCES, reference=st.text(st.sampled_from("abc  "), max_size=12))
@settings(max_examples=400, deadline=None)
def test_choices_are_those_of_the_plain_search(sentences: list[str], reference: str) -> None:
    assert oracle_sentences(sentences, reference) == greedy(sentences, reference)


def test_longer_texts_and_the_best_subset_of_all() -> None:
    rng = random.Random(0)
    words = [f"{a}{b}" for a in ("run", "walk", "talk", "sing") for b in ("s", "ing", "ed", "er")]
    optimal = 0
    for _ in range(20):
        sentences = [" ".join(rng.choices(words, k=rng.randint(1, 9))) + "." for _ in range(6)]
        reference = " ".join(rng.choices(words, k=12))
        chosen = oracle_sentences(sentences, reference)
        assert chosen == greedy(sentences, reference)
        subsets = (list(subset) for size in range(7) for subset in combinations(range(6), size))
        best = max(score(sentences, subset, reference) for subset in subsets)
        value = score(sentences, chosen, reference)
        assert value <= best + 1e-12
        optimal += value > best - 1e-12
    # The greedy choice is often, not always, the best one.
    assert 2 < optimal < 20


@pytest.mark.parametrize(
    ("document", "reference", "expected"),
    [
        ("A cat slept. The dog ran off. It rained.", "The dog ran. It rained.", "The dog ran off. It rained."),
        ("Nothing here.", "Something else", ""),
        ("...", "a", ""),
        ("A b.", "...", ""),
    ],
)
def test_oracle_of_a_document(document: str, reference: str, expected: str) -> None:
    assert oracle(document, reference) == expected


def test_leads_take_whole_sentences() -> None:
    articles = ["Prices rose by 3.5 per cent. Dr. Lee spoke. Shops shut early. It rained.", "Just one."]
    assert leads(articles) == {
        "first 1 sentence": ["Prices rose by 3.5 per cent.", "Just one."],
        "first 2 sentences": ["Prices rose by 3.5 per cent. Dr. Lee spoke.", "Just one."],
        "first 3 sentences": ["Prices rose by 3.5 per cent. Dr. Lee spoke. Shops shut early.", "Just one."],
    }
