"""Whole runs of finetune.py, and of run_eval.py, on Parquet files that are streamed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytorch_lightning as pl
import torch

import run_eval
from bart.errors import InputError
from tests import forked
from tests.tiny_run import ALIKE, Train, checkpoint_of, compute_in_double, same, weights
from tests.utils.training.test_interruption import Interrupt, Killed
from tests.utils.training.test_stopping import POISONED, add_callback, poison
from utils.app.errors import RunError
from utils.data import pairs, streaming
from utils.tasks.summarization import Summarization
from utils.training.module import TrainingModule

STEPS = 15  # of 4 examples, 6 an epoch


def short_windows_in_double() -> None:
    streaming.WINDOW = 2
    compute_in_double()


@pytest.fixture
def tiny(tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a run over two training files, with dropout, in windows of 2 steps of 2 micro-batches."""
    monkeypatch.setattr(streaming, "WINDOW", 2)
    for split in ("train", "val", "test"):
        sides = [(tmp_path / "data" / f"{split}.{side}").read_text().splitlines() for side in ("source", "target")]
        for file in range(2):
            table = dict(zip(("document", "summary"), (side[file::2] for side in sides), strict=True))
            pq.write_table(pa.table(table), tmp_path / f"{split}-{file}.parquet", row_group_size=3)
    tiny[tiny.index("--data_dir") + 1] = str(tmp_path / "{split}-*.parquet")
    return [
        *(*tiny, "--train_batch_size", "2", "--gradient_accumulation_steps", "2", "--max_steps", str(STEPS)),
        *("--val_check_interval", "20", "--save_every_n_steps", "1", "--learning_rate", "1e-3", "--dropout", "0.1"),
    ]


@pytest.mark.slow
def test_an_interrupted_run_ends_as_the_uninterrupted_one(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within the first window and at an epoch's end, and asked to end in the second epoch."""
    begun: list[object] = []  # where the readers of training data began
    reader = pairs.TableReader
    monkeypatch.setattr(pairs, "TableReader", lambda *given: begun.append(given[2]) or reader(*given))
    expected = weights(train("whole"))
    assert begun == [None] * 3
    for step, how, workers in ((2, "killed", 0), (6, "killed", 1), (9, "asked", 0)):
        name = f"run{step}"
        with monkeypatch.context() as patch, pytest.raises(Killed if how == "killed" else SystemExit):
            add_callback(patch, Interrupt(how, step, in_validation=False))
            train(name, "--num_workers", workers)
        begun.clear()
        checkpoint = checkpoint_of(tmp_path / name)
        assert checkpoint["global_step"] == step + (how != "killed")
        output = train(name, "--num_workers", workers, "--resume_from_checkpoint", "last")
        assert same(weights(output), expected), (step, how)
        assert workers or begun[:1] == (checkpoint["TrainingData"]["cursor"]["position"] or [None])


@pytest.mark.usefixtures("double")
def test_two_processes_train_as_one(train: Train, tiny: list[str], tmp_path: Path) -> None:
    """Two epochs of 21 examples, so that the last step of each has one."""
    tiny += ["--max_steps", "8", "--dropout", "0", "--attention_dropout", "0", "--n_train", "21"]
    expected = weights(train("one"))
    tiny += ["--gradient_accumulation_steps", "1"]
    forked.run(tiny, tmp_path / "two", ranks=2, before=short_windows_in_double)
    torch.testing.assert_close(weights(tmp_path / "two"), expected, rtol=0, atol=ALIKE)


def test_a_run_goes_on_with_the_data_that_it_began_with(train: Train, tmp_path: Path) -> None:
    train("run", "--max_steps", 1)

    def refused(message: str, *options: object) -> None:
        with pytest.raises(InputError, match=f"it was trained on other data: {message}"):
            train("run", "--resume_from_checkpoint", "last", *options)

    refused(
        r"its data is .*split}-\*.parquet', this run's is .*1.parquet'", "--data_dir", tmp_path / "{split}-1.parquet"
    )
    refused("its source is None, this run's is {'digest': ", "--data_dir", tmp_path / "data")
    shutil.copy(tmp_path / "train-1.parquet", tmp_path / "train-2.parquet")
    refused("its files is 2, this run's is 3")


def test_examples_without_a_finite_loss_are_named(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((TrainingModule, "training_step"), (Summarization, "loss")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that it is restored
    poison(float("nan"))
    with pytest.raises(RunError, match=f"nan at step 2, .* in the order of this epoch's stream: 3, {POISONED + 1}"):
        train("run")


@pytest.mark.parametrize("workers", [0, 1])
def test_data_that_are_gone_end_a_run_in_one_line(
    train: Train, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Remove(pl.Callback):
        def on_train_start(self, *_: object) -> None:
            for path in tmp_path.glob("train-*.parquet"):
                path.unlink()

    add_callback(monkeypatch, Remove())
    with pytest.raises(RunError, match="cannot be read after .* --resume_from_checkpoint last goes on") as error:
        train("run", "--num_workers", workers)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_streamed_split_is_scored_as_its_line_files_are(train: Train, tmp_path: Path) -> None:
    output = train("run", "--max_steps", 3, "--do_predict")
    summary = json.loads((output / "train_summary.json").read_text())
    assert summary["steps"] == 3 and "epochs" not in summary
    scores: dict[str, Any] = {}
    for name, place in (("lines", tmp_path / "data"), ("stream", tmp_path / "{split}-*.parquet")):
        words = [output / "export", tmp_path / "config.json", place, tmp_path / name, "--device", "cpu"]
        run_eval.main([*map(str, words), "--max_source_length", "40", "--max_target_length", "40"])
        scores[name] = json.loads((tmp_path / name / "test_scores.json").read_text())
        assert scores[name].pop("data_dir") == str(place)
        for baseline in scores[name]["baselines"].values():  # means, in another order of the articles
            baseline.update({kind: round(value, 9) for kind, value in baseline.items()})
    assert scores["lines"] == scores["stream"]
    assert scores["stream"]["rougeLsum"] == json.loads((output / "test_scores.json").read_text())["rougeLsum"]
