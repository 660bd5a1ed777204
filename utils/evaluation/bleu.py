"""BLEU (Papineni et al., 2002) as sacrebleu (Post, 2018) computes it."""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics import BLEU


def bleu(predictions: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Corpus BLEU in percent against one reference each, and the signature that says how it was computed."""
    metric = BLEU()
    score = metric.corpus_score(list(predictions), [list(references)]).score
    return score, str(metric.get_signature())
