"""What a run measures of itself, on a clock that the test moves."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl

from tests import forked
from tests.tiny_run import Train, checkpoint_of, order_of, rows
from utils.app import progress as progress_module
from utils.evaluation.report.runs import ReportedRun
from utils.evaluation.report.tables import facts_of
from utils.tasks.summarization import Summarization
from utils.training import measurements
from utils.training.module import TrainingModule

LOADING, TRAINING, ELSEWHERE = 1.0, 10.0, 1000.0


def tokens_of_steps(options: list[str], epochs: int) -> list[int]:
    """Source and target tokens of every step, in the order of training."""
    examples, order = order_of(options)
    steps = [step for epoch in range(epochs) for step in order.steps(epoch)]
    return [int(sum(examples.lengths[batch].sum() for batch in step)) for step in steps]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a micro-batch takes 1 s, a step 10 s; validations and checkpoints take 1000 s, and nothing else any."""
    now = 0.0

    def slow(owner: object, name: str, duration: float) -> None:
        original = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            nonlocal now
            now += duration
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    slow(Summarization, "collate", LOADING)
    slow(TrainingModule, "training_step", TRAINING)
    slow(TrainingModule, "validation_step", ELSEWHERE)
    slow(pl.Trainer, "save_checkpoint", ELSEWHERE)
    monkeypatch.setattr(measurements, "stamp", lambda device: now)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("interval", [1, 4])
def test_speed_counts_loading_and_neither_validation_nor_checkpoints(
    train: Train, tiny: list[str], interval: int
) -> None:
    """3 epochs of steps of 8, 8 and 6 examples in two micro-batches each; logged every 4 steps and at the end."""
    tiny += ["--gradient_accumulation_steps", "2", "--max_epochs", "3", "--log_every_n_steps", "4"]
    output = train("run", "--val_check_interval", interval, "--save_every_n_steps", 1)
    logged = rows(output)
    assert [row["step"] + 1 for row in logged] == [4, 8, 9]
    tokens, samples = tokens_of_steps(tiny, 3), [8, 8, 6] * 3
    step = 2 * LOADING + TRAINING
    for row, part in zip(logged, (slice(4), slice(4, 8), slice(8, 9)), strict=True):
        elapsed = step * len(tokens[part])
        assert row["tokens_per_second"] == pytest.approx(sum(tokens[part]) / elapsed)
        assert row["samples_per_second"] == pytest.approx(sum(samples[part]) / elapsed)
        assert {row[f"step_time_p{n}"] for n in (50, 95, 99)} == {step}
        assert 0.05 < row["peak_memory_gb"] < 50
        assert row["grad_norm"] > 0
        assert "loss_scale" not in row
    summary = json.loads((output / "train_summary.json").read_text())
    assert summary["training_seconds"] == 9 * step
    assert summary["tokens_per_second"] == pytest.approx(sum(tokens) / (9 * step))
    assert summary["samples_per_second"] == pytest.approx(66 / (9 * step))
    assert summary["epochs"] == 3


