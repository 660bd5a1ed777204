"""Weights of labels and smoothed labels, against torch and scikit-learn; several labels in a cell of CSV."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

import finetune
from bart.errors import InputError
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.tiny_run import OF_BERT, rows, same, weights
from utils.data.options import Place
from utils.tasks.classification import Classification
from utils.tasks.head import logits_of
from utils.tasks.options import ClassificationOptions
from utils.training.module import TrainingModule

pytestmark = pytest.mark.usefixtures("no_pictures", "one_thread")

TEXTS = ["a good film", "a bad film", "good and fine", "bad and dull", "a dull film", "fine"]
LABELS = {
    "single": ["x", "x", "x", "y", "y", "z"],
    "several": [["x"], ["x", "y"], ["x", "x"], [], ["y", "z"], ["x"]],
    "numbers": [0.5, 1.5, 2.0, 0.25, 1.0, 3.0],
}
Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains a tiny BERT without dropout on six examples, in steps of three batches; validates on the same ones."""
    tokenizer = BertTokenizer.train(TEXTS * 3, 60)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "config.json").write_text(json.dumps({**OF_BERT, "vocab_size": len(tokenizer)}))

    def train(name: str, kind: str, *options: object) -> Path:
        is_tagging = kind == "tagging"
        labels = LABELS["single"] if is_tagging else LABELS[kind]
        (tmp_path / kind).mkdir(exist_ok=True)
        for split in ("train", "val", "test"):
            with (tmp_path / kind / f"{split}.jsonl").open("w") as file:
                for text, label in zip(TEXTS, labels, strict=True):
                    tags = [label, *["x"] * (len(text.split()) - 1)]
                    row = {"words": text.split(), "tags": tags} if is_tagging else {"text": text, "label": label}
                    file.write(json.dumps(row) + "\n")
        given = {"task": "tagging" if is_tagging else "classification", "data_dir": tmp_path / kind}
        given |= {"config_path": tmp_path / "config.json", "tokenizer": tmp_path / "tokenizer", "gpus": 0}
        given |= {"model_name_or_path": "scratch", "num_workers": 0, "train_batch_size": 2, "max_steps": 1}
        given |= {"gradient_accumulation_steps": 3, "dropout": 0, "attention_dropout": 0, "classifier_dropout": 0}
        given |= {"log_every_n_steps": 1, "output_dir": tmp_path / name}
        words = [word for key, value in given.items() for word in (f"--{key}", value)]
        finetune.main(["--do_train", *map(str, [*words, *options])])
        return tmp_path / name

    return train


def balanced(labels: list[Any]) -> Tensor:
    return torch.tensor(compute_class_weight("balanced", classes=np.unique(labels), y=labels), dtype=torch.float32)


def of_each_label() -> Tensor:
    """scikit-learn's weights of the examples with a label and of those without it, as their ratio."""
    without, with_it = zip(*(balanced([label in each for each in LABELS["several"]]) for label in "xyz"), strict=True)
    return torch.stack(with_it) / torch.stack(without)


TAGS = ["y", "y", "z"] + ["x"] * (sum(len(text.split()) for text in TEXTS) - 3)
# The balanced weights of all examples have a sum that is their number; other weights show what is divided by.
WRITTEN = torch.tensor([1.0, 2.5, 4.0])
STEPS = [
    ("single", 0.0, "balanced", balanced(LABELS["single"])),
    ("single", 0.2, WRITTEN, WRITTEN),
    ("single", 0.2, None, None),
    ("tagging", 0.0, "balanced", balanced(TAGS)),
    ("tagging", 0.2, WRITTEN, WRITTEN),
    ("several", 0.0, "balanced", of_each_label()),
    ("several", 0.0, WRITTEN, WRITTEN),
]


