"""Runs whose data and results lie in an object store, on one machine after another."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import s3fs

import finetune
import run_eval
import run_pretraining
from bart.errors import InputError
from tests.tiny_run import same, weights, write_tiny_run
from tests.tiny_shards import write_tiny_shards
from utils.app.errors import RunError
from utils.app.stores import fetch, local_path
from utils.predict import main as predict
from utils.training.module import TrainingModule


def upload(folder: Path, url: str) -> None:
    s3fs.S3FileSystem().put(f"{folder}/", url, recursive=True)


def names_at(url: str) -> set[str]:
    return {name.rpartition("/")[2] for name in s3fs.S3FileSystem().ls(url, refresh=True)}


def test_a_run_goes_on_where_another_machine_lost_it(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    options = [*write_tiny_run(tmp_path / "tiny"), "--do_train", "--train_batch_size", "4", "--save_every_n_steps", "2"]
    options += ["--max_steps", "6", "--learning_rate", "1e-3", "--val_check_interval", "12"]
    upload(tmp_path / "tiny" / "data", f"{bucket}/data")
    local = tmp_path / "local"
    finetune.main([*options, "--output_dir", str(local), "--do_predict", "--eval_max_gen_length", "4"])
    shutil.rmtree(tmp_path / "tiny" / "data")

    url, on_machine = f"{bucket}/runs/one", ["--data_dir", f"{bucket}/data", "--output_dir", f"{bucket}/runs/one"]
    train = TrainingModule.training_step

    def lost(module: TrainingModule, *arguments: object) -> object:
        if module.trainer.global_step == 5:
            raise ConnectionError("the machine is gone")
        return train(module, *arguments)

    monkeypatch.setattr(TrainingModule, "training_step", lost)
    with pytest.raises(ConnectionError):
        finetune.main([*options, *on_machine])
    monkeypatch.setattr(TrainingModule, "training_step", train)
    assert {"last.ckpt", "metrics.csv", "arguments.yaml"} < names_at(url) and "export" not in names_at(url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    with pytest.raises(InputError, match=rf"^--output_dir {url} holds a run .*--resume_from_checkpoint last goes on"):
        finetune.main([*options, *on_machine])
    scoring = ["--do_predict", "--eval_max_gen_length", "4"]
    finetune.main([*options, *on_machine, *scoring, "--resume_from_checkpoint", "last"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    fetched = Path(fetch(url))
    assert same(weights(fetched), weights(local)) and (fetched / "arguments.1.yaml").exists()
    names = {path.relative_to(local) for path in local.rglob("[!.]*") if path.name[:6] not in ("events", "previo")}
    assert {path.relative_to(fetched) for path in fetched.rglob("[!.]*")} > names
    assert f"data_dir: {bucket}/data\n" in (fetched / "arguments.yaml").read_text()
    assert (fetched / "test_generations.txt").read_text() == (local / "test_generations.txt").read_text()

    monkeypatch.setattr("utils.recipes.training.score", Mock(side_effect=ConnectionError))
    with pytest.raises(ConnectionError):
        finetune.main([*options, *on_machine, "--max_steps", "2", "--overwrite_output_dir", "--do_predict"])
    assert "export" in names_at(url)
    assert not names_at(url) & {"test_scores.json", "metrics.1.csv", "arguments.1.yaml"}
    assert [name for name in names_at(url) if name.startswith("_epoch")] == ["_epoch0_step2.ckpt"]


def test_scores_and_predictions_lie_where_they_are_to(
    bucket: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    export, texts = str(trained / "run" / "export"), (trained / "data" / "test.source").read_text().splitlines()
    upload(trained / "data", f"{bucket}/data")
    words = [export, str(trained / "config.json"), f"{bucket}/data", f"{bucket}/scores", "--eval_max_gen_length", "4"]
    run_eval.main(words)
    assert {"test_scores.json", "test_generations.txt"} < names_at(f"{bucket}/scores")
    generations = Path(fetch(f"{bucket}/scores"), "test_generations.txt").read_text().splitlines()

    with (tmp_path / "articles.csv").open("w") as file:
        csv.writer(file).writerows([["article"], *([text] for text in texts)])
    s3fs.S3FileSystem().put_file(str(tmp_path / "articles.csv"), f"{bucket}/tables/articles.csv")
    for _ in range(2):  # the second replaces the first, as files are replaced
        words = [export, f"{bucket}/tables/articles.csv", "--output", f"{bucket}/tables/out/summaries.csv"]
        predict([*words, "--eval_max_gen_length", "4"])
        Path(local_path(f"{bucket}/tables/out/summaries.csv")).unlink()
        rows = list(csv.DictReader(Path(fetch(f"{bucket}/tables/out/summaries.csv")).read_text().splitlines()))
        assert [row["prediction"] for row in rows] == generations and [row["article"] for row in rows] == texts
    with monkeypatch.context() as failing:
        failing.setattr("utils.predict.publish", Mock(side_effect=RunError))
        with pytest.raises(RunError):
            predict([*words, "--eval_max_gen_length", "4"])
    s3fs.S3FileSystem().rm(f"{bucket}/tables/out", recursive=True)
    with monkeypatch.context() as counting:
        counting.setattr("utils.prediction.predictor.Predictor.__call__", Mock(side_effect=AssertionError))
        predict([*words, "--eval_max_gen_length", "4"])  # uploads what was predicted
    assert "out" in names_at(f"{bucket}/tables")
    with pytest.raises(InputError, match=f"^{bucket}/tables/none.csv: no such file or folder$"):
        predict([export, f"{bucket}/tables/none.csv"])


def test_pretraining_reads_shards(bucket: str, tmp_path: Path, no_pictures: None) -> None:
    options = write_tiny_run(tmp_path / "tiny")
    write_tiny_shards(tmp_path / "shards")
    upload(tmp_path / "shards", f"{bucket}/shards")
    chosen = [*options[2:4], "--gpus", "0", "--max_steps", "3", "--train_batch_size", "2", "--learning_rate", "1e-3"]
    for data, run in ((tmp_path / "shards", tmp_path / "run"), (f"{bucket}/shards", f"{bucket}/run")):
        run_pretraining.main([*chosen, "--data_dir", str(data), "--output_dir", str(run)])
    assert same(weights(Path(fetch(f"{bucket}/run"))), weights(tmp_path / "run"))
