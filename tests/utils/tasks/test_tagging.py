"""Sentences as tagging reads them: names of numbers, blank words, files by their suffix, one file for all splits."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers.pre_tokenizers import BertPreTokenizer

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from utils.data.columns import Record
from utils.data.conll import Sentence
from utils.data.options import Place
from utils.data.splits import MissingSplit
from utils.recipes.data import with_table_prepared
from utils.tasks.options import TaggingOptions
from utils.tasks.tagging import Tagging
from utils.tasks.task import Prediction

NAMES = ["O", "B-PER", "I-PER"]


def read(folder: Path, split: str = "train", **options: Any) -> list[tuple[list[str], list[str] | None]]:
    sentences = Tagging(Place(str(folder)), TaggingOptions(**options)).read(split)
    return [(sentence.words, sentence.tags) for sentence in sentences]


def write_rows(folder: Path, *rows: dict[str, Any]) -> None:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_names_of_tags_that_are_numbers(tmp_path: Path) -> None:
    write_rows(tmp_path, {"tokens": ["Ann", "Lee", "sang"], "ner_tags": [1, 2, 0]})
    assert read(tmp_path, tag_names=tuple(NAMES)) == [(["Ann", "Lee", "sang"], ["B-PER", "I-PER", "O"])]
    (tmp_path / "val.conll").write_text("Ann 1\nsang 0\n")
    assert read(tmp_path, "val", tag_names=tuple(NAMES)) == [(["Ann", "sang"], ["B-PER", "O"])]


@pytest.mark.parametrize(
    ("tags", "names", "message"),
    [
        ([1, 3], tuple(NAMES), "train.jsonl:1: a label is 3; allowed: 0 to 2"),
        ([1, 0], None, r"train.jsonl:1: ner_tags is \[1, 0\]; allowed: a list of texts .* .numbers need --label_n"),
        ([1, 0], ("names.txt",), "--label_names names.txt: allowed: two or more different names"),
        ([1, 0], ("x", "y", "x"), "--label_names x y x: allowed: two or more different names"),
    ],
)
def test_numbers_that_have_no_name(
    tags: list[int], names: tuple[str, ...] | None, message: str, tmp_path: Path
) -> None:
    write_rows(tmp_path, {"tokens": ["Ann", "sang"], "ner_tags": tags})
    with pytest.raises(InputError, match=message):
        read(tmp_path, tag_names=names)


def test_blank_words_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    blank = ["", " ", "\u00a0", "\u3000"]
    write_rows(
        tmp_path,
        {"words": ["Ann", *blank, "sang"], "tags": ["B-PER", "O", "O", "I-PER", "O", "O"]},
        {"words": blank[:1], "tags": ["O"]},
        {"words": [], "tags": []},
    )
    assert read(tmp_path) == [(["Ann", "sang"], ["B-PER", "O"])]
    assert "train: 5 blank words and 2 sentences of no others left out" in caplog.text


def test_a_cell_holds_no_list(tmp_path: Path) -> None:
    for words in '"[""Ann"", ""sang""]"', "Ann sang":
        (tmp_path / "train.csv").write_text(f"words,tags\n{words},O O\n")
        with pytest.raises(InputError, match=r"words is '.*'; allowed: a list of texts .*, .jsonl and .parquet hold"):
            read(tmp_path)
    with pytest.raises(InputError, match=r"^1: '\[.*\]' is a list in a text; allowed: a list in .jsonl"):
        Tagging(Place("")).given([Record("1", {"words": '["Ann", "sang"]'})], ("words",))


@pytest.mark.parametrize(
    ("file", "content", "options", "columns"),
    [
        ("train.jsonl", '{"tokens": ["a", "b"], "tags": ["O", "B-X"], "text": "a"}\n', {}, ("tokens",)),
        (
            *("train.jsonl", '{"words": ["a", "b"], "tags": ["O", "O"], "pos": ["O", "B-X"]}\n'),
            *({"tags_field": "pos"}, ("words", "pos")),
        ),
        ("train.conll", "a 1 O\nb 2 B-X\n", {}, {}),
        (
            *("train.conll", "1 O a x\n2 B-X b x\n", {"words_field": "3", "tags_field": "2"}),
            {"words_column": "3", "tags_column": "2"},
        ),
    ],
)
def test_the_columns_that_the_config_keeps(
    file: str, content: str, options: dict[str, str], columns: Any, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(content)
    task = Tagging(Place(str(tmp_path)), TaggingOptions(**options))
    sentences = task.read("train")
    assert task.learn({"train": sentences}).columns == columns
    config = BartConfig(columns=columns)
    assert Tagging(Place(str(tmp_path))).as_trained(config).read("train") == sentences


@pytest.mark.parametrize("suffix", ["tsv", "iob2", "conllu", "txt", "conll.gz"])
def test_files_of_a_word_a_line(suffix: str, tmp_path: Path) -> None:
    import gzip

    content = b"Ann\tO\tB-PER\nsang\tO\tO\n"
    (tmp_path / f"train.{suffix}").write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert read(tmp_path) == [(["Ann", "sang"], ["B-PER", "O"])]


def test_one_file_is_split_by_its_sentences(tmp_path: Path) -> None:
    file = tmp_path / "all.conll"
    file.write_text("".join(f"word{number} O\nx B-X\n\n" for number in range(200)) * 2)
    parts = {split: {words[0] for words, _ in read(file, split)} for split in ("train", "val", "test")}
    assert sum(map(len, parts.values())) == len(set.union(*parts.values())) == 200
    assert len(parts["train"]) > len(parts["val"]) > 0


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ("O B-X I-X", "the training tags are in BIO: whole entities"),
        ("O X Y", "the training tags are plain: accuracy and macro F1"),
        ("O B-X I-X -X-", "in BIO: whole entities are counted, as seqeval does; outside of all entities: -X-"),
    ],
)
def test_the_log_says_the_scheme(tags: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "train.conll").write_text("".join(f"w{number} {tag}\n" for number, tag in enumerate(tags.split())))
    task = Tagging(Place(str(tmp_path)))
    learned = task.learn({"train": task.read("train")})
    assert said in caplog.text
    assert task.metrics_for(learned)[0] == ("accuracy" if "plain" in said else "f1")


@pytest.mark.parametrize(
    "text", ["Two words, here.", "cafe\u0301 ok", "नमस्ते दुनिया।", "می\u200cخواهم رفت.", "தமிழ் (மொழி)", "\x1c a\u2028b"]
)
def test_typed_words_are_whole_in_any_script(text: str) -> None:
    [sentence] = Tagging(Place("")).given([Record("", {"text": text})], ["text"])
    assert sentence.words == [word for word, _ in BertPreTokenizer().pre_tokenize_str(text) if word.strip()]


def test_kinds_are_scored_one_by_one() -> None:
    """Intervals and the scores of the commonest tag are shown beside."""
    from seqeval.metrics import accuracy_score, classification_report

    right = [["B-X", "I-X", "O"], ["O", "B-Z", "I-Z", "O"], ["B-W", "O", "O"]] * 9
    guesses = [["B-X", "I-X", "O"], ["O", "B-X", "I-X", "O"], ["O", "O", "O"]] * 9
    raw = [Sentence("", ["w"] * len(tags), tags) for tags in right]
    predictions = [Prediction({"tags": tags, "scores": [1.0] * len(tags)}, 0.0, 1) for tags in guesses]
    scores, _ = Tagging(Place("")).score(
        raw, predictions, SimpleNamespace(labels=["O", "B-X", "I-X", "B-Z", "I-Z", "B-W"])
    )
    report = classification_report(right, guesses, output_dict=True, zero_division=0)
    assert all(row["support"] == report[kind]["support"] for kind, row in scores["groups"]["kind of entity"].items())
    assert scores["f1"] == pytest.approx(100 * report["micro avg"]["f1-score"])
    always = scores["baselines"]["always O"]
    assert always["accuracy"] == pytest.approx(100 * accuracy_score(right, [["O"] * len(tags) for tags in right]))
    assert always["f1"] == 0
    low, high = scores["intervals"]["f1"]
    assert low < scores["f1"] < high


def test_letters_that_training_has_not_seen(tmp_path: Path) -> None:
    """IOB1 has B- only between two entities that touch, so it is no label of its own. Letters of other schemes are."""
    for split, text in {"train": "a I-X\nb O\n", "val": "a I-X\nb B-X\nc O\n"}.items():
        (tmp_path / f"{split}.conll").write_text(text)
    task = Tagging(Place(str(tmp_path)))
    raw = {split: task.read(split) for split in ("train", "val")}
    task.learn(raw)
    for tag in ("B-Y", "S-X", "X"):
        with pytest.raises(InputError, match=f"not seen: '{tag}' of val .1 in all"):
            task.learn({**raw, "val": [Sentence("", ["a", "b"], ["I-X", tag])]})


def test_a_split_that_is_missing_is_no_fault_of_the_columns(tmp_path: Path) -> None:
    (tmp_path / "train.conllu").write_text("".join(f"1\tw{number}\tX\tY\n\n" for number in range(99)))
    place = Place(str(tmp_path))
    task = Tagging(place, TaggingOptions(words_field="2", tags_field="4"))
    with pytest.raises(MissingSplit, match="no val split"):
        task.read("val")
    held_out = with_table_prepared(task.with_parts(place=replace(place, val_ratio=0.1)))
    assert 0 < len(held_out.read("val")) < 99
