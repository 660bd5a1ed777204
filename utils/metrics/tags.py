"""Entities in sequences of tags, as seqeval, and the CoNLL script before it, count them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seqeval.metrics.sequence_labeling import get_entities

from utils.app.cli import no_command


def entity_counts(predicted: Sequence[str], right: Sequence[str]) -> tuple[int, int, int]:
    """Count a sentence's entities: those predicted rightly, all predicted ones, and all right ones.

    Args:
        predicted, right: a tag for each word: O, or B-, I-, E-, S- and the kind of entity. Other tags count as none.
    """
    predicted_entities, right_entities = (
        set(get_entities([tag if re.match("[BIES](-|$)", tag) else "O" for tag in tags])) for tags in (predicted, right)
    )
    return len(predicted_entities & right_entities), len(predicted_entities), len(right_entities)


def scores_of_tags(words: float, right: float, hits: float, predicted: float, existing: float) -> dict[str, float]:
    """Precision, recall and F1 of entities, and the share of words with the right tag, in percent.

    Args:
        words, right: words, and those with the right tag.
        hits, predicted, existing: the sums over all sentences of what `entity_counts` returns.
    """
    precision, recall = (hits / count if count else 0.0 for count in (predicted, existing))
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    scores = {"f1": f1, "entity_precision": precision, "entity_recall": recall, "accuracy": right / words}
    return {name: 100 * score for name, score in scores.items()}


if __name__ == "__main__":
    no_command("run_eval.py --task tagging predicts and scores")
