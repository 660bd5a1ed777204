"""The page: its HTML, style and script from the files beside this one, and what is told of the runs."""

from __future__ import annotations

import html
import json
import string
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from utils.evaluation.report.articles import article_data, compressed
from utils.evaluation.report.charts import Chart, latency_charts, length_charts, training_charts
from utils.evaluation.report.pieces import (
    absent,
    element,
    facts,
    figures,
    paragraph,
    section,
)
from utils.evaluation.report.runs import Run, same_articles
from utils.evaluation.report.sections import (
    runs_table,
    score_section,
    settings_section,
    speed_table,
    statistics_table,
    summary_facts,
)

ASSETS = Path(__file__).parent


def articles_section(runs: Sequence[Run], split: str | None) -> str:
    """The place of the article table; the page's script fills it."""
    if not runs:
        missing = f"{split}_articles.jsonl" if split else "test_articles.jsonl"
        return section("articles", "Articles", absent(f"No articles: {missing} is not there."))
    return section("articles", "Articles", (ASSETS / "articles.html").read_text(encoding="utf-8"))


def page_of(runs: Sequence[Run], split: str | None) -> tuple[str, list[Chart]]:
    """The page as HTML, and its charts."""
    single = len(runs) == 1
    compared = same_articles(runs)
    curves, latency, lengths = training_charts(runs), latency_charts(runs, split or ""), length_charts(compared)
    timed = speed_table(runs, split or "")
    notes = []
    for run in runs if not single else ():
        if run not in compared and split:
            why = "has no articles" if not run.articles else f"has other articles than {compared[0].name}"
            notes.append(absent(f"{run.name} {why} of the {split} split, and is left out where articles are compared."))
    if single:
        head = paragraph(str(runs[0].folder.resolve()), class_="path") + facts(summary_facts(runs[0], split))
    else:
        head = runs_table(runs, split)
    sections = [
        section("runs", "The run" if single else "The runs", head, *notes),
        score_section(runs, split, compared if compared and compared[0] is runs[0] else []),
        section(
            "training",
            "Training",
            figures(curves) or absent("No learning curves: metrics.csv is not there, or has no values yet."),
        ),
        section(
            "speed",
            "Speed of scoring",
            element("div", figures(latency) + element("div", timed), class_="beside")
            if latency or timed
            else absent(f"No speeds: {split or 'test'}_speed.json is not there."),
        ),
        section(
            "texts",
            "Lengths, copying and repetition",
            *(
                [element("div", element("div", statistics_table(compared)) + figures(lengths), class_="beside")]
                if compared
                else [absent(f"No text statistics: {split or 'test'}_articles.jsonl is not there.")]
            ),
        ),
        articles_section(compared, split),
        settings_section(runs, split),
    ]
    title = runs[0].name if single else " · ".join(run.name for run in runs)
    data = {"charts": [asdict(chart) for chart in (*curves, *latency, *lengths)], "split": split}
    # "<" could end the script element early.
    embedded = [
        element("script", json.dumps(data, allow_nan=False).replace("<", "\\u003c"), type="application/json", id="data")
    ]
    embedded += [
        element("script", compressed(content), type="text/plain", id=name)
        for name, content in (article_data(compared) if compared else ())
    ]
    page = string.Template((ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        kind="Report of a run" if single else f"Comparison of {len(runs)} runs",
        style=(ASSETS / "style.css").read_text(encoding="utf-8"),
        script=(ASSETS / "page.js").read_text(encoding="utf-8"),
        sections="\n".join(sections),
        data="\n".join(embedded),
    )
    return page, [*curves, *latency, *lengths]
