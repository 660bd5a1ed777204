from __future__ import annotations

from pathlib import Path

import pytest
from rouge_score import rouge_scorer

from bart.errors import InputError
from utils.evaluation.rouge import rouge, rouge_per_example, split_sentences

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "xsum_predictions"


def test_scores_are_rouge_score_packages_own() -> None:
    predictions = ["The cats were running. Dogs ran, too.", "nothing alike"]
    references = ["Dogs ran too. A cat runs.", "all is different here"]
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    expected = [
        scorer.score("Dogs ran too.\nA cat runs.", "The cats were running.\nDogs ran, too."),
        scorer.score(references[1], predictions[1]),
    ]
    for actual, score in zip(rouge_per_example(predictions, references), expected, strict=True):
        assert actual == {name: 100 * value.fmeasure for name, value in score.items()}
    means = rouge(predictions, references)
    assert means["rouge1"] == sum(100 * score["rouge1"].fmeasure for score in expected) / 2


def test_sentences_split_without_downloads() -> None:
    text = 'Dr. Smith met Mr. Jones at 3 p.m. on Monday. They left. "Why?" she asked.'
    assert split_sentences(text) == [
        "Dr. Smith met Mr. Jones at 3 p.m. on Monday.",
        "They left.",
        '"Why?"',
        "she asked.",
    ]
    assert split_sentences("") == []


def test_empty_and_unequal_input() -> None:
    assert rouge([""], ["a summary"]) == {"rouge1": 0, "rouge2": 0, "rougeLsum": 0}
    with pytest.raises(InputError, match="2 predictions but 1 references"):
        rouge(["a", "b"], ["c"])
    with pytest.raises(InputError, match="no predictions"):
        rouge([], [])


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the released XSum predictions in ../shared/data")
def test_published_predictions_score_as_rouge_score_scores_them() -> None:
    """rouge-score gives convs2s 30.94/11.02 for ROUGE-1/2 over all 11,334 lines; 500 of them must agree with it."""
    predictions, references = (
        (PUBLISHED / name).read_text(encoding="utf-8").split("\n")[:500] for name in ("convs2s.txt", "gold.txt")
    )
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2"], use_stemmer=True)
    expected = [scorer.score(r, p) for p, r in zip(predictions, references, strict=True)]
    actual = rouge(predictions, references)
    for name in ("rouge1", "rouge2"):
        assert actual[name] == pytest.approx(100 * sum(s[name].fmeasure for s in expected) / len(expected))
