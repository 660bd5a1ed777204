"""What shows how a run goes on, and what ends it."""

from __future__ import annotations

import csv
import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor

import finetune
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import write_tiny_run
from utils.arguments import parse_train_arguments
from utils.cli import RunError, run_main
from utils.data.datamodule import SummarizationDataModule
from utils.data.token_cache import check_pairs
from utils.training import callbacks
from utils.training import run as run_module
from utils.training.module import SummarizationModule

ROOT = Path(__file__).parents[3]
POISONED = 7  # the index of an example
Spoil = Callable[[float], None]


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    """Options of a run of 12 steps, 6 an epoch."""
    options = [*write_tiny_run(tmp_path), "--do_train", "--output_dir", str(tmp_path / "run")]
    return [*options, "--train_batch_size", "4", "--max_epochs", "2", "--learning_rate", "1e-3"]


@pytest.fixture
def spoil_loss(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Gives one example a loss that is not finite."""

    def spoil(value: float) -> None:
        step = SummarizationModule.training_step

        def poisoned(self: SummarizationModule, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            loss = step(self, batch, batch_idx)
            if POISONED not in batch["index"]:
                return loss
            self.step_loss += value
            return loss + value

        monkeypatch.setattr(SummarizationModule, "training_step", poisoned)

    return spoil


def batches_of(argv: list[str]) -> list[list[int]]:
    """The first epoch's batches, as lines of train.source from 1."""
    args = parse_train_arguments(argv)
    files = {split: check_pairs(args.data_dir, split) for split in ("train", "val")}
    data = SummarizationDataModule(args, BartTokenizer.from_pretrained(args.tokenizer), files)
    return [sorted(index + 1 for index in batch) for batch in data.train_batches().batches(0)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_loss_that_is_not_finite_ends_the_run_in_one_line(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil_loss: Spoil,
    value: float,
    accumulation: int,
) -> None:
    """The rate is that of the step itself: 1e-3 falls linearly to 0 over 12 or 6 steps."""
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's would keep the run's log from its file
    spoil_loss(value)
    argv += ["--gradient_accumulation_steps", str(accumulation)]
    bad = next(number for number, lines in enumerate(batches_of(argv)) if POISONED + 1 in lines)
    step, steps = bad // accumulation, 12 // accumulation
    monkeypatch.setattr(sys, "argv", ["finetune.py", *argv])
    with pytest.raises(SystemExit) as stop:
        run_main(finetune.main)
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    message = (
        f"the training loss is {value} at step {step + 1}, with learning rate {1e-3 * (1 - step / steps):.4g}; "
        f"lines of train.source in its batch: {', '.join(map(str, batches_of(argv)[bad]))}"
    )
    assert error.splitlines()[-1] == f"finetune.py: error: {message}"
    assert message in (tmp_path / "run" / "log.txt").read_text()
    assert not list((tmp_path / "run").glob("*.ckpt"))
    assert not (tmp_path / "run" / "export").exists()


@pytest.mark.parametrize("saved_by", ["validation", "steps"])
def test_no_checkpoint_of_a_ruined_model_is_written(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil_loss: Spoil,
    saved_by: str,
) -> None:
    """Whether a validation or a checkpoint follows the step whose loss is not finite, or is due as the run ends."""
    caplog.set_level(logging.INFO)
    spoil_loss(math.nan)
    bad = next(number for number, lines in enumerate(batches_of(argv)) if POISONED + 1 in lines)
    assert bad > 0
    if saved_by == "validation":
        argv += ["--val_check_interval", "4"]
    else:
        build = run_module.build_callbacks
        every = ModelCheckpoint(
            tmp_path / "run", "step_{step}", save_top_k=-1, every_n_train_steps=1, save_on_exception=True
        )

        def saving(args: object) -> tuple[object, list[pl.Callback]]:
            checkpoints, others = build(args)
            return checkpoints, [*others, every]

        monkeypatch.setattr(run_module, "build_callbacks", saving)
    with pytest.raises(RunError, match=f"at step {bad + 1},"):
        finetune.main(argv)
    validated = [int(record.message.split()[1]) for record in caplog.records if "validation" in record.message]
    assert validated == (list(range(1, bad + 1)) if saved_by == "validation" else [])
    written = list((tmp_path / "run").glob("*.ckpt"))
    assert written
    for path in written:
        checkpoint = torch.load(path, weights_only=True)
        assert checkpoint["global_step"] <= bad
        assert all(tensor.isfinite().all() for tensor in checkpoint["state_dict"].values())


def test_a_gradient_that_is_not_finite_ends_the_run(argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a loss scaler nothing skips it; all the step's examples are named, since any may have caused it."""
    backward = SummarizationModule.on_after_backward

    def overflowing(self: SummarizationModule) -> None:
        backward(self)
        if self.trainer.global_step == 1:
            self.model.model.shared.weight.grad[5, 3] = math.inf

    monkeypatch.setattr(SummarizationModule, "on_after_backward", overflowing)
    argv += ["--gradient_accumulation_steps", "2"]
    lines = ", ".join(map(str, sorted(batches_of(argv)[2] + batches_of(argv)[3])))
    with pytest.raises(RunError, match=f"the gradient norm is inf at step 2, .* in its batch: {lines}$"):
        finetune.main(argv)
    assert not list((tmp_path / "run").glob("*.ckpt"))


def test_all_processes_stop_and_name_the_examples_of_the_one_that_failed(argv: list[str], tmp_path: Path) -> None:
    script = tmp_path / "poisoned.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import finetune\n"
        "from utils.cli import run_main\n"
        "from utils.training.module import SummarizationModule\n"
        "step = SummarizationModule.training_step\n"
        "def poisoned(self, batch, batch_idx):\n"
        "    loss = step(self, batch, batch_idx)\n"
        f"    bad = float('nan') if {POISONED} in batch['index'] else 0\n"
        "    self.step_loss += bad\n"
        "    return loss + bad\n"
        "SummarizationModule.training_step = poisoned\n"
        "run_main(finetune.main)\n"
    )
    argv += ["--accelerator", "cpu", "--devices", "2", "--train_batch_size", "2"]
    done = subprocess.run([sys.executable, script, *argv], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    log = (tmp_path / "run" / "log.txt").read_text()
    args = parse_train_arguments([*argv, "--devices", "1", "--train_batch_size", "4"])
    assert args.processes == 1
    whole = next(lines for lines in batches_of([*argv, "--devices", "1", "--train_batch_size", "4"]) if 8 in lines)
    named = [int(word) for word in log.strip().rpartition("its batch: ")[2].split(", ")]
    assert 8 in named
    assert len(named) == len(whole) // 2
    assert set(named) < set(whole)
    assert "the training loss is nan" in log
    assert not list((tmp_path / "run").glob("*.ckpt"))


@pytest.fixture
def overflow(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """fp16 with a loss scaler on the CPU, and gradients that overflow at given steps, counted from 0.

    The options must say --bf16: Lightning refuses fp16 on CPUs, and torch's fused AdamW would not let the scaler skip.
    """
    weights: list[Tensor] = []

    def at(steps: set[int]) -> list[Tensor]:
        def half(args: object) -> dict[str, object]:
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}

        backward = SummarizationModule.on_after_backward

        def overflowing(self: SummarizationModule) -> None:
            backward(self)
            weights.append(self.model.model.shared.weight.detach().clone())
            if self.trainer.global_step in steps:
                self.model.model.shared.weight.grad[5, 3] = math.inf

        monkeypatch.setattr(run_module, "precision_of", half)
        monkeypatch.setattr(SummarizationModule, "on_after_backward", overflowing)
        return weights

    return at


def test_skipped_steps_are_counted_and_the_scaler_is_resumed(
    argv: list[str], tmp_path: Path, overflow: Callable[[set[int]], list[Tensor]]
) -> None:
    weights = overflow({2, 3, 5, 7})
    output = tmp_path / "run"
    finetune.main([*argv, "--bf16", "--max_steps", "6"])
    with (output / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["train_loss"]]
    assert [float(row["skipped_steps"]) for row in rows] == [0, 0, 1, 2, 2, 3]
    assert [float(row["loss_scale"]) for row in rows] == [1024, 1024, 512, 256, 256, 128]
    moved = [not torch.equal(before, after) for before, after in pairwise(weights)]
    assert moved == [True, True, False, False, True]
    assert torch.load(output / "last.ckpt", weights_only=True)["MixedPrecision"]["scale"] == 128

    finetune.main([*argv, "--bf16", "--max_steps", "9", "--resume_from_checkpoint", str(output / "last.ckpt")])
    with (output / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["train_loss"]]
    assert [float(row["skipped_steps"]) for row in rows] == [3, 4, 4]
    assert [float(row["loss_scale"]) for row in rows] == [128, 64, 64]
    assert json.loads((output / "train_summary.json").read_text())["skipped_steps"] == 4


def test_a_run_whose_steps_are_all_skipped_ends(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, overflow: Callable[[set[int]], None]
) -> None:
    """A step that goes well starts the count again."""
    monkeypatch.setattr(callbacks, "MAX_SKIPPED_IN_A_ROW", 4)
    overflow({1, 2, 3, 5, 6, 7, 8})
    message = "4 steps in a row, up to step 9, were skipped .* loss scale of 8; try --bf16, or a --learning_rate lower"
    with pytest.raises(RunError, match=message):
        finetune.main([*argv, "--bf16"])


@pytest.mark.parametrize(("installed", "kind"), [(True, RichProgressBar), (False, TQDMProgressBar)])
def test_progress_bars(monkeypatch: pytest.MonkeyPatch, installed: bool, kind: type) -> None:
    monkeypatch.setattr(callbacks, "find_spec", lambda name: object() if installed else None)
    assert isinstance(callbacks.progress_bar(10), kind)


def test_a_terminal_shows_a_bar_and_the_summary(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of progress go to the file alone; metrics are read when they are logged, and behind validations."""
    read = []
    get_metrics = RichProgressBar.get_metrics

    def spy(self: RichProgressBar, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, object]:
        if not trainer.validating:
            read.append(trainer.global_step)
        return get_metrics(self, trainer, pl_module)

    monkeypatch.setattr(RichProgressBar, "get_metrics", spy)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    finetune.main([*argv, "--log_every_n_steps", "3"])
    shown = capsys.readouterr()
    assert "Epoch 1" in shown.out
    assert "lr: 8.333e-05" in shown.out  # a twelfth of 1e-3, at step 12 of 12
    assert read == [3, 6, 9, 12]
    assert "training is done" in shown.err
    assert "step 3/12" not in shown.err
    assert "step 3/12 (epoch 0)  train_loss" in (tmp_path / "run" / "log.txt").read_text()