def test_the_time_left_counts_validations_and_a_pipe_sees_them_too(
    train: Train, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps of 10 s, and validations of three batches of 100 s after steps 3 and 6."""
    caplog.set_level(logging.INFO)
    now = [0.0]
    for owner, name, seconds in ((TrainingModule, "training_step", 10), (TrainingModule, "validation_step", 100)):

        def call(*args: object, original: object = getattr(owner, name), seconds: int = seconds) -> object:
            now[0] += seconds
            return original(*args)

        monkeypatch.setattr(owner, name, call)
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    for module in (measurements, progress_module):
        monkeypatch.setattr(module, "time", clock)
    train("run", "--max_steps", 6, "--val_check_interval", 0.5, "--eval_batch_size", 2, "--log_every_n_steps", 1)
    lines = [record.message for record in caplog.records if record.message.startswith("step ")]
    assert [re.sub(r"  (loss|next validation in) .*", "", line) for line in lines] == [
        "step 1/6  0:50 left and 2 validations",
        "step 2/6  0:40 left and 2 validations",
        "step 3/6  0:30 left and 2 validations",
        "step 3/6  8:50 left  validating 1/3",  # 200 s of it, three steps, and the last validation
        "step 3/6  7:10 left  validating 2/3",
        "step 3/6  5:30 left  validating 3/3",
        "step 4/6  5:20 left",
        "step 5/6  5:10 left",
        "step 6/6  5:00 left",
        "step 6/6  3:20 left  validating 1/3",
        "step 6/6  1:40 left  validating 2/3",
        "step 6/6  validating 3/3",
    ]
    how = ", by teacher forcing (--eval_beams 0, the default on a CPU)"
    assert f"validations: 2, each of 5 examples (batches: 3){how}" in caplog.messages
    assert [message[-11:] for message in caplog.messages if message.startswith("val ")] == ["  took 5:00"] * 2


def test_a_run_ends_with_a_summary(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's would keep the run's log from its file
    options = ("--val_check_interval", 0.5, "--learning_rate", 1e-2, "--max_steps")
    output = train("run", *options, 8)
    summary = json.loads((output / "train_summary.json").read_text())
    assert summary["steps"] == summary["steps_since_start"] == 8
    assert summary["train_loss"] == pytest.approx(rows(output)[-1]["train_loss"])
    validations = [(row["val_loss"], row["step"] + 1) for row in rows(output, "val_loss")]
    best, step = min(validations)
    assert summary["val_loss"] == pytest.approx(best)
    assert summary["best_checkpoint"].endswith(f"_step{step:.0f}.ckpt")
    assert (summary["last_val_loss"], summary["steps"]) == pytest.approx(validations[-1])
    assert 0 < summary["training_seconds"] < summary["wall_seconds"]
    *shown, last = (output / "log.txt").read_text().partition("training is done\n")[2].splitlines()
    assert last.endswith(f"report: {output / 'report.html'}")
    assert len({re.match(r" +\S+( \S+)*  +", line).end() for line in shown}) == 1  # columns are aligned
    table = dict(re.split("  +", line.strip(), maxsplit=1) for line in shown)
    assert len(table) == len(summary) + 1
    assert (table["steps"], table["epochs"]) == ("8", "1.33")
    assert re.fullmatch(r"\d:\d\d", table["wall time"]) and re.fullmatch(r"[\d,.]+ tokens/s", table["token rate"])
    assert table["val loss"] == f"{summary['val_loss']:.4f}"
    assert (table["best checkpoint"], table["best model"]) == (summary["best_checkpoint"], str(output / "export"))

    train("run", *options, 12, "--resume_from_checkpoint", "last")
    resumed = json.loads((output / "train_summary.json").read_text())
    assert (resumed["steps"], resumed["steps_since_start"], resumed["epochs"]) == (12, 4, 2)
    train("run", *options, 12, "--resume_from_checkpoint", "last")
    nothing = json.loads((output / "train_summary.json").read_text())
    assert (nothing["steps"], nothing["steps_since_start"]) == (12, 0) and "tokens_per_second" not in nothing
    assert nothing["val_loss"] == resumed["val_loss"]


def test_times_and_rates_are_those_of_all_sessions(train: Train, tiny: list[str]) -> None:
    """Also of one that was killed, as far as its metrics tell, and of one in another directory."""
    output = train("run", "--max_steps", 4)
    first = json.loads((output / "train_summary.json").read_text())
    killed = output / "metrics.csv"
    columns = killed.read_text().splitlines()[0].split(",")
    row = dict.fromkeys(columns, "") | {"step": "4", "wall_seconds": "5000.0"}
    half = "5,0.1"
    killed.write_text(killed.read_text() + ",".join(row.values()) + "\r\n" + half)
    output = train("run", "--max_steps", 8, "--resume_from_checkpoint", "last")
    summary = json.loads((output / "train_summary.json").read_text())
    assert 5000 < summary["wall_seconds"] < 5600
    assert summary["training_seconds"] > first["training_seconds"]
    assert summary["samples_per_second"] * summary["training_seconds"] == pytest.approx(8 * 4 - 2)  # epochs of 22
    tokens = summary["tokens_per_second"] * summary["training_seconds"]
    assert tokens == pytest.approx(sum(tokens_of_steps(tiny, 2)[:8]))
    run = ReportedRun(output)
    assert list(run.metrics["train_loss"]) == list(range(1, 9))
    assert list(run.metrics["wall_seconds"].values()) == sorted(run.metrics["wall_seconds"].values())
    assert facts_of(run, "test")["Training, wall clock"].startswith("1:23:")
    assert facts_of(run, "test")["Sessions"] == "2"
    moved = train("moved", "--max_steps", 12, "--resume_from_checkpoint", output / "last.ckpt")
    assert json.loads((moved / "train_summary.json").read_text())["wall_seconds"] > summary["wall_seconds"]


def test_the_loss_is_the_mean_over_the_interval_also_where_a_run_was_ended_within_it(train: Train) -> None:
    each = [row["train_loss"] for row in rows(train("each", "--max_steps", 8))]
    interval = ("--log_every_n_steps", 4, "--save_every_n_steps", 1, "--max_epochs", 3, "--max_steps")
    output = train("run", *interval, 8)
    assert [row["train_loss"] for row in rows(output)] == pytest.approx([sum(each[:4]) / 4, sum(each[4:]) / 4])
    assert json.loads((output / "train_summary.json").read_text())["train_loss"] == rows(output)[-1]["train_loss"]
    ended = checkpoint_of(output, "previous.ckpt")  # of step 7
    assert ended["callbacks"]["Session"]["Measurements"]["losses"] == pytest.approx(each[4:7])


def test_two_processes_log_what_both_did(tiny: list[str], tmp_path: Path) -> None:
    """Processes have batches of unlike length, so that twice one's tokens are not the sum; stand-ins do not count."""
    output = tmp_path / "run"
    total = sum(tokens_of_steps(tiny, 2))
    # In steps of 12 and 10 examples, in which each process has 6 and 5 micro-batches, and a stand-in.
    cut = ["--train_batch_size", "1", "--gradient_accumulation_steps", "6", "--max_epochs", "2"]
    forked.run([*tiny, *cut], output, ranks=2)
    summary = json.loads((output / "train_summary.json").read_text())
    assert summary["samples_per_second"] * summary["training_seconds"] == pytest.approx(2 * 22)
    assert summary["tokens_per_second"] * summary["training_seconds"] == pytest.approx(total)


def let_one_be_slow() -> None:
    """Let the second process take 0.3 s longer for each step."""
    loss = Summarization.loss

    def slow(self: Summarization, *arguments: Any) -> Any:
        time.sleep(0.3 * (os.environ["RANK"] == "1"))
        return loss(self, *arguments)

    Summarization.loss = slow


def test_processes_say_how_long_they_wait(tiny: list[str], tmp_path: Path) -> None:
    forked.run([*tiny, "--max_steps", 6], tmp_path / "run", ranks=2, before=let_one_be_slow)
    waiting = json.loads((tmp_path / "run" / "train_summary.json").read_text())["waiting"]
    shares, times = zip(*((row["waiting"], row["step_time_p50"]) for row in rows(tmp_path / "run")), strict=True)
    assert np.average(shares, weights=times) == pytest.approx(waiting)
    # One of two waits for about 0.3 s of a step; on a busy machine it may be late itself.
    assert 2 * waiting * np.mean(times) > 0.1 and waiting < 0.75
    assert "  waiting 0." in forked.log_of(tmp_path / "run").read_text()
    assert forked.log_of(tmp_path / "run", 1).read_text() == ""  # nor does a library warn there
