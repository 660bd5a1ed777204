"""Texts that are longer than a model reads are counted, in one line with the option that changes it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from transformers import AutoTokenizer

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.heads import BartForQuestionAnswering, BartForSequenceClassification, BartForTokenClassification
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.configuration.configuration_bert import BertConfig
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.tiny_run import CONFIG, Train
from utils.data.columns import Record
from utils.data.options import Place
from utils.data.splits import Choice
from utils.data.tables import read_pairs
from utils.data.tokenized import encode_cut, warnings_added_up
from utils.models.loading import LoadedModel
from utils.predict import main
from utils.prediction.options import InferenceOptions, LongDocumentOptions
from utils.serving.app import create_app
from utils.serving.arguments import ServeArguments
from utils.serving.predictions import PredictionService
from utils.tasks import find_task

MOST = 16
TEXTS = [" ".join(["word"] * count) for count in (1, MOST - 3, MOST - 2, MOST - 1, 9606)]


@pytest.fixture(scope="module")
def tokenizer() -> BartTokenizer:
    return BartTokenizer.train(["word words who he said so"] * 3, 290)


@pytest.fixture(scope="module")
def theirs(tokenizer: BartTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if " longer than " in record.getMessage()]
    caplog.clear()
    return lines


def test_what_is_cut_is_what_transformers_cuts(tokenizer: BartTokenizer, theirs: Any) -> None:
    for most in (3, MOST, MOST + 1):
        ids, is_cut = encode_cut(tokenizer, TEXTS, most)
        assert ids == theirs(TEXTS, max_length=most, truncation=True).input_ids
        assert is_cut.tolist() == [len(row) > most for row in theirs(TEXTS).input_ids]


HEADS: dict[str, tuple[type[Any], str, Any, str]] = {
    "classification": (BartForSequenceClassification, "/classify", {"text": TEXTS[-1]}, "1 of 2 texts"),
    "tagging": (BartForTokenClassification, "/tag", {"words": TEXTS[-1].split()}, "1 of 2 sentences"),
    "question_answering": (
        BartForQuestionAnswering,
        "/answer",
        {"question": TEXTS[-1], "context": "he said so"},
        "1 of 2 questions",
    ),
}
SHORT = {"text": "word", "words": ["word"], "question": "who", "context": TEXTS[-1]}


@pytest.mark.parametrize("task", HEADS)
def test_predictions_of_a_part_say_so(
    task: str, tokenizer: BartTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On the command line and from the service; a long context is read whole, in windows."""
    head, path, long, counted = HEADS[task]
    config = BartConfig(**{**CONFIG, "vocab_size": len(tokenizer), "max_position_embeddings": 128})
    config.labels = ["O", "B-X"]
    head(config).save_pretrained(tmp_path / "model", tokenizer)
    short = {name: SHORT[name] for name in long}
    (tmp_path / "inputs").write_text(f"{json.dumps(short)}\n{json.dumps(long)}\n")
    places = [str(tmp_path / "inputs"), "--output", str(tmp_path / "out")]
    main([str(tmp_path / "model"), "--task", task, "--gpus", "0", "--json", *places])
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert ["is_cut" in row for row in rows] == [False, True]
    most, option = (64, "query") if task == "question_answering" else (128, "source")
    effect = "and are cut there" + (": words after token 128 get the tag O" if task == "tagging" else "")
    expected = [f"{counted} are longer than {most} tokens (--max_{option}_length) {effect}"]
    assert lines_of(caplog) == expected
    inference = InferenceOptions(model=str(tmp_path / "model"), gpus=0)
    args = ServeArguments(inference=inference, documents=LongDocumentOptions(), task=task)
    with TestClient(create_app(PredictionService(args)), base_url="http://localhost") as client:
        predictions = client.post(path, json={"inputs": [short, long]}).json()["predictions"]
    assert ["is_cut" in row for row in predictions] == [False, True]
    assert lines_of(caplog) == expected


def test_a_run_counts_sources_and_targets_of_each_split(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when the ids come from the cache; and scoring, whose targets are cut for the loss alone."""
    theirs = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")

    def expected(split: str, side: str, most: int, option: str, effect: str = "") -> str:
        lines = (tmp_path / "data" / f"{split}.{side}").read_text().splitlines()
        count = sum(len(row) > most for row in theirs(lines).input_ids)
        assert count
        return (
            f"{count} of {len(lines)} {side}s of the {split} split are longer than {most} tokens ({option}) and are "
            f"cut there{effect}"
        )

    lengths = ("--max_source_length", 40, "--max_target_length", 6, "--val_max_target_length", 5)
    in_training = [
        expected("train", "source", 40, "--max_source_length"),
        expected("train", "target", 6, "--max_target_length"),
        expected("val", "source", 40, "--max_source_length"),
        expected("val", "target", 5, "--val_max_target_length", " for the loss"),
    ]
    in_scoring = [
        expected("test", "source", 40, "--max_source_length"),
        expected("test", "target", 7, "--test_max_target_length", " for the loss"),
    ]
    options = (*lengths, "--test_max_target_length", 7, "--max_steps", 1, "--do_predict")
    train("run", *options)
    assert lines_of(caplog) == in_training + in_scoring
    train("again", *options, "--n_train", 3)
    drawn, _ = read_pairs(tmp_path / "data", "train", Choice(limit=3))
    count = sum(len(row) > 40 for row in theirs(drawn).input_ids)
    assert lines_of(caplog)[0].startswith(f"{count} of 3 sources of the train")


@pytest.mark.parametrize("task", HEADS)
def test_pieces_that_a_vocabulary_lacks(task: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are counted as transformers' tokenizer has them, and said where they are above a twentieth of all parts."""
    tokenizer = BertTokenizer.train(["word words who he said so"] * 3, 60)
    tokenizer.save_pretrained(tmp_path)
    theirs, texts = (
        AutoTokenizer.from_pretrained(tmp_path),
        ["he said " * 12 + "\u03c4\u03bf", "so \u03c4\u03bf", "who"],
    )
    config = BertConfig(labels=["O", "X"], problem_type="single_label_classification")
    run, loaded = find_task(task)(Place("")).as_trained(config), LoadedModel(SimpleNamespace(config=config), tokenizer)
    columns = ("question", "context") if task == "question_answering" else ("text",)
    raw = [run.given([Record("", {"text": text, "question": "who", "context": text})], columns) for text in texts]
    run.encode(raw[0], "test", loaded)
    assert not caplog.messages  # it has one of 25
    with warnings_added_up():
        for part in raw:
            run.encode(part, "test", loaded)
    pieces = [number for row in theirs(texts, add_special_tokens=False).input_ids for number in row]
    unknown = pieces.count(theirs.unk_token_id)
    what = {"classification": "texts", "tagging": "sentences", "question_answering": "contexts"}[task]
    assert caplog.messages == [
        f"{unknown} of {len(pieces)} ({unknown / len(pieces):.1%}) pieces of {what} are unknown to the vocabulary, "
        "which may be of another language; the first is in '\u03c4\u03bf'"
    ]


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
