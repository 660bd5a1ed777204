from __future__ import annotations

import json
import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from bart.errors import InputError
from tests.scored_run import HOSTILE, write_articles, write_run
from utils.evaluation.report.__main__ import main
from utils.evaluation.report.building import build_report, write_report
from utils.evaluation.report.runs import read_run
from utils.evaluation.report.tables import MINUS, NOTHING
from utils.metrics.rouge import ROUGE_TYPES
from utils.metrics.significance import compare
from utils.metrics.text_statistics import text_statistics, words


class Page(HTMLParser):
    """Text, tags and data of a page, as a browser's parser would find them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.identities: list[str] = []
        self.parts: list[str] = []
        self.texts, self.columns, self.facts, self.sources = [], [], [], []  # of the articles, as the script gets them
        self.inside = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.parts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        attributes = dict(attrs)
        self.identities += [attributes["id"] or ""] if "id" in attributes else []
        self.inside = f"{tag} {attributes.get('id', '')}"

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script article-data":
            content = json.loads(data)
            self.sources = content["sources"]
            self.texts, self.facts = ([text[name] for text in content["texts"]] for name in ("values", "facts"))
            self.columns = [column["values"] for column in content["columns"]]
        elif not self.inside.startswith(("script", "style")):
            self.parts.append(data)


def page_of(*folders: Path, **options: Any) -> Page:
    return Page(build_report(folders, **options))


def trained_only(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("step,train_loss\n9,1.5\n")
    return folder


def test_the_page_tells_scores_intervals_and_settings(run: Path) -> None:
    scores = json.loads((run / "test_scores.json").read_text())
    page = page_of(run)
    low, high = scores["intervals"]["rouge2"]
    assert f"ROUGE-2 {scores['rouge2']:.2f} {low:.2f} to {high:.2f}" in page.text
    assert f"Loss 2.1234 {NOTHING}" in page.text
    for piece in ("120 examples", "12.50", "Latency, ms, p95 140", "0:01:01", "Some CPU", "learning_rate: 0.002"):
        assert piece in page.text
    assert "ROUGE mode: rouge-score" in page.text and "generation: num_beams: 4" in page.text
    charts = {"loss", "learning_rate", "validation", "throughput", "latency", "source_length", "summary_length"}
    assert {f"chart-{name}" for name in charts} <= set(page.identities)
    assert {path.stem for path in (run / "report_figures").glob("*.png")} == charts
    assert len(set(page.identities)) == len(page.identities)


def test_the_same_run_gives_the_same_bytes(run: Path) -> None:
    first = build_report([run]).read_bytes()
    assert build_report([run]).read_bytes() == first


def test_means_over_the_articles_are_in_the_table(run: Path) -> None:
    articles = [json.loads(line) for line in (run / "test_articles.jsonl").read_text().splitlines()]
    text = page_of(run).text
    for name, label in (("density", "Density (words in the copied run of a word)"), ("novel2", "Novel 2-grams")):
        expected = [
            fmean(text_statistics(words(article["source"]), words(article[side]))[name] for article in articles)
            for side in ("reference", "summary")
        ]
        row = re.search(re.escape(label) + r"(?: \(.*?\))? (\S+) (\S+)", text)
        assert row is not None and [row[1], row[2]] == [f"{value:.1f}" for value in expected]


def test_articles_are_embedded_whole_whatever_they_hold(tmp_path: Path) -> None:
    articles = write_run(tmp_path / "run", articles=300, hostile=True)
    page = page_of(tmp_path / "run")
    assert page.texts == [[article[name] for article in articles] for name in ("reference", "summary")]
    assert page.sources == [article["source"] for article in articles] and page.sources[0] == HOSTILE["source"]
    assert page.columns[1] == [round(article["rouge1"], 3) for article in articles]
    assert "b" not in page.tags and "boom" not in page.text


def test_all_sessions_of_a_run_are_shown_and_a_repeated_step_once(tmp_path: Path) -> None:
    """The tenth session comes after the second; half a line is what a session leaves that was killed."""
    for folder, column in ((tmp_path / "run", ",wall_seconds"), (tmp_path / "former", "")):
        folder.mkdir()
        for name, lines in {
            "metrics.1.csv": ["9,3.0,,60.5", "19,2.5,,90.5", "19,,2.4,95", "29,2.2,,120"],
            "metrics.2.csv": ["19,,2.3,150", "24,2.1,,180", "34,2.0,,200", "44,1"],
            "metrics.10.csv": ["34,1.9,,300", "44,1.8,,400"],
            "metrics.csv": ["44,1.7,,500", "54,1.6,,600"],
        }.items():
            rows = [
                f"step,train_loss,val_loss{column}",
                *(line if column else line[: line.rfind(",")] for line in lines),
            ]
            (folder / name).write_text("\n".join(rows) + ("" if name == "metrics.2.csv" else "\n"))
        for number, day in ((".1", 1), (".2", 2), ("", 3)):
            facts = {"date": f"2026-05-0{day}T10:00:00+00:00", "devices": ["CPU A" if day < 3 else "CPU B"]}
            (folder / f"environment{number}.json").write_text(json.dumps(facts))
        (folder / "train_summary.json").write_text(json.dumps({"steps": 55, "wall_seconds": 605 if column else 152}))
    run, former = read_run(tmp_path / "run"), read_run(tmp_path / "former")
    assert run.metrics["train_loss"] == {10: 3, 20: 2.5, 25: 2.1, 35: 1.9, 45: 1.7, 55: 1.6}
    assert run.metrics["val_loss"] == {20: 2.3}
    assert former.metrics["train_loss"] == run.metrics["train_loss"]
    text = page_of(tmp_path / "run").text
    assert "Started 2026-05-01 10:00 Trained on CPU A; CPU B Sessions 3 Steps 55 Training, wall clock 0:10:05" in text
    both = page_of(tmp_path / "run", tmp_path / "former").text
    assert "0:02:32 without 3 earlier sessions, whose time is not known" in both
    (tmp_path / "run" / "train_summary.json").unlink()  # the last session is still at work, or was killed
    assert "Training, wall clock 0:10:00" in page_of(tmp_path / "run").text


def test_articles_that_were_not_timed_are_counted(run: Path) -> None:
    path = run / "test_speed.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "resumed_articles": 70}))
    assert "run: 70 articles were predicted before the run was broken off, and are not timed." in page_of(run).text


def test_names_and_settings_cannot_become_markup(tmp_path: Path) -> None:
    folder = tmp_path / "a<b>&amp;<!--{{ 1 }}"
    write_run(folder, articles=3)
    (folder / "arguments.yaml").write_text('prefix: "</script><b>{}$title\u202e"\n', encoding="utf-8")
    page = page_of(folder, trained_only(tmp_path / 'other"</script><b>'))
    assert "b" not in page.tags
    assert "</script><b>{}$title" in page.text and "a<b>&amp;<!--{{ 1 }}" in page.text


def test_a_lone_surrogate_becomes_a_question_mark(tmp_path: Path) -> None:
    write_articles(tmp_path, [{"source": "a \ud800 b", "reference": "a", "summary": "b"}])
    assert page_of(tmp_path).sources == ["a ? b"]


@pytest.mark.parametrize(
    ("missing", "pieces"),
    [
        ("metrics.csv", ["No learning curves: metrics.csv is not there"]),
        ("test_speed.json", ["No speeds: test_speed.json is not there"]),
        ("test_articles.jsonl", ["No articles: test_articles.jsonl is not", "No text statistics: test_articles.jsonl"]),
        ("test_scores.json", ["No scores: test_scores.json, which run_eval.py writes"]),
        ("train_summary.json", ["ROUGE-1"]),
        ("arguments.yaml", ["Environment"]),
        ("environment.json", ["Training arguments"]),
    ],
)
def test_the_page_says_what_is_missing(run: Path, missing: str, pieces: list[str]) -> None:
    (run / missing).unlink()
    text = page_of(run).text
    assert all(piece in text for piece in pieces)


def test_a_run_that_was_only_trained_says_that_it_was_not_scored(tmp_path: Path) -> None:
    page = page_of(trained_only(tmp_path / "run"))
    assert "No scores: test_scores.json, which run_eval.py writes, is not there" in page.text
    assert "chart-loss" in page.identities and "chart-latency" not in page.identities
    (tmp_path / "run" / "metrics.csv").write_text("step,train_loss\n")
    assert "No learning curves" in page_of(tmp_path / "run").text


def test_scores_of_an_older_run_are_enough(tmp_path: Path) -> None:
    (tmp_path / "test_scores.json").write_text('{"examples": 4, "rouge1": 12.5, "latency_ms": {"p50": 3}}')
    text = page_of(tmp_path).text
    assert "ROUGE-1 12.50" in text and "interval" not in text.lower()  # no empty column


def test_lead_baselines_stand_beside_the_scores(run: Path) -> None:
    path = run / "test_scores.json"
    scores = json.loads(path.read_text())
    path.write_text(json.dumps({**scores, "baselines": {"first 1 sentence": {"rouge1": 12.5, "rouge2": 6.25}}}))
    page = page_of(run)
    low, high = scores["intervals"]["rouge1"]
    assert "Score Mean 95% interval First 1 sentence" in page.text
    assert f"ROUGE-1 {scores['rouge1']:.2f} {low:.2f} to {high:.2f} 12.50" in page.text
    assert "BLEU" not in page.text and "baselines:" not in page.text


def test_articles_without_references_or_scores(tmp_path: Path) -> None:
    rows = [{"index": i, "source": "He paid Ann $5.", "summary": f"He paid Ann ${4 + i}."} for i in range(2)]
    (tmp_path / "test_articles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(tmp_path)
    assert page.texts == [["He paid Ann $4.", "He paid Ann $5."]]
    assert page.facts == [[[[12, 14, 2]], []]] and page.columns[0] == [1, 0]
    assert "Reference" not in page.text.replace("nor reference", "") and "No scores" in page.text
    assert "Length of summaries" not in page.text and "chart-summary_length" in page.identities


def test_a_summary_of_a_former_version_may_lack_numbers(run: Path) -> None:
    (run / "train_summary.json").write_text('{"steps": 40}')
    text = page_of(run).text
    assert "Steps 40" in text and "wall clock" not in text


def test_a_translation_has_bleu_and_no_copy_rates(tmp_path: Path) -> None:
    text = {"source": "Ein Hund lief.", "reference": "A dog ran.", "summary": "A dog ran ran.", "index": 0}
    (tmp_path / "val_articles.jsonl").write_text(json.dumps({**text, "alternatives": ["Dogs run.", "A cat."]}) + "\n")
    scores = {"split": "val", "task": "translation", "examples": 1, "bleu": 40.5, "bleu_signature": "nrefs:1|case"}
    (tmp_path / "val_scores.json").write_text(json.dumps(scores))
    page = page_of(tmp_path)
    assert "BLEU 40.50" in page.text and "BLEU signature: nrefs:1|case" in page.text
    assert "Repeated 3-grams" in page.text and "Novel" not in page.text and "Coverage (%" not in page.text
    assert page.texts == [["A dog ran."], ["A dog ran ran."], ["Dogs run.\nA cat."]]
    assert len(page.columns) == 3  # words, their ratio, repeats


def test_a_run_of_another_task_is_shown_by_the_names_in_its_files(tmp_path: Path) -> None:
    for folder, predictions in (("one", ["yes", "no"]), ("two", ["yes", "yes"])):
        (tmp_path / folder).mkdir()
        rows = [
            {
                "index": i,
                "source": f"Is {i}?",
                "prediction": text,
                "label": "yes",
                "correct": float(text == "yes"),
                "x": [1],
            }
            for i, text in enumerate(predictions)
        ]
        (tmp_path / folder / "test_articles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        accuracy = predictions.count("yes") / 2
        scores = {"task": "glue", "examples": 2, "accuracy": accuracy, "exact_match": None, "per_label": {"yes": 0.5}}
        (tmp_path / folder / "test_scores.json").write_text(json.dumps(scores))
    page = page_of(tmp_path / "one")
    assert "accuracy 0.5000" in page.text and "per_label: 'yes': 0.5" in page.text
    assert page.texts == [["yes", "no"], ["yes", "yes"]] and page.columns == [[1, 0]]
    assert "No text statistics" in page.text and "chart-summary_length" not in page.identities
    both = page_of(tmp_path / "one", tmp_path / "two")
    assert "accuracy two 1.0000" in both.text
    assert both.columns == [[1, 0], [1, 1], [0, 1]]


def test_the_split_is_chosen_among_those_scored(run: Path) -> None:
    write_articles(run, [{"source": "only one", "reference": "one", "summary": "one"}], split="val")
    page = page_of(run)
    assert "The test split of 120 examples" in page.text and "The val split of 1 examples" in page.text
    assert len(page.sources) == 120
    assert len(page_of(run, split="val").sources) == 1
    with pytest.raises(InputError, match="--split is train; scored in .*: test, val"):
        build_report([run], split="train")


@pytest.mark.slow
def test_each_comparison_has_a_page_of_its_own(run: Path) -> None:
    others = [run.parent / name for name in ("x/run", "y/run", "y/" + "r" * 150, "z" * 150)]
    for other in others:
        write_run(other, articles=5)
    groups = [[run, others[0]], [run, others[1]], others[:2], [*others, run], [*others[:2], *others[3:1:-1]]]
    pages = [build_report(group) for group in groups]
    assert len({*pages}) == len(pages) and all(page.exists() for page in pages)
    assert [page.name for page in pages[:3]] == [
        f"comparison_{run.name}_x-run.html",
        f"comparison_{run.name}_y-run.html",
        "comparison_run_y-run.html",
    ]


def test_runs_are_compared_on_the_articles_that_they_share(run: Path) -> None:
    other, trained, foreign = (run.with_name(name) for name in ("other", "trained", "foreign"))
    articles = write_run(other, seed=2)
    write_run(foreign, articles=5)
    output = build_report([run, other, foreign, trained_only(trained)])
    assert output == run.parent / f"comparison_{run.name}_other_foreign_trained.html"
    assert (run.parent / f"{output.stem}_figures" / "throughput.png").exists()
    page = Page(output)
    first = [json.loads(line) for line in (run / "test_articles.jsonl").read_text().splitlines()]
    assert page.texts[1:] == [[article["summary"] for article in each] for each in (first, articles)]
    assert "foreign has other articles than run" in page.text
    assert "trained has no articles of the test split" in page.text
    for name in ROUGE_TYPES["rouge-score"]:  # the second run less the first
        result = compare([article[name] for article in articles], [article[name] for article in first])
        low, high, difference = (f"{x:+.2f}".replace("-", MINUS) for x in (*result["interval"], result["difference"]))
        assert f"{difference} {low} to {high} {result['p_value']:.3f}" in page.text


def test_scores_of_different_measures_are_not_subtracted(run: Path) -> None:
    other = run.with_name("other")
    write_run(other, seed=2)
    scores = json.loads((other / "test_scores.json").read_text())
    (other / "test_scores.json").write_text(json.dumps({**scores, "rouge_mode": "rouge-1.5.5"}))
    text = page_of(run, other).text
    assert "run: ROUGE mode rouge-score other: ROUGE mode rouge-1.5.5" in text
    low, high = scores["intervals"]["rouge1"]
    assert f"ROUGE-1 other {scores['rouge1']:.2f} {low:.2f} to {high:.2f} ROUGE-2 run" in text


def test_runs_of_one_name_are_told_apart_and_none_is_given_twice(run: Path) -> None:
    same = trained_only(run.parent / "elsewhere" / run.name)
    page = page_of(run, same, output=run.parent / "both.html")
    assert str(same) in page.text
    with pytest.raises(InputError, match="given twice"):
        build_report([run, run.parent / "." / run.name])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.csv", "step,lr\n1,fast\n", "metrics.csv: .*line 2: lr is 'fast'; a number"),
        ("metrics.csv", "step,lr,loss\n1,2,3\n1,2", "metrics.csv: .*line 3: 2 cells; the header has 3"),
        ("metrics.csv", b"\xff\n", "metrics.csv: .*invalid start byte"),
        ("arguments.yaml", "a: [", "arguments.yaml: cannot be read, or is damaged"),
        ("environment.json", "[1]", "environment.json: .*a mapping of names to values is expected"),
        ("test_scores.json", '{"examples": 7}', "test_articles.jsonl: has 120 articles; test_scores.json is of 7"),
        ("test_scores.json", '{"examples": "200"}', "test_scores.json: .*examples is '200'; a number is expected"),
        ("train_summary.json", '{"steps": [3]}', r"train_summary.json: .*steps is \[3\]; a number is expected"),
        ("test_articles.jsonl", "{}\n" * 8 + "{\n", "test_articles.jsonl, line 9, column 2: not JSON"),
        ("test_articles.jsonl", "3\n", "test_articles.jsonl, line 1: JSON Lines, one object"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(run: Path, name: str, content: str | bytes, message: str) -> None:
    (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as error:
        build_report([run])
    assert "\n" not in str(error.value)


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no metrics.csv"):
        build_report([tmp_path])
    with pytest.raises(InputError, match="no such directory"):
        build_report([tmp_path / "none"])


def test_the_command_prints_where_the_report_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(run)])
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    main([str(run), "--output", str(run / "deep" / "page.html")])
    assert (run / "deep" / "page.html").exists() and (run / "deep" / "page_figures" / "loss.png").exists()
    (run / "file").write_text("")
    with pytest.raises(InputError, match="page.html: cannot be written"):
        main([str(run), "--output", str(run / "file" / "page.html")])
    with pytest.raises(InputError, match="at least one run directory"):
        main([])


def test_a_finished_run_is_never_broken_by_its_report(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    write_report(run)
    assert (run / "report.html").exists() and caplog.records == []
    (run / "test_scores.json").write_text("{")
    write_report(run)
    write_report(run / "none")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert (
        "report.html was not written: InputError" in caplog.text
        and "test_scores.json: cannot be read, or is damaged" in caplog.text
    )
