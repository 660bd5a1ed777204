"""A task that stands in one file of its own, and what `--task` takes."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

import finetune
from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import CONFIG, rows
from utils.data.batches import Pair
from utils.data.options import Place
from utils.predict import main as predict
from utils.prediction.options import InferenceOptions, LongDocumentOptions
from utils.serving.app import create_app
from utils.serving.arguments import ServeArguments
from utils.serving.predictions import PredictionService
from utils.tasks import find_task

REVERSING = Path(__file__).with_name("reversing.py")


@pytest.mark.usefixtures("no_pictures")
def test_a_task_in_one_short_file_is_trained_scored_carded_predicts_and_is_served(tmp_path: Path) -> None:
    """All words of two and three letters of four, by a network of two small layers, which learns to reverse some."""
    assert len(REVERSING.read_text().splitlines()) <= 60
    words = ["".join(letters) for length in (2, 3) for letters in itertools.product("abcd", repeat=length)]
    random.Random(0).shuffle(words)
    for split, part in (("train", words[:60]), ("val", words[60:70]), ("test", words[70:])):
        (tmp_path / f"{split}.txt").write_text("\n".join(part))
    tokenizer = BartTokenizer.train(["abcd"], vocab_size=261)  # no more than single letters
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": len(tokenizer)}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **sizes, "dropout": 0.0}))
    run = tmp_path / "run"
    named = {
        **{"--task": REVERSING, "--data_dir": tmp_path, "--config_path": tmp_path / "config.json", "--gpus": 0},
        **{"--model_name_or_path": "scratch", "--tokenizer": tmp_path / "tokenizer", "--num_workers": 0},
        **dict.fromkeys((f"--{name}_length" for name in ("max_source", "max_target", "val_max_target")), 10),
        **{"--test_max_target_length": 10, "--eval_beams": 1, "--eval_max_gen_length": 8, "--eval_batch_size": 20},
        **{"--train_batch_size": 20, "--max_epochs": 60, "--val_check_interval": 600, "--learning_rate": 1e-2},
        **{"--output_dir": run},
    }
    finetune.main(["--do_train", "--do_predict", *(str(word) for pair in named.items() for word in pair)])
    accuracies = [row["val_accuracy"] for row in rows(run, "val_accuracy")]
    assert len(accuracies) == 6 and accuracies[-1] > accuracies[0]
    summary = json.loads((run / "train_summary.json").read_text())
    assert summary["val_accuracy"] == max(accuracies)  # by which the best checkpoint is chosen

    scores = json.loads((run / "test_scores.json").read_text())
    articles = [json.loads(line) for line in (run / "test_articles.jsonl").read_text().splitlines()]
    assert [article["reference"] for article in articles] == [article["source"][::-1] for article in articles]
    right = [article["summary"] == article["reference"] for article in articles]
    assert [article["accuracy"] for article in articles] == right
    assert scores["accuracy"] == sum(right) / len(right) > 0
    assert (scores["examples"], scores["task"]) == (10, str(REVERSING))
    card = (run / "export/README.md").read_text()
    assert "pipeline_tag: text2text-generation" in card and "nats per letter" in card

    given = ["--task", str(REVERSING), "--gpus", "0", "--eval_max_gen_length", "8"]
    (tmp_path / "words.csv").write_text("text,number\n" + "".join(f"{article['source']},1\n" for article in articles))
    predict([str(run), str(tmp_path / "words.csv"), *given, "--output", str(tmp_path / "out.csv")])
    predicted = [line.split(",") for line in (tmp_path / "out.csv").read_text().splitlines()]
    expected = [[article["source"], "1", article["summary"]] for article in articles]
    assert predicted == [["text", "number", "prediction"], *expected]

    inference, documents = InferenceOptions(model=str(run), gpus=0), LongDocumentOptions(max_source_length=10)
    args = ServeArguments(inference=inference, documents=documents, task=str(REVERSING))
    with TestClient(create_app(PredictionService(args)), base_url="http://localhost") as client:
        answer = client.post("/reverse", json={"inputs": [{"text": article["source"]} for article in articles]})
        assert [row["summary"] for row in answer.json()["predictions"]] == [article["summary"] for article in articles]


def test_a_task_of_ones_own_gets_padded_batches_unless_it_says_otherwise(tmp_path: Path) -> None:
    text = "from utils.tasks.summarization import Summarization\nclass Own(Summarization):\n    name = 'own'\n"
    pairs = [Pair(np.array([5, 2]), np.array([6, 2]))]
    for name, line in (("padded", ""), ("rows", "    as_rows = Summarization.as_rows\n")):
        file = tmp_path / f"{name}.py"
        file.write_text(text + line)
        task = find_task(str(file))(Place(str(tmp_path)))
        batch = task.collate_rows(pairs, BartTokenizer.train(["a"], 300), 1)
        assert ("attention_mask" in batch) == (name == "padded")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "two.py",
            "from utils.tasks.translation import Translation as T\nclass A(T): pass\nclass B(T): pass\n",
            "which defines 2 tasks; allowed: a file that defines one",
        ),
        (  # better now than after hours of training
            "without_score.py",
            "from utils.tasks.summarization import Summarization as S\nfrom utils.tasks.task import Task\n"
            "class A(S):\n    score = Task.score\n",
            "which defines 0 tasks",
        ),
    ],
)
def test_what_is_no_task(
    name: str, content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        find_task(name)
