"""What the scripts of summarisation give to training and scoring: defaults, places, options and launchers."""

from __future__ import annotations

import re

import pytest

from tests.scripts.recording import ROOT, TORCHRUN, Recorder, eval_settings, train_settings
from utils.app.cli import all_settings
from utils.recipes.evaluation_arguments import parse_eval_arguments
from utils.recipes.finetuning_arguments import parse_finetune_arguments


def test_the_training_scripts_defaults_and_fixed_flags(recorded: Recorder) -> None:
    [train] = recorded.succeed("bash scripts/run_summarization.sh data/cnn_dm/")
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
        "eval_max_gen_length": 142,
        "do_predict": True,
        "type_path": "test",
        "pred_beams": 4,
        "pred_batch_size": 64,
        "val_check_interval": 0.3,
        "early_stopping_patience": 2,
    }


def test_the_evaluation_scripts_defaults(recorded: Recorder) -> None:
    [score] = recorded.succeed("bash scripts/run_eval_summarization.sh some.ckpt")
    assert score[: len(TORCHRUN) + 2] == [*TORCHRUN, "8", f"{ROOT}/run_eval.py"]
    args = eval_settings(score)
    assert re.fullmatch(r"results/bart_pyt_inference_\d{6}_\d{6}", args["save_dir"])
    words = ["some.ckpt", "configs/config.json", "data/cnn_dm/", args["save_dir"]]
    defaults = all_settings(parse_eval_arguments(words))
    assert {name: value for name, value in args.items() if value != defaults[name]} == {
        **{"bs": 128, "device": "cuda", "fp16": True, "eval_beams": 4},
        **{"max_source_length": 1024, "max_target_length": 142, "eval_max_gen_length": 142},
    }


def test_further_options_are_passed_on_and_win(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x --dropout 0.3 --n_train 7 --no_freeze_embeds --tokenizer 'a b'"
    [train] = recorded.succeed(command, SEED=7, RESULTS_DIR="out/x")
    args = train_settings(train)
    assert (args["data_dir"], args["dropout"], args["n_train"], args["freeze_embeds"]) == ("data/x", 0.3, 7, False)
    assert (args["seed"], args["output_dir"], args["tokenizer"], args["learning_rate"]) == (7, "out/x", "a b", 1e-4)
    command = "bash scripts/run_eval_summarization.sh some.ckpt 8 --n_obs 5 --type_path val --max_source_length 512"
    [score] = recorded.succeed(command)
    args = eval_settings(score)
    assert (args["bs"], args["n_obs"], args["type_path"], args["max_source_length"]) == (8, 5, "val", 512)


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


def test_a_program_that_fails_fails_the_script(recorded: Recorder) -> None:
    done, started = recorded("bash scripts/run_summarization.sh data", FAIL=f"{ROOT}/finetune.py")
    assert (done.returncode, len(started)) == (3, 1)


def test_an_interrupted_run_goes_on_in_its_folder(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x --resume_from_checkpoint last"
    [train] = recorded.succeed(command, RESULTS_DIR="results/mine")
    expected = {"resume_from_checkpoint": "last", "output_dir": "results/mine", "do_predict": True}
    assert expected.items() <= train_settings(train).items()
    [train] = recorded.succeed(command, SCORE=0)
    assert not train_settings(train)["do_predict"]
