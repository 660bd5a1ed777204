"""Articles of a scored split: read, counted, and laid out for the page's script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import regex

from bart.errors import InputError
from utils.app.progress import progress
from utils.data.rows import json_lines
from utils.evaluation.report.runs import ReportedRun, scores_of
from utils.evaluation.report.tables import STATISTICS
from utils.metrics.facts import MISSING, WRONG, facts_of
from utils.metrics.files import label_of
from utils.text.sentences import WORD_CHARACTERS

_WORD = regex.compile(rf"[\p{{L}}\p{{N}}][{WORD_CHARACTERS}]*")


def add_articles(run: ReportedRun, split: str) -> None:
    """Read a run's articles of one split, and analyse those that have source and summary.

    These get `statistics` and, if they have a reference, `reference_statistics`, and `marks` of facts that differ, by
    the name of the text that they are in. Those of a translation do not compare it with its source.
    """
    path, scores = run.articles_path(split), run.scores.get(split, {})
    run.articles = [article for _, article in json_lines(path)] if path.exists() else []
    count, examples = len(run.articles), scores.get("examples")
    if run.articles and examples not in (None, count):
        raise InputError(f"{path}: has {count} articles; {split}_scores.json is of {examples!r}")
    for article in run.articles:
        if "alternatives" in article:  # sequences that were generated beside the best one
            article["alternatives"] = "\n".join(article["alternatives"])
        if "references" in article:  # to be read; lengths are compared with the first one's
            article["reference"] = "\n".join(article["references"])
    if not {"source", "summary"} <= set(text_names(run)):
        return
    compares = scores.get("task") != "translation"
    texts = tuple(
        (text_of(article, "source"), text_of(article, "reference") or None, text_of(article, "summary"))
        for article in run.articles
    )
    facts_of_each = facts_of(texts) if compares else None
    shown = progress("report", len(run.articles), "articles", run.articles)
    for article, (source, reference, summary), facts in zip(shown, texts, facts_of_each or repeat(None), strict=False):
        first = article.get("references", [reference or ""])[0]
        source, reference, summary = map(words, (source, first, summary))
        for key, text in (("reference_statistics", reference), ("statistics", summary)):
            article[key] = {"words": len(text), "repeated3": repetition(text)}
            article[key]["length_ratio"] = len(text) / len(reference) if reference else None
            article[key]["novel2"] = novelty(source, text) if compares else None
        if not isinstance(article.get("reference"), str):
            del article["reference_statistics"]
        if facts is not None:
            article["statistics"]["wrong"] = sum(kind == WRONG for *_, kind in facts)
            article["marks"] = {
                "reference": [fact for fact in facts if fact[2] == MISSING],
                "summary": [fact for fact in facts if fact[2] != MISSING],
            }


def words(text: str) -> list[str]:
    """Lower-cased runs of letters, with their marks and joiners, and digits, in order."""
    return [word.lower() for word in _WORD.findall(text)]


def _ngrams(text: Sequence[str], order: int) -> list[tuple[str, ...]]:
    return list(zip(*(text[start:] for start in range(order)), strict=False))


def repetition(summary: Sequence[str]) -> float | None:
    """Percent of the 3-grams that repeat an earlier one (seq-rep-n of Welleck et al., 2020); None if there are none."""
    ngrams = _ngrams(summary, 3)
    return 100 * (1 - len(set(ngrams)) / len(ngrams)) if ngrams else None


def novelty(source: Sequence[str], summary: Sequence[str]) -> float | None:
    """Percent of the distinct bigrams that the source lacks; None if there are none."""
    bigrams = set(_ngrams(summary, 2))
    return 100 * len(bigrams.difference(_ngrams(source, 2))) / len(bigrams) if bigrams else None


def text_of(article: dict[str, Any], name: str) -> str:
    return article[name] if isinstance(article.get(name), str) else ""


def text_names(run: ReportedRun) -> list[str]:
    """Names of the first article's texts; all articles of a run have the same ones."""
    return [name for article in run.articles[:1] for name, text in article.items() if isinstance(text, str)]


def shown_texts(run: ReportedRun) -> list[dict[str, Any]]:
    """The texts of the articles: the source, the reference if there is one, and what the run generated."""
    names = [name for name in text_names(run) if name not in ("source", "reference", "id")]
    names = ["source", *(["reference"] if "reference" in text_names(run) else []), *names]
    return [
        {
            "name": name,
            "heading": name.replace("_", " ").capitalize(),
            "listed": name not in ("source", "reference", "alternatives"),  # in the table of articles
            "values": [text_of(article, name) for article in run.articles],
            "marks": [article.get("marks", {}).get(name, []) for article in run.articles],
        }
        for name in names
    ]


def columns_of(run: ReportedRun) -> list[dict[str, Any]]:
    """The numbers of the articles: `heading`, `digits` and `values`, in the articles' order, of each column."""
    statistics = [article.get("statistics", {}) for article in run.articles]
    names = [name for article in run.articles[:1] for name in scores_of(article)]
    scores = {name: (label_of(name), 2 if name == "error" else 1) for name in names}
    columns = []
    every = {"wrong": STATISTICS["wrong"], **scores, **STATISTICS}  # these come first
    for name, (heading, digits) in every.items():
        values = [_rounded(record.get(name)) for record in (statistics if name in STATISTICS else run.articles)]
        if any(value is not None for value in values):
            columns.append({"heading": heading, "digits": digits, "values": values})
    return columns


def _rounded(value: Any) -> float | None:
    """A number with three decimals, as the page gets it; None for what is no finite number."""
    return round(value, 3) if isinstance(value, (int, float)) and math.isfinite(value) else None
