"""What a run measures of itself, on a clock that the test moves."""

from __future__ import annotations

import csv
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl

import finetune
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import write_tiny_run
from utils.arguments import parse_train_arguments
from utils.data.datamodule import SummarizationDataModule
from utils.data.dataset import Collate
from utils.data.token_cache import check_pairs
from utils.training import metrics, module

ROOT = Path(__file__).parents[3]
LOADING, TRAINING, ELSEWHERE = 1.0, 10.0, 1000.0


def rows(output: Path) -> list[dict[str, str]]:
    """The rows of training metrics, in order."""
    with (output / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["train_loss"]]


def tokens_of_batches(argv: list[str], epochs: int) -> list[int]:
    """Source and target tokens of every batch, in the order of training."""
    args = parse_train_arguments(argv)
    files = {split: check_pairs(args.data_dir, split) for split in ("train", "val")}
    data = SummarizationDataModule(args, BartTokenizer.from_pretrained(args.tokenizer), files)
    lengths = data.train_set.sources.lengths + data.train_set.targets.lengths
    order = data.train_batches()
    return [int(lengths[batch].sum()) for epoch in range(epochs) for batch in order.batches(epoch)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a batch takes 1 s, training on it 10 s; validations and checkpoints take 1000 s, and nothing else any."""
    now = 0.0

    def slow(owner: object, name: str, duration: float) -> None:
        original = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            nonlocal now
            now += duration
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    slow(Collate, "__call__", LOADING)
    slow(module.SummarizationModule, "training_step", TRAINING)
    slow(module.SummarizationModule, "validation_step", ELSEWHERE)
    slow(pl.Trainer, "save_checkpoint", ELSEWHERE)
    monkeypatch.setattr(metrics, "stamp", lambda device: now)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("interval", ["1", "4"])
def test_speed_counts_loading_and_neither_validation_nor_checkpoints(tmp_path: Path, interval: str) -> None:
    """3 epochs of 6 batches of 4, the last of 2, two batches a step; logged every 4 steps and at the end."""
    argv = [*write_tiny_run(tmp_path), "--do_train", "--output_dir", str(tmp_path / "run"), "--train_batch_size", "4"]
    argv += ["--gradient_accumulation_steps", "2", "--max_epochs", "3", "--val_check_interval", interval]
    argv += ["--log_every_n_steps", "4", "--save_every_n_steps", "1"]
    finetune.main(argv)
    logged = rows(tmp_path / "run")
    assert [int(row["step"]) + 1 for row in logged] == [4, 8, 9]
    tokens, samples = tokens_of_batches(argv, 3), [4, 4, 4, 4, 4, 2] * 3
    for row, first, last in zip(logged, (0, 8, 16), (8, 16, 18), strict=True):
        elapsed = (last - first) * (LOADING + TRAINING)
        assert float(row["tokens_per_second"]) == pytest.approx(sum(tokens[first:last]) / elapsed)
        assert float(row["samples_per_second"]) == pytest.approx(sum(samples[first:last]) / elapsed)
        assert {float(row[f"step_time_p{n}"]) for n in (50, 95, 99)} == {2 * (LOADING + TRAINING)}
        assert 0.05 < float(row["peak_memory_gb"]) < 50
        assert float(row["grad_norm"]) > 0
        assert "loss_scale" not in row
    summary = json.loads((tmp_path / "run" / "train_summary.json").read_text())
    assert summary["training_seconds"] == 18 * (LOADING + TRAINING)
    assert summary["tokens_per_second"] == pytest.approx(sum(tokens) / summary["training_seconds"])
    assert summary["samples_per_second"] == pytest.approx(66 / summary["training_seconds"])
    assert summary["epochs"] == 3


def test_step_time_percentiles() -> None:
    """Those of 1 to 100, interpolated linearly (Hyndman & Fan, 1996, definition 7)."""
    expected = {"step_time_p50": 50.5, "step_time_p95": 95.05, "step_time_p99": 99.01}
    assert metrics.step_time_percentiles([float(n) for n in range(100, 0, -1)]) == pytest.approx(expected)


def test_a_run_ends_with_a_summary_of_one_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's would keep the run's log from its file
    output = tmp_path / "run"
    argv = [*write_tiny_run(tmp_path), "--do_train", "--output_dir", str(output), "--train_batch_size", "4"]
    argv += ["--val_check_interval", "0.5", "--max_steps", "8", "--learning_rate", "1e-2"]
    finetune.main(argv)
    summary = json.loads((output / "train_summary.json").read_text())
    assert summary["steps"] == summary["steps_since_start"] == 8
    assert summary["train_loss"] == pytest.approx(float(rows(output)[-1]["train_loss"]))
    with (output / "metrics.csv").open() as file:
        validations = [
            (float(row["val_loss"]), int(row["step"]) + 1) for row in csv.DictReader(file) if row["val_loss"]
        ]
    assert (summary["val_loss"], summary["best_step"]) == pytest.approx(min(validations))
    assert (summary["last_val_loss"], summary["steps"]) == pytest.approx(validations[-1])
    assert f"_step{summary['best_step']}." in summary["best_checkpoint"]
    assert 0 < summary["training_seconds"] < summary["wall_seconds"]
    *shown, last = (output / "log.txt").read_text().partition("training is done\n")[2].splitlines()
    assert last.endswith(f"report: {output / 'report.html'}")
    assert 10 < len(shown) < 24
    assert len({re.match(r" +\S+( \S+)*  +", line).end() for line in shown}) == 1  # columns are aligned
    table = dict(re.split("  +", line.strip(), maxsplit=1) for line in shown)
    assert table["steps"] == "8 (1.33 epochs)"
    assert table["val_loss, best"].split() == [
        f"{summary['val_loss']:.4g}", "step", str(summary["best_step"]), summary["best_checkpoint"]
    ]  # fmt: skip
    assert table["best model"] == str(output / "export")

    finetune.main([*argv, "--max_steps", "12", "--resume_from_checkpoint", str(output / "last.ckpt")])
    resumed = json.loads((output / "train_summary.json").read_text())
    assert (resumed["steps"], resumed["steps_since_start"], resumed["epochs"]) == (12, 4, 2)
    assert "12 (2.00 epochs), 4 of them since it was resumed" in (output / "log.txt").read_text()
    finetune.main([*argv, "--max_steps", "12", "--resume_from_checkpoint", str(output / "last.ckpt")])
    nothing = json.loads((output / "train_summary.json").read_text())
    assert (nothing["steps"], nothing["steps_since_start"], nothing["tokens_per_second"]) == (12, 0, None)
    assert nothing["val_loss"] == resumed["val_loss"]


def test_a_summary_fits_the_screen() -> None:
    numbers = dict.fromkeys(
        ("samples_per_second", "tokens_per_second", "training_seconds", "wall_seconds"), 1234567.891
    )
    numbers |= {f"step_time_p{n}": 1234.56789 for n in (50, 95, 99)}
    summary = {
        **numbers,
        "steps": 1_000_000,
        "steps_since_start": 999_999,
        "epochs": 1234.5678,
        "train_loss": 10.0987654,
        "last_val_rougeLsum": 10.0987654,
        "val_rougeLsum": 10.0987654,
        "best_checkpoint": "_epoch1234_step1000000.ckpt",
        "best_step": 1_000_000,
        "skipped_steps": 123,
        "peak_memory_gb": 123.456,
    }
    lines = metrics.format_summary(
        summary, "val_rougeLsum", Path("results/bart_pyt_20260101_010101/export")
    ).splitlines()
    assert max(map(len, lines)) < 100
    assert "1,234,568" in "\n".join(lines)


def test_two_processes_log_what_both_did(tmp_path: Path) -> None:
    """Ranks hold batches of unlike length, so that twice one rank's tokens is not the sum."""
    output = tmp_path / "run"
    argv = [*write_tiny_run(tmp_path), "--do_train", "--output_dir", str(output), "--train_batch_size", "4"]
    argv = [*argv, "--accelerator", "cpu", "--devices", "2", "--max_epochs", "2"]
    subprocess.run([sys.executable, ROOT / "finetune.py", *argv], check=True, capture_output=True, timeout=120)
    summary = json.loads((output / "train_summary.json").read_text())
    assert summary["samples_per_second"] * summary["training_seconds"] == pytest.approx(2 * 22)
    total = sum(tokens_of_batches([*argv, "--devices", "1"], 2))
    assert summary["tokens_per_second"] * summary["training_seconds"] == pytest.approx(total)
