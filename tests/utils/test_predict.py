"""`python -m utils.predict` and the service's /classify, /tag and /answer, with one model of each kind."""

from __future__ import annotations

import json
from dataclasses import replace
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
from tests.utils.test_predicted_tables import write as table
from utils.data.columns import Record
from utils.predict import main
from utils.prediction.options import InferenceOptions, LongDocumentOptions
from utils.prediction.predictor import Predictor
from utils.serving.app import create_app
from utils.serving.arguments import ServeArguments
from utils.serving.predictions import PredictionService
from utils.summarize import main as summarize
from utils.tasks import task_of
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
    main([model, str(tmp_path / "inputs"), "--task", task])
    printed = capsys.readouterr().out.splitlines()
    main([model, str(tmp_path / "inputs"), "--task", task, "--json", "--output", str(tmp_path / "out")])
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [" ".join(row["prediction"]) if task == "tagging" else row["prediction"] for row in rows] == printed
    assert len(printed) == 2
    if task == "tagging":
        assert [row["words"] for row in rows] == [["Two", "words", ",", "here", "."], ["three", "more", "words"]]


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("question_answering", "Who?", "no question and no context; allowed: fields question and context"),
        ("question_answering", '{"question": "Who?"}', "no context; allowed: fields"),
        ("question_answering", '{"question": " ", "context": "a"}', "question is ' '; allowed: a text"),
        ("classification", '{"text": ' + "[" * 10**5, "not JSON"),
        ("classification", '{"text": 7}', "text is 7; allowed: a text"),
        ("summarization", '{"texts": "a"}', "no field text; allowed: a text"),
        ("tagging", '{"words": []}', r"words is \[\]; allowed: a list of texts"),
        ("tagging", '{"word": ["a"]}', "text is None; allowed: a list of texts"),
    ],
)
def test_inputs_that_are_none(task: str, line: str, message: str, model: str, tmp_path: Path) -> None:
    """A fault in the last line ends the run before the first one is predicted."""
    good = INPUTS[task][0]
    good = good if isinstance(good, str) else json.dumps(good)
    (tmp_path / "inputs").write_text(f"{good}\n{line}\n")
    with pytest.raises(InputError, match=f"inputs, line 2: {message}"):
        main([model, str(tmp_path / "inputs"), "--task", task, "--output", str(tmp_path / "out")])
    assert not [*tmp_path.glob("out*")]


ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [{"label": "yes", "text": "a text"}, {"label": "no", "text": "another, one"}],
    "tagging": [{"words": ["Two", "words"], "tags": ["O", "B-X"]}, {"words": ["three"], "tags": ["O"]}],
    "question_answering": [{"id": 7, "question": "Who?", "context": "He said so."}],
    "summarization": [{"id": 1, "article": "a text", "highlights": "b"}, {"id": 2, "article": "the other"}],
}


def predicted(model: str, file: Path, *options: str) -> list[dict[str, Any]]:
    output = file.with_name("predicted")
    main([model, str(file), "--json", *options, "--output", str(output), "--gpus", "0"])
    return [json.loads(line) for line in output.read_text().splitlines()]


def added(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("prediction", "score", "span") if name in row}


@pytest.mark.parametrize("task", KINDS)
def test_tables_are_read_as_tables_by_the_task_of_the_model(task: str, model: str, tmp_path: Path) -> None:
    """Each row as the same input typed, whatever else the table holds."""
    texts = {"classification": "text", "summarization": "article"}
    typed = [row[texts[task]] if task in texts else row for row in ROWS[task]]
    (tmp_path / "lines").write_text("".join(f"{t if isinstance(t, str) else json.dumps(t)}\n" for t in typed))
    expected = predicted(model, tmp_path / "lines", "--task", task)
    suffixes = (".jsonl", ".json", ".parquet", *((".csv", ".tsv") if task in (*texts, "question_answering") else ()))
    for suffix in suffixes:
        rows = predicted(model, table(tmp_path / f"a{suffix}", ROWS[task]))
        assert [added(row) for row in rows] == [added(row) for row in expected], suffix


