"""The tasks with a head, from files to scores: training, resumption, ranks, precision, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from seqeval.metrics import classification_report
from sklearn.metrics import confusion_matrix

import finetune
import run_eval
from bart.errors import InputError
from bart.modeling.heads import BartForSequenceClassification
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from tests import forked
from tests.fake_cuda.device import needs_compiler
from tests.fake_cuda.training import waits_in_a_step
from tests.tiny_run import CONFIG, OF_BERT, compute_in_double, rows, same, weights
from tests.utils.training.test_interruption import Interrupt
from tests.utils.training.test_module import assert_trained_alike
from tests.utils.training.test_stopping import add_callback
from utils.corpora.sample_corpus import write_sample_corpus
from utils.data.options import Place
from utils.data.splits import SPLITS, split_of
from utils.predict import main as predict
from utils.tasks import find_task

WEIGHTED = dict.fromkeys(("classification", "tagging"), ("--class_weights", "balanced", "--label_smoothing", 0.1))
BASE, FEWER = ("--model_name_or_path", "BASE"), ("--distill", "sft", "--layers", "0")
TASKS = {"classification": "topics", "tagging": "tags", "question_answering": "questions"}
Run = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("no_pictures", "one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics, tags and questions of a few stories, a vocabulary and a config."""
    folder = tmp_path_factory.mktemp("corpus")
    write_sample_corpus(folder, {"train": 40, "val": 6, "test": 8})
    texts = [json.loads(line)["text"] for line in (folder / "topics" / "train.jsonl").open()]
    for name, tokenizer_class, config in (
        ("bart", BartTokenizer, {**CONFIG, "max_position_embeddings": 128}),
        ("bert", BertTokenizer, OF_BERT),
    ):
        tokenizer = tokenizer_class.train(texts, vocab_size=400)
        tokenizer.save_pretrained(folder / name / "tokenizer")
        (folder / name / "config.json").write_text(json.dumps({**config, "vocab_size": len(tokenizer)}))
    return folder


def options_of(task: str, corpus: Path, network: str = "bart") -> list[str]:
    """Those of finetune.py for 8 steps."""
    named = {
        **{"--task": task, "--data_dir": corpus / TASKS[task], "--config_path": corpus / network / "config.json"},
        **{"--model_name_or_path": "scratch", "--tokenizer": corpus / network / "tokenizer", "--num_workers": 0},
        **{"--gpus": 0, "--train_batch_size": 5, "--max_steps": 8, "--learning_rate": 1e-2},
        **{"--max_source_length": 96, "--log_every_n_steps": 1, "--val_check_interval": 20},
    }
    return ["--do_train", *(str(word) for pair in named.items() for word in pair)]


@pytest.fixture
def train(corpus: Path, tmp_path: Path) -> Run:
    """Trains a task, and gives the run's directory."""

    def run(name: str, task: str, *options: object, network: str = "bart") -> Path:
        finetune.main([*options_of(task, corpus, network), *map(str, options), "--output_dir", str(tmp_path / name)])
        return tmp_path / name

    return run


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("network", ["bart", "bert"])
@pytest.mark.parametrize("task", TASKS)
def test_a_step_waits_for_no_gpu(task: str, network: str, corpus: Path, tmp_path: Path) -> None:
    options = [*options_of(task, corpus, network), *WEIGHTED.get(task, ()), "--output_dir", tmp_path / "run"]
    assert waits_in_a_step(options) == [{}]


def scores_of(folder: Path, split: str = "test") -> dict[str, Any]:
    return json.loads((folder / f"{split}_scores.json").read_text())


def articles_of(folder: Path, split: str = "test") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{split}_articles.jsonl").open()]


