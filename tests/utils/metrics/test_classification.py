"""Scores of classes, label sets and numbers against scikit-learn and scipy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    matthews_corrcoef,
    precision_recall_fscore_support,
)

from bart.errors import InputError
from utils.metrics.classification import (
    confusion_of_classes,
    counts_of,
    main,
    of_classes,
    scores_by_class,
    surest_errors,
)


def sums_of(predicted: np.ndarray, right: np.ndarray, classes: int) -> np.ndarray:
    numbers = np.arange(classes)
    return counts_of(predicted[:, None] == numbers, right[:, None] == numbers)[:, 1:].sum(axis=0).reshape(3, -1)


@pytest.mark.parametrize("classes", [2, 3, 36])
def test_classes(classes: int) -> None:
    rng = np.random.default_rng(classes)
    right = rng.integers(0, classes - (classes > 2), 200)  # of several classes the last is never right
    predicted = np.where(rng.random(200) < 0.6, right, rng.integers(0, classes, 200))
    average = "binary" if classes == 2 else "macro"
    expected = {
        "accuracy": accuracy_score(right, predicted),
        "f1": f1_score(right, predicted, average=average),
        "matthews": matthews_corrcoef(right, predicted),
    }
    counts = sums_of(predicted, right, classes)
    assert of_classes(counts) == pytest.approx({name: 100 * value for name, value in expected.items()})
    names = [f"class {number}" for number in range(classes)]
    rows = zip(*precision_recall_fscore_support(right, predicted, labels=range(classes), zero_division=0), strict=True)
    for scores, row in zip(scores_by_class(names, *counts).values(), rows, strict=True):
        assert list(scores.values()) == pytest.approx([*(100 * value for value in row[:3]), row[3]])
    confusion = confusion_of_classes(names, *([names[number] for number in side] for side in (right, predicted)))
    assert list(confusion) == names
    table = [[row.get(name, 0) for name in names] for row in confusion.values()]
    assert table == confusion_matrix(right, predicted, labels=range(classes)).tolist()


@pytest.mark.parametrize("classes", [2, 5])
def test_labels_that_are_no_class_are_missed(classes: int) -> None:
    rng = np.random.default_rng(classes)
    right, predicted = rng.integers(0, classes + 1, 200), rng.integers(0, classes, 200)
    f1 = f1_score(right == 1, predicted == 1) if classes == 2 else f1_score(right, predicted, average="macro")
    expected = {"accuracy": accuracy_score(right, predicted), "f1": f1, "matthews": matthews_corrcoef(right, predicted)}
    scores = of_classes(sums_of(predicted, right, classes + 1), classes)
    assert scores == pytest.approx({name: 100 * value for name, value in expected.items()})


def label_sets() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    right = rng.random((100, 5)) < [0.5, 0.2, 0.1, 0.05, 0]
    return right, right ^ (rng.random((100, 5)) < [0.1, 0.1, 0.1, 0.1, 0])


def test_the_surest_errors_come_first() -> None:
    wrong = [(number % 4, "a\n text", "x", "y", 10.0 * number) for number in range(30)]
    errors, of_each = surest_errors(wrong, 5)
    assert [error["confidence"] for error in errors] == [10.0 * number for number in range(29, 9, -1)]
    assert errors[0] == {"index": 1, "text": "a text", "reference": "x", "prediction": "y", "confidence": 290.0}
    assert of_each.tolist() == [280, 290, 260, 270, 0]


def printed_by(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    main([*map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


def test_the_command_scores_lines_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(6)
    right = rng.choice(["cat", "dog", "eel"], 80)
    predicted = np.where(rng.random(80) < 0.7, right, rng.choice(["cat", "dog", "elk"], 80))
    lines, table, other = tmp_path / "p.txt", tmp_path / "r.csv", tmp_path / "o.jsonl"
    lines.write_text("".join(f"{label}\n" for label in predicted))
    table.write_text("text,kind\n" + "".join(f"t,{label}\n" for label in right))
    other.write_text("".join(json.dumps({"prediction": label}) + "\n" for label in right))
    report = printed_by(capsys, lines, table, "--label_field", "kind", "--compare", other)
    assert report["accuracy"] == pytest.approx(100 * accuracy_score(right, predicted))
    assert report["f1"] == pytest.approx(100 * f1_score(right, predicted, average="macro"))
    assert list(report["groups"]["class"]) == ["cat", "dog", "eel", "elk"]
    assert report["compare"]["accuracy"]["other"] == 100 and report["compare"]["accuracy"]["p_value"] < 0.001
    low, high = report["intervals"]["matthews"]
    assert low < report["matthews"] < high
    main([str(lines), str(table), "--label_field", "kind"])
    shown = capsys.readouterr().out
    assert re.search(rf"accuracy +{report['accuracy']:.2f}", shown) and "class      precision    recall" in shown
    two = tmp_path / "two"
    two.write_text("0\n1\n1\n1.0\n")
    report = printed_by(capsys, two, two)
    assert (report["f1"], report["positive"], list(report["groups"]["class"])) == (100, "1", ["0", "1"])


def test_the_command_scores_label_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a table, and joined to lines as run_eval.py does."""
    right, predicted = label_sets()
    names = np.array(list("abcde"))
    lines, table = tmp_path / "p.txt", tmp_path / "r.jsonl"
    lines.write_text("".join(", ".join(names[row]) + "\n" for row in predicted))
    table.write_text("".join(json.dumps({"labels": names[row].tolist()}) + "\n" for row in right))
    report = printed_by(capsys, lines, table)
    assert report["f1"] == pytest.approx(100 * f1_score(right, predicted, average="micro"))
    assert report["macro_f1"] == pytest.approx(100 * f1_score(right[:, :4], predicted[:, :4], average="macro"))
    assert report["accuracy"] == pytest.approx(100 * accuracy_score(right, predicted))
    supports = {name: int(column.sum()) for name, column in zip(names, right.T, strict=True) if column.any()}
    assert {name: row["support"] for name, row in report["groups"]["label"].items()} == supports