@pytest.mark.parametrize("task", ["tagging"])
def test_blank_words_are_left_out_and_counted(
    task: str, model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other words have the tags that they have alone; the row stays as it was."""
    blank = {"words": ["", "who", "\u00a0", " ", "said", ""]}
    rows = predicted(model, table(tmp_path / "a.parquet", [{"words": ["who", "said"]}, blank, {"words": [" "]}]))
    assert [row["words"] for row in rows[1:]] == [blank["words"], [" "]]
    alone = rows[0]
    assert rows[1]["prediction"] == ["O", alone["prediction"][0], "O", "O", alone["prediction"][1], "O"]
    assert rows[1]["score"] == [None, *alone["score"][:1], None, None, *alone["score"][1:], None]
    assert rows[2]["prediction"] == ["O"] and rows[2]["score"] == [None]
    assert "5 of 9 words are blank, are not read and get the tag O" in caplog.text


@pytest.mark.parametrize("task", ["tagging"])
def test_a_conll_file_is_read_as_such(task: str, model: str, tmp_path: Path) -> None:
    """Tags are no part of the text, with blank lines between sentences or without any."""
    for text, sentences in (
        ("a B-PER\nthe O\n\nwho O\n", [["a", "the"], ["who"]]),
        ("a B-PER\nthe O\n", [["a", "the"]]),
        ("a\nthe\n", [["a", "the"]]),
    ):
        (tmp_path / "a.conll").write_text(text)
        assert [row["words"] for row in predicted(model, tmp_path / "a.conll")] == sentences


@pytest.mark.parametrize("task", ["classification"])
def test_the_columns_that_training_read_are_read(task: str, model: str, tmp_path: Path) -> None:
    """`columns` of the config; an option wins over it."""
    rows = [{"sentence": "a", "question": "the", "text": "who"}]
    file = table(tmp_path / "a.tsv", rows)
    (tmp_path / "lines").write_text('{"text": "who"}\n')
    alone = added(*predicted(model, tmp_path / "lines"))
    assert added(*predicted(model, file)) == alone
    config = json.loads((Path(model) / "config.json").read_text())
    (Path(model) / "config.json").write_text(json.dumps({**config, "columns": ["question", "sentence"]}))
    for options, text in (([], "the"), (["--text_field", "text"], "who")):
        (tmp_path / "lines").write_text(json.dumps({"text": text, "pair": "a"}) + "\n")
        pair = added(*predicted(model, tmp_path / "lines"))
        assert added(*predicted(model, file, *options)) == pair != alone
    with pytest.raises(InputError, match="trained on question with sentence; allowed: JSON objects with text and pair"):
        (tmp_path / "lines").write_text("who\n")
        predicted(model, tmp_path / "lines")
    (tmp_path / "lines").write_text('{"text": "who"}\n{"text": "who", "pair": "a"}\n')
    with pytest.raises(InputError, match="lines, line 1: pair is None; allowed: a text that is not blank"):
        predicted(model, tmp_path / "lines")
    for rows, message in (
        (
            [{"text": "who", "sentence2": "a"}],
            r"a.csv: no column 'question', which training read; name one with --text_field \(columns: sen",
        ),
        (
            [{"question": "who", "text": "a"}],
            r"a.csv: no column 'sentence', which training read; name one with --pair_field \(columns: question, text\)",
        ),
        ([{"question": "who", "sentence": " "}], "a.csv:2: sentence is ' '; allowed: a text that is not blank"),
    ):
        with pytest.raises(InputError, match=message):
            predicted(model, table(tmp_path / "a.csv", rows))
    with pytest.raises(InputError, match=r"none.csv: no such file"):
        predicted(model, tmp_path / "none.csv")
    (tmp_path / "lines").write_text('id;"sentence";question\n1;a;b\n')
    with pytest.raises(InputError, match="lines: the first line, 'id;\"sentence\";question', is the header of a table"):
        predicted(model, tmp_path / "lines")
    for header in ("sentence\tlabel", "Text,Label", "premise,hypothesis", '"Tokens";"NER_tags"', "index\tsentence"):
        (tmp_path / "lines").write_text(f"{header}\na\tb\n")
        with pytest.raises(InputError, match="is the header of a table"):
            predicted(model, tmp_path / "lines")
    (Path(model) / "config.json").write_text(json.dumps({**config, "columns": ["question"]}))
    (tmp_path / "lines").write_text("question, sentence, or question mark?\nsentence\n")
    assert len(predicted(model, tmp_path / "lines")) == 2
    (tmp_path / "lines").write_text('{"text": "who", "pair": "a"}\n')
    with pytest.raises(InputError, match="the model was trained on question; allowed: a text without pair"):
        predicted(model, tmp_path / "lines")


@pytest.mark.parametrize("task", ["tagging"])
def test_words_are_read_as_training_read_them(task: str, model: str, tmp_path: Path) -> None:
    """The table's column, and the columns of a CoNLL file."""
    words, config = ["Who's", "[the]"], json.loads((Path(model) / "config.json").read_text())
    expected = predicted(model, table(tmp_path / "a.jsonl", [{"tokens": words}]))
    (Path(model) / "config.json").write_text(json.dumps({**config, "columns": ["tokens"]}))
    rows = predicted(model, table(tmp_path / "b.jsonl", [{"text": "who", "tokens": words}]))
    assert [row["words"] for row in rows] == [words] and added(rows[0]) == added(expected[0])
    main([model, str(table(tmp_path / "b.jsonl", [{"words": "who", "tokens": words}])), "--output", f"{tmp_path}/out"])
    assert (tmp_path / "out").read_text().split() == expected[0]["prediction"]
    with pytest.raises(InputError, match="no column 'tokens', which training read; name one with --words_field"):
        predicted(model, table(tmp_path / "a.csv", [{"sentence": "a"}]))
    (Path(model) / "config.json").write_text(json.dumps({**config, "columns": {"words_column": "3"}}))
    (tmp_path / "a.conll").write_text("".join(f"1 NNP {word} x\n" for word in words))
    assert [added(row) for row in predicted(model, tmp_path / "a.conll")] == [added(expected[0])]


@pytest.mark.parametrize("task", ["summarization"])
def test_documents_in_a_table_are_summarised(task: str, model: str, tmp_path: Path) -> None:
    """As lines of texts are, which a model and `utils.summarize` tell from a table."""
    rows = [{"id": 1, "document": "a text", "summary": "b"}, {"id": 2, "document": "a text of words", "summary": "b"}]
    file, output = table(tmp_path / "a.csv", rows), tmp_path / "out"
    (tmp_path / "lines").write_text("a text\na text of words\n")
    words = [model, "--output", str(output), "--gpus", "0"]
    summarize([*words, str(tmp_path / "lines"), "--lines"])
    expected = output.read_text().splitlines()
    assert [row["prediction"] for row in predicted(model, file)] == expected
    two = table(tmp_path / "b.csv", [{"article": "of", "document": row["document"]} for row in rows])
    with pytest.raises(InputError, match="article and document may both be documents; name one with --source_field"):
        predicted(model, two)
    config = json.loads((Path(model) / "config.json").read_text())
    (Path(model) / "config.json").write_text(json.dumps({**config, "columns": ["document"]}))
    assert [row["prediction"] for row in predicted(model, two)] == expected
    (tmp_path / "header").write_text(two.read_text())
    with pytest.raises(InputError, match="header: the first line, 'article,document', is the header of a table"):
        summarize([*words, str(tmp_path / "header"), "--lines"])
    with pytest.raises(InputError, match=r"b.csv is a table, which utils.predict reads; allowed: a text, or --lines"):
        summarize([*words, str(two)])
    other = table(tmp_path / "c.csv", [{"article": row["document"]} for row in rows])
    assert [row["prediction"] for row in predicted(model, other)] == expected
    (Path(model) / "config.json").write_text(json.dumps({**config, "columns": ["body"]}))
    with pytest.raises(InputError, match="c.csv: no column 'body', which training read; name one with"):
        predicted(model, other)


@pytest.mark.parametrize("task", KINDS)
def test_the_task_of_a_model(task: str, model: str, tmp_path: Path) -> None:
    assert task_of(model) == task
    run = tmp_path / "run"
    run.mkdir()
    Path(model).rename(run / "export")
    (run / "last.ckpt").touch()
    places = [str(run), *(str(run / name) for name in ("export", "last.ckpt", "export/model.safetensors"))]
    assert {*map(task_of, places)} == {task}
    (run / "arguments.yaml").write_text("task: translation\n")  # which has the class of summarization, too
    assert {*map(task_of, places)} == {"translation" if task == "summarization" else task}
    (run / "arguments.yaml").write_text("task: of_mine.py\n")
    for place in places:
        assert task_of(place, task) == task
        with pytest.raises(InputError, match="was trained with --task of_mine.py; give --task, this or another"):
            task_of(place)
    (tmp_path / "alone.ckpt").touch()
    assert task_of(str(tmp_path / "alone.ckpt")) == "summarization"
    for trained, found in ((task, task), ("denoising", "summarization")):
        (tmp_path / "arguments.yaml").write_text(f"seed: 1\ntask: {trained}\n")
        assert task_of(str(tmp_path / "alone.ckpt")) == found


def test_the_model_is_the_first_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="the first argument is --json; allowed: the model, and then FILE and options"):
        main(["--json", "MODEL"])
    for words, status in (([], 2), (["-h"], 0)):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == status
    assert "the following arguments are required: model" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["tagging"])
