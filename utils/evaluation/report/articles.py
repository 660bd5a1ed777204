"""Articles as the data that the page's script shows."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any

from utils.evaluation.report.runs import SCORE_NAMES, STATISTICS, Run, number_of

# The table's statistics, with what stands over the column.
COLUMNS = {
    "words": ("Words", 0),
    "length_ratio": ("÷ ref.", 2),
    "novel2": ("New bigrams %", 0),
    "density": ("Density", 1),
    "repeated3": ("Repeats %", 0),
}
ARTICLES_PER_BLOCK = 256


def compressed(content: Any) -> str:
    """JSON, gzipped, as base64: letters that no HTML parser takes for markup, whatever an article holds."""
    # A lone surrogate, which UTF-8 has no bytes for, becomes a question mark.
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()


def rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def article_data(runs: Sequence[Run]) -> Iterator[tuple[str, Any]]:
    """Names and contents of the page's data on articles.

    First the table, with all but the sources; then the sources in blocks, which the page reads while it is shown.
    """
    first = runs[0].articles
    scores = [name for name in SCORE_NAMES if name in first[0]]
    metrics = [
        {
            "key": name,
            "label": SCORE_NAMES[name],
            "short": SCORE_NAMES[name].replace("ROUGE", "R"),
            "title": SCORE_NAMES[name],
            "digits": 1,
            "values": [[rounded(number_of(a, name, run.folder), 3) for a in run.articles] for run in runs],
        }
        for name in scores
        if all(name in run.articles[0] for run in runs)
    ]
    metrics += [
        {
            "key": name,
            "label": label,
            "short": label,
            "title": f"{STATISTICS[name][0]} ({STATISTICS[name][1]})",
            "digits": digits,
            "values": [[rounded(numbers[name], 3) for numbers in run.statistics] for run in runs],
        }
        for name, (label, digits) in COLUMNS.items()
        if any(numbers[name] is not None for numbers in runs[0].statistics)
    ]
    yield (
        "article-table",
        {
            "runs": [run.name for run in runs],
            "references": [article["reference"] for article in first],
            "summaries": [[article["summary"] for article in run.articles] for run in runs],
            "metrics": metrics,
            "per_block": ARTICLES_PER_BLOCK,
        },
    )
    for block, start in enumerate(range(0, len(first), ARTICLES_PER_BLOCK)):
        part = slice(start, start + ARTICLES_PER_BLOCK)
        yield (
            f"article-block-{block}",
            {
                "sources": [article["source"] for article in first[part]],
                "alternatives": [[article.get("alternatives", []) for article in run.articles[part]] for run in runs],
            },
        )
