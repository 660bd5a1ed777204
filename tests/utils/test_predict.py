"""`python -m utils.predict` and the service's /classify, /tag and /answer, with one model of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.heads import BartForQuestionAnswering, BartForSequenceClassification, BartForTokenClassification
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import CONFIG
from utils.predict import main
from utils.prediction.options import InferenceOptions, LongDocumentOptions
from utils.prediction.predictor import Predictor
from utils.serving.app import create_app
from utils.serving.arguments import ServeArguments
from utils.serving.predictions import PredictionService
from utils.tasks.tagging import Tagging

KINDS = {
    "classification": (BartForSequenceClassification, ["yes", "no"]),
    "tagging": (BartForTokenClassification, ["O", "B-X", "I-X"]),
    "question_answering": (BartForQuestionAnswering, ["start", "end"]),
    "summarization": (BartForConditionalGeneration, ["a", "b"]),
}
INPUTS: dict[str, list[Any]] = {
    "classification": ["a text", {"text": "another one"}],
    "tagging": ["Two words, here.", {"words": ["three", "more", "words"]}],
    "question_answering": [{"question": "Who?", "context": "He said so. " * 30}, {"question": "He?", "context": "So."}],
    "summarization": ["a text", "another text"],
}
NAMES = {"summarization": "summary"}


@pytest.fixture
def model(task: str, tmp_path: Path) -> str:
    tokenizer = BartTokenizer.train(["a text of words he said so who " * 3], 300)
    config = BartConfig(**{**CONFIG, "vocab_size": len(tokenizer), "max_position_embeddings": 256})
    kind, config.labels = KINDS[task]
    kind(config).save_pretrained(tmp_path / "model", tokenizer)
    return str(tmp_path / "model")


@pytest.mark.parametrize("task", KINDS)
def test_a_prediction_for_each_line(task: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in INPUTS[task]]
    (tmp_path / "inputs").write_text("".join(f"{line}\n" for line in lines))
    main([model, "--input", str(tmp_path / "inputs"), "--task", task])
    printed = capsys.readouterr().out.splitlines()
    main([model, "--input", str(tmp_path / "inputs"), "--task", task, "--json", "--output", str(tmp_path / "out")])
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [row[NAMES.get(task, "prediction")] for row in rows] == printed
    assert len(printed) == 2
    if task == "classification":
        assert set(printed) <= {"yes", "no"}
        assert all(sum(row["scores"].values()) == pytest.approx(1) for row in rows)
    if task == "tagging":
        assert [row["words"] for row in rows] == [["Two", "words", ",", "here", "."], ["three", "more", "words"]]
        assert all(len(row["words"]) == len(row["tags"]) for row in rows)
    if task == "question_answering":
        for row, given in zip(rows, INPUTS[task], strict=True):
            begin, end = row["span"]
            assert given["context"][begin:end] == row["prediction"]


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("question_answering", "Who?", "input 0 is 'Who\\?'; allowed: an object with question and context"),
        ("question_answering", '{"question": "Who?"}', "context of input 0 is 'None'; allowed: a text"),
        ("classification", '{"text": ', "input 0: not JSON"),
        ("classification", '{"text": ' + "[" * 10**5, "input 0: not JSON"),
        ("tagging", '{"words": []}', r"input 0: words is \[\]; allowed: a list of texts"),
    ],
)
def test_inputs_that_are_none(task: str, line: str, message: str, model: str, tmp_path: Path) -> None:
    (tmp_path / "inputs").write_text(line + "\n")
    with pytest.raises(InputError, match=message):
        main([model, "--input", str(tmp_path / "inputs"), "--task", task])


@pytest.mark.parametrize("task", ["tagging"])
def test_work_that_nobody_waits_for_ends(task: str, model: str) -> None:
    predictor = Predictor(
        Tagging, Tagging.Options(), Tagging.EvalOptions(), InferenceOptions(model=model, gpus=0), batch_size=1
    )
    checks = iter([True, True, False])

    def check() -> None:
        if not next(checks):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        predictor(["one", "two", "three"], check)
    assert len(predictor(["one", "two", "three"])) == 3


@pytest.mark.parametrize(
    ("task", "path", "inputs", "wrong", "fields"),
    [
        ("classification", "/classify", [{"text": "a text"}, {"text": "b", "pair": "c"}][:1], {"txt": "a"}, {"scores"}),
        ("tagging", "/tag", [{"text": "Two words."}, {"words": ["three", "of", "them"]}], {}, {"words", "tags"}),
        ("question_answering", "/answer", [{"question": "Who?", "context": "He."}], {"question": "Who?"}, {"span"}),
    ],
)
def test_the_service(
    task: str, path: str, inputs: list[dict[str, Any]], wrong: dict[str, Any], fields: set[str], model: str
) -> None:
    inference = InferenceOptions(model=model, gpus=0)
    args = ServeArguments(inference=inference, documents=LongDocumentOptions(), task=task)
    with TestClient(create_app(PredictionService(args)), base_url="http://localhost") as client:
        answer = client.post(path, json={"inputs": inputs})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["predictions"]) == len(inputs)
        assert all({"prediction"} | fields <= row.keys() for row in answer.json()["predictions"])
        refused = client.post(path, json={"inputs": [wrong]})
        assert refused.status_code == 422
        assert "\n" not in refused.json()["error"]
        assert client.post(path, json={"inputs": []}).status_code == 422
        assert client.post(path, json={"inputs": inputs * 100}).status_code == 413
        assert client.get("/healthz").json() == {"status": "ok", "queue": 0, "batch": 0}
        assert path in client.get("/openapi.json").json()["paths"]
        assert client.get("/").status_code == 200
        assert client.post("/summarize", json={"text": "a"}).status_code == 404