def check_groups(task: str, scores: dict[str, Any], articles: list[dict[str, Any]]) -> None:
    """Scores of groups, confusions and errors are those of the articles."""
    groups = next(iter(scores.get("groups", {}).values()), {})
    sides = [[article[name] for article in articles] for name in ("reference", "prediction")]
    if task == "classification":
        assert {name: row["support"] for name, row in groups.items()} == {n: sides[0].count(n) for n in groups}
    elif task == "tagging":
        tags = [[line.split() for line in side] for side in sides]
        report = classification_report(*tags, output_dict=True, zero_division=0)
        assert {name: row["support"] for name, row in groups.items()} == {
            name: report[name]["support"] for name in groups
        }
        kinds = [[tag.removeprefix("B-").removeprefix("I-") for row in side for tag in row] for side in tags]
        names = ["O", *groups]
        table = [[scores["confusion"][row].get(column, 0) for column in names] for row in names]
        assert table == confusion_matrix(*kinds, labels=names).tolist()
        assert all(len(article["scores"]) == len(article["words"]) for article in articles)
    confidences = [error["confidence"] for error in scores["errors"]]
    assert confidences == sorted(confidences, reverse=True) and len(confidences) > 0
    surest = max(articles, key=lambda article: article["confident_error"])
    assert surest["confident_error"] == confidences[0]


