"""Weights of labels and smoothed labels, against torch and scikit-learn."""

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
    """Trains a tiny BERT without dropout, in steps of two batches.

    They have four of six examples, whose weights have another sum than their number. It validates on all.
    """
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
        given |= {"gradient_accumulation_steps": 2, "dropout": 0, "attention_dropout": 0, "classifier_dropout": 0}
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
STEPS = [
    ("single", 0.2, balanced(LABELS["single"])),
    ("single", 0.2, None),
    ("tagging", 0.2, balanced(TAGS)),
    ("several", 0.0, of_each_label()),
]


@pytest.mark.parametrize(("kind", "smoothing", "weight"), STEPS)
def test_the_loss_of_a_step_is_torchs_over_all_its_batches(
    kind: str, smoothing: float, weight: Tensor | None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of validation has neither weights nor smoothing."""
    expected: list[Tensor] = []
    take_step = TrainingModule.training_step

    def loss_of(module: TrainingModule, inputs: list[Any], weight: Tensor | None, smoothing: float) -> Tensor:
        outputs = [module.task.logits_of(module.model, each) for each in inputs]
        logits = torch.cat([each.flatten(0, -2) for each in outputs])
        if kind == "several":
            labels = torch.cat([each["labels"] for each in inputs])
            return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=weight)
        right = torch.cat([each["labels"].flatten() for each in inputs])
        return F.cross_entropy(logits, right, weight, label_smoothing=smoothing)

    def step(module: TrainingModule, batches: list[Any], number: int) -> Tensor:
        assert len(batches) == 2
        expected.append(loss_of(module, [batch.inputs for batch in batches], weight, smoothing))
        val = module.trainer.datamodule.val
        every = module.task.collate([val[number] for number in range(len(val))], module.loaded.tokenizer)
        expected.append(loss_of(module, [every], None, 0.0))
        return take_step(module, batches, number)

    monkeypatch.setattr(TrainingModule, "training_step", step)
    options = () if weight is None else ("--class_weights", "balanced")
    output = run("run", kind, "--label_smoothing", smoothing, *options, "--learning_rate", 1e-9)
    assert rows(output)[0]["train_loss"] == pytest.approx(expected[0].item(), rel=1e-5)
    assert rows(output, "val_loss")[0]["val_loss"] == pytest.approx(expected[1].item(), rel=1e-5)
    assert abs(expected[0] - expected[1]) > 1e-3
    if weight is not None:
        stored = json.loads((output / "export/config.json").read_text())["class_weights"]
        assert list(stored.values()) == pytest.approx(weight.tolist()) and list(stored) == ["x", "y", "z"]
        shown = ", ".join(f"{name} {value:.4g}" for name, value in stored.items())
        assert f"| class_weights | {shown} |" in (output / "export/README.md").read_text()


def test_a_run_of_a_version_with_fewer_options_goes_on(run: Run) -> None:
    """Those that its record lacks count as their defaults, and the best checkpoints stay those."""
    constant = ("--gradient_accumulation_steps", 3, "--lr_scheduler", "constant", "--save_top_k", 3, "--max_steps")
    whole = run("whole", "single", *constant, 3)
    file = run("parts", "single", *constant, 2) / "last.ckpt"
    checkpoint = torch.load(file)
    del (
        checkpoint["identity"]["label_smoothing"],
        checkpoint["callbacks"]["Session"]["BestCheckpoints"]["conditions"]["n_val"],
    )
    torch.save(checkpoint, file)
    resume = ("--resume_from_checkpoint", "last", *constant, 3)
    with pytest.raises(InputError, match=r"its label_smoothing is 0.0, this run's is 0.1"):
        run("parts", "single", *resume, "--label_smoothing", 0.1)
    assert same(weights(run("parts", "single", *resume)), weights(whole))
    kept = torch.load(file)["callbacks"]["Session"]["BestCheckpoints"]["kept"]
    assert len(kept) == 3 and kept == torch.load(whole / "last.ckpt")["callbacks"]["Session"]["BestCheckpoints"]["kept"]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("numbers", ("--class_weights", "balanced"), "^--class_weights is 'balanced'; the labels are numbers, which"),
        ("numbers", ("--label_smoothing", 0.1), "^--label_smoothing is 0.1; allowed with one class for each text$"),
    ],
)
def test_what_is_refused(kind: str, options: tuple[object, ...], message: str, run: Run) -> None:
    with pytest.raises(InputError, match=message):
        run("run", kind, *options)


def test_a_file_of_weights_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("run", "single", "--class_weights", "weights.json")
    assert "'weights.json' is not allowed: it takes one of balanced" in capsys.readouterr().err
