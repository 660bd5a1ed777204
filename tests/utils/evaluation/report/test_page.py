from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from tests.scored_run import HOSTILE, write_articles, write_run
from utils.evaluation.report import build_report
from utils.evaluation.report.page import ASSETS
from utils.evaluation.report.pieces import MINUS, NOTHING
from utils.evaluation.rouge import ROUGE_TYPES
from utils.evaluation.significance import compare
from utils.evaluation.text_statistics import mean, text_statistics, words

STYLE = (ASSETS / "style.css").read_text(encoding="utf-8")


class Page(HTMLParser):
    """Text, tags and scripts of a page, as a browser's parser would find them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: dict[str, str] = {}
        self.identities: list[str] = []
        self.parts: list[str] = []
        self.inside = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.parts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        attributes = dict(attrs)
        if "id" in attributes:
            self.identities.append(attributes["id"] or "")
        self.inside = attributes.get("id", "code") if tag == "script" else tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in ("style",):
            return
        if self.tags and self.tags[-1] == "script" and self.inside:
            self.scripts[self.inside] = self.scripts.get(self.inside, "") + data
        else:
            self.parts.append(data)

    def unpacked(self, name: str) -> Any:
        return json.loads(gzip.decompress(base64.b64decode(self.scripts[name])))


def page_of(*folders: Path, **options: Any) -> Page:
    return Page(build_report(folders, **options))


def test_the_page_tells_scores_intervals_and_settings(run: Path) -> None:
    scores = json.loads((run / "test_scores.json").read_text())
    text = page_of(run).text
    low, high = scores["intervals"]["rouge2"]
    assert f"ROUGE-2 {scores['rouge2']:.2f} {low:.2f} to {high:.2f}" in text
    assert f"Loss 2.1234 {NOTHING}" in text
    for piece in ("120 articles", "12.50", "Latency, ms, p95 140", "0:01:01", "Some CPU", "learning_rate 0.002"):
        assert piece in text
    assert "top_k" not in text  # what is not set


def test_charts_hold_the_values_of_the_files(run: Path) -> None:
    charts = {chart["name"]: chart for chart in json.loads(page_of(run).scripts["data"])["charts"]}
    assert list(charts) == [
        *("loss", "learning_rate", "validation_rouge", "throughput", "latency", "source_length", "summary_length")
    ]
    # Steps done, not Lightning's count from 0; the loss that was not a number is a gap.
    assert charts["loss"]["series"] == [
        {"name": "Training", "x": [10, 20, 40], "y": [3.5, 2.25, 1.125]},
        {"name": "Validation", "x": [20, 40], "y": [2.5, 2.125]},
    ]
    assert [series["name"] for series in charts["validation_rouge"]["series"]] == ["ROUGE-1", "ROUGE-2", "ROUGE-Lsum"]
    assert charts["latency"]["series"][0]["y"] == [10, 70, 30, 10]
    assert charts["latency"]["marks"] == [["p50", 75.0], ["p90", 120.0], ["p99", 170.0]]
    assert "Training: 3.5 at step 10, 1.125 at step 40, between 1.125 and 3.5." in charts["loss"]["description"]
    assert {path.stem for path in (run / "report_figures").glob("*.png")} == set(charts)


def test_means_over_the_articles_are_in_the_table(run: Path) -> None:
    articles = [json.loads(line) for line in (run / "test_articles.jsonl").read_text().splitlines()]
    text = page_of(run).text
    for name, label in (("density", "Density (words in the copied run of a word)"), ("novel2", "Novel 2-grams")):
        expected = [
            mean(text_statistics(words(article["source"]), words(article[side]))[name] for article in articles)
            for side in ("reference", "summary")
        ]
        row = re.search(re.escape(label) + r"(?: \(.*?\))? (\S+) (\S+)", text)
        assert [row[1], row[2]] == [f"{value:.1f}" for value in expected]


def test_articles_are_embedded_whole_whatever_they_hold(tmp_path: Path) -> None:
    articles = write_run(tmp_path / "run", articles=300, hostile=True)
    page = page_of(tmp_path / "run")
    table = page.unpacked("article-table")
    assert table["references"] == [article["reference"] for article in articles]
    assert table["summaries"] == [[article["summary"] for article in articles]]
    blocks = [page.unpacked(f"article-block-{i}") for i in range(2)]
    assert [len(block["sources"]) for block in blocks] == [256, 44]
    assert blocks[0]["sources"][0] == HOSTILE["source"]
    [rouge1] = next(metric["values"] for metric in table["metrics"] if metric["key"] == "rouge1")
    assert rouge1 == [round(article["rouge1"], 3) for article in articles]
    assert "b" not in page.tags and "boom" not in page.text + page.scripts["data"]


def test_names_and_settings_cannot_become_markup(tmp_path: Path) -> None:
    folder = tmp_path / "a<b>&amp;<!--"
    write_run(folder, articles=3)
    (folder / "arguments.yaml").write_text('prefix: "</script><b>{}$title"\n')
    page = page_of(folder)
    assert "b" not in page.tags
    assert "</script><b>{}$title" in page.text and "a<b>&amp;<!--" in page.text
    build_report([folder, write_and_name(tmp_path / "other</script>")])


def write_and_name(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("step,train_loss\n9,1.5\n")
    return folder


def test_a_lone_surrogate_becomes_a_question_mark(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_articles(tmp_path / "run", [{"source": "a \ud800 b", "reference": "a", "summary": "b"}])
    assert page_of(tmp_path / "run").unpacked("article-block-0")["sources"] == ["a ? b"]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("metrics.csv", "No learning curves: metrics.csv is not there"),
        ("test_speed.json", "No speeds: test_speed.json is not there"),
        ("test_articles.jsonl", "No articles: test_articles.jsonl is not there"),
        ("test_articles.jsonl", "No text statistics: test_articles.jsonl is not there"),
        ("test_scores.json", "No scores: no test_scores.json is there"),
        ("train_summary.json", "ROUGE-1"),
        ("arguments.yaml", "Environment"),
        ("environment.json", "Training arguments"),
    ],
)
def test_what_is_not_there_is_said(run: Path, missing: str, said: str) -> None:
    (run / missing).unlink()
    assert said in page_of(run).text


def test_a_run_that_was_only_trained_says_that_it_was_not_scored(run: Path) -> None:
    for name in ("articles.jsonl", "scores.json", "speed.json"):
        (run / f"test_{name}").unlink()
    page = page_of(run)
    assert "No scores: this run has not been scored" in page.text
    assert "chart-loss" in page.identities and "chart-latency" not in page.identities


def test_scores_of_an_older_run_are_enough(tmp_path: Path) -> None:
    (tmp_path / "test_scores.json").write_text('{"examples": 4, "rouge1": 12.5, "latency_ms": {"p50": 3}}')
    assert f"ROUGE-1 12.50 {NOTHING}" in page_of(tmp_path).text


def test_a_translation_has_bleu_and_no_copy_rates(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    text = {"source": "Ein Hund lief.", "reference": "A dog ran.", "summary": "A dog ran ran.", "index": 0}
    (tmp_path / "run" / "val_articles.jsonl").write_text(json.dumps(text) + "\n")
    scores = {"split": "val", "task": "translation", "examples": 1, "bleu": 40.5, "bleu_signature": "nrefs:1|case"}
    (tmp_path / "run" / "val_scores.json").write_text(json.dumps(scores))
    page = page_of(tmp_path / "run")
    assert "BLEU 40.50" in page.text and "BLEU: nrefs:1|case" in page.text
    assert "Repeated 3-grams" in page.text and "Novel" not in page.text and "Coverage (%" not in page.text
    assert [metric["key"] for metric in page.unpacked("article-table")["metrics"]] == [
        "words",
        "length_ratio",
        "repeated3",
    ]


def test_the_split_is_chosen_among_those_scored(run: Path) -> None:
    write_articles(run, [{"source": "only one", "reference": "one", "summary": "one"}], split="val")
    page = page_of(run)
    assert "The test split of 120 articles" in page.text and "The val split of 1 articles" in page.text
    assert len(page.unpacked("article-table")["references"]) == 120
    assert len(page_of(run, split="val").unpacked("article-table")["references"]) == 1
    with pytest.raises(InputError, match="--split is train; scored in .*: test, val"):
        build_report([run], split="train")


def test_runs_are_compared_on_the_articles_that_they_share(run: Path) -> None:
    other, trained, foreign = (run.with_name(name) for name in ("other", "trained", "foreign"))
    articles = write_run(other, seed=2)
    write_run(foreign, articles=5)
    write_and_name(trained)
    output = build_report([run, other, foreign, trained])
    assert output == run.parent / "comparison.html"
    page = Page(output)
    table = page.unpacked("article-table")
    assert table["runs"] == ["run", "other"]
    assert table["summaries"][1] == [article["summary"] for article in articles]
    assert "foreign has other articles than run" in page.text
    assert "trained has no articles of the test split" in page.text
    own = [json.loads(line) for line in (run / "test_articles.jsonl").read_text().splitlines()]
    for name in ROUGE_TYPES["rouge-score"]:  # the second run less the first
        found = compare([article[name] for article in articles], [article[name] for article in own])
        low, high = (f"{end:+.2f}".replace("-", MINUS) for end in (found.low, found.high))
        difference = f"{found.difference:+.2f}".replace("-", MINUS)
        assert f"{difference} {low} to {high} {found.p_value:.3f}" in page.text
    charts = {chart["name"]: chart for chart in json.loads(page.scripts["data"])["charts"]}
    assert [series["name"] for series in charts["loss_train_loss"]["series"]] == ["run", "other", "foreign", "trained"]
    assert charts["latency"]["series"][0]["y"] == pytest.approx([0, 100 / 12, 800 / 12, 1100 / 12, 100])
    assert (run.parent / "comparison_figures" / "throughput.png").exists()


def test_runs_of_one_name_are_told_apart_and_none_is_given_twice(run: Path) -> None:
    same = run.parent / "elsewhere" / run.name
    write_and_name(same)
    page = page_of(run, same, output=run.parent / "both.html")
    assert str(same) in page.text
    with pytest.raises(InputError, match="given twice"):
        build_report([run, run.parent / "." / run.name])


def test_a_log_without_values_has_no_curves(run: Path) -> None:
    (run / "metrics.csv").write_text("step,train_loss\n")
    assert "No learning curves" in page_of(run).text


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_have_the_contrast_of_wcag_aa_in_both_themes() -> None:
    themes = [dict(re.findall(r"--([\w]+): (#[0-9a-f]{6});", block)) for block in STYLE.split("@media", 2)[:2]]
    for theme in themes:
        for ink, ground, least in [
            *((ink, ground, 4.5) for ink in ("ink", "soft", "accent") for ground in ("paper", "raised", "hair")),
            ("ink", "mark", 4.5),
            *((f"s{i}", "paper", 3.0) for i in range(6)),
            ("mark_line" if "mark_line" in theme else "soft", "paper", 3.0),
        ]:
            light, dark = sorted((luminance(theme[ink]), luminance(theme[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= least, (ink, ground)
