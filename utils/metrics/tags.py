"""Scores of tags: of entities as seqeval counts them or, of plain tags such as parts of speech, of each word.

In BIO and IOB1, seqeval counts by its default, which is the rule of CoNLL's script and of published figures: an I- may
begin an entity. In BIOES, BILOU and BMES it counts strictly.
"""

from __future__ import annotations

from utils.app.commands import refuse

if __name__ == "__main__":
    refuse("utils.metrics.tags", "run_eval.py --task tagging predicts and scores")

from collections.abc import Sequence
from typing import Any

import numpy as np
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOBES, Tokens

from utils.text.tags import Scheme

ENTITY_METRICS, PLAIN_METRICS = ("f1", "entity_precision", "entity_recall", "accuracy"), ("accuracy", "macro_f1")


def _entities(tags: Sequence[str], scheme: Scheme) -> set[Any]:
    spelled = [scheme.in_bioes(tag) for tag in tags]
    return set(get_entities(spelled) if scheme.name in ("BIO", "IOE") else Tokens(spelled, IOBES).entities)


def tag_counts(
    predicted: Sequence[str], right: Sequence[str], labels: Sequence[str], scheme: Scheme | None
) -> np.ndarray:
    """The counts of a sentence of which `tag_scores` tells the scores of many together.

    Returns:
        Words; words that are right; and entities that are right, predicted and there or, of plain tags, words for each
        label, and for all other tags together, that are right, predicted and there.
    """
    hits = np.array([guess == tag for guess, tag in zip(predicted, right, strict=True)], bool)
    if scheme is not None:
        guessed, existing = _entities(predicted, scheme), _entities(right, scheme)
        counts = np.array([len(guessed & existing), len(guessed), len(existing)])
    else:
        places, others = {label: number for number, label in enumerate(labels)}, len(labels)
        guessed, existing = (np.array([places.get(tag, others) for tag in tags], int) for tags in (predicted, right))
        counts = np.concatenate([np.bincount(of, minlength=others + 1) for of in (existing[hits], guessed, existing)])
    return np.concatenate([[len(hits), hits.sum()], counts])


def tag_scores(counts: Sequence[float], scheme: Scheme | None) -> dict[str, float]:
    """Precision, recall and F1 of entities, or macro F1 of plain tags, and the share of words with the right tag.

    All are in percent. Macro F1 is the mean over the tags that are predicted or there.

    Args:
        counts: the sum over sentences of what `tag_counts` returns.
    """
    words, right, *each = counts
    hits, predicted, existing = np.reshape(each, (3, -1)).astype(float)
    f1 = 2 * hits / np.maximum(predicted + existing, 1)
    scores = {"accuracy": right / max(words, 1)}
    if scheme is None:
        scores["macro_f1"] = f1.sum() / max(np.count_nonzero(predicted + existing), 1)
    else:
        precision, recall = hits / np.maximum(predicted, 1), hits / np.maximum(existing, 1)
        scores = {"f1": f1.sum(), "entity_precision": precision.sum(), "entity_recall": recall.sum(), **scores}
    return {name: 100 * float(score) for name, score in scores.items()}


def score_tags(
    predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]], scheme: Scheme | None
) -> dict[str, float]:
    """The scores of the tags of sentences."""
    labels = sorted({tag for tags in (*predicted, *right) for tag in tags})
    return tag_scores(sum(tag_counts(*pair, labels, scheme) for pair in zip(predicted, right, strict=True)), scheme)
