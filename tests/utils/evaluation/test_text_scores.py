from __future__ import annotations

import pytest

from utils.evaluation import arguments
from utils.evaluation.bleu import bleu
from utils.evaluation.rouge import ROUGE_MODES, rouge_per_example
from utils.evaluation.text_scores import score_texts

PREDICTIONS = ["the cat sat on the mat", "", "a dog ran over the hill and then it was gone", "prices rose"]
REFERENCES = ["the cat sat on a mat", "birds flew", "a dog ran over the hill", "prices fell"]


@pytest.mark.parametrize("mode", ROUGE_MODES)
def test_rouge_of_all_and_of_each(mode: str) -> None:
    scores, each = score_texts("summarization", PREDICTIONS, REFERENCES, mode, {"ran": "run"})
    expected = rouge_per_example(PREDICTIONS, REFERENCES, mode, {"ran": "run"})
    assert each.keys() == expected.keys() and all((each[name] == expected[name]).all() for name in each)
    assert {name: scores[name] for name in each} == {name: values.mean() for name, values in expected.items()}
    assert scores["rouge_mode"] == mode
    assert scores.get("wordnet_exceptions") == (1 if mode == "rouge-1.5.5" else None)
    low, high = scores["intervals"]["rouge1"]
    assert low < scores["rouge1"] < high


def test_translations_are_scored_by_bleu() -> None:
    assert score_texts("translation", PREDICTIONS, REFERENCES) == (bleu(PREDICTIONS, REFERENCES), {})


def test_modes_of_the_command_line_are_all_modes() -> None:
    assert arguments.ROUGE_MODES == ROUGE_MODES
