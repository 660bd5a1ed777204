"""How good texts are, by the measure of their task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from utils.evaluation.bleu import bleu
from utils.evaluation.rouge import ROUGE_MODES, means_and_intervals, rouge_per_example


def score_texts(
    task: str,
    predictions: Sequence[str],
    references: Sequence[str],
    mode: str = ROUGE_MODES[0],
    exceptions: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The scores of all texts together, and of each one where the measure has such.

    Args:
        task: "summarization", scored by ROUGE (F in percent: means and their intervals), or "translation", by corpus
            BLEU.
        mode: of ROUGE, one of ROUGE_MODES.
        exceptions: WordNet's irregular forms, for mode rouge-1.5.5.
    """
    if task == "translation":
        return dict(bleu(predictions, references)), {}
    each = rouge_per_example(predictions, references, mode, exceptions)
    forms = {"wordnet_exceptions": len(exceptions or ())} if mode == "rouge-1.5.5" else {}
    return {"rouge_mode": mode, **forms, **means_and_intervals(each)}, each
