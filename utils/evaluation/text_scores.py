"""How good texts are, by the measure of their task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from utils.evaluation.bleu import bleu
from utils.evaluation.rouge import ROUGE_TYPES, rouge_per_example
from utils.progress import Progress

AT_ONCE = 256  # articles between two signs of progress
ROUGE_MODE = "rouge-score"


def score_texts(
    task: str, predictions: Sequence[str], references: Sequence[str]
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The scores of all texts together, and of each one where the measure has such.

    Args:
        task: "summarization", scored by ROUGE (F in percent, and its mean), or "translation", by corpus BLEU.
    """
    if task == "translation":
        score, signature = bleu(predictions, references)
        return {"bleu": score, "bleu_signature": signature}, {}
    progress = Progress("ROUGE", len(predictions), "articles")
    rows: list[dict[str, float]] = []
    for start in range(0, len(predictions), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        rows += rouge_per_example(predictions[part], references[part])
        progress.advance(len(predictions[part]))
    each = {name: [row[name] for row in rows] for name in ROUGE_TYPES}
    means = {name: sum(values) / len(values) for name, values in each.items()}
    return {"rouge_mode": ROUGE_MODE, **means}, each
