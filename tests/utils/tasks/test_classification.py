"""Texts and labels of classification, in GLUE's tables and those of other programs; labels of published models."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
from sklearn import metrics as sklearn_metrics
from transformers import BertConfig as TheirConfig

import finetune
import run_eval
from bart.configuration.configuration import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from bart.errors import InputError
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import BertForSequenceClassification
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.tiny_run import OF_BERT
from utils.data.options import Place
from utils.evaluation.scoring import format_scores
from utils.models.model_to_train import renamed
from utils.predict import main as predict
from utils.tasks.classification import Classification, LabelledText, _target
from utils.tasks.options import ClassificationOptions, ClassificationTrainingOptions
from utils.tasks.task import Prediction

pytestmark = pytest.mark.usefixtures("no_pictures", "one_thread")


def write(folder: Path, **tables: str) -> str:
    """A data directory of tables, whose names have "_" for "."."""
    folder.mkdir(exist_ok=True)
    for name, content in tables.items():
        (folder / name.replace("_", ".")).write_text(content)
    return str(folder)


def read(data_dir: str, split: str = "train", **options: Any) -> list[LabelledText]:
    return Classification(Place(data_dir), ClassificationOptions(**options)).read(split)


def labels_in(*place: str, **options: Any) -> list[Any]:
    return [text.label for text in read(*place, **options)]


def names_in(data_dir: str, split: str = "train") -> list[str]:
    task = Classification(Place(data_dir))
    return task.learn({"train": task.read(split)}).names


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"train_csv": "text,label\na,x\nb,\n"}, r"train.csv:3: label is ''; allowed: a label that is not blank"),
        ({"train_jsonl": '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n'}, "jsonl:2: label is None"),
        ({"train_jsonl": '{"text": "a", "label": NaN}\n'}, r"jsonl:1: label is nan; allowed: .* a finite number"),
    ],
)
def test_what_is_no_label(table: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, **table))


def test_blanks_around_a_label_make_no_class(tmp_path: Path) -> None:
    place = write(tmp_path, train_csv="text,label\na,neg\nb,neg \nc,\u00a0pos\nd,pos\t\n")
    assert names_in(place) == ["neg", "pos"]
    write(tmp_path, val_jsonl='{"text": "a", "label": [" x", "y"]}\n{"text": "b", "label": ["x "]}\n')
    assert labels_in(place, "val") == [["x", "y"], ["x"]]


def test_whole_numbers_are_the_same_labels_however_they_are_written(tmp_path: Path) -> None:
    """pandas writes 1.0 for 1 where a column lacks values."""
    place = write(tmp_path, train_csv="text,label\na,0\nb,1\n", val_csv="text,label\na,0.0\nb,1.0\n")
    assert names_in(place) == names_in(place, "val") == ["0", "1"]
    for label, problem, target in ((1.0, SINGLE_LABEL, 1), ([1.0], MULTI_LABEL, [0, 1])):
        assert _target(LabelledText("", (), (), label), problem, ["0", "1"]) == target
    mixed = write(tmp_path / "mixed", train_csv="text,label\na,1.0\nb,1\nc,10\nd,2.\ne,-3.00\n")
    assert names_in(mixed) == ["-3", "1", "2", "10"]
    versions = write(tmp_path / "versions", train_csv="text,label\na,1.1\nb,1.10\nc,v1.0\n")
    assert names_in(versions) == ["1.1", "1.10", "v1.0"]


@pytest.mark.parametrize(
    ("labels", "problem", "names"),
    [
        ([0.0, 1.0, 1.0], SINGLE_LABEL, ["0", "1"]),
        ([0, 1.0, "x"], SINGLE_LABEL, ["0", "1", "x"]),
        ([True, False, "True"], SINGLE_LABEL, ["False", "True"]),  # as pandas writes them to CSV
        ([0.0, 0.5, 1.0], REGRESSION, ["score"]),
        ([[0.0], [1.0, 2.0]], MULTI_LABEL, ["0", "1", "2"]),
        (['["x", "y"]', "[]", "[3, 10]"], MULTI_LABEL, ["10", "3", "x", "y"]),
    ],
)
def test_the_kind_of_problem_follows_the_labels(
    labels: list[Any], problem: str, names: list[str], tmp_path: Path
) -> None:
    rows = "".join(json.dumps({"text": "a", "label": label}) + "\n" for label in labels)
    task = Classification(Place(write(tmp_path, train_jsonl=rows)))
    learned = task.learn({"train": task.read("train")})
    assert (learned.problem, learned.names) == (problem, names)
    forced = Classification(task.place, training=ClassificationTrainingOptions(problem_type=REGRESSION))
    assert forced.learn({"train": forced.read("train")}).problem == REGRESSION


PREMISES = "premise,hypothesis,label\na,b,0\nc,d,1\ne,f,2\n"


def test_a_task_on_pairs_reads_both_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = write(tmp_path, train_csv=PREMISES)
    for options in ({}, {"text_field": "premise"}, {"pair_field": "hypothesis"}):
        texts = read(place, task_name="mnli", **options)
        assert [text.texts for text in texts] == [("a", "b"), ("c", "d"), ("e", "f")]
        assert [text.label for text in texts] == ["entailment", "neutral", "contradiction"]
        assert {text.columns for text in texts} == {("premise", "hypothesis")}
    assert not caplog.records
    assert read(place, text_field="premise")[0].texts == ("a",)
    assert "hypothesis is not read; --pair_field makes pairs of it" in caplog.text
    with pytest.raises(InputError, match="--text_field and --pair_field are both 'hypothesis'; allowed: two columns"):
        read(place, task_name="mnli", text_field="hypothesis")


def test_names_are_compared_without_case_where_that_mixes_up_none() -> None:
    assert renamed(["NEGATIVE", "POSITIVE"], ["positive", "negative"]) == ["negative", "positive"]
    assert renamed(["NEGATIVE", "x"], ["negative"]) == ["negative", "x"]
    assert renamed(["a", "b"], ["A", "a", "B"]) == ["a", "b"]


TEXTS = ["a good film", "a bad film", "good and fine", "bad and dull"]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A classifier as others publish it; `label` writes the names of its labels."""
    tokenizer = BertTokenizer.train(TEXTS * 3, 60)
    model = BertForSequenceClassification(BertConfig(**OF_BERT, vocab_size=len(tokenizer)))
    model.save_pretrained(tmp_path / "model", tokenizer)
    return tmp_path / "model"


