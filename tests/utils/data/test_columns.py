"""Rows of tables of any columns, read from files of each kind, and questions in SQuAD's own."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from bart.errors import InputError
from utils.data.columns import read_records
from utils.data.splits import Choice
from utils.data.squad import read_questions


def test_classes_of_parquet_files_have_their_names_wherever_the_file_is_named(tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    rows = {"text": ["a", "b", "c"], "label": [1, 0, -1]}
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "train.parquet")
    wanted = [{"text": text, "label": label} for text, label in (("a", "good"), ("b", "bad"), ("c", None))]
    for place in (str(tmp_path), f"{tmp_path}/{{split}}.parquet"):
        assert [record.values for record in read_records(place, "train", min)] == wanted, place
        assert len(read_records(place, "train", min, Choice(limit=2))) == 2, place


def test_a_split_without_rows_is_named(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": []}).to_parquet(tmp_path / "test.parquet")
    with pytest.raises(InputError, match="the test split has no rows"):
        read_records(str(tmp_path), "test", min)


def test_a_damaged_parquet_file_is_one_line(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a" * 99]}).to_parquet(tmp_path / "val.parquet")
    data = (tmp_path / "val.parquet").read_bytes()
    (tmp_path / "val.parquet").write_bytes(data[:4] + b"\xff" * 40 + data[44:])
    with pytest.raises(InputError, match=r"val.parquet cannot be opened \(.*\)$"):
        read_records(str(tmp_path), "val", min)


@pytest.mark.parametrize("name", ["val.json", "valid.json", "validation.json", "dev-v2.0.json"])
def test_a_file_of_squad_is_found_once_by_any_of_its_names(name: str, tmp_path: Path) -> None:
    answer = {"text": "cat", "answer_start": 2}
    question = {"id": "1", "question": "what?", "answers": [answer]}
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "a cat", "qas": [question]}]}]}
    (tmp_path / name).write_text(json.dumps(squad))
    assert [question.id for question in read_questions(str(tmp_path), "val")] == ["1"]
    (tmp_path / "val-2.json").write_text(json.dumps(squad))
    with pytest.raises(InputError, match=f"{name}.* are both val|val-2.json and {name} are both val"):
        read_questions(str(tmp_path), "val")


@pytest.mark.parametrize(
    "content",
    [
        b'{"data": "\xff"}',
        b'{"data": [{"paragraphs": [{"context": "a", "qas": ["no object"]}]}]}',
        b'{"data": ' + b"[" * 10**6,
    ],
    ids=["not UTF-8", "a question that is no object", "nested too deeply"],
)
def test_a_malformed_file_of_squad_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "val.json").write_bytes(content)
    with pytest.raises(InputError, match="val.json: not SQuAD's JSON"):
        read_questions(str(tmp_path), "val")
