"""Summaries that need no training: a document's first sentences."""

from __future__ import annotations

from collections.abc import Sequence

from utils.text.sentences import split_sentences

LEADS = {1: "first 1 sentence", 2: "first 2 sentences", 3: "first 3 sentences"}


def leads(articles: Sequence[str]) -> dict[str, list[str]]:
    """Each article's first sentences, 1 to 3 of them: the baselines that news summarisers are measured against."""
    sentences = [split_sentences(article) for article in articles]
    return {name: [" ".join(each[:count]) for each in sentences] for count, name in LEADS.items()}