@pytest.mark.parametrize(("kind", "smoothing", "given", "weight"), STEPS)
def test_the_loss_of_a_step_is_torchs_over_all_its_batches(
    kind: str,
    smoothing: float,
    given: Tensor | str | None,
    weight: Tensor | None,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of validation has neither weights nor smoothing."""
    expected: list[Tensor] = []
    take_step = TrainingModule.training_step

    def step(module: TrainingModule, batches: list[Any], number: int) -> Tensor:
        assert len(batches) == 3
        outputs = [logits_of(module.task.output_of(module.model, batch.inputs)) for batch in batches]
        logits = torch.cat([each.flatten(0, -2) for each in outputs])
        labels = [batch.inputs["labels"] for batch in batches]
        if kind == "several":
            for weights in (weight, None):
                expected.append(F.binary_cross_entropy_with_logits(logits, torch.cat(labels), pos_weight=weights))
        else:
            right = torch.cat([each.flatten() for each in labels])
            expected.append(F.cross_entropy(logits, right, weight, label_smoothing=smoothing))
            expected.append(F.cross_entropy(logits, right))
        return take_step(module, batches, number)

    monkeypatch.setattr(TrainingModule, "training_step", step)
    if isinstance(given, Tensor):
        (tmp_path / "weights").write_text("".join(map("{}\t{}\n".format, "xyz", given.tolist())))
        given = str(tmp_path / "weights")
    options = () if given is None else ("--class_weights", given)
    output = run("run", kind, "--label_smoothing", smoothing, *options, "--learning_rate", 1e-9)
    assert rows(output)[0]["train_loss"] == pytest.approx(expected[0].item(), rel=1e-5)
    assert rows(output, "val_loss")[0]["val_loss"] == pytest.approx(expected[1].item(), rel=1e-5)
    assert abs(expected[0] - expected[1]) > 1e-3
    if weight is not None:
        stored = json.loads((output / "export/config.json").read_text())["class_weights"]
        assert list(stored.values()) == pytest.approx(weight.tolist()) and list(stored) == ["x", "y", "z"]


@pytest.mark.parametrize("kind", ["single", "tagging"])
def test_a_run_of_a_version_with_fewer_options_goes_on(kind: str, run: Run) -> None:
    """Those that its record lacks count as their defaults, and the best checkpoints stay those."""
    constant = ("--lr_scheduler", "constant", "--save_top_k", 3, "--max_steps")
    whole = run("whole", kind, *constant, 3)
    file = run("parts", kind, *constant, 2) / "last.ckpt"
    checkpoint = torch.load(file)
    del checkpoint["identity"]["label_smoothing"], checkpoint["callbacks"]["BestCheckpoints"]["conditions"]["n_val"]
    torch.save(checkpoint, file)
    resume = ("--resume_from_checkpoint", "last", *constant, 3)
    with pytest.raises(InputError, match=r"its label_smoothing is 0.0, this run's is 0.1"):
        run("parts", kind, *resume, "--label_smoothing", 0.1)
    assert same(weights(run("parts", kind, *resume)), weights(whole))
    kept = torch.load(file)["callbacks"]["BestCheckpoints"]["kept"]
    assert len(kept) == 3 and kept == torch.load(whole / "last.ckpt")["callbacks"]["BestCheckpoints"]["kept"]


def test_weights_of_a_file_are_kept_and_named(run: Run, tmp_path: Path) -> None:
    """A run goes on with the same weights, however they are written, and with no others."""
    lines, content = tmp_path / "weights.txt", tmp_path / "weights.json"
    lines.write_text("z\t3\n y\t2.50\nx\t1\n")
    content.write_text('{"x": 1.0,\n\n "y": 2.5, "z": 3}\n')
    constant = ("--lr_scheduler", "constant", "--max_steps")
    whole = run("whole", "single", "--class_weights", lines, *constant, 3)
    run("parts", "single", "--class_weights", content, *constant, 2)
    resume = ("--resume_from_checkpoint", "last", *constant, 3)
    content.write_text(content.read_text().replace("2.5", "2"))
    with pytest.raises(InputError, match="other data: its class_weights y is 2.5, this run's is 2.0"):
        run("parts", "single", *resume, "--class_weights", content)
    with pytest.raises(InputError, match="its class_weights is {'x': 1.0, 'y': 2.5, 'z': 3.0}, this run's is None"):
        run("parts", "single", *resume)
    parts = run("parts", "single", *resume, "--class_weights", lines)
    assert [row["train_loss"] for row in rows(parts)] == [row["train_loss"] for row in rows(whole)]
    assert "| class_weights | x 1, y 2.5, z 3 |" in (parts / "export/README.md").read_text()
    again = run(
        "again",
        "single",
        "--model_name_or_path",
        parts,
        "--config_path",
        parts / "export/config.json",
        "--tokenizer",
        parts / "export",
    )
    assert "class_weights" not in json.loads((again / "export/config.json").read_text())


@pytest.mark.parametrize(
    ("kind", "content", "options", "message"),
    [
        (
            "single",
            None,
            (),
            "^--class_weights is 'balance'; allowed: balanced, or a file: a JSON object, or",
        ),
        (
            "single",
            "x\t1\ny\t2\n",
            (),
            "weights: 'z' has no weight; allowed: a JSON object, .* a number above 0 for each label once: x, y, z$",
        ),
        ("single", "x\t1\ny\t0\nz\t1\n", (), "^--class_weights .*weights, line 2: 'y' has the weight '0'; al"),
        ("single", "x\t1\ny 2\nz\t1\n", (), "weights, line 2: 'y 2' has no tab; allowed: a JSON object, or"),
        (
            "single",
            "[1, 2]",
            (),
            "weights, line 1: '.1, 2.' has no tab; allowed: a JSON object, or lines of label",
        ),
        ("single", " \n", (), "weights: 'x' has no weight; allowed: a JSON .* for each label once: x, y, z$"),
        ("single", "x\t1\nx\t2\ny\t1\nz\t1\n", (), "weights, line 2: 'x' again has the weight '2'; allowed"),
        ("single", '{"x": 1, "x": 2, "y": 1, "z": 1}', (), "weights: 'x' again has the weight 2; allowed"),
        ("single", '{"x": 1, "w": 2}', (), "weights: 'w' has the weight 2; allowed"),
        ("single", '{"x": true}', (), "weights: 'x' has the weight True; allowed"),
        ("single", f'{{"x": 1{"0" * 400}}}', (), "weights: 'x' has the weight 10*; allowed"),
        ("single", '{"x": null}', (), "weights: 'x' has the weight None; allowed"),
        ("single", '{"x": 1', (), "^--class_weights .*weights: not valid JSON .*; allowed: a JSON"),
        ("tagging", '{"x": 1, "y": Infinity}', (), "weights: 'y' has the weight inf; allowed"),
        ("numbers", None, (), "^--class_weights is 'balance'; the labels are numbers, which have no classes$"),
        ("numbers", "", ("--label_smoothing", 0.1), "^--label_smoothing is 0.1; allowed with one class for each text$"),
        ("several", "", ("--label_smoothing", 0.1), "^--label_smoothing is 0.1; allowed with one class for each text$"),
    ],
)
def test_what_is_refused(
    kind: str, content: str | None, options: tuple[object, ...], message: str, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "weights"
    file.write_text(content or "")
    given = () if content == "" else ("--class_weights", "balance" if content is None else file)
    with pytest.raises(InputError, match=message):
        run("run", kind, *given, *options)


def test_an_empty_file_of_weights_is_named_with_its_option(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="^--class_weights .*empty: the file is empty; allowed: a JSON object"):
        run("run", "single", "--class_weights", tmp_path / "empty")


def test_labels_of_a_cell_are_those_of_a_list(run: Run, tmp_path: Path) -> None:
    listed = run("listed", "several", "--do_predict", "--class_weights", "balanced")
    cells = [" | ".join(labels) for labels in LABELS["several"]]
    assert "" in cells
    for split in ("train", "val", "test"):
        table = "".join(f"{text},{cell}\n" for text, cell in zip(TEXTS, cells, strict=True))
        (tmp_path / "several" / f"{split}.jsonl").unlink()
        (tmp_path / "cells").mkdir(exist_ok=True)
        (tmp_path / "cells" / f"{split}.csv").write_text(f"text,label\n{table}")
    options = (
        "--data_dir",
        tmp_path / "cells",
        "--label_separator",
        "|",
        "--do_predict",
        "--class_weights",
        "balanced",
    )
    read = run("read", "several", *options)
    assert same(weights(read), weights(listed))
    scores = [json.loads((folder / "test_scores.json").read_text()) for folder in (read, listed)]
    assert scores[0]["loss"] == scores[1]["loss"] and scores[0]["macro_f1"] == scores[1]["macro_f1"]
    assert (read / "test_generations.txt").read_text() == (listed / "test_generations.txt").read_text()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("text,label\na,x||y\n", {}, "train.csv:2: label is .*; allowed: a label that is not blank"),
        ("text,label\na,x|\n", {}, "train.csv:2: label is .*; allowed: a label that is not blank"),
        ('{"text": "a", "label": null}\n', {}, "label is None; allowed: a label that is not blank"),
        ("text,label\na,x\n", {"label_separator": ""}, "^--label_separator is ''; allowed: a text such as |"),
        ("text,label\na,x\n", {"task_name": "sst2"}, "^--label_separator is '|'; allowed: labels that are lists"),
    ],
)
def test_a_cell_that_holds_no_labels(table: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / ("train.csv" if table.startswith("text") else "train.jsonl")).write_text(table)
    with pytest.raises(InputError, match=message):
        Classification(Place(str(tmp_path)), ClassificationOptions(**{"label_separator": "|", **options})).read("train")
