"""Whole runs of finetune.py on tiny data: what they leave, and what they say of themselves."""

from __future__ import annotations

import fnmatch
import json
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

import run_eval
from bart.errors import InputError
from tests.tiny_run import Train, rows
from utils.app.cli import options_of_class
from utils.app.output_files import held
from utils.data.tables import read_pairs
from utils.models.generation_options import GENERATE
from utils.recipes.finetuning_arguments import FinetuneArguments, parse_finetune_arguments
from utils.recipes.pretraining_arguments import PretrainingArguments
from utils.tasks.options import OPTIONS, PRETRAINING
from utils.training import session

DOCS = Path(__file__).parents[3] / "docs/training.md"


def test_a_run_leaves_everything_the_design_names(train: Train) -> None:
    options = ("--max_epochs", 2, "--learning_rate", 1e-3, "--val_check_interval", 0.5, "--do_predict")
    output = train("run", *options)
    names = {path.name for path in output.iterdir()}
    assert {"arguments.yaml", "environment.json", "metrics.csv", "last.ckpt", "export"} <= names
    assert {"train_summary.json", "test_generations.txt", "test_scores.json", "report.html"} <= names
    assert "hparams.yaml" not in names
    assert any(name.startswith("events.out.tfevents") for name in names)
    summary = json.loads((output / "train_summary.json").read_text())
    assert summary["steps"] == len(rows(output)) == 12  # 22 examples in batches of 4, twice
    assert (output / summary["best_checkpoint"]).is_file()
    assert summary["best_checkpoint"].startswith("_epoch")
    assert len(rows(output, "val_loss")) == 4
    assert yaml.safe_load((output / "arguments.yaml").read_text())["learning_rate"] == 1e-3
    scores = json.loads((output / "test_scores.json").read_text())
    assert scores["examples"] == 7
    assert scores["generation"]["num_beams"] == 2  # --eval_beams 0 is about validation
    assert {"test_articles.jsonl", "test_speed.json"} <= names and ".test_progress" not in names
    assert len((output / "test_generations.txt").read_text().split("\n")) == 7 + 1


