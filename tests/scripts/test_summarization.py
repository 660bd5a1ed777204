"""What the scripts of summarisation give to training and scoring: defaults, places, options and launchers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scripts.recording import ROOT, TORCHRUN, Recorder, eval_settings, train_settings
from utils.recipes.evaluation_arguments import parse_eval_arguments
from utils.recipes.finetuning_arguments import parse_finetune_arguments


def test_the_training_scripts_defaults_and_fixed_flags(recorded: Recorder) -> None:
    train, score = recorded.succeed("bash scripts/run_summarization.sh data/cnn_dm/")
    args, defaults = train_settings(train), parse_finetune_arguments(["--do_train", "--gpus", "8"]).settings()
    assert re.fullmatch(r"results/bart_pyt_\d{6}_\d{6}", args["output_dir"])
    assert {name: value for name, value in args.items() if name not in defaults or value != defaults[name]} == {
        "output_dir": args["output_dir"],
        "processes": 8,
        "data_dir": "data/cnn_dm/",
        "config_path": "configs/config.json",
        "max_source_length": 1024,
        **dict.fromkeys([f"{kind}max_target_length" for kind in ("", "val_", "test_")], 142),
        "learning_rate": 1e-4,
        "train_batch_size": 24,
        "fp16": True,
        "max_steps": 20000,
        "warmup_steps": 500,
        "lr_scheduler": "polynomial",
        "label_smoothing": 0.1,
        "weight_decay": 0.1,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "gradient_clip_val": 0.1,
        "freeze_embeds": True,
        "sortish_sampler": True,
        "eval_beams": 0,
        "eval_batch_size": 128,
        "val_check_interval": 0.3,
        "early_stopping_patience": 2,
    }
    scored = eval_settings(score)
    assert (scored["bs"], scored["eval_beams"], scored["save_dir"]) == (64, 4, args["output_dir"])


def test_the_evaluation_scripts_defaults(recorded: Recorder) -> None:
    [score] = recorded.succeed("bash scripts/run_eval_summarization.sh some.ckpt")
    assert score[: len(TORCHRUN) + 2] == [*TORCHRUN, "8", f"{ROOT}/run_eval.py"]
    args = eval_settings(score)
    assert re.fullmatch(r"results/bart_pyt_inference_\d{6}_\d{6}", args["save_dir"])
    words = ["some.ckpt", "configs/config.json", "data/cnn_dm/", args["save_dir"]]
    defaults = parse_eval_arguments(words).settings()
    assert {name: value for name, value in args.items() if value != defaults[name]} == {
        **{"bs": 128, "device": "cuda", "fp16": True, "eval_beams": 4},
        **{"max_source_length": 1024, "max_target_length": 142, "eval_max_gen_length": 142},
    }


def test_further_options_are_passed_on_and_win(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x --dropout 0.3 --n_train 7 --no_freeze_embeds --tokenizer 'a b'"
    train, _ = recorded.succeed(command, SEED=7, RESULTS_DIR="out/x")
    args = train_settings(train)
    assert (args["data_dir"], args["dropout"], args["n_train"], args["freeze_embeds"]) == ("data/x", 0.3, 7, False)
    assert (args["seed"], args["output_dir"], args["tokenizer"], args["learning_rate"]) == (7, "out/x", "a b", 1e-4)
    command = "bash scripts/run_eval_summarization.sh some.ckpt 8 --n_obs 5 --type_path val --max_source_length 512"
    [score] = recorded.succeed(command)
    args = eval_settings(score)
    assert (args["bs"], args["n_obs"], args["type_path"], args["max_source_length"]) == (8, 5, "val", 512)


def test_options_that_bear_on_the_scores_reach_the_scoring(recorded: Recorder) -> None:
    stream = "hub:a/b --max_steps 3 --val_check_interval 9"
    options = "--source-field=text --target_field 'a summary' --task translation --eval_max_gen_length=50 --n_test -1"
    train, score = recorded.succeed(f"bash scripts/run_summarization.sh {stream} {options}")
    given = {"source_field": "text", "target_field": "a summary", "task": "translation", "eval_max_gen_length": 50}
    assert (given | {"n_test": -1, "max_steps": 3}).items() <= train_settings(train).items()
    assert (given | {"n_obs": -1}).items() <= eval_settings(score).items()


@pytest.mark.parametrize(
    "option",
    [
        *("--max_source_length 512", "--max-source-length=512", "--max_target_length 9", "--val_max_target_length 9"),
        *("--test-max-target-length 9", "--data_dir x", "--config-path=x", "--output_dir x", "--gpus=2"),
        *("--fp16", "--no_fp16", "--bf16", "--tf32"),
    ],
)
def test_options_that_have_a_place_are_refused(recorded: Recorder, option: str) -> None:
    done, started = recorded(f"bash scripts/run_summarization.sh data --dropout 0.1 {option}")
    assert (done.returncode, started) == (2, [])
    word = option.split()[0]
    expected = f"run_summarization.sh: error: {word}; give it by its place, and the output directory as RESULTS_DIR\n"
    assert done.stderr == expected


@pytest.mark.parametrize("option", ["task", "dropout", "max_source_length"])
def test_a_file_of_options_may_not_hold_what_would_not_be_obeyed(
    recorded: Recorder, tmp_path: Path, option: str
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"n_train: 7\n{option}: 1\n")
    done, started = recorded(f"bash scripts/run_summarization.sh data --config {file}")
    assert (done.returncode, started) == (2, [])
    expected = f"--config {file} sets {option}, which would not be obeyed there; give it as --{option}, or by its place"
    assert expected in done.stderr
    file.write_text("n_train: 7\n")
    train, _ = recorded.succeed(f"bash scripts/run_summarization.sh data --config={file}")
    assert train_settings(train)["n_train"] == 7


@pytest.mark.parametrize(("step", "calls"), [("finetune.py", 1), ("run_eval.py", 2)])
@pytest.mark.parametrize("pipe", ["", " | tee /dev/null"])
def test_a_step_that_fails_fails_the_script(recorded: Recorder, step: str, calls: int, pipe: str) -> None:
    done, started = recorded(f"set -o pipefail; bash scripts/run_summarization.sh data{pipe}", FAIL=f"{ROOT}/{step}")
    assert (done.returncode, len(started)) == (3, calls)


@pytest.mark.parametrize("launch", ["torchrun --nproc_per_node=2", "srun -l torchrun"])
def test_launch_holds_the_words_that_start_the_training(recorded: Recorder, launch: str) -> None:
    recorded.stand_in(launch.split()[0])
    train, score = recorded.succeed("bash scripts/run_summarization.sh data/x", LAUNCH=launch)
    words = [*launch.split(), f"{ROOT}/finetune.py"]
    assert train[: len(words)] == words
    assert train_settings(train)["data_dir"] == "data/x"
    assert score[: len(TORCHRUN)] == TORCHRUN


def test_processes_on_the_cpu_train_together_and_one_scores(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x configs/config.json 0 1e-4 8 1 fp32"
    train, score = recorded.succeed(f"{command} --accelerator cpu --devices 2")
    expected = {"accelerator": "cpu", "devices": 2, "gpus": 0, "processes": 2}
    assert expected.items() <= train_settings(train).items()
    assert score[:2] == ["python", f"{ROOT}/run_eval.py"] and eval_settings(score)["device"] == "cpu"


def test_an_interrupted_run_goes_on_in_its_folder(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x --resume_from_checkpoint last"
    train, score = recorded.succeed(command, RESULTS_DIR="results/mine")
    assert {"resume_from_checkpoint": "last", "output_dir": "results/mine"}.items() <= train_settings(train).items()
    assert eval_settings(score)["model"] == "results/mine/export"
    assert len(recorded.succeed(command, SCORE=0)) == 1
