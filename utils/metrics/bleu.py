"""BLEU (Papineni et al., 2002) and chrF (Popovic, 2015) by sacrebleu (Post, 2018)."""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF


def translation_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """Corpus BLEU (mteval-v13a's tokens, mixed case) and chrF2 with sacrebleu's defaults and one reference each.

    Returns:
        `bleu` and `chrf`: 0 to 100. `bleu_signature` and `chrf_signature`: sacrebleu's records of all that the figures
        depend on.
    """
    scores: dict[str, float | str] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        scores[name] = metric.corpus_score(list(predictions), [list(references)]).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores
