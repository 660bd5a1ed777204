from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bart.errors import InputError
from utils.app.cli import all_settings
from utils.models.generation_options import GenerationOptions
from utils.models.options import DROPOUTS
from utils.recipes import training_arguments
from utils.recipes.data import with_table_prepared
from utils.recipes.evaluation_arguments import parse_eval_arguments
from utils.recipes.finetuning_arguments import FinetuneArguments, parse_finetune_arguments
from utils.tasks.text_to_text import TARGET_LENGTHS

ISSUE_FLAGS = """--data_dir --config_path --output_dir --gpus --learning_rate --fp16 --bf16 --amp_level --do_train
--do_predict --n_train --n_val --n_test --train_batch_size --eval_batch_size --gradient_accumulation_steps --max_steps
--max_epochs --min_epochs --warmup_steps --val_check_interval --max_source_length --max_target_length
--val_max_target_length --test_max_target_length --eval_max_gen_length --sortish_sampler --lr_scheduler
--label_smoothing --weight_decay --dropout --attention_dropout --gradient_clip_val --early_stopping_patience
--num_sanity_val_steps --eval_beams --val_metric --freeze_embeds --freeze_encoder --seed --num_workers
--resume_from_checkpoint --config --model_name_or_path --tokenizer --task""".split()
# Those of NVIDIA's finetune.py and run_eval.py, of both its versions, that no option here is called by.
NVIDIAS = {
    parse_finetune_arguments: "affinity allreduce_post_accumulation_half_precision load_model_weights_only local_rank "
    "logger_name n_tpu_cores pre_ln profile src_lang tgt_lang",
    parse_eval_arguments: "distill do_decoder do_encoder layers local_rank pre_ln sync_timeout",
}
ROOT = Path(__file__).parents[3]
BY_NAME = {*typing.get_type_hints(GenerationOptions)} - {"eval_max_gen_length"}


def parse(*options: str) -> FinetuneArguments:
    return parse_finetune_arguments(["--do_train", *options])


def test_help_names_every_flag_of_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    assert stop.value.code == 0
    words = capsys.readouterr().out.split()
    assert [flag for flag in ISSUE_FLAGS if flag not in words] == []


def test_names_of_the_recipe_stand_for_options_of_other_names() -> None:
    more = "--output_dir=a", "--max_epochs=3"  # without the first, names have the time
    args = parse("--adafactor", "--max_grad_norm", "0.5", "--min_num_train_epochs", "2", *more)
    assert args == parse("--optimizer", "adafactor", "--gradient_clip_val=0.5", "--min_epochs=2", *more)


