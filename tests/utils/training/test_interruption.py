"""Runs that are killed at any moment, asked to end, or find the disk full, and go on as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl

import finetune
from tests import forked
from tests.tiny_run import checkpoint_of, rows, same, weights, write_tiny_run
from tests.utils.training.test_stopping import add_callback
from utils.app import signals
from utils.tasks.summarization import Summarization
from utils.training import trainer
from utils.training.module import TrainingModule

linux = pytest.mark.skipif(sys.platform != "linux", reason="kills and limits are those of Linux")
STEPS = 12  # 6 an epoch


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """With a validation of 3 batches after steps 5, 10 and 12."""
    return [
        *write_tiny_run(tmp_path_factory.mktemp("tiny")),
        *("--do_train", "--resume_from_checkpoint", "last", "--sortish_sampler", "--train_batch_size", "2"),
        *("--gradient_accumulation_steps", "2", "--max_steps", str(STEPS), "--val_check_interval", "0.84"),
        *("--save_every_n_steps", "2", "--learning_rate", "1e-3", "--dropout", "0.1", "--eval_batch_size", "2"),
    ]


@pytest.fixture(scope="module")
def whole(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    forked.run(options, output)
    return output


def losses(output: Path) -> dict[float, set[float]]:
    """The training losses that a run and its resumptions logged, by step; a step may be taken several times."""
    losses_at: dict[float, set[float]] = {}
    for row in rows(output):
        losses_at.setdefault(row["step"], set()).add(row["train_loss"])
    return losses_at


@linux
@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_the_uninterrupted_one(
    options: list[str], whole: Path, tmp_path: Path
) -> None:
    kills = 20
    started = time.monotonic()
    forked.run(options, tmp_path / "timed")
    seconds = time.monotonic() - started
    expected, final, size = losses(whole), weights(whole), (whole / "last.ckpt").stat().st_size
    assert sorted(expected) == list(range(STEPS))
    rng = random.Random(kills)
    happened = runs = 0
    while happened < kills:
        runs += 1
        output = tmp_path / f"killed{runs}"
        (output / "export").mkdir(parents=True)
        for name in ("", "export/"):  # as if killed while the report, and the export, was written
            (output / f"{name}.file.host.1.tmp").touch()
        status = None
        while status != 0:
            kind = rng.choice(["SIGKILL", "SIGTERM", "full disk"]) if happened < kills else None
            limit = rng.randrange(size // 20, size) if kind == "full disk" else None
            (process,) = forked.start(options, output, largest_file=limit)
            process.join(timeout=rng.uniform(0, seconds) if kind in ("SIGKILL", "SIGTERM") else None)
            if process.exitcode is None:
                os.kill(process.pid, getattr(signal, kind))
                process.join()
            status = process.exitcode
            log = forked.log_of(output).read_text() if forked.log_of(output).exists() else ""
            # Before the program begins, SIGTERM ends a process as any other.
            assert status in {"SIGKILL": (-9, 0), "SIGTERM": (143, -15, 0), "full disk": (1, 0)}.get(kind, (0,)), log
            happened += status != 0
            if kind == "full disk" and status == 1:
                assert re.search("error: .* cannot be written", log.splitlines()[-1]), log
        assert "Traceback" not in forked.log_of(output).read_text()
        got = losses(output)
        assert {step: got[step] for step in expected} == expected
        assert same(weights(output), final)
        assert not list(output.rglob("*.tmp"))


class Killed(Exception):
    """Ends a run as SIGKILL would, as far as its files go."""


class Interrupt(pl.Callback):
    """Ends a run, or asks it to end, in a training step or in a validation.

    Attributes:
        validated: batches of validation after that moment.
    """

    def __init__(self, how: str, step: int, in_validation: bool) -> None:
        self.how, self.step, self.in_validation = how, step, in_validation
        self.done, self.validated = False, 0

    def _end(self) -> None:
        self.done = True
        if self.how == "killed":
            raise Killed
        os.kill(os.getpid(), signal.SIGTERM)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if not self.in_validation and not self.done and trainer.global_step == self.step:
            self._end()

    def on_validation_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, number: int, *_: Any) -> None:
        self.validated += self.done
        if self.in_validation and not self.done and (trainer.global_step, number) == (self.step, 1):
            self._end()


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("how", "step", "in_validation", "saved"),
    [
        pytest.param("killed", 3, False, 2, marks=pytest.mark.slow),
        ("killed", 10, True, 8),
        ("asked", 6, False, 7),  # an epoch's last step; another process would know of it one step later
        pytest.param("asked", 5, True, 5, marks=pytest.mark.slow),
        ("asked", STEPS, True, STEPS),  # the run's last validation
    ],
)
def test_a_run_that_goes_on_ends_as_the_uninterrupted_one(
    how: str,
    step: int,
    in_validation: bool,
    saved: int,
    options: list[str],
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Losses, validations and weights are the same, bit for bit; a validation that was broken off is done again."""
    output = tmp_path / "run"
    interrupt = Interrupt(how, step, in_validation)
    add_callback(monkeypatch, interrupt)
    with pytest.raises((Killed, SystemExit)) as stop:
        finetune.main([*options, "--output_dir", str(output)])
    if how == "asked":
        assert stop.value.code == 143
        assert interrupt.validated == 0  # the run ends after the batch in which it was asked to
    assert not (output / "export").exists()
    assert checkpoint_of(output)["global_step"] == saved
    interrupt.validated = 0
    finetune.main([*options, "--output_dir", str(output)])
    assert interrupt.validated == 3 * sum(number > saved - in_validation for number in (5, 10, 12))
    assert {step: losses(output)[step] for step in losses(whole)} == losses(whole)
    assert validations(output) == validations(whole)
    assert same(weights(output), weights(whole))
    best = [{path.name for path in place.glob("_epoch*")} for place in (whole, output)]
    assert best[0] == best[1]


