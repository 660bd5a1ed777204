"""What shows how a run goes on, and what ends it."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor

import finetune
from tests import forked
from tests.tiny_run import Train, checkpoint_of, order_of, rows
from utils.app.cli import run_main
from utils.app.errors import RunError
from utils.tasks.summarization import Summarization
from utils.training import stopping
from utils.training import trainer as trainer_module
from utils.training.module import TrainingModule
from utils.training.precision import LossScaler

POISONED = 7  # the number of an example


def poison(value: float) -> None:
    """Give one example a loss that is not finite."""
    train, loss = TrainingModule.training_step, Summarization.loss
    coming: list[bool] = []

    def training_step(self: TrainingModule, step: list[Any], number: int) -> Tensor:
        coming[:] = [POISONED in batch.index for batch in step]
        return train(self, step, number)

    def spoilt(self: Summarization, *arguments: Any) -> Tensor:
        return loss(self, *arguments) + (value if coming.pop(0) else 0)

    TrainingModule.training_step, Summarization.loss = training_step, spoilt


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    for owner, name in ((TrainingModule, "training_step"), (Summarization, "loss")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that it is restored
    return poison


@pytest.fixture
def options(tiny: list[str]) -> list[str]:
    """12 micro-batches, 6 an epoch, at a rate that falls linearly from 1e-3 to 0."""
    tiny += ["--max_epochs", "2", "--learning_rate", "1e-3"]
    return tiny


def bad_step(options: list[str]) -> tuple[int, list[int]]:
    """The step, from 0, that takes the poisoned example, and the examples of its micro-batch, counted from 1."""
    for number, step in enumerate(order_of(options)[1].steps(0)):
        for batch in step:
            if POISONED in batch:
                return number, sorted(index + 1 for index in batch)
    raise AssertionError("no such example")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_loss_that_is_not_finite_ends_the_run_in_one_line(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    poisoned: Callable[[float], None],
    value: float,
    accumulation: int,
) -> None:
    """The line names the step's own learning rate, and the examples of the micro-batch whose loss it is."""
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's would keep the run's log from its file
    options += ["--gradient_accumulation_steps", str(accumulation), "--output_dir", str(tmp_path / "run")]
    step, lines = bad_step(options)
    poisoned(value)
    monkeypatch.setattr(sys, "argv", ["finetune.py", *options])
    with pytest.raises(SystemExit) as stop:
        run_main(finetune.main)
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    message = (
        f"the training loss is {value} at step {step + 1}, with learning rate "
        f"{1e-3 * (1 - step / (12 // accumulation)):.4g}; "
        "examples in its batch, counted from 1 in the order of the files, among the examples in use: "
        f"{', '.join(map(str, lines))}"
    )
    assert error.splitlines()[-1] == f"finetune.py: error: {message}"
    assert message in (tmp_path / "run" / "log.txt").read_text()
    assert not list((tmp_path / "run").glob("*.ckpt"))
    assert not (tmp_path / "run" / "export").exists()


def add_callback(monkeypatch: pytest.MonkeyPatch, callback: pl.Callback) -> None:
    """Let runs have one more callback, before the session."""
    build = trainer_module.build_trainer

    def with_callback(*arguments: Any) -> pl.Trainer:
        trainer = build(*arguments)
        trainer.callbacks.insert(0, callback)
        return trainer

    monkeypatch.setattr(trainer_module, "build_trainer", with_callback)


@pytest.mark.parametrize("options_of_it", [("--val_check_interval", 4), ("--save_every_n_steps", 1)])
def test_no_checkpoint_of_a_ruined_model_is_written(
    options_of_it: tuple[object, ...],
    options: list[str],
    train: Train,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    poisoned: Callable[[float], None],
) -> None:
    """Nor is it validated, where a validation or a checkpoint follows the step whose loss is not finite."""
    caplog.set_level(logging.INFO)
    step, _ = bad_step(options)
    assert step > 0
    poisoned(math.nan)
    with pytest.raises(RunError, match=f"at step {step + 1},"):
        train("run", *options_of_it)
    validated = [int(record.message.split()[1]) for record in caplog.records if record.message.startswith("val ")]
    assert validated == ([] if "--save_every_n_steps" in options_of_it else list(range(1, step + 1)))
    written = [checkpoint_of(path.parent, path.name) for path in (tmp_path / "run").glob("*.ckpt")]
    assert max(checkpoint["global_step"] for checkpoint in written) == step
    assert all(tensor.isfinite().all() for checkpoint in written for tensor in checkpoint["state_dict"].values())