def name_labels(model: Path, labels: list[str] | None) -> None:
    config = json.loads((model / "config.json").read_text())
    for name in ("id2label", "label2id"):
        config.pop(name, None)
    if labels is not None:
        theirs = TheirConfig(id2label=dict(enumerate(labels)), label2id={label: n for n, label in enumerate(labels)})
        config |= {"id2label": theirs.id2label, "label2id": theirs.label2id}
    (model / "config.json").write_text(json.dumps(config))


def scored(model: Path, data_dir: str, folder: Path, *options: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    given = [str(model), str(model / "config.json"), data_dir, str(folder), "--task", "classification", "--bs", "2"]
    run_eval.main([*given, *options, "--overwrite_output_dir"])
    rows = [json.loads(line) for line in (folder / "test_articles.jsonl").open()]
    scores = json.loads((folder / "test_scores.json").read_text())
    return scores, [(row.get("reference"), row["prediction"]) for row in rows]


@pytest.mark.parametrize(
    ("labels", "named", "options"),
    [
        (None, ["0", "1"], ()),
        (["LABEL_0", "LABEL_1"], ["negative", "positive"], ()),
        (["LABEL_0", "LABEL_1"], ["negative", "positive"], ("--task_name", "sst2")),
        (["NEGATIVE", "POSITIVE"], ["negative", "positive"], ()),
        (["Negative", "Positive"], ["0", "1"], ("--task_name", "sst2")),
    ],
)
def test_a_published_classifier_is_scored(
    labels: list[str] | None, named: list[str], options: tuple[str, ...], published: Path, tmp_path: Path
) -> None:
    """The loss is that of the labels in order, whatever they are called."""
    numbers = [1, 0, 1, 0]
    rows = [{"sentence": text, "label": named[number]} for text, number in zip(TEXTS, numbers, strict=True)]
    place = write(tmp_path / "data", test_jsonl="".join(map("{}\n".format, map(json.dumps, rows))))
    exact = write(
        tmp_path / "exact",
        test_jsonl="".join(json.dumps({**r, "label": n}) + "\n" for r, n in zip(rows, numbers, strict=True)),
    )
    name_labels(published, ["0", "1"])
    expected, _ = scored(published, exact, tmp_path / "expected")
    name_labels(published, labels)
    scores, pairs = scored(published, place, tmp_path / "scores", *options)
    assert {name: scores[name] for name in ("loss", "accuracy", "f1")} == {
        name: expected[name] for name in ("loss", "accuracy", "f1")
    }
    assert 100 * sum(reference == prediction for reference, prediction in pairs) / len(pairs) == scores["accuracy"]


def test_a_task_of_glue_in_a_directory_is_trained_and_predicted(published: Path, tmp_path: Path) -> None:
    """From its own TSV files, with a model whose labels are written in another case and order."""
    name_labels(published, ["Positive", "NEGATIVE"])
    train = 'sentence\tlabel\n"a good film\t1\na bad film\t0\n"good" and fine"\t1\n'
    place = write(tmp_path / "sst2", train_tsv=train, dev_tsv=train, test_tsv='index\tsentence\n0\t"bad\n1\tdull"\n')
    options = {"data_dir": place, "task_name": "sst2", "model_name_or_path": published, "max_steps": 2, "gpus": 0}
    options |= {"num_workers": 0, "train_batch_size": 2, "output_dir": tmp_path / "run", "task": "classification"}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    finetune.main(["--do_train", *words])
    shutil.rmtree(tmp_path / "run/export")
    finetune.main(["--do_train", *words, "--resume_from_checkpoint", "last", "--max_steps", "3"])
    config = json.loads((tmp_path / "run/export/config.json").read_text())
    assert list(config["id2label"].values()) == ["positive", "negative"]
    assert config["columns"] == ["sentence"]
    places = (tmp_path / "run", published / "config.json", place, tmp_path / "only")
    run_eval.main([*map(str, places), "--task_name", "sst2", "--predict"])
    assert "accuracy" not in json.loads((tmp_path / "only/test_scores.json").read_text())
    lines = (tmp_path / "only/SST-2.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and [line[:2] for line in lines[1:]] == ["0\t", "1\t"]
    predicted = [json.loads(line)["prediction"] for line in (tmp_path / "only/test_articles.jsonl").open()]
    assert [line[2:] for line in lines[1:]] == [str(int(name == "positive")) for name in predicted]
    predict([str(tmp_path / "run"), f"{place}/test.tsv", "--output", str(tmp_path / "out"), "--gpus", "0"])
    assert (tmp_path / "out").read_text().splitlines() == predicted


def test_classes_are_scored_one_by_one() -> None:
    """Intervals and the scores of the commonest class are shown beside."""
    right, guesses = ["x", "y", "z", "x", "w", "x"] * 9, ["x", "x", "y", "x", "x", "y"] * 9
    raw = [LabelledText("", ("a",), (), label) for label in right]
    predictions = [Prediction({"chosen": label, "scores": {"x": 0.7, "y": 0.3}}, 0.0, 1) for label in guesses]
    model = SimpleNamespace(config=SimpleNamespace(problem_type=SINGLE_LABEL))
    loaded = SimpleNamespace(labels=["x", "y", "v", "w", "z"], model=model)
    scores, _ = Classification(Place("")).score(raw, predictions, loaded)
    report = sklearn_metrics.classification_report(right, guesses, output_dict=True, zero_division=0)
    ours = scores["groups"]["class"]
    assert list(ours) == ["x", "y", "v", "w", "z"]
    for label in "xywz":
        assert ours[label]["f1"] == pytest.approx(100 * report[label]["f1-score"])
        assert ours[label]["support"] == report[label]["support"] == sum(scores["confusion"][label].values())
    assert scores["f1"] == pytest.approx(100 * report["macro avg"]["f1-score"])
    always = sklearn_metrics.f1_score(right, ["x"] * len(right), average="macro", zero_division=0)
    assert scores["baselines"]["always x"]["f1"] == pytest.approx(100 * always)
    low, high = scores["intervals"]["accuracy"]
    spread = 196 * (report["accuracy"] * (1 - report["accuracy"]) / len(right)) ** 0.5
    assert (low, high) == pytest.approx((scores["accuracy"] - spread, scores["accuracy"] + spread), abs=3)
    run = {"split": "test", "examples": len(right), "precision": "fp32"}
    shown = format_scores(run | scores, {"timed_articles": 0, "device": "cpu"})
    assert re.search(rf"accuracy +33.33 \(95 %: {low:.2f} to {high:.2f}; always x: 50.00\)", shown)


def test_rows_without_a_label_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SNLI has - where its annotators disagree, and the Hub has -1, which means null to `datasets`."""
    caplog.set_level("INFO")
    rows = [{"text": text, "label": label} for text, label in zip("abcd", "x-y-", strict=True)]
    place = write(tmp_path, train_jsonl="\n".join(map(json.dumps, rows)), val_jsonl=json.dumps(rows[1]))
    with pytest.raises(InputError, match="train.jsonl:2: label is '-'; .*; --drop_label - leaves such rows out"):
        read(place)
    left = read(place, drop_label=("-", "?"))
    theirs = datasets.Dataset.from_list(rows).filter(lambda row: row["label"] != "-")
    assert [(*text.texts, text.label) for text in left] == [*zip(theirs["text"], theirs["label"], strict=True)]
    assert "train: 2 of 4 rows are left out, by --drop_label - ?" in caplog.text
    with pytest.raises(InputError, match="the val split has no rows with other labels"):
        Classification(Place(place)).as_trained(BertConfig(drop_label=["-"])).read("val")  # as in training
    assert labels_in(place, "val", drop_label=("?",)) == ["-"]
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["x", "y"])})
    (tmp_path / "hub").mkdir()
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, -1]}, features).to_parquet(
        tmp_path / "hub/val.parquet"
    )
    with pytest.raises(InputError, match="val.parquet:2: label is None; .*; --drop_label -1 leaves such rows out"):
        read(str(tmp_path / "hub"), "val")
    assert labels_in(str(tmp_path / "hub"), "val", drop_label=("-1",)) == ["y"]


@pytest.mark.parametrize(
    ("labels", "options", "left"),
    [
        ([1.0, 2.0, None, -1.0], {"drop_label": ("-1", "2")}, [1.0]),
        ([["a"], ["b", "a"], ["c"]], {"drop_label": ("a",)}, [["c"]]),
        ([0, 1, -1], {"drop_label": ("-1",), "tag_names": ("x", "y")}, ["x", "y"]),
        ([0, 1, 0], {"drop_label": ("y",), "tag_names": ("x", "y")}, ["x", "x"]),
    ],
)
def test_labels_are_left_out_by_any_of_their_names(
    labels: list[Any], options: dict[str, Any], left: list[Any], tmp_path: Path
) -> None:
    """As whole numbers where a column holds fractions, as one of several labels, and by a number or its name."""
    rows = [{"text": "a", "label": label} for label in labels]
    assert labels_in(write(tmp_path, train_jsonl="\n".join(map(json.dumps, rows))), **options) == left


def test_names_of_classes_that_are_numbers(tmp_path: Path) -> None:
    """Of single classes and of lists."""
    place = write(tmp_path, train_csv="text,label\na,2\nb,0.0\n", val_jsonl='{"text": "a", "label": [1, 2]}\n')
    names = ("anger", "joy", "fear, joy")
    assert labels_in(place, tag_names=names) == ["fear, joy", "anger"]
    assert labels_in(place, "val", tag_names=names) == [["joy", "fear, joy"]]
    write(tmp_path, test_csv="text,label\na,3\n")
    with pytest.raises(InputError, match="test.csv:2: .* is 3; allowed: 0 to 2, for anger, joy"):
        read(place, "test", tag_names=names)