def test_work_that_nobody_waits_for_ends(task: str, model: str) -> None:
    predictor = Predictor(
        Tagging, Tagging.Options(), Tagging.EvalOptions(), InferenceOptions(model=model, gpus=0), batch_size=1
    )
    checks = iter([True, True, False])

    def check() -> None:
        if not next(checks):
            raise TimeoutError

    records = [Record(text, {"text": text}) for text in ("one", "two", "three")]
    with pytest.raises(TimeoutError):
        list(predictor(records, ["text"], check))
    assert len(list(predictor(records, ["text"]))) == 3


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
    args = ServeArguments(inference=inference, documents=LongDocumentOptions(max_source_length=64), task=task)
    with TestClient(create_app(PredictionService(args)), base_url="http://localhost") as client:
        answer = client.post(path, json={"inputs": inputs})
        assert answer.status_code == 200, answer.text
        alone = client.post(path, json=inputs[0])
        assert alone.json()["predictions"] == answer.json()["predictions"][:1]
        assert len(answer.json()["predictions"]) == len(inputs)
        assert all({"prediction"} | fields <= row.keys() for row in answer.json()["predictions"])
        refused = client.post(path, json={"inputs": [wrong]})
        assert refused.status_code == 422
        field = {"question_answering": ["context"], "classification": ["text"], "tagging": []}[task]
        assert refused.json()["detail"][0]["loc"] == ["body", "inputs", 0, *field]
        assert client.post(path, json={"inputs": []}).status_code == 422
        assert client.post(path, json={"inputs": inputs * 300}).status_code == 422
        assert client.get("/healthz").json() == {"status": "ok", "queue": 0, "batch": 0}
        assert path in client.get("/openapi.json").json()["paths"]
        assert client.get("/").status_code == 200
        assert client.post("/summarize", json={"text": "a"}).status_code == 404
    for name, value in {"max_beams": 2, "documents": LongDocumentOptions("cut")}.items():
        with pytest.raises(InputError, match=f"^--.* is (2|cut); it is of --task summarization; this is {task}$"):
            replace(args, **{name: value})