def written(path: Path, lines: Iterable[Any]) -> Path:
    """Texts as they are, other values as rows of JSON lines."""
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps({'label': x})}\n" for x in lines))
    return path


@pytest.mark.parametrize("kind", ["two", "sets"])
def test_scores_of_a_file_do_not_depend_on_the_other_one(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does a predicted class that is never right, such as a typo, make another measure of F1."""
    rng, names = np.random.default_rng(8), ["a", "b"]
    right = rng.choice(names, 60)
    ours = np.where(rng.random(60) < 0.7, right, rng.choice([*names, "typo"], 60))
    theirs = np.where(rng.random(60) < 0.7, right, rng.choice([*names, "x", "y"], 60))
    files = []
    for name, labels in (("p", ours), ("r", right), ("o", theirs)):
        values = [[label, "a"] if label != "a" else ["a"] for label in labels] if kind == "sets" else labels
        files.append(written(tmp_path / f"{name}.jsonl" if kind == "sets" else tmp_path / name, values))
    alone, other = printed_by(capsys, *files[:2]), printed_by(capsys, files[2], files[1])
    both = printed_by(capsys, *files[:2], "--compare", files[2])
    compared = both.pop("compare")
    assert both == alone
    assert {name: row["other"] for name, row in compared.items()} == {name: other[name] for name in compared}
    if kind == "two":
        assert alone["f1"] == pytest.approx(100 * f1_score(right == "b", ours == "b"))
        assert alone["positive"] == "b"


def test_the_command_scores_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(4)
    right = rng.integers(0, 6, 50) / 1  # with ties
    ours, theirs = right + rng.normal(size=50), right + rng.normal(size=50)
    files = [written(tmp_path / name, map(str, numbers)) for name, numbers in (("p", ours), ("o", theirs))]
    references = written(tmp_path / "r.jsonl", right.tolist())
    report = printed_by(capsys, files[0], references, "--compare", files[1])
    assert report["pearson"] == pytest.approx(100 * pearsonr(right, ours)[0])
    assert report["spearman"] == pytest.approx(100 * spearmanr(right, ours)[0])
    assert report["compare"]["pearson"]["other"] == pytest.approx(100 * pearsonr(right, theirs)[0])
    low, high = report["intervals"]["pearson"]
    assert low < report["pearson"] < high


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"p": "0.5\nx\n", "r": "0.5\n1\n"}, "^p, line 2: the prediction is 'x'; allowed: a number, as .* r"),
        ({"p": "a\n\n", "r": "a\nb\n"}, "^p, line 2: the label is ''; allowed: a label that is not blank"),
        ({"p.jsonl": '{"label": ["a"]}\n', "r": "a\n"}, r"^p.jsonl:1: the label is \['a'\]; allowed: one label"),
        # A usual column of predictions and of references, where the file names its predictions otherwise.
        ({"r.csv": "label,guess\na,b\n"}, "^r.csv: no prediction column; name one with --prediction_field"),
        ({"p": '{"label": "a"}\n', "r": "a\n"}, '^p, line 1: {"label": "a"} is a row of JSON; allowed: .*jsonl'),
    ],
)
def test_bad_files(files: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        Path(name).write_text(content)
    with pytest.raises(InputError, match=message):
        main([next(iter(files)), next((name for name in files if name == "r.csv"), "r")])
