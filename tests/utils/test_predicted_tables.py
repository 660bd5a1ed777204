"""Tables that `python -m utils.predict` writes: in any form, after a kill, for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.heads import BartForQuestionAnswering, BartForSequenceClassification, BartForTokenClassification
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import CONFIG
from utils.data.columns import Record
from utils.data.rows import rows_of
from utils.metrics.classification import main as classification
from utils.metrics.entities import main as entities
from utils.predict import main
from utils.prediction.files import texts
from utils.prediction.predictor import Predictor

TEXTS = ["a text", 'he "said" so, who', '"quoted"', "=1+1", "one\nof two\r\nlines", "tab\tand \r", "-", "@" * 40]
ROWS = [{"id": str(number), "text": text, "note": text[::-1]} for number, text in enumerate(TEXTS * 3)]
TSV = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
FORMS = (".csv", ".tsv", ".jsonl", ".parquet")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models of a class, of several labels, of a number, of tags, and of answers."""
    torch.manual_seed(1)
    places, tokenizer = {}, BartTokenizer.train(["a text of words he said so who " * 3], 300)
    for name, kind, problem, labels in (
        ("class", BartForSequenceClassification, "single_label_classification", ["yes", "no", "=maybe"]),
        ("labels", BartForSequenceClassification, "multi_label_classification", ["a", "b", "c"]),
        ("number", BartForSequenceClassification, "regression", ["score"]),
        ("tags", BartForTokenClassification, None, ["O", "B-X", "I-X"]),
        ("answers", BartForQuestionAnswering, None, ["start", "end"]),
    ):
        config = BartConfig(**{**CONFIG, "vocab_size": len(tokenizer), "init_std": 0.5})
        config.labels = labels
        if problem is not None:
            config.problem_type = problem
        places[name] = str(tmp_path_factory.mktemp(name))
        kind(config).save_pretrained(places[name], tokenizer)
    return places


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A table as the libraries of its format write it."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix in (".json", ".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], **(TSV if path.suffix == ".tsv" else {}))
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """A table as the libraries of its format read it; cells of CSV that are JSON's numbers as such."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    file = io.StringIO(path.read_bytes().decode(), newline="")
    return list(csv.DictReader(file, strict=True, **(TSV if path.suffix == ".tsv" else {})))


def predict(*words: object) -> None:
    main([*map(str, words), "--gpus", "0"])


@pytest.mark.parametrize("given", FORMS)
def test_the_columns_of_the_table_and_those_of_its_predictions(
    given: str, models: dict[str, str], tmp_path: Path
) -> None:
    """Hostile texts come back as they were, in order, with transformers' probabilities."""
    forms = {given, FORMS[FORMS.index(given) - 1]} - ({".parquet"} - {given})
    rows = [row for row in ROWS if ".tsv" not in forms or not re.search(r"[\t\r\n]", row["text"])]
    file = write(tmp_path / f"in{given}", rows)
    network = transformers.BartForSequenceClassification.from_pretrained(models["class"]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["class"])
    with torch.no_grad():
        shares = [network(**tokenizer(row["text"], return_tensors="pt")).logits[0].softmax(0) for row in read(file)]
    names = network.config.id2label
    for taken in forms:
        output = tmp_path / f"out{taken}"
        predict(models["class"], file, "--output", output, "--batch_size", "3")
        written = read(output)
        assert list(written[0]) == ["id", "text", "note", "prediction", "score"]
        assert [{name: row[name] for name in ROWS[0]} for row in written] == read(file)
        ours = [record.values for record in rows_of(output)]
        assert [{name: row[name] for name in ROWS[0]} for row in ours] == read(file)
        assert [row["prediction"] for row in written] == [names[int(share.argmax())] for share in shares]
        assert [float(row["score"]) for row in written] == pytest.approx([float(s.max()) for s in shares], abs=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([file.name, *(f"out{form}" for form in forms)])


def test_a_cell_of_tsv_has_no_breaks(models: dict[str, str], tmp_path: Path) -> None:
    """Those of the input are refused before anything is predicted; in predictions blanks stand for them."""
    for number, text in enumerate(("a\tb", "a\nb", "a\rb")):
        file = write(tmp_path / f"{number}.jsonl", [{"text": "a", "list": ["\n"]}, {"text": "a", "note": text}])
        with pytest.raises(InputError, match=rf"{number}.jsonl:2: note holds a tab or a line break, .* FILE.csv"):
            predict(models["class"], file, "--output", tmp_path / "out.tsv")
    row = (Record("", {"text": '"a"'}), {"prediction": 'a\tb\n"c"'})
    source: Any = SimpleNamespace(suffix=".tsv", columns=["text"], task=SimpleNamespace(separator=" "))
    assert "".join(texts(source, [row])) == 'text\tprediction\n"a"\ta b "c"\n'


def test_parquet_keeps_its_types(models: dict[str, str], tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": ["a", "of", None],
            "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
            "small": pa.array([1, None, 3], pa.int8()),
            "time": pa.array([1, 2, 3], pa.timestamp("ns", "UTC")),
            "bytes": [b"\xff", b"", None],
            "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int16())),
        }
    )
    pq.write_table(table, tmp_path / "bad.parquet")
    with pytest.raises(InputError, match=r"bad.parquet:3: text is None; allowed: a text that is not blank"):
        predict(models["class"], tmp_path / "bad.parquet", "--output", tmp_path / "out.parquet")
    pq.write_table(table[:2], tmp_path / "in.parquet")
    predict(models["class"], tmp_path / "in.parquet", "--output", tmp_path / "out.parquet", "--batch_size", "1")
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.select(table.schema.names) == pq.read_table(tmp_path / "in.parquet")
    assert written.schema.field("score").type == pa.float64()
    with pytest.raises(InputError, match="bytes holds bytes; allowed: an --output FILE.parquet"):
        predict(models["class"], tmp_path / "in.parquet", "--output", tmp_path / "out.csv")