def test_a_gradient_that_is_not_finite_ends_the_run(
    options: list[str], train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a loss scaler nothing skips it; all the step's examples are named, since any may have caused it."""
    options += ["--gradient_accumulation_steps", "2"]
    lines = sorted(index + 1 for batch in list(order_of(options)[1].steps(0))[1] for index in batch)
    overflow_at(monkeypatch, {1})
    with pytest.raises(
        RunError, match=f"gradient norm is inf at step 2, .* batch, .* in use: {', '.join(map(str, lines))}$"
    ):
        train("run")
    assert not list((tmp_path / "run").glob("*.ckpt"))


def overflow_at(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> list[Tensor]:
    """Gradients that overflow at some steps, from 0; gives a list that will hold a weight before every step."""
    tables: list[Tensor] = []

    def overflowing(self: TrainingModule) -> None:
        tables.append(self.model.model.shared.weight.detach().clone())
        if self.trainer.global_step in steps:
            self.model.model.shared.weight.grad[5, 3] = math.inf

    monkeypatch.setattr(TrainingModule, "on_after_backward", overflowing)
    return tables


def test_all_processes_stop_and_name_the_examples_of_the_one_that_failed(options: list[str], tmp_path: Path) -> None:
    _, whole = bad_step(options)
    options += ["--train_batch_size", "2"]
    statuses = forked.finish(forked.start(options, tmp_path / "run", ranks=2, before=partial(poison, math.nan)))
    assert statuses == [1, 1]
    for rank in range(2):
        log = forked.log_of(tmp_path / "run", rank).read_text()
        assert "Traceback" not in log
        assert "the training loss is nan" in log
        named = [int(word) for word in log.strip().rpartition("in use: ")[2].split(", ")]
        assert POISONED + 1 in named
        assert len(named) == len(whole) // 2
        assert set(named) < set(whole)
    assert not list((tmp_path / "run").glob("*.ckpt"))


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """fp16 with a loss scaler, which Lightning refuses on CPUs."""

    def half(hardware: object) -> list[MixedPrecision]:
        return [MixedPrecision("16-mixed", "cpu", LossScaler("cpu", init_scale=1024.0))]

    monkeypatch.setattr(trainer_module, "precision_plugins", half)


@pytest.mark.usefixtures("scaled")
def test_skipped_steps_are_counted_and_the_scaler_is_resumed(
    options: list[str], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = overflow_at(monkeypatch, {2, 3, 5, 7})
    output = train("run", "--max_steps", 6)
    assert [row["skipped_steps"] for row in rows(output)] == [0, 0, 1, 2, 2, 3]
    assert [row["loss_scale"] for row in rows(output)] == [1024, 1024, 512, 256, 256, 128]
    assert [not torch.equal(before, after) for before, after in pairwise(tables)] == [True, True, False, False, True]
    assert checkpoint_of(output)["MixedPrecision"]["scale"] == 128
    train("run", "--max_steps", 9, "--resume_from_checkpoint", "last")
    assert [row["skipped_steps"] for row in rows(output)[6:]] == [3, 4, 4]
    assert [row["loss_scale"] for row in rows(output)[6:]] == [128, 64, 64]
    assert json.loads((output / "train_summary.json").read_text())["skipped_steps"] == 4


@pytest.mark.usefixtures("scaled")
def test_a_run_whose_steps_are_all_skipped_ends(
    options: list[str], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that goes well starts the count again."""
    monkeypatch.setattr(stopping, "MAX_SKIPPED_IN_A_ROW", 4)
    overflow_at(monkeypatch, {1, 2, 3, 5, 6, 7, 8})
    message = "4 steps in a row, up to step 9, were skipped .*; try --bf16, or a --learning_rate lower"
    with pytest.raises(RunError, match=message):
        train("run")
