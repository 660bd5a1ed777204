"""Whole runs of finetune.py, and of run_eval.py, on Parquet files that are streamed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

import finetune
import run_eval
from bart.errors import InputError
from tests.tiny_run import write_tiny_run
from utils.cli import RunError
from utils.data import streaming
from utils.data.dataset import TrainBatches
from utils.training import run as run_module

ROOT = Path(__file__).parents[3]
STEPS = 15  # of 4 examples, 6 an epoch


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a run over two training files, with dropout, in windows of 2 steps of 2 micro-batches."""
    monkeypatch.setattr(TrainBatches, "WINDOW", 2)
    options = write_tiny_run(tmp_path)
    for split in ("train", "val", "test"):
        sides = [(tmp_path / "data" / f"{split}.{side}").read_text().splitlines() for side in ("source", "target")]
        for file in range(2):
            rows = dict(zip(("document", "summary"), (side[file::2] for side in sides), strict=True))
            pq.write_table(pa.table(rows), tmp_path / f"{split}-{file}.parquet", row_group_size=3)
    options[options.index("--data_dir") + 1] = str(tmp_path / "{split}-*.parquet")
    return [
        *(*options, "--do_train", "--sortish_sampler", "--train_batch_size", "2", "--gradient_accumulation_steps", "2"),
        *("--max_steps", str(STEPS), "--val_check_interval", "20", "--save_every_n_steps", "1"),
        *("--learning_rate", "1e-3", "--dropout", "0.1"),
    ]