@pytest.mark.parametrize("network", [pytest.param("bart", marks=pytest.mark.slow), "bert"])
@pytest.mark.parametrize("task", TASKS)
def test_a_run_goes_on_where_it_was_ended_and_is_scored(
    task: str, network: str, train: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted run ends as the uninterrupted one, bit for bit; run_eval.py gives its scores again."""
    train = partial(train, network=network)
    options = () if task != "question_answering" else ("--max_query_length", 20)
    whole = train("whole", task, *options)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        add_callback(patch, Interrupt("asked", 5, in_validation=False))
        train("parts", task, *options)
    parts = train("parts", task, *options, "--resume_from_checkpoint", "last", "--do_predict")
    assert same(weights(parts), weights(whole))
    assert [row["train_loss"] for row in rows(parts)] == [row["train_loss"] for row in rows(whole)]
    places = (parts / "export", corpus / network / "config.json", corpus / TASKS[task], tmp_path / "again")
    given = [*map(str, places), "--task", task, "--bs", "3"]
    run_eval.main(given)  # the model knows the lengths
    run_eval.main([*given, "--type_path", "train"])
    assert len(articles_of(tmp_path / "again", "train")) == 40
    scores, again = scores_of(parts), scores_of(tmp_path / "again")
    for name, value in scores.items():
        assert name == "model" or again[name] == (pytest.approx(value) if isinstance(value, float) else value)
    assert scores["precision"] == "fp32"  # no figure takes the name of a setting
    articles = articles_of(parts)
    assert len(articles) == scores["examples"] == 8
    said = (parts / "test_generations.txt").read_text().splitlines()
    assert said == [article["prediction"] for article in articles]
    assert all(article["prediction"] in article["source"] for article in articles) or task != "question_answering"
    check_groups(task, scores, articles)


@pytest.mark.parametrize(
    ("task", "network"),
    [
        ("tagging", "bert"),
        pytest.param("classification", "bart", marks=pytest.mark.slow),
        pytest.param("question_answering", "bart", marks=pytest.mark.slow),
    ],
)
def test_adapters_on_a_model_of_bf16(task: str, network: str, train: Run) -> None:
    """They do not freeze the head."""
    train = partial(train, network=network)
    options = () if task != "question_answering" else ("--max_query_length", 20)
    base = train("base", task, *options, "--bf16")
    start = ("--model_name_or_path", base, "--tokenizer", base / "export", "--config_path", base / "export/config.json")
    adapted = train("adapted", task, *options, *start, "--lora_rank", 2)
    assert any(".lora_A." in name for name in weights(adapted))
    head = next(name for name in weights(adapted) if name.startswith(("model.class", "model.qa_outputs")))
    assert not same(weights(adapted)[head], weights(base)[head])


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.usefixtures("double")
def test_two_processes_train_and_score_as_one(task: str, train: Run, corpus: Path, tmp_path: Path) -> None:
    options = ["--dropout", 0, "--attention_dropout", 0, "--n_val", 5, "--eval_batch_size", 1, "--do_predict"]
    options += ["--learning_rate", 1e-3, "--val_check_interval", 12, *WEIGHTED.get(task, ()), "--train_batch_size"]
    one, two = train("one", task, *options, 6), tmp_path / "two"
    forked.run([*options_of(task, corpus), *options, 3], two, ranks=2, before=compute_in_double)
    assert_trained_alike(one, two)
    assert articles_of(one) == articles_of(two)
    assert {**scores_of(one), "model": ""} == {**scores_of(two), "model": ""}


@pytest.mark.parametrize(
    ("task", "texts_of"),
    [
        ("classification", lambda read: [text for each in read for text in each.texts]),
        ("tagging", lambda read: [" ".join(sentence.words) for sentence in read]),
        ("question_answering", lambda read: [question.context for question in read]),
    ],
)
def test_one_table_is_split_by_its_texts_alone(task: str, texts_of: Callable[[Any], list[str]], tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(200)] * 2
    rows = [
        {"id": number, "text": text, "words": text.split(), "context": text, "question": f"what {number}?"}
        for number, text in enumerate(texts)
    ]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kind = find_task(task)
    reader = kind(Place(str(tmp_path / "all.jsonl")), evaluation=kind.EvalOptions(predict=True))
    found: list[str] = []
    for split in SPLITS:
        own = texts_of(reader.read(split))
        assert not set(own) & set(found)
        found += own
        if task != "tagging":
            assert {split_of(text, [0.9, 0.05, 0.05], 42) for text in own} == {split}
    assert sorted(found) == sorted(texts)


def test_other_labels_need_a_new_head(train: Run, corpus: Path) -> None:
    base = train("base", "classification")
    rest = corpus / "two"
    rest.mkdir()
    for split in ("train", "val", "test"):
        (rest / f"{split}.csv").write_text("text,label\n" + "a text,yes\nanother,no\n" * 5)
    start = ("--model_name_or_path", base, "--tokenizer", base / "export", "--config_path", base / "export/config.json")
    with pytest.raises(InputError, match=r"labels, and 2 are asked for \(no, yes\)"):
        train("two", "classification", *start, "--data_dir", rest)
    two = train("two", "classification", *start, "--data_dir", rest, "--new_head")
    assert BartForSequenceClassification.from_pretrained(two).config.labels == ["no", "yes"]


def test_a_model_knows_that_questions_may_have_no_answer(
    train: Run, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scoring and prediction know it from training; another run on the weights does not."""
    train = partial(train, network="bert")
    windows = ("--max_query_length", 20)
    known = train("known", "question_answering", *windows, "--version_2_with_negative", "--max_steps", 1)
    start = ("--model_name_or_path", known, "--tokenizer", known / "export", *windows)
    other = train("other", "question_answering", *start, "--max_steps", 1)
    config, data = corpus / "bert" / "config.json", corpus / "questions"
    never = ("--null_score_diff_threshold", -1000)

    def evaluate(model: Path, out: str, *options: object) -> list[str]:
        places = (model / "export", config, data, tmp_path / out)
        run_eval.main([*map(str, places), "--task", "question_answering", *map(str, (*never, *options))])
        return [article["prediction"] for article in articles_of(tmp_path / out)]

    assert evaluate(known, "scored") == [""] * 8
    scored = train("alone", "question_answering", *start, *never, "--no_do_train", "--do_predict")
    assert [article["prediction"] for article in articles_of(scored)] == [""] * 8
    predict([str(known), str(data / "test.jsonl"), *map(str, never), "--json"])
    assert [json.loads(line)["prediction"] for line in capsys.readouterr().out.splitlines()[-8:]] == [""] * 8
    for model, options in ((known, ["--no_version_2_with_negative"]), (other, []), (other, [])):
        with pytest.raises(InputError, match="-1000 needs --version_2_with_negative"):
            evaluate(model, "refused", *options)
        (model / "export" / "config.json").unlink(missing_ok=True)  # the weights alone, in the end
    assert scores_of(scored)["windows"] == scores_of(tmp_path / "scored")["windows"]


@pytest.mark.parametrize(
    ("label", "figures"),
    [
        (lambda number: number % 3 + 0.5, {"pearson", "spearman"}),
        (lambda number: ["red", "blue"][: number % 3], {"f1", "macro_f1", "accuracy"}),
        (lambda number: f"class\n{number % 2}", {"accuracy", "f1", "matthews"}),
    ],
    ids=["regression", "several labels", "classes of two lines"],
)
def test_kinds_of_labels(
    label: Callable[[int], Any], figures: set[str], train: Run, corpus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "val", "test"):
        lines = [json.dumps({"text": f"text {number}", "kind": label(number), "label": 1.5}) for number in range(12)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    options = ("--data_dir", folder, "--label_field", "kind")
    train("run", "classification", *options, "--max_steps", 4)
    run = train("run", "classification", *options, "--do_predict", "--resume_from_checkpoint", "last")
    assert figures <= scores_of(run).keys()
    assert torch.isfinite(torch.tensor([scores_of(run)[name] for name in figures])).all()
    assert (run / "test_generations.txt").read_text().count("\n") == 12
    run_eval.main([*map(str, (run, run / "export/config.json", folder, tmp_path / "again")), "--type_path", "val"])
    assert [row["reference"] for row in articles_of(tmp_path / "again", "val")] == [
        row["reference"] for row in articles_of(run)
    ]
    [validated, *_] = rows(run, "val_loss")
    assert {f"val_{name}" for name in figures - {"spearman"}} <= validated.keys()


def write(folder: Path, **files: str) -> Path:
    """A data directory with these files, whose names have "__" for "."; those of validation and training are equal."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        for split in ("train", "val") if name.startswith("both") else ("",):
            (folder / name.replace("both", split).replace("__", ".")).write_text(content)
    return folder


TEXTS = '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'
SEVERAL = '{"text": "a", "label": ["x"]}\n{"text": "b", "label": ["y"]}\n'
WORDS = '{"words": ["a", "b"], "tags": ["O", "B-X"]}\n'
ASKED = '{"id": "1", "question": "q?", "context": "an answer", "answers": {"text": ["answer"], "answer_start": [3]}}\n'


@pytest.mark.parametrize(
    ("task", "files", "options", "message"),
    [
        (
            *("classification", {"both__jsonl": SEVERAL, "val__jsonl": SEVERAL.replace('"x"', '"z"')}),
            ("--label_field", "label"),
            r"not seen: 'z' of val \(1 in .*val.jsonl:1\); allowed: x, y$",
        ),
        (
            *("classification", {"train__jsonl": TEXTS, "val__jsonl": SEVERAL}, ()),
            r"val.jsonl:1: the label is \['x'\]; allowed: one label",
        ),
        (*("classification", {"both__jsonl": TEXTS.replace("y", "x")}, ()), "the training labels are x; allowed: two"),
        (
            *("classification", {"both__jsonl": TEXTS}, ("--problem_type", "regression")),
            "train.jsonl:1: the label is 'x'; allowed: a number",
        ),
        ("classification", {"both__jsonl": TEXTS}, ("--mismatched",), "--mismatched is of --task_name mnli"),
        (
            *("tagging", {"both__jsonl": WORDS.replace('"O", ', "")}, ()),
            "train.jsonl:1: 2 words and 1 tags; they must be equally many",
        ),
        (
            *("tagging", {"both__conll": "a X\nb Y\n"}, ("--val_metric", "f1")),
            "--val_metric is 'f1'; allowed.*accuracy, macro",
        ),
        (
            *("question_answering", {"both__jsonl": ASKED}, ("--max_source_length", 100, "--doc_stride", 32)),
            "--max_source_length is 100; beside a question of --max_query_length 64 it has room for 32 tokens;",
        ),
    ],
)
def test_what_is_refused(
    task: str, files: dict[str, str], options: tuple[object, ...], message: str, train: Run, tmp_path: Path
) -> None:
    folder = write(tmp_path / "data", **files)
    with pytest.raises(InputError, match=message):
        train("run", task, "--data_dir", folder, *options)


UNSEEN = {  # in one of the labels of val, and in all of classification's test
    "classification": ("jsonl", TEXTS, TEXTS.replace('"x"', '"z"'), TEXTS.replace('"x"', '"w"').replace('"y"', '"w"')),
    "tagging": (
        "conll",
        *(f"a O\nb {tags[0]}\n\nc {tags[1]}\nd O\n" for tags in (("B-X", "I-X"), ("B-Z", "I-X"), ("B-X", "B-W"))),
    ),
}


@pytest.mark.parametrize("task", UNSEEN)
def test_labels_that_training_has_not_seen(
    task: str, train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found before training in all splits that it will read."""
    kind, *contents = UNSEEN[task]
    folder = write(
        tmp_path / "data", **{f"{split}__{kind}": text for split, text in zip(SPLITS, contents, strict=True)}
    )
    monkeypatch.setattr("utils.recipes.training.train", None)
    with pytest.raises(InputError, match=r"' of val \(1 in all, .*, '.*' of test \([12] in all, .*; allowed: "):
        train("refused", task, "--data_dir", folder, "--do_predict")
    assert {path.name for path in (tmp_path / "refused").glob("*")} <= {"log.txt", ".lock"}  # which go with the process


def test_a_step_without_targets_has_no_loss(train: Run, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", both__conll=f"{'qzxjkv' * 9} B\nsat O\n\nRome B\nis O\n")
    run = train("run", "tagging", "--data_dir", folder, "--max_source_length", 8, "--train_batch_size", 1)
    losses = sorted(row["train_loss"] for row in rows(run))
    assert losses[:4] == [0] * 4 and losses[4] > 0


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("classification", ("--decoder_layerdrop", 0.1), "--decoder_layerdrop is 0.1; bert has no such dropout"),
        ("tagging", (*BASE, "--new_vocabulary"), "--new_vocabulary takes a model of bart"),
        ("tagging", (*BASE, *FEWER, "--do_decoder"), "--do_decoder is given; bert has no decoder"),
    ],
)
def test_what_bert_has_not(task: str, options: tuple[object, ...], message: str, train: Run, corpus: Path) -> None:
    if "BASE" in options:
        base = train("base", "tagging", "--max_steps", 1, network="bert")
        options = tuple(base if word == "BASE" else word for word in options)
    given = ("--task", task, "--data_dir", corpus / TASKS.get(task, "topics"))
    with pytest.raises(InputError, match=message):
        train("run", "classification", *given, *options, network="bert")


def test_a_task_that_does_not_fit_the_model(train: Run, corpus: Path, tmp_path: Path) -> None:
    """By the class that config.json names, or by the weights."""
    export = train("base", "classification") / "export"
    for message in (
        "--task is tagging; .*export is a BartForSequenceClassification; allowed: classification$",
        "no weights of a Bart.*classifier; its head is classification_head",
    ):
        given = (export, corpus / "bart" / "config.json", corpus / "tags", tmp_path / "out")
        with pytest.raises(InputError, match=message):
            run_eval.main([*map(str, given), "--task", "tagging"])
        config = json.loads((export / "config.json").read_text())
        (export / "config.json").write_text(json.dumps({**config, "architectures": None}))
    alone = ("--do_predict", "--no_do_train", "--model_name_or_path", export, "--tokenizer", export)
    with pytest.raises(InputError, match=r"no weights of a Bart.*its head is classification_head"):
        train("alone", "question_answering", *alone)
