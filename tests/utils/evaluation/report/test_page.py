from __future__ import annotations

import json
import logging
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bart.errors import InputError
from tests.scored_run import HOSTILE, write_articles, write_run
from utils.evaluation.card import tables_of
from utils.evaluation.report.building import build_report, main, write_report
from utils.evaluation.report.charts import training_charts
from utils.evaluation.report.runs import ReportedRun
from utils.evaluation.report.tables import NOTHING


class Page(HTMLParser):
    """Text, tags and data of a page, as a browser's parser would find them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.identities: list[str] = []
        self.parts: list[str] = []
        self.texts, self.columns, self.marks, self.sources = [], [], [], []  # of the articles, as the script gets them
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
            self.sources, *self.texts = (text["values"] for text in content["texts"])
            self.marks = [text["marks"] for text in content["texts"]]
            self.columns = [column["values"] for column in content["columns"]]
        elif not self.inside.startswith(("script", "style")):
            self.parts.append(data)


def page_of(folder: Path) -> Page:
    return Page(build_report(folder))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_the_page_tells_scores_intervals_speed_and_settings(run: Path) -> None:
    scores = json.loads((run / "test_scores.json").read_text())
    change(run / "test_scores.json", baselines={"first 1 sentence": {"rouge1": 12.5, "rouge2": 6.25}})
    change(run / "test_speed.json", resumed_articles=70)
    page = page_of(run)
    assert "Score Mean 95% interval First 1 sentence" in page.text
    low, high = scores["intervals"]["rouge2"]
    assert f"ROUGE-2 {scores['rouge2']:.2f} {low:.2f} to {high:.2f} 6.25" in page.text
    assert f"Loss 2.1234 {NOTHING}" in page.text
    for piece in ("120 examples", "12.50", "Latency, ms, p95 140", "0:01:01", "Some CPU", "learning_rate: 0.002"):
        assert piece in page.text
    assert "70 articles were predicted before the run was broken off, and are not timed." in page.text
    assert "ROUGE mode: rouge-score" in page.text and "generation: num_beams: 4" in page.text
    charts = {"loss", "learning_rate", "validation", "throughput"}
    assert {f"chart-{name}" for name in charts} <= set(page.identities)
    assert len(set(page.identities)) == len(page.identities)
    first = (run / "report.html").read_bytes()
    assert build_report(run).read_bytes() == first


@pytest.mark.parametrize(
    ("best", "found"), [(98.4, "better than"), (98.6, "not clearly better than"), (101.3, "worse than")]
)
def test_the_page_opens_with_a_verdict_and_names_no_folder_of_this_machine(
    tmp_path: Path, best: float, found: str
) -> None:
    """The interval is 98.5 to 101.25."""
    write_articles(tmp_path, [{"source": "A dog ran.", "reference": "A dog ran.", "summary": "A dog ran."}])
    baselines = {"first 1 sentence": {"rouge1": 9.0}, "first 2 sentences": {"rouge1": best}}
    facts = {"not_in": "article or reference", "mean": 1.5, "summaries_with_none": 0}
    told = "1 of 1 summaries have a name or number that neither article nor reference has (1.50 a summary)."
    places = {"model": str(tmp_path / "run one" / "export"), "data_dir": "/a/b/data", "info": "https://host/a/b"}
    change(tmp_path / "test_scores.json", baselines=baselines, unsupported_facts=facts, **places)
    (tmp_path / "environment.json").write_text(json.dumps({"command": "/a/b/run.py --data_dir='/a b/c' --x=/d/e/f"}))
    path = build_report(tmp_path)
    verdict = (
        f"By ROUGE-1, the model is {found} the baseline “first 2 sentences”: 100.00 (95% interval: 98.50 to 101.25)"
    )
    text = Page(path).text
    assert f"The run {verdict} against {best:.2f}. {told} " in text
    assert str(tmp_path) not in path.read_text() and "https://host/a/b" in text
    for shown in ("data_dir: b/data", "b/run.py", "--x=e/f"):
        assert shown in text


def test_charts_of_a_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.evaluation.report.charts.draw", lambda *chart: chart)
    (*_, loss, _), (*_, from_zero), (*_, validation, _), (*_, throughput, _) = training_charts(
        ReportedRun(run)
    ).values()
    # Steps done, not Lightning's count from 0; a loss that is not a number leaves a gap.
    assert loss == {"training": {10: 3.5, 20: 2.25, 40: 1.125}, "validation": {20: 2.5, 40: 2.125}}
    assert [*validation] == ["ROUGE-1", "ROUGE-2", "ROUGE-Lsum"]
    assert (from_zero, [*throughput[""].values()]) == (True, [30000, 31000, 32000, 29000])
    (run / "arguments.yaml").write_text("eval_beams: 0\n")
    (run / "metrics.csv").write_text("step,val_rouge1_forced,val_new_figure\n9,30.5,2\n")
    [(_, title, _, curves, _)] = training_charts(ReportedRun(run)).values()
    assert (title, [*curves]) == ("Validation, teacher-forced", ["ROUGE-1", "new figure"])


def test_whatever_names_settings_and_articles_hold_becomes_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "a<b>&amp;<!--{{ 1 }}"
    articles = write_run(folder, articles=300, hostile=True)
    (folder / "arguments.yaml").write_text('prefix: "</script><b>{}$title\u202e"\n', encoding="utf-8")
    page = page_of(folder)
    assert page.texts == [[article[name] for article in articles] for name in ("reference", "summary")]
    assert page.sources == [article["source"] for article in articles] and page.sources[0] == HOSTILE["source"]
    assert page.columns[1] == [round(article["rouge1"], 3) for article in articles]
    assert "b" not in page.tags and "boom" not in page.text
    assert "</script><b>{}$title" in page.text and "a<b>&amp;<!--{{ 1 }}" in page.text
    write_articles(folder, [{"source": "a \ud800 b", "reference": "a", "summary": "b"}])
    assert page_of(folder).sources == ["a ? b"]


def test_all_sessions_of_a_run_are_shown_and_a_repeated_step_once(tmp_path: Path) -> None:
    """The tenth session comes after the second; half a line is what a session leaves that was killed."""
    for name, lines in {
        "metrics.1.csv": ["9,3.0,,60.5", "19,2.5,,90.5", "19,,2.4,95", "29,2.2,,120"],
        "metrics.2.csv": ["19,,2.3,150", "24,2.1,,180", "34,2.0,,200", "44,1"],
        "metrics.10.csv": ["34,1.9,,300", "44,1.8,,400"],
        "metrics.csv": ["44,1.7,,500", "54,1.6,,600"],
    }.items():
        end = "" if name == "metrics.2.csv" else "\n"
        (tmp_path / name).write_text("\n".join(["step,train_loss,val_loss,wall_seconds", *lines]) + end)
    for number, day in ((".1", 1), (".2", 2), ("", 3)):
        facts = {"date": f"2026-05-0{day}T10:00:00+00:00", "devices": ["CPU A" if day < 3 else "CPU B"]}
        (tmp_path / f"environment{number}.json").write_text(json.dumps(facts))
    (tmp_path / "train_summary.json").write_text(json.dumps({"steps": 55, "wall_seconds": 605}))
    run = ReportedRun(tmp_path)
    assert run.metrics["train_loss"] == {10: 3, 20: 2.5, 25: 2.1, 35: 1.9, 45: 1.7, 55: 1.6}
    assert run.metrics["val_loss"] == {20: 2.3}
    text = page_of(tmp_path).text
    assert "Started 2026-05-01 10:00 Trained on CPU A; CPU B Sessions 3 Steps 55 Training, wall clock 0:10:05" in text
    (tmp_path / "train_summary.json").unlink()  # the last session is still at work, or was killed
    assert "Training, wall clock 0:10:00" in page_of(tmp_path).text


@pytest.mark.parametrize(
    ("missing", "pieces"),
    [
        ("metrics.csv", ["No learning curves: metrics.csv is not there"]),
        ("test_speed.json", ["No speeds: test_speed.json is not there"]),
        ("test_articles.jsonl", ["No articles: test_articles.jsonl is not", "No text statistics: test_articles.jsonl"]),
        ("test_scores.json", ["No scores: test_scores.json, which run_eval.py writes"]),
        ("arguments.yaml", ["Environment"]),
    ],
)
def test_the_page_says_what_is_missing(run: Path, missing: str, pieces: list[str]) -> None:
    (run / missing).unlink()
    text = page_of(run).text
    assert all(piece in text for piece in pieces)


def test_a_translation_has_bleu_and_no_copy_rates(tmp_path: Path) -> None:
    text = {"source": "Ein Hund lief.", "reference": "A dog ran.", "summary": "A dog ran ran.", "index": 0}
    (tmp_path / "val_articles.jsonl").write_text(json.dumps({**text, "alternatives": ["Dogs run.", "A cat."]}) + "\n")
    scores = {"split": "val", "task": "translation", "examples": 1, "bleu": 40.5, "bleu_signature": "nrefs:1|case"}
    (tmp_path / "val_scores.json").write_text(json.dumps(scores))
    page = page_of(tmp_path)
    assert "BLEU 40.50" in page.text and "BLEU signature: nrefs:1|case" in page.text
    assert "Repeats %" in page.text and "New bigrams %" not in page.text
    assert page.texts == [["A dog ran."], ["A dog ran ran."], ["Dogs run.\nA cat."]]
    assert len(page.columns) == 3  # words, their ratio, repeats


def write_classified(folder: Path, classes: int) -> Path:
    """A run that scored two examples of each class, one of which is taken for the next class."""
    folder.mkdir()
    names = [f"class <b>{number}" for number in range(classes)]
    confusion = {name: {name: 1, names[(place + 1) % classes]: 1} for place, name in enumerate(names)}
    row = {"precision": 50.0, "recall": 50.0, "f1": 50.0, "support": 2}
    error = {"index": 3, "text": "a text", "reference": names[0], "prediction": names[1], "confidence": 98.5}
    scores: dict[str, Any] = {
        "task": "classification",
        "split": "test",
        "examples": 2 * classes,
        "accuracy": 0.5,
        "loss": 0.25,
    }
    scores |= {"intervals": {"f1": [0.2, 0.4], "accuracy": [0.25, 0.75]}}
    scores["baselines"] = {f"always {names[0]}": {"f1": 0.0, "accuracy": 0.3}}
    scores |= {"groups": {"class": dict.fromkeys(names, row)}, "confusion": confusion, "errors": [error]}
    (folder / "test_scores.json").write_text(json.dumps(scores))
    rows = [
        {"index": n, "source": "a text", "reference": "x", "prediction": "y", "confident_error": 98.5 * (n == 3)}
        for n in range(2 * classes)
    ]
    (folder / "test_articles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    speed = {"articles_per_second": 9.5, "generated_tokens_per_second": 0.0, "latency_ms": {"p50": 3.0}}
    (folder / "test_speed.json").write_text(json.dumps(speed))
    return folder


def test_classes_and_errors(tmp_path: Path) -> None:
    """The frequent confusions are listed. The card has no texts."""
    folder = write_classified(tmp_path / "run", 41)
    page = page_of(folder)
    assert "b" not in page.tags
    assert "Class precision recall F1 support class <b>0 50.00 50.00 50.00 2" in page.text
    assert "a text class <b>0 class <b>1 98.50 4" in page.text
    assert "class <b>0 class <b>1 1 50.0" in page.text
    tables = [table for table in tables_of(ReportedRun(folder), "test") if table.rows]
    assert [len(table.rows) for table in tables] == [2, 41, 20, 1]
    assert "a text" not in str(tables)
    assert tables[0].header[2:] == ["95% interval", "Always class <b>0"]
    assert tables[0].rows[0] == ["accuracy", "0.50", "0.25 to 0.75", "0.30"]
    assert "By accuracy, the model is not clearly better than the baseline “always class <b>0”: 0.50" in page.text
    assert f"accuracy 0.50 0.25 to 0.75 0.30 Loss 0.2500 {NOTHING}" in page.text  # in percent
    assert "The loss is in nats per label." in page.text and "Examples per second 9.50" in page.text
    for word in ("rticle", "target token", "Generated tokens", "ummar"):
        assert word not in page.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.csv", "step,lr\n1,fast\n", "metrics.csv: .*damaged .*'fast'"),
        ("arguments.yaml", "a: [", "arguments.yaml cannot be opened .ParserError: "),
        ("test_scores.json", '{"examples": 7}', "test_articles.jsonl: has 120 articles; test_scores.json is of 7"),
        ("test_articles.jsonl", "{}\n" * 8 + "{\n", "test_articles.jsonl, line 9, column 2: not JSON"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(run: Path, name: str, content: str, message: str) -> None:
    (run / name).write_text(content)
    with pytest.raises(InputError, match=message) as error:
        build_report(run)
    assert "\n" not in str(error.value)


def test_the_command_prints_where_the_report_is(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(run)])
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    for folder, message in ((tmp_path, "holds no run"), (tmp_path / "none", "no such directory")):
        with pytest.raises(InputError, match=message):
            main([str(folder)])


def test_a_finished_run_is_never_broken_by_its_report(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    write_report(run)
    assert (run / "report.html").exists() and caplog.records == []
    (run / "test_scores.json").write_text("{")
    write_report(run)
    write_report(run / "none")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert (
        "report.html was not written: InputError" in caplog.text and "test_scores.json: not valid JSON" in caplog.text
    )