def train(options: list[str], output: Path, *others: object) -> dict[str, Tensor]:
    """The weights at the end."""
    finetune.main([*options, "--output_dir", str(output), *map(str, others)])
    return torch.load(output / "last.ckpt", weights_only=True)["state_dict"]


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_an_interrupted_run_ends_as_the_uninterrupted_one(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in turn within the first window, at an epoch's end, and in the second epoch; and asked to end there."""

    class Killed(Exception):
        pass

    class EndAt(pl.Callback):
        def __init__(self, batch: int, how: str) -> None:
            self.batch = batch
            self.how = how

        def on_train_batch_start(self, trainer: pl.Trainer, *_: object) -> None:
            if trainer.fit_loop.epoch_loop.batch_progress.total.ready > self.batch:
                if self.how == "killed":
                    raise Killed
                os.kill(os.getpid(), signal.SIGTERM)

    begun: list[object] = []  # where the readers of training data began
    reader = streaming.Reader
    monkeypatch.setattr(streaming, "Reader", lambda *given: begun.append(given[2]) or reader(*given))
    expected = train(options, tmp_path / "whole")
    assert begun == [None] * 3
    build = run_module.build_callbacks
    for batch, how, workers in ((4, "killed", 0), (13, "killed", 1), (21, "killed", 0), (18, "asked to end", 1)):
        output = tmp_path / f"run{batch}"

        def interrupting(args: object, batch: int = batch, how: str = how) -> tuple[object, list[pl.Callback]]:
            checkpoints, callbacks = build(args)
            return checkpoints, [EndAt(batch, how), *callbacks]

        with monkeypatch.context() as patch:
            patch.setattr(run_module, "build_callbacks", interrupting)
            with pytest.raises(Killed if how == "killed" else SystemExit):
                train(options, output, "--num_workers", workers)
        checkpoint = torch.load(output / "last.ckpt", weights_only=True)
        assert 0 < checkpoint["global_step"] <= batch // 2
        begun.clear()
        again = train(options, output, "--num_workers", workers, "--resume_from_checkpoint", "last")
        assert equal(again, expected), (batch, how)
        assert workers or begun[0] == checkpoint["SummarizationDataModule"]["cursor"]["position"]


def test_two_processes_train_as_one(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs, the last step of each with fewer examples than micro-batches."""
    monkeypatch.setattr(TrainBatches, "WINDOW", 50)  # the new processes' own
    common = [*options, "--max_steps", "8", "--dropout", "0", "--attention_dropout", "0", "--n_train", "21"]
    expected = train(common, tmp_path / "one")
    gpus = common.index("--gpus")
    common[gpus : gpus + 2] = ["--accelerator", "cpu", "--devices", "2"]
    common += ["--gradient_accumulation_steps", "1"]
    command = [sys.executable, "finetune.py", *common, "--output_dir", str(tmp_path / "two")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "two" / "last.ckpt", weights_only=True)["state_dict"]
    for name, tensor in expected.items():
        if "k_proj.bias" not in name:  # softmax is blind to it: its gradient is rounding noise, which Adam scales up
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6, msg=name)


def test_a_run_goes_on_with_the_data_that_it_began_with(options: list[str], tmp_path: Path) -> None:
    train(options, tmp_path / "run", "--max_steps", 1)
    resume = ("--resume_from_checkpoint", "last")
    with pytest.raises(InputError, match="its fields is document and summary, this run's is summary and document"):
        train(options, tmp_path / "run", *resume, "--source_field", "summary", "--target_field", "document")
    place = tmp_path / "{split}-1.parquet"
    with pytest.raises(InputError, match=r"its data is .*split}-\*.parquet, this run's is .*split}-1.parquet"):
        train(options, tmp_path / "run", *resume, "--data_dir", place)
    with pytest.raises(InputError, match="its examples is None, this run's is 22"):
        train(options, tmp_path / "run", *resume, "--data_dir", tmp_path / "data")
    shutil.copy(tmp_path / "train-1.parquet", tmp_path / "train-2.parquet")
    with pytest.raises(InputError, match="its files is 2, this run's is 3"):
        train(options, tmp_path / "run", *resume)


def test_examples_without_a_finite_loss_are_named(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = run_module.SummarizationModule.training_step

    def poisoned(self: pl.LightningModule, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        spoilt = float("nan") if 7 in batch["index"] else 0.0
        self.step_loss += spoilt
        return step(self, batch, batch_idx) + spoilt

    monkeypatch.setattr(run_module.SummarizationModule, "training_step", poisoned)
    with pytest.raises(
        RunError, match="loss is nan at step 2, .* examples of the stream, as this epoch read them, in its batch: 3, 8"
    ):
        train(options, tmp_path / "run")


@pytest.mark.parametrize("workers", [0, 1])
def test_data_that_are_gone_end_a_run_in_one_line(options: list[str], tmp_path: Path, workers: int) -> None:
    class Remove(pl.Callback):
        def on_train_start(self, *_: object) -> None:
            for path in tmp_path.glob("train-*.parquet"):
                path.unlink()

    build = run_module.build_callbacks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "build_callbacks", lambda args: (build(args)[0], [*build(args)[1], Remove()]))
        with pytest.raises(RunError, match="cannot be read after .* --resume_from_checkpoint last goes on") as error:
            train(options, tmp_path / "run", "--num_workers", workers)
    assert "\n" not in str(error.value)


def test_a_streamed_split_is_scored_as_its_line_files_are(options: list[str], tmp_path: Path) -> None:
    output = tmp_path / "run"
    train(options, output, "--max_steps", 3, "--do_predict")
    summary = json.loads((output / "train_summary.json").read_text())
    assert (summary["steps"], summary["epochs"]) == (3, None)
    scores = {}
    for name, place in (("lines", tmp_path / "data"), ("stream", tmp_path / "{split}-*.parquet")):
        command = [
            output / "export",
            tmp_path / "config.json",
            place,
            tmp_path / name,
            "--gpus",
            0,
            "--max_source_length",
            40,
        ]
        run_eval.main([*map(str, command), "--max_target_length", "40"])
        scores[name] = json.loads((tmp_path / name / "test_scores.json").read_text())
    assert scores["lines"] == scores["stream"]
    assert scores["stream"]["rougeLsum"] == json.loads((output / "test_scores.json").read_text())["rougeLsum"]