def test_columns_that_some_rows_lack(models: dict[str, str], tmp_path: Path) -> None:
    rows = [{"text": "a", "b": 1}, {"c": [None], "text": "of"}, {"text": "who", "b": 2.5, "c": ["x"]}]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, expected in (
        ("out.jsonl", rows),
        (
            "out.csv",
            [{"text": r["text"], "b": str(r.get("b", "")), "c": json.dumps(r["c"]) if "c" in r else ""} for r in rows],
        ),
    ):
        predict(models["class"], tmp_path / "in.jsonl", "--output", tmp_path / name)
        written = read(tmp_path / name)
        assert [{n: v for n, v in row.items() if n not in ("prediction", "score")} for row in written] == expected
    with pytest.raises(InputError, match=r"--output ends in .parquet and .*in.jsonl does not; allowed: .csv"):
        predict(models["class"], tmp_path / "in.jsonl", "--output", tmp_path / "out.parquet")
    (tmp_path / "in.jsonl").write_text('{"sentence": "a"}\n' * 1024 + '{"sentence": "a", "text": "b"}\n')
    with pytest.raises(InputError, match="its first rows have sentence, later ones text; allowed: one kind"):
        predict(models["class"], tmp_path / "in.jsonl", "--output", tmp_path / "out.csv")


def test_each_kind_of_prediction(models: dict[str, str], tmp_path: Path) -> None:
    texts = write(tmp_path / "in.csv", ROWS[:5])
    cells = {}
    for name, *options in (("class", "--scores", "all"), ("labels", "--scores", "all"), ("number",), ("tags",)):
        for form, file in ((".jsonl", texts), (".csv", texts), (".parquet", write(tmp_path / "in.parquet", ROWS[:5]))):
            predict(models[name], file, "--output", tmp_path / f"{name}{form}", *options)
        cells[name] = read(tmp_path / f"{name}.jsonl")
        assert read(tmp_path / f"{name}.parquet") == cells[name]
    for row in cells["class"]:
        scores = {label: row[f"score_{label}"] for label in ("yes", "no", "=maybe")}
        assert sum(scores.values()) == pytest.approx(1)
        assert row["score"] == max(scores.values()) == scores[row["prediction"]]
    for row, cell in zip(cells["labels"], read(tmp_path / "labels.csv"), strict=True):
        likely = [label for label in "abc" if row[f"score_{label}"] > 0.5]
        assert row["prediction"] == likely
        assert row["score"] == [row[f"score_{label}"] for label in likely]
        assert (cell["prediction"], cell["score"]) == (", ".join(likely), ", ".join(map(str, row["score"])))
    assert all(isinstance(row["prediction"], float) and "score" not in row for row in cells["number"])
    for row, cell in zip(cells["tags"], read(tmp_path / "tags.csv"), strict=True):
        assert len(row["words"]) == len(row["prediction"]) == len(row["score"])
        assert cell["prediction"].split(" ") == row["prediction"]
        assert all(1 / 3 < score <= 1 for score in row["score"])
    asked = {"context": "He said so.", "qas": [{"id": "7", "question": "Who?"}]}
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": [asked]}]}))
    predict(models["answers"], tmp_path / "squad.json", "--output", tmp_path / "a.csv", "--max_query_length", "8")
    [row] = read(tmp_path / "a.csv")
    assert list(row) == ["id", "question", "context", "prediction", "score", "span"]
    begin, end = map(int, row["span"].split())
    assert row["prediction"] == "He said so."[begin:end]
    assert 0 < float(row["score"]) <= 1
    for name, file in (("number", texts), ("tags", texts)):
        with pytest.raises(InputError, match="--scores is all; this model predicts no classes or labels"):
            predict(models[name], file, "--output", tmp_path / "out.csv", "--scores", "all")


