"""Classes, tags and answers in the report and the card: scores of each, confusions, and the surest errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.utils.evaluation.report.test_page import Page, page_of
from utils.evaluation.card import tables_of
from utils.evaluation.report.runs import read_run


def write_classified(folder: Path, classes: int, task: str = "classification") -> Path:
    """A run that scored two examples of each class, one of which is taken for the next class."""
    folder.mkdir()
    names = [f"class <b>{number}" for number in range(classes)]
    confusion = {name: {name: 1, names[(place + 1) % classes]: 1} for place, name in enumerate(names)}
    row = {"precision": 50.0, "recall": 50.0, "f1": 50.0, "support": 2}
    error = {"index": 3, "text": "a text", "reference": names[0], "prediction": names[1], "confidence": 98.5}
    scores: dict[str, Any] = {"task": task, "split": "test", "examples": 2 * classes, "accuracy": 0.5, "loss": 0.25}
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


@pytest.mark.parametrize("classes", [3, 41])
def test_classes_and_errors(classes: int, tmp_path: Path) -> None:
    """A matrix of up to 40 classes is drawn; of more, the frequent confusions are listed."""
    folder = write_classified(tmp_path / "run", classes)
    page = page_of(folder)
    assert "b" not in page.tags
    assert "Class precision recall F1 support class <b>0 50.00 50.00 50.00 2" in page.text
    assert "a text class <b>0 class <b>1 98.50 4" in page.text
    assert (
        ("chart-confusion" in page.identities) == (folder / "report_figures/confusion.png").exists() == (classes == 3)
    )
    assert ("class <b>0 class <b>1 1 50.0" in page.text) == (classes == 41)
    tables = [table for table in tables_of(read_run(folder), "test") if table.rows]
    assert [len(table.rows) for table in tables] == [2, classes, min(classes, 20), 1]
    assert "a text" not in str(tables)


def test_words_fit_the_task(tmp_path: Path) -> None:
    text = page_of(write_classified(tmp_path / "run", 3)).text
    assert "accuracy 0.50 Loss 0.2500" in text  # in percent
    assert "The loss is in nats per label." in text and "Examples per second 9.50" in text
    for word in ("rticle", "target token", "Generated tokens", "ummar", "Copied"):
        assert word not in text.replace("Copied from the source", "")  # which is hidden
    assert "window" in page_of(write_classified(tmp_path / "answers", 3, "question_answering")).text


def test_runs_are_compared_by_f1(tmp_path: Path) -> None:
    folders = [write_classified(tmp_path / name, 3) for name in ("one", "two")]
    page = page_of(*folders)
    assert "Class F1, one F1, two class <b>0 50.00 50.00" in page.text
    assert isinstance(page, Page) and "chart-confusion" not in page.identities