def validations(output: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k == "step" or k.startswith("val_")} for row in rows(output, "val_loss")]


def ctrl_c_in_a_step(number: int = signal.SIGINT) -> None:
    train = TrainingModule.training_step

    def interrupted(self: TrainingModule, *arguments: Any) -> Any:
        if self.trainer.global_step == 3:
            os.killpg(0, number)
        return train(self, *arguments)

    os.setsid()  # as a terminal has it
    TrainingModule.training_step = interrupted


def ctrl_c_as_loaders_start() -> None:
    """The signal comes to all processes when those of the first validation have been forked and not begun."""
    start, seen = BaseProcess.start, []

    def interrupted(self: BaseProcess) -> None:
        start(self)
        seen.append(self)
        if len(seen) == 3:  # after the two of training
            os.killpg(0, signal.SIGINT)

    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # as in runs that are no forks themselves
    BaseProcess.start = interrupted


def sigterm_in_a_step() -> None:
    """As a scheduler sends it."""
    ctrl_c_in_a_step(signal.SIGTERM)


def end_of_terminal_in_a_step() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which may have started the tests, lets it be ignored
    ctrl_c_in_a_step(signal.SIGHUP)


@linux
@pytest.mark.parametrize(
    ("before", "status", "name", "step"),
    [
        pytest.param(end_of_terminal_in_a_step, 129, "SIGHUP", 4, marks=pytest.mark.slow),
        (ctrl_c_in_a_step, 130, "Ctrl-C", 4),
        (sigterm_in_a_step, 143, "SIGTERM", 4),
        (ctrl_c_as_loaders_start, 130, "Ctrl-C", 5),
    ],
)
def test_a_signal_to_all_processes_leaves_a_checkpoint_and_one_line(
    before: Callable[[], None], status: int, name: str, step: int, options: list[str], tmp_path: Path
) -> None:
    options = [*options, "--num_workers", "2"]
    output = tmp_path / "a run"
    assert forked.finish(forked.start(options, output, before=before)) == [status]
    assert checkpoint_of(output)["global_step"] == step
    log = forked.log_of(output).read_text()
    command = f"--resume_from_checkpoint last --output_dir '{output}'"
    assert log.endswith(f"  ended by {name} after step {step}; {command} goes on\n")
    assert "Traceback" not in log and "KeyboardInterrupt" not in log


