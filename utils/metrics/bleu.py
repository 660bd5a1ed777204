"""BLEU (Papineni et al., 2002) by sacrebleu (Post, 2018)."""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics import BLEU


def bleu(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """Corpus BLEU with sacrebleu's defaults: one reference each, mteval-v13a's tokens, mixed case.

    Returns:
        `bleu`: 0 to 100. `bleu_signature`: sacrebleu's record of all that the figure depends on.
    """
    metric = BLEU()
    score = metric.corpus_score(list(predictions), [list(references)]).score
    return {"bleu": score, "bleu_signature": str(metric.get_signature())}