@pytest.mark.parametrize(("parse", "name"), [(parse, name) for parse in NVIDIAS for name in NVIDIAS[parse].split()])
def test_what_the_recipe_has_and_this_has_not_is_explained(
    parse: Callable[[list[str]], object], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse([f"--{name}", "x"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and f"unknown argument --{name}; " in error and error.count("\n") == 1
    assert "did you mean" not in error and "lists what there is" not in error


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("logger_name: csv", "unknown option 'logger_name'; metrics.csv and TensorBoard are always written"),
        ("zzz: 1", "unknown option 'zzz'; --help lists what there is"),
        ("problem_type: x", "unknown option 'problem_type'; it is an option of --task classification$"),
    ],
)
def test_a_file_of_options_explains_what_the_command_line_does(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text(line + "\n")
    with pytest.raises(InputError, match=message):
        parse("--config", str(tmp_path / "options.yaml"))


def test_every_option_is_read_somewhere() -> None:
    args = parse()
    sources = "".join(path.read_text() for path in (ROOT / "utils").rglob("*.py") if "corpora" not in path.parts)
    names = all_settings(args)
    assert len(names) > 90
    unread = {name for name in names if not re.search(rf"\.{name}\b", sources)}
    assert unread <= {*DROPOUTS, *BY_NAME}  # which are read by name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min_epochs", "5", "--max_epochs", "2"], "--min_epochs is 5; allowed: at most --max_epochs 2"),
        (["--json-summary", "a"], "--json_summary is a; it needs --do_predict"),
        (["--gpus", "2", "--accelerator", "cpu"], "--accelerator is cpu and --gpus is 2"),
        (["--gpus", "2", "--devices", "3"], "--devices is 3, --accelerator is gpu and --gpus is 2"),
        (["--strategy", "fsdp", "--bf16", "--amp_level", "O2"], "--strategy fsdp and --amp_level O2"),
        (["--gpus", "1", "--strategy", "fsdp", "--fp16"], "--strategy fsdp and --fp16 exclude"),
        (["--strategy", "hsdp", "--optimizer", "adafactor"], "--strategy hsdp and --optimizer adafactor exclude"),
        (["--lr_scheduler", "polynomial", "--learning_rate", "1e-7"], "--learning_rate is 1e-07"),
        (["--new_vocabulary"], "--new_vocabulary needs --tokenizer"),
        (["--new_vocabulary", "--tokenizer", "t", "--model_name_or_path", "scratch"], "that is not scratch"),
        (["--new_vocabulary", "--tokenizer", "t", "--freeze_embeds"], "--new_vocabulary and --freeze_embeds exclude"),
        (
            ["--data_dir", "absent.jsonl.gz", "--config_path", "configs/config.json"],
            "--data_dir absent.jsonl.gz cannot be opened",
        ),
        (["--distill", "sft", "--layers", "0-1"], "--distill sft needs"),
        (["--distill", "sft", "--do_encoder"], "--distill sft needs --layers"),
        (
            ["--distill", "sft", "--layers", "0", "--do_encoder", "--model_name_or_path", "scratch"],
            "--model_name_or_path is scratch",
        ),
        (["--source_field", "text"], "--source_field is text; data/cnn_dm is no table, and line files have no columns"),
        (["--task", "translation", "--val_metric", "rouge1"], "allowed for --task translation: loss$"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_table_prepared(parse(*options).make_task()).read("train")


def test_processes_are_torchruns_or_one_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = parse("--gpus", "2").hardware
    monkeypatch.setenv("WORLD_SIZE", "8")  # alone, it is some scheduler's
    assert hardware.processes == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert hardware.processes == 8


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ("gpu", 1, 1)),
        (["--gpus", "4"], ("gpu", 4, 4)),
        (["--gpus", "0"], ("cpu", 1, 0)),
        (["--devices", "2"], ("gpu", 2, 2)),
        (["--accelerator", "cpu"], ("cpu", 1, 0)),
        (["--accelerator", "cpu", "--devices", "2"], ("cpu", 2, 0)),
        (["--gpus", "0", "--devices", "2"], ("cpu", 2, 0)),
        (["--gpus", "2", "--accelerator", "gpu", "--devices", "2"], ("gpu", 2, 2)),
    ],
)
def test_devices(options: list[str], expected: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    hardware = parse(*options).hardware
    assert (hardware.accelerator, hardware.devices, hardware.gpus) == expected
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    if not options:
        assert parse("--output_dir", "out").hardware.devices == 3
    elif hardware.devices > 1:
        with pytest.raises(InputError, match=f"is {hardware.devices}; torchrun started 3 processes"):
            parse(*options)


def test_a_machine_without_gpus_trains_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for options, gpus in (([], 0), (["--bf16"], 0), (["--gpus", "1"], 1), (["--accelerator", "gpu"], 1)):
        assert parse(*options).hardware.gpus == gpus
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # torchrun's
    hardware = parse("--output_dir", "out").hardware
    assert (hardware.accelerator, hardware.devices) == ("cpu", 2)


def test_the_learning_rate_follows_the_start() -> None:
    scratch = ("--model_name_or_path", "scratch", "--tokenizer", "t")
    assert parse().settings()["learning_rate"] == 3e-5
    assert parse("--lora_rank", "8").settings()["learning_rate"] == 3e-4
    assert parse("--lora_rank", "8", "--learning_rate", "1e-5").settings()["learning_rate"] == 1e-5
    assert parse(*scratch).settings()["learning_rate"] == 1e-3
    assert parse(*scratch, "--learning_rate", "1e-4").optimisation.learning_rate == 1e-4


def test_every_run_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, name in (
        ([], "bart-large"),
        (["--model_name_or_path", "results/mine/export"], "mine"),
        (["--model_name_or_path", "results/mine/last.ckpt", "--config_path", "c.json"], "last"),
        (["--model_name_or_path", "scratch"], "config"),
        (["--model_name_or_path", "scratch", "--config_path", "configs/config_tiny.json"], "config_tiny"),
    ):
        folder = parse(*options).run.output_dir
        assert re.fullmatch(rf"results/{name}_\d{{6}}_\d{{6}}", folder)
    times = iter(["one", "two"])
    monkeypatch.setattr(training_arguments, "time", SimpleNamespace(strftime=lambda _: next(times)))
    assert parse().run.output_dir == "results/bart-large_one"
    assert parse().run.output_dir == "results/bart-large_two"  # a run that another one started
    monkeypatch.setenv("LOCAL_RANK", "1")  # one of its processes
    assert parse().run.output_dir == "results/bart-large_two"
    with pytest.raises(InputError, match="--resume_from_checkpoint last needs --output_dir"):
        parse("--resume_from_checkpoint", "last")


def test_lengths_follow_the_model(tmp_path: Path) -> None:
    def lengths(positions: int, *options: str) -> list[int | None]:
        (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
        args = parse("--config_path", str(tmp_path / "config.json"), *options)
        task = args.make_task()
        task = task.fitted(task.config(args.model))
        return [task.options.max_source_length, *(getattr(task.training, name) for name in TARGET_LENGTHS)]

    assert lengths(2000) == [1024, 142, 142, 142]
    assert lengths(64) == [64, 64, 64, 64]
    assert lengths(64, "--max_target_length", "20", "--test_max_target_length", "30") == [64, 20, 20, 30]
    with pytest.raises(InputError, match="--max_source_length is 65; the model has 64"):
        lengths(64, "--max_source_length", "65")


def test_the_metric_of_the_best_checkpoint_follows_the_task_and_eval_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    def metric(*options: str) -> str:
        return parse("--config_path", str(ROOT / "configs/config.json"), *options).make_task().metrics_for(None)[0]

    assert metric("--eval_beams", "2") == "rouge2"
    assert metric("--eval_beams", "0") == metric() == "loss"  # on a CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert metric() == "rouge2"
    assert metric("--task", "translation") == "loss"
