from __future__ import annotations

import pytest
import sacrebleu

from utils.evaluation import text_scores
from utils.evaluation.bleu import bleu
from utils.evaluation.rouge import rouge, rouge_per_example
from utils.evaluation.text_scores import score_texts

PREDICTIONS = ["the cat sat on the mat", "", "a dog ran over the hill and then it was gone", "prices rose"]
REFERENCES = ["the cat sat on a mat", "birds flew", "a dog ran over the hill", "prices fell"]


def test_rouge_of_all_and_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_scores, "AT_ONCE", 3)
    scores, each = score_texts("summarization", PREDICTIONS, REFERENCES)
    assert scores == {"rouge_mode": "rouge-score", **rouge(PREDICTIONS, REFERENCES)}
    expected = rouge_per_example(PREDICTIONS, REFERENCES)
    assert each == {name: [row[name] for row in expected] for name in expected[0]}


def test_bleu_is_sacrebleus() -> None:
    score, signature = bleu(PREDICTIONS, REFERENCES)
    assert score == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score > 10
    assert "nrefs:1" in signature and f"version:{sacrebleu.__version__}" in signature
    assert score_texts("translation", PREDICTIONS, REFERENCES) == ({"bleu": score, "bleu_signature": signature}, {})
