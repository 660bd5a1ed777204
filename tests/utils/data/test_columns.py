"""Rows of tables of any columns, read from files of each kind, and questions in SQuAD's own."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bart.errors import InputError
from utils.data.columns import Record, column_of, names_in, text_in, without_blank
from utils.data.places import split_tables
from utils.data.rows import rows_of
from utils.data.splits import SPLITS, Choice
from utils.data.squad import read_questions
from utils.data.tables import pairs_in, read_records


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


def test_a_split_that_nothing_comes_into_is_named(tmp_path: Path) -> None:
    """By its option, or its file: that has rows."""
    (tmp_path / "train.jsonl").write_text('{"text": "c"}\n')
    message = "^--val_ratio is 0.001, which leaves nothing for the val split; allowed: more"
    with pytest.raises(InputError, match=message):
        read_records(str(tmp_path), "train", min, Choice(0, 0.001))
    file, counts = str(tmp_path / "train.jsonl"), 0
    for split in SPLITS:
        try:
            counts += len(read_records(file, split, min))
        except InputError as error:
            assert str(error).startswith(f"{file}: the {split} split has no rows, which a hash of the texts chooses")
    assert counts == 1


@pytest.mark.parametrize(
    ("names", "split"),
    [(("train.csv", "train.tsv"), "train"), (("val.csv", "dev.jsonl"), "val"), (("test.json", "test.json.gz"), "test")],
)
def test_several_tables_of_a_split_are_refused(names: tuple[str, str], split: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("text\na\n")
    with pytest.raises(InputError, match=f"{names[0]} and {names[1]} are both {split}; allowed: one of them$"):
        read_records(str(tmp_path), split, min)
    with pytest.raises(InputError, match=f"are both {split}"):
        split_tables(tmp_path)


def test_columns_without_their_own_names_are_refused(tmp_path: Path) -> None:
    """No column is lost; one without a name is that of pandas' row numbers."""
    for names in (["", "text"], ["text", "text", "b"], ["", "", "text"]):
        pq.write_table(pa.table([["a"]] * len(names), names), tmp_path / "a.parquet")
        (tmp_path / "a.csv").write_text(f"{','.join(names)}\n{','.join('a' * len(names))}\n")
        for file in (tmp_path / "a.csv", tmp_path / "a.parquet"):
            if len(names) == 2:
                assert [record.values for record in rows_of(file)] == [dict.fromkeys(names, "a")]
            else:
                with pytest.raises(InputError, match=f"the header has {names[0] or 'no name'} more than once; "):
                    list(rows_of(file))


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
    (tmp_path / "val.csv").write_text("question,context\n")
    with pytest.raises(InputError, match=f"({name} and val.csv|val.csv and {name}) are both val"):
        read_questions(str(tmp_path), "val")
    (tmp_path / "val.csv").unlink()
    (tmp_path / "val-2.json").write_text(json.dumps(squad))
    with pytest.raises(InputError, match=f"{name}.* are both val|val-2.json and {name} are both val"):
        read_questions(str(tmp_path), "val")


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("__label__pos good day\n")
    with pytest.raises(InputError, match="train.txt is no table; allowed: .jsonl, "):
        read_records(str(tmp_path / "train.txt"), "train", min)


def test_a_column_that_cannot_be_chosen_says_what_to_do() -> None:
    message = "no label column; .*; --columns NAME,NAME names those of a table without a header"
    with pytest.raises(InputError, match=message):
        column_of("label_field", None, ["label"], ["good day", "pos"], "a.csv")


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_values_in_objects_have_names_with_dots(form: str, tmp_path: Path) -> None:
    """As all WMT and OPUS sets on the Hub have them; a column that is itself called so goes before."""
    rows = [{"translation": {"en": f"day {i}", "de": f"Tag {i}"}, "a.b": "c", "a": {"b": "d"}} for i in range(3)]
    table, path = datasets.Dataset.from_list(rows), tmp_path / f"train.{form}"
    if form == "parquet":
        table.cast_column("translation", datasets.Translation(["de", "en"])).to_parquet(path)
    else:
        table.to_json(path)
    fields = ("translation.en", "translation.de")
    pairs = [(row.source, row.target) for row in pairs_in(rows_of(path), fields, "here")]
    assert pairs == [(f"day {i}", f"Tag {i}") for i in range(3)]
    assert next(pairs_in(rows_of(path), ("a.b", "translation.de"), "here")).source == "c"
    with pytest.raises(InputError, match="here: --source_field is 'translaton'; allowed: .*did you mean 'translation'"):
        list(pairs_in(rows_of(path), ("translaton", "translation.de"), "here"))
    records = read_records(str(tmp_path), "train", lambda _: "translation.en")
    chosen = column_of("text_field", "translation.en", [], names_in(records), "here")
    assert [text_in(record, chosen) for record in records] == [f"day {i}" for i in range(3)]


def test_blank_texts_are_counted_and_may_be_left_out(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["a", " ", None, "", "b", *[""] * 4]
    records = [Record(str(number), {"text": text}) for number, text in enumerate(texts)]
    message = (
        r"1: text is ' '; allowed: a text that is not blank \(7 of 9 are blank: 1, 2, 3, 5, 6 \.\.\.; --skip_blank"
    )
    with pytest.raises(InputError, match=message):
        without_blank(records, lambda record: text_in(record, "text"), skip=False)
    assert [record.name for record in without_blank(records, lambda each: text_in(each, "text"), skip=True)] == [
        "0",
        "4",
    ]
    assert "7 of 9 are blank: 1, 2, 3, 5, 6 ...; they are left out" in caplog.text
    with pytest.raises(InputError, match="text is 3; allowed: a text"):
        without_blank([Record("0", {"text": 3})], lambda record: text_in(record, "text"), skip=True)
    with pytest.raises(InputError, match="1 of 1 are blank"):
        without_blank(records[1:2], lambda record: text_in(record, "text"), skip=True)