@pytest.mark.parametrize("form", [".csv", ".tsv"])
def test_the_metrics_read_what_is_written(
    form: str, models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """True and false are the names that a model has of them, also in a cell; a TSV of tags is a table."""
    output = tmp_path / f"out{form}"
    (tmp_path / "bool.jsonl").write_text('{"text": "a", "label": true}\n{"text": "of", "label": false}\n')
    predict(models["class"], tmp_path / "bool.jsonl", "--output", output)
    classification([str(output), str(tmp_path / "bool.jsonl"), "--prediction_field", "label", "--json"])
    assert json.loads(capsys.readouterr().out)["accuracy"] == 100
    words = write(tmp_path / "words.jsonl", [{"words": ["a", "text"]}, {"words": ["of"]}])
    predict(models["tags"], words, "--output", output)
    entities([str(output), str(output), "--tags_field", "prediction", "--json"])
    assert json.loads(capsys.readouterr().out)["words"] == 3


def test_a_label_that_holds_what_stands_between_labels(
    models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told from two labels, and scored as the list that JSON has of it."""
    file = write(tmp_path / "in.jsonl", [{"text": text} for text in ("a", "of", "a text")])
    folder = Path(shutil.copytree(models["labels"], tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text()) | {"id2label": {"0": "a", "1": "b", "2": "a, b"}}
    (folder / "config.json").write_text(json.dumps({**config, "label2id": {"a": 0, "b": 1, "a, b": 2}}))
    for form in (".jsonl", ".csv", ".txt"):
        predict(folder, file, "--output", tmp_path / f"out{form}")
    labels = [row["prediction"] for row in read(tmp_path / "out.jsonl")]
    assert labels == [["a", "b"], ["b"], ["a, b"]]
    assert [row["prediction"] for row in read(tmp_path / "out.csv")] == ["a, b", "b", '["a, b"]']
    for name in ("out.csv", "out.txt"):
        classification([str(tmp_path / name), str(tmp_path / "out.jsonl"), "--label_field", "prediction", "--json"])
        assert json.loads(capsys.readouterr().out)["accuracy"] == 100


def test_an_input_that_changes_in_between(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, call = write(tmp_path / "in.csv", [{"text": "a"}]), Predictor.__call__
    monkeypatch.setattr(Predictor, "__call__", lambda *args: file.write_text("text\nb\n") and call(*args))
    with pytest.raises(InputError, match=r"in.csv: it changed while it was predicted; remove .*out.csv.partial"):
        predict(models["class"], file, "--output", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_a_killed_run_goes_on(models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "in.csv", [{**row, "text": f"{row['text']} {row['id']}"} for row in ROWS * 3])
    whole, output, partial = (tmp_path / name for name in ("whole.csv", "out.csv", "out.csv.partial"))
    words = [models["class"], file, "--batch_size", "1", "--output"]
    predict(*words, whole)
    predicted: list[int] = []
    call = Predictor.__call__

    def killed(self: Predictor, records: list[Any], *others: Any) -> Any:
        if sum(predicted) > 30:
            raise KeyboardInterrupt
        predicted.append(len(records))
        return call(self, records, *others)

    monkeypatch.setattr(Predictor, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        predict(*words, output)
    assert not output.exists()
    noted = partial.read_bytes()
    assert noted.count(b"\n") == 4
    predicted[:] = []
    monkeypatch.setattr(Predictor, "__call__", call)
    for options, change in (
        (["--scores", "all"], "its scores is 'predicted', this run's is 'all'"),
        (["--max_source_length", "9"], "its settings max_source_length is 64"),
        (["--text_field", "note"], r"its columns is \['text'\], this run's is \['note'\]"),
    ):
        with pytest.raises(InputError, match=f"out.csv.partial holds the progress of another run \\({change}"):
            predict(*words, output, *options)
    monkeypatch.setattr(Predictor, "__call__", lambda *args: predicted.append(len(args[1])) or call(*args))
    predict(*words, output)
    assert output.read_bytes() == whole.read_bytes()
    assert sum(predicted) == len(ROWS) * 3 - 33
    assert not partial.exists()
    partial.write_bytes(noted)
    write(file, ROWS)
    with pytest.raises(InputError, match="holds the progress of another run \\(its input is"):
        predict(*words, output)


def rounded(path: Path) -> list[Any]:
    """An output, with scores rounded to what batches of other sizes do not change."""
    if path.suffix == ".txt":
        return path.read_text().splitlines()
    return [{**row, "score": pytest.approx(float(row["score"]), abs=1e-6)} for row in read(path)]


def joined(parts: list[Path]) -> bytes:
    """Parts of an output as docs/tasks.md joins them."""
    command = ["awk", "FNR > 1 || NR == 1"] if parts[0].suffix in (".csv", ".tsv") else ["cat"]
    return subprocess.check_output([*command, *map(str, parts)])


@pytest.mark.parametrize(
    ("given", "form"), [(".csv", ".csv"), (".csv", ".jsonl"), (".jsonl", ".tsv"), (".jsonl", ".txt")]
)
def test_shards_of_many_files_join_to_the_output_of_one_run(
    given: str, form: str, models: dict[str, str], tmp_path: Path
) -> None:
    rows = [{**row, "text": f"{row['id']} who"} for row in ROWS] if form == ".tsv" else ROWS
    rows = [{**row, "note": row["note"].replace("\t", "").replace("\r", "").replace("\n", "")} for row in rows]
    whole = write(tmp_path / f"whole{given}", rows)
    folder = tmp_path / "in"
    folder.mkdir()
    for name, part in (("a", rows[:5]), ("b", rows[5:6]), ("c", rows[6:])):
        write(folder / f"part-{name}{given}", part)
    (folder / "_SUCCESS").touch()
    (folder / ".part-a.jsonl.crc").touch()
    predict(models["class"], whole, "--output", tmp_path / f"one{form}")
    expected = rounded(tmp_path / f"one{form}")
    for places in ([folder], [folder / f"part-*{given}"], sorted(folder.glob("part-*"))):
        parts = [tmp_path / f"out-{i}{form}" for i in range(7)]
        for i, part in enumerate(parts):
            predict(models["class"], *places, "--shard", f"{i}/7", "--output", part)
            assert len(read(part) if form != ".txt" else part.read_text().splitlines()) in (3, 4)
        (tmp_path / f"joined{form}").write_bytes(joined(parts))
        assert rounded(tmp_path / f"joined{form}") == expected


def test_a_shard_of_parquet_keeps_types_that_fit_all_files(models: dict[str, str], tmp_path: Path) -> None:
    for name, notes in (
        ("a", pa.nulls(4)),
        ("b", pa.array([1, 2, 3], pa.int32())),
        ("c", pa.array([4, None], pa.int64())),
    ):
        texts = pa.array([f"who said {name}{number}" for number in range(len(notes))])
        pq.write_table(pa.table({"text": texts, "note": notes}), tmp_path / f"{name}.parquet")
    rows = []
    for i in range(3):
        predict(models["class"], tmp_path, "--shard", f"{i}/3", "--output", tmp_path.parent / f"out{i}.parquet")
        part = pq.read_table(tmp_path.parent / f"out{i}.parquet")
        assert part.schema.field("note").type == pa.int64()
        rows += part.to_pylist()
    assert [row["note"] for row in rows] == [None] * 4 + [1, 2, 3, 4, None]
    assert [row["text"][-2:] for row in rows] == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "c0", "c1"]
    pq.write_table(pa.table({"text": ["a"], "note": ["b"]}), tmp_path / "d.parquet")
    with pytest.raises(InputError, match=r"a.parquet and 3 other files cannot be opened \(ArrowTypeError: .* note "):
        predict(models["class"], tmp_path, "--output", tmp_path.parent / "out.parquet")


def test_columns_that_some_files_of_parquet_lack_are_empty_there(models: dict[str, str], tmp_path: Path) -> None:
    for name, columns in (
        ("a", {"text": ["who"], "note": [1]}), ("b", {"text": ["said"]}), ("c", {"more": ["x"], "text": ["who"]}),
    ):  # fmt: skip
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    predict(models["class"], tmp_path, "--output", tmp_path.parent / "lacking.parquet")
    rows = pq.read_table(tmp_path.parent / "lacking.parquet").to_pylist()
    assert [(row["text"], row["note"], row["more"]) for row in rows] == [
        ("who", 1, None), ("said", None, None), ("who", None, "x")
    ]  # fmt: skip


def test_a_shard_that_was_killed_goes_on_as_that_shard(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are all blank but one."""
    rows = [{"text": "who"}] * 2 + [{"text": ""}] * 3 + [{"text": "said"}]
    write(tmp_path / "in.jsonl", rows)
    words = [
        models["class"],
        tmp_path / "in.jsonl",
        "--skip_blank",
        "--batch_size",
        "1",
        "--output",
        tmp_path / "out.jsonl",
    ]
    call = Predictor.__call__
    monkeypatch.setattr(
        Predictor,
        "__call__",
        lambda self, records, *rest: 1 / 0 if records[0].values["text"] == "said" else call(self, records, *rest),
    )
    with pytest.raises(ZeroDivisionError):
        predict(*words, "--shard", "1/2")
    monkeypatch.setattr(Predictor, "__call__", call)
    with pytest.raises(InputError, match="another run \\(its shard is '1/2', this run's is '0/2'\\)"):
        predict(*words, "--shard", "0/2")
    predict(*words, "--shard", "1/2")
    assert [(row["text"], row["prediction"] is None) for row in read(tmp_path / "out.jsonl")] == [
        ("", True), ("", True), ("said", False)
    ]  # fmt: skip


@pytest.mark.parametrize("shard", ["4/4", "5/4", "0/0", "a/b", "-1/4", "1", "1/", "1/2/3", "1.0/2", "", "٣/٤", " 0/1"])
def test_shards_that_are_none(shard: str, models: dict[str, str], tmp_path: Path) -> None:
    allowed = "allowed: I/N with I from 0 to N - 1, such as 0/4 to 3/4"
    with pytest.raises(InputError, match=f"^--shard is {re.escape(repr(shard))}; {allowed}$"):
        predict(models["class"], write(tmp_path / "in.csv", ROWS), f"--shard={shard}")


def test_inputs_of_several_files_that_are_none(models: dict[str, str], tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.csv", ROWS[:2]), write(tmp_path / "b.jsonl", ROWS[:2])
    (tmp_path / "empty").mkdir()
    for places, message in (
        ([first, second], r"a.csv and .*b.jsonl are of two kinds; allowed: files of one kind"),
        ([tmp_path], r"a.csv and .*b.jsonl are of two kinds; allowed: files of one kind"),
        ([tmp_path / "*.tsv"], r"\*.tsv: no such file; allowed: .jsonl, .json, .csv"),
        ([tmp_path / "empty"], "empty: no such file; allowed: .jsonl"),
        ([first, tmp_path / "no.csv"], "no.csv: no such file"),
        ([first, "--shard", "1/3"], "--shard is 1/3; .*a.csv: has 2 rows; allowed: at most 2 shards"),
        ([first, "--output", first], "the file that is read"),
    ):
        with pytest.raises(InputError, match=message):
            predict(models["class"], *places)


def test_no_column_is_overwritten(models: dict[str, str], tmp_path: Path) -> None:
    """Nothing is left behind, and a name that the last row alone has is seen before much is predicted."""
    rows = [{"text": "a"}] * 40 + [{"text": "a", "score": 1}]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    table = write(tmp_path / "in.csv", [{"prediction": "yes", "text": "a"}])
    words = write(tmp_path / "words.csv", [{"words": "a text"}])
    for model, file, column in (
        ("class", tmp_path / "in.jsonl", "score"),
        ("class", table, "prediction"),
        ("tags", words, "words"),
    ):
        with pytest.raises(InputError, match=f"it has a column {column} already, which predictions would overwrite"):
            predict(models[model], file, "--output", tmp_path / "out.csv")
    assert not [*tmp_path.glob("out*")]
    with pytest.raises(InputError, match="the file that is read; allowed: another one"):
        predict(models["class"], table, "--output", table)
    with pytest.raises(InputError, match="--json and --output out.csv name two forms"):
        predict(models["class"], table, "--json", "--output", "out.csv")
    for name in ("out.json", "out.csv.gz", "out.xlsx"):
        with pytest.raises(InputError, match=f"--output is {name}; allowed: .csv, .tsv, .jsonl, .parquet, or lines"):
            predict(models["class"], table, "--output", name)


def test_lines_become_a_table(
    models: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a file and of standard input; and one after the other on standard output."""
    lines = 'a text\n{"text": "of", "pages": 7}\n'
    (tmp_path / "lines.txt").write_text(lines)
    caplog.set_level("INFO")
    predict(models["class"], tmp_path / "lines.txt", "--output", tmp_path / "out.csv")
    assert caplog.messages[-1] == f"{tmp_path}/out.csv: 2 predictions"
    written = read(tmp_path / "out.csv")
    assert [(row["text"], row["pages"]) for row in written] == [("a text", ""), ("of", "7")]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    predict(models["class"], "--output", tmp_path / "typed.csv")
    assert (tmp_path / "typed.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()
    predict(models["class"], tmp_path / "lines.txt")
    assert capsys.readouterr().out.splitlines() == [row["prediction"] for row in written]


@pytest.mark.parametrize("form", [".csv", ".jsonl", ".parquet", ".txt"])
@pytest.mark.parametrize(
    ("kind", "empty"), [("class", ["", " ", "\n"]), ("number", ["", " ", "\n"]), ("tags", [[]] * 3)]
)
def test_rows_with_blank_texts_have_empty_predictions(
    kind: str, empty: list[Any], form: str, models: dict[str, str], tmp_path: Path
) -> None:
    """The others have those of the same table without blank rows; the first batch has no other."""
    texts = [["a", "text"], ["of"]] if kind == "tags" else ["a text", "who"]
    column = "words" if kind == "tags" else "text"
    filled, some = ([{column: text} for text in part] for part in (texts, [*empty, texts[0], empty[0], texts[1]]))
    outputs = []
    for name, rows in (("filled", filled), ("some", some)):
        output = tmp_path / f"{name}-out{form}"
        options = () if name == "filled" else ("--skip_blank",)
        file = write(tmp_path / f"{name}{'.parquet' if form == '.parquet' else '.jsonl'}", rows)
        predict(models[kind], file, "--output", output, "--batch_size", 3, *options)
        lines = output.read_text().split("\n")[:-1] if form == ".txt" else None
        outputs.append([row["prediction"] for row in read(output)] if lines is None else lines)
    none = None if form in (".jsonl", ".parquet") else ""
    assert outputs[1] == [none, none, none, outputs[0][0], none, outputs[0][1]]
    message = r"some.jsonl:1: .* \(4 of 6 are blank: .*; --skip_blank goes on without them\)"
    with pytest.raises(InputError, match=message):
        predict(models[kind], write(tmp_path / "some.jsonl", some))


def test_inputs_that_are_no_texts_are_refused(models: dict[str, str], tmp_path: Path) -> None:
    for name, content, message in (
        ("a.xlsx", b"PK\x03\x04\n", "hold no text; allowed: UTF-8 text; save the workbook as CSV"),
        ("lines", b"PK\x03\x04\n", "holds a zip archive"),
        ("lines.txt", b"__label__pos good day\n", "begins with fastText's __label__; allowed: lines of texts alone"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            predict(models["class"], tmp_path / name)


def test_the_lines_for_dask(models: dict[str, str], tmp_path: Path) -> None:
    """Those of docs/tasks.md give what this program gives."""
    page = (Path(__file__).parents[2] / "docs/tasks.md").read_text()
    [lines] = [text for text in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "import dask" in text]
    rows = write(tmp_path / "in.jsonl", [{**row, "text": f"{row['text']} {row['id']}"} for row in ROWS])
    folder = tmp_path / "predicted"
    for there, here in (
        ("data/sample/topics/test.jsonl", rows), ("results/topics", models["class"]),
        ("data/predicted_by_dask", folder),
    ):  # fmt: skip
        assert there in lines
        lines = lines.replace(there, str(here))
    exec(lines, {})
    predict(models["class"], rows, "--output", tmp_path / "out.jsonl")
    expected = {row["text"]: row["prediction"] for row in read(tmp_path / "out.jsonl")}
    assert {row["text"]: row["prediction"] for row in pq.read_table(folder).to_pylist()} == expected