def slow_validation(seconds: float) -> None:
    """Each batch takes this long; a second signal need not wait for a second."""

    def validate(*_: Any) -> None:
        print("a batch begins", flush=True)
        time.sleep(seconds)

    TrainingModule.validation_step, signals.AGAIN_SECONDS = validate, 0.1


@linux
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
@pytest.mark.parametrize("twice", [False, True])
def test_a_signal_in_validation_is_answered_at_once_and_a_second_one_ends_the_run(
    number: int, name: str, twice: bool, options: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    (process,) = forked.start(options, output, before=partial(slow_validation, 60 if twice else 2))
    answer = f"{name}: saving after this step, or batch of validation; again: end now\n"

    def wait_for(text: str) -> float:
        began = time.monotonic()
        while not forked.log_of(output).exists() or text not in forked.log_of(output).read_text():
            assert time.monotonic() - began < forked.SECONDS
            time.sleep(0.01)
        return time.monotonic() - began

    wait_for("a batch begins\n")
    os.kill(process.pid, number)
    assert wait_for(answer) < 1
    if twice:
        time.sleep(0.2)
        os.kill(process.pid, number)
    assert forked.finish([process]) == [-number if twice else 128 + number]
    log = forked.log_of(output).read_text()
    assert log.count("a batch begins") == log.count(answer) == 1 and "Traceback" not in log
    assert twice == (f"ended by {name} after step 5" not in log)


def sigterm_as_the_model_loads() -> None:
    Summarization.initial_model = lambda self, *_: signal.raise_signal(signal.SIGTERM)


def ctrl_c_in_setting_up() -> None:
    TrainingModule.configure_optimizers = lambda self: signal.raise_signal(signal.SIGINT)


@linux
@pytest.mark.parametrize(
    ("before", "status", "line"),
    [
        (sigterm_as_the_model_loads, 143, "ended by SIGTERM"),
        (ctrl_c_in_setting_up, 130, "ended by Ctrl-C; --resume_fr"),
    ],
)
def test_a_signal_before_training_is_one_line(
    before: Callable[[], None], status: int, line: str, options: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    assert forked.finish(forked.start(options, output, before=before)) == [status]
    log = forked.log_of(output).read_text()
    assert log.splitlines()[-1].startswith(f"finetune.py: {line}") and "Traceback" not in log
    assert not (output / "last.ckpt").exists()


@linux
def test_a_run_killed_between_its_best_checkpoint_and_its_last_one(options: list[str], tmp_path: Path) -> None:
    output = tmp_path / "run"
    forked.run(options, output)
    final = weights(output)
    # At the last step the best one was written, and this one was not yet.
    shutil.copy(output / "last.ckpt", output / f"_epoch9_step{STEPS}.ckpt")
    (output / "previous.ckpt").replace(output / "last.ckpt")
    assert not same(weights(output), final)
    forked.run(options, output)
    assert same(weights(output), final)


def export_to_a_full_disk() -> None:
    export = trainer.export

    def full(*arguments: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        export(*arguments)

    trainer.export = full


@linux
def test_a_disk_that_is_full_when_the_model_is_exported(options: list[str], tmp_path: Path) -> None:
    output = tmp_path / "run"
    assert forked.finish(forked.start(options, output, before=export_to_a_full_disk)) == [1]
    last = forked.log_of(output).read_text().splitlines()[-1]
    assert last == f"finetune.py: error: {output}/export/model.safetensors: cannot be written (File too large)"
