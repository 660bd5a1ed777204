"""Splits that data lack, and samples of those that they have."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import run_eval
from bart.errors import InputError
from tests.tiny_run import Train
from utils.data.options import Place
from utils.data.splits import Choice
from utils.recipes.data import with_table_prepared
from utils.tasks import find_task
from utils.tasks.summarization import Summarization

TEXTS = [f"text {number}" for number in range(300)]


def test_a_sample_depends_on_no_order_and_grows() -> None:
    some = Choice(limit=60).of(TEXTS, str)
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    assert len(some) == 60 and sorted(Choice(limit=60).of(shuffled, str)) == sorted(some)
    assert some == [text for text in TEXTS if text in some]
    assert {*Choice(limit=30).of(TEXTS, str)} < {*some}
    assert Choice(limit=400).of(TEXTS, str) == TEXTS
    assert max(Counter(TEXTS.index(text) // 100 for text in some).values()) < 35  # of 60, where the first ones are 60


def words(text: str, **fields: Any) -> str:
    return json.dumps({"text": text, **fields}) + "\n"


def write_classes(folder: Path) -> None:
    for split in ("train", "test"):
        texts = [f"{split} {text}" for text in TEXTS[:100]]
        (folder / f"{split}.jsonl").write_text("".join(words(text, label="ab"[n % 2]) for n, text in enumerate(texts)))


def write_tags(folder: Path) -> None:
    for split in ("train", "test"):
        sentences = (f"{split} O\nword{number} B-X\n\n" for number in range(100))
        (folder / f"{split}.conll").write_text("".join(sentences))


def write_questions(folder: Path) -> None:
    for split in ("train-v2.0", "test"):
        paragraphs = [
            {
                "context": f"{split} {text}",
                "qas": [
                    {
                        "id": f"{text} {n}",
                        "question": f"which {n}",
                        "answers": [{"text": "text", "answer_start": len(split) + 1}],
                    }
                    for n in range(3)
                ],
            }
            for text in TEXTS[:100]
        ]
        (folder / f"{split}.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


def write_lines(folder: Path) -> None:
    for split in ("train", "test"):
        for side in ("source", "target"):
            (folder / f"{split}.{side}").write_text("".join(f"{split} {side} {text}\n" for text in TEXTS[:100]))


MAKERS = {
    "classification": write_classes,
    "tagging": write_tags,
    "question_answering": write_questions,
    "summarization": write_lines,
}


def content(raw: Any) -> list[str]:
    """The texts of a task's raw examples, or their questions and contexts."""
    if isinstance(raw, tuple):  # the files of sources and targets
        return list(zip(*(file.texts() for file in raw), strict=True))
    names = ("words", "texts", "question", "context")  # each row has some of them
    return [str([getattr(row, name) for name in names if hasattr(row, name)]) for row in raw]


@pytest.mark.parametrize("task", MAKERS)
def test_validation_is_held_out_of_training(task: str, tmp_path: Path) -> None:
    MAKERS[task](tmp_path)

    def read(split: str, val_ratio: float | None = 0.2, **limits: int) -> list[str]:
        return content(find_task(task)(Place(str(tmp_path), None, limits, val_ratio)).read(split))

    every, train, val = read("train", None), read("train"), read("val")
    assert sorted([*train, *val]) == sorted(every) and not {*train} & {*val}
    assert 0.1 * len(every) < len(val) < 0.3 * len(every)
    if task == "question_answering":
        contexts = [{text.split("'")[-2] for text in texts} for texts in (train, val)]
        assert not contexts[0] & contexts[1]
    assert {*read("val", val=9)} < {*val} and len(read("val", val=9)) == 9
    assert {*read("train", train=50)} < {*train} and len(read("train", train=50)) == 50
    assert len(read("test", test=10)) == 10 and read("test", test=10) != read("test")[:10]
    with pytest.raises(InputError, match="no val split|val.source: no such file"):
        read("val", None)


def test_data_without_validation_and_test(train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in [*(tmp_path / "data").glob("val.*"), *(tmp_path / "data").glob("test.*")]:
        path.unlink()
    with pytest.raises(InputError, match=r"val\.source: no such file; .*; --val_ratio 0.1 holds a tenth"):
        train("run")
    with caplog.at_level(logging.INFO):
        run = train("run", "--val_ratio", 0.4, "--max_steps", 2, "--do_predict")
    assert "40.0% of the training examples are held out" in caplog.text
    assert "the data have no test split: the validation split is scored" in caplog.text
    rows = [json.loads(line) for line in (run / "val_articles.jsonl").open()]
    held_out = Summarization(Place(str(tmp_path / "data"), val_ratio=0.4)).read("val")[0].texts()
    assert [row["source"] for row in rows] == list(held_out)
    config, data = str(tmp_path / "config.json"), str(tmp_path / "data")
    places = [str(run / "export"), config, data, str(tmp_path / "scores"), "--max_source_length", "40"]
    run_eval.main([*places, "--device", "cpu", "--val_ratio", "0.4"])
    again = [json.loads(line) for line in (tmp_path / "scores" / "val_articles.jsonl").open()]
    assert [row["summary"] for row in again] == [row["summary"] for row in rows]
    with pytest.raises(InputError, match=r"test\.source: no such file"):
        run_eval.main([*places, "--device", "cpu", "--type_path", "test"])
    for path in (tmp_path / "data").glob("train.*"):
        path.unlink()
    with pytest.raises(
        InputError, match=r"train\.source: no such file; .*\.\{source,target\}, or a table of each split$"
    ):
        train("other")


@pytest.mark.parametrize("task", MAKERS)
def test_a_share_is_held_out_only_where_validation_is_missing(task: str, tmp_path: Path) -> None:
    MAKERS[task](tmp_path)
    made = find_task(task)(Place(str(tmp_path), val_ratio=0.1))
    with_table_prepared(made)
    for path in [*tmp_path.glob("test.*")]:
        path.rename(path.with_stem("val"))
    with pytest.raises(InputError, match=r"--val_ratio is 0\.1; .* has a validation split; allowed: data"):
        with_table_prepared(made)