@pytest.mark.parametrize("options", [(), ("--freeze_encoder",)])
def test_mfu_is_logged_where_operations_are_counted(
    train: Train, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = session.Measurements
    monkeypatch.setattr(session, "Measurements", lambda every, _, earlier: measured(every, 1e9, earlier))
    found = [float(row["mfu"] or 0) for row in rows(train("run", "--max_steps", 2, *options)) if "mfu" in row]
    assert (len(found) == 2 and min(found) > 0) if not options else not any(found)


def test_one_file_is_data_for_training_and_scoring(train: Train, tmp_path: Path) -> None:
    pairs = list(zip(*read_pairs(tmp_path / "data", "train"), strict=True)) * 2
    rows = [{"body": f"{source} {i}", "headline": target} for i, (source, target) in enumerate(pairs)]
    (tmp_path / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = ("--data_dir", tmp_path / "news.jsonl", "--source_field", "body", "--target_field", "headline")
    output = train("run", *file, "--max_steps", 1, "--do_predict")
    scores = json.loads((output / "test_scores.json").read_text())
    [folder] = (tmp_path / ".cache").glob("news.jsonl-*")
    counts = json.loads((folder / "provenance.json").read_text())["examples"]
    assert sum(counts.values()) == 44 and scores["examples"] == counts["test"]
    fields = file[4:]  # the model knows the column of the sources
    words = (output / "export", tmp_path / "config.json", file[1], tmp_path / "eval", "--device", "cpu")
    run_eval.main([*map(str, words), *fields, "--max_target_length", "40"])
    again = json.loads((tmp_path / "eval" / "test_scores.json").read_text())
    same = ("loss", "examples", "max_source_length")  # the last of which the model's config keeps
    assert [again[name] for name in same] == [scores[name] for name in same] and scores["max_source_length"] == 40


@pytest.mark.parametrize("split", ["train", "val"])
def test_targets_of_any_split_are_cut_for_scoring_as_the_scores_say(train: Train, split: str) -> None:
    lengths = ("--max_target_length", 4, "--val_max_target_length", 4, "--test_max_target_length", 40)
    output = train("run", "--max_steps", 1, "--do_predict", "--type_path", split, *lengths)
    articles = [json.loads(line) for line in (output / f"{split}_articles.jsonl").open()]
    assert json.loads((output / f"{split}_scores.json").read_text())["max_target_length"] == 40
    assert max(article["reference_tokens"] for article in articles) > 4


def test_every_run_leaves_its_record(train: Train) -> None:
    """A resumed run's stands beside the first one's."""
    output = train("run", "--seed", 5, "--max_steps", 1)
    first = json.loads((output / "environment.json").read_text())
    versions = first["versions"]
    assert versions["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    assert versions["cuda"] == torch.version.cuda
    assert versions["python"] == platform.python_version()
    assert {"pytorch_lightning", "transformers"} <= versions.keys()
    assert first["command"].startswith(sys.argv[0])
    assert len(first["devices"]) == 1
    assert first["host"]
    assert first["date"].endswith("+00:00")
    for steps in (2, 3):
        train("run", "--seed", 5, "--max_steps", steps, "--resume_from_checkpoint", "last")
    names = [f"arguments{number}.yaml" for number in (".1", ".2", "")]
    assert [yaml.safe_load((output / name).read_text())["max_steps"] for name in names] == [1, 2, 3]
    assert json.loads((output / "environment.1.json").read_text()) == first
    assert sorted(path.name for path in output.glob("*.csv")) == ["metrics.1.csv", "metrics.2.csv", "metrics.csv"]


def test_a_used_directory_is_refused_resumed_or_cleared(train: Train, tmp_path: Path) -> None:
    output = train("run", "--max_steps", 2, "--do_predict")
    others = [output / "notes.txt", output / "mine" / "last.ckpt"]
    others[1].parent.mkdir()
    for other in others:
        other.touch()
    before = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    with pytest.raises(
        InputError, match=rf"^--output_dir {output} holds a run \(_epoch0_step2.ckpt, .* more\): .*last"
    ):
        train("run", "--max_steps", 1)
    with pytest.raises(InputError, match="--warmup_steps"):  # nothing goes before all is checked
        train("run", "--max_steps", 1, "--overwrite_output_dir", "--warmup_steps", 9)
    after = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    assert {**after, "log.txt": 0} == {**before, "log.txt": 0}
    with pytest.raises(InputError, match="--overwrite_output_dir would remove the checkpoint of"):
        train("run", "--overwrite_output_dir", "--resume_from_checkpoint", output)
    with (
        held(output / ".lock", "by the test"),
        pytest.raises(InputError, match=f"^--output_dir {output}: another run is at work there"),
    ):
        train("run", "--max_steps", 1, "--overwrite_output_dir")
    train("run", "--max_steps", 1, "--overwrite_output_dir")
    names = {path.name for path in output.iterdir()}
    assert {"last.ckpt", "_epoch0_step1.ckpt", "export", "metrics.csv", "report.html"} <= names
    assert not names & {"_epoch0_step2.ckpt", "previous.ckpt", "test_scores.json", "arguments.1.yaml"}
    assert all(other.exists() for other in others)
    shutil.copytree(output / "export", tmp_path / "other")
    score = ["--eval_max_gen_length", "4", "--device", "cpu"]
    places = [str(tmp_path / name) for name in ("config.json", "data", "run")]
    with pytest.raises(InputError, match=f"^{output} holds a run, and .* is not its model: score {output}, name ano"):
        run_eval.main([str(tmp_path / "other"), *places, *score])
    with pytest.raises(InputError, match="^--model_name_or_path is scratch; it needs --do_train"):
        train("run", "--no_do_train", "--do_predict")
    train("run", "--no_do_train", "--do_predict", "--model_name_or_path", output / "export")
    train("run", "--max_steps", 2, "--resume_from_checkpoint", "last")
    assert not (output / "test_scores.json").exists()  # they were those of the export before


def test_options_of_the_scoring_are_checked_before_training(train: Train, tmp_path: Path) -> None:
    for options, message in (
        (("--top_p", 2), "^--top_p is 2.0; allowed"),
        (("--pred_beams", 4, "--eval_max_gen_length", 99), "eval_max_gen_length is 99; the model has 64 positions"),
    ):
        with pytest.raises(InputError, match=message):
            train("run", "--do_predict", *options)
        assert not (tmp_path / "run" / "metrics.csv").exists()


def test_options_become_on_resuming_what_the_docs_say(tiny: list[str]) -> None:
    """The first two rows name all such options of all tasks, and no others; the second has those of generate as one."""
    rows_of_docs = re.findall(
        r"^\| (may change|may change, but scores[^|]*) \| (.*) \|$", DOCS.read_text(), re.MULTILINE
    )
    of_tasks = [(FinetuneArguments, *kinds[:2]) for kinds in OPTIONS.values()]
    of_tasks += [(PretrainingArguments, *kinds) for kinds in PRETRAINING.values()]
    options = [
        each
        for program, own, training in of_tasks
        for each in options_of_class(program, {"task_options": own, "training": training})
    ]
    for kind, (_, row) in zip(("may_change", "validation"), rows_of_docs, strict=True):
        of_kind = {each.name: each.section for each in options if each.limits["on_resume"] == kind}
        others = {each.name for each in options} - of_kind.keys()
        named = re.findall(r"`--(\w+\*?)`", row)
        assert [name for name in named if not fnmatch.filter(of_kind, name) or fnmatch.filter(others, name)] == []
        unnamed = {name for name in of_kind if not any(fnmatch.fnmatch(name, each) for each in named)}
        assert {of_kind[name] for name in unnamed} <= ({GENERATE} if kind == "validation" else set()), unnamed
    must_stay = parse_finetune_arguments(tiny).settings("must_stay")
    assert {"seed", "learning_rate", "lora_rank", "max_source_length", "bf16"} <= must_stay.keys()
    by_content = {"data_dir", "config_path", "dropout", "gpus", "train_batch_size"}
    assert by_content <= parse_finetune_arguments(tiny).settings("by_content").keys()
