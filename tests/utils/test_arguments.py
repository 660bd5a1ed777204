from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bart.errors import InputError
from utils import arguments
from utils.arguments import TrainArguments, parse_train_arguments
from utils.evaluation.arguments import parse_eval_arguments

ISSUE_FLAGS = """--data_dir --config_path --output_dir --gpus --learning_rate --fp16 --bf16 --amp_level --do_train
--do_predict --n_train --n_val --n_test --train_batch_size --eval_batch_size --gradient_accumulation_steps --max_steps
--max_epochs --min_epochs --warmup_steps --val_check_interval --max_source_length --max_target_length
--val_max_target_length --test_max_target_length --eval_max_gen_length --sortish_sampler --lr_scheduler
--label_smoothing --weight_decay --dropout --attention_dropout --gradient_clip_val --early_stopping_patience
--num_sanity_val_steps --eval_beams --val_metric --freeze_embeds --freeze_encoder --seed --num_workers
--resume_from_checkpoint --config --model_name_or_path --tokenizer""".split()


STREAM = ("--data_dir", "data/{split}.parquet", "--max_steps", "5", "--val_check_interval", "9")


def test_help_names_every_flag_of_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_train_arguments(["--help"])
    assert stop.value.code == 0
    words = capsys.readouterr().out.split()
    assert [flag for flag in ISSUE_FLAGS if flag not in words] == []


def test_every_option_is_read_somewhere() -> None:
    modules = [*Path(__file__).parents[2].glob("utils/[td]*/*.py"), Path(arguments.__file__)]
    sources = "".join(path.read_text() for path in modules)
    names = TrainArguments.__dataclass_fields__
    unread = [name for name in names if not re.search(rf"\b(args|self)\.{name}\b", sources)]
    # Dropouts are read by name; the YAML file before there are arguments.
    assert set(unread) == {"dropout", "attention_dropout", "encoder_layerdrop", "decoder_layerdrop", "config"}


def test_yaml_gives_values_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"learning_rate": 1e-3, "do_train": True, "max_steps": 5, "fp16": False}))
    args = parse_train_arguments(["--config", str(path), "--max_steps", "7", "--no_do_train", "--do_predict"])
    assert (args.learning_rate, args.max_steps, args.do_train, args.do_predict) == (1e-3, 7, False, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("learning_rat: 1", "learning_rat.*learning_rate"),
        ("learning_rate: fast", "learning_rate.*'fast'.*a number above 0"),
        ("train_batch_size: 2.5", "train_batch_size.*2.5.*an integer"),
        ("do_train: 3", "do_train.*true or false"),
        ("max_steps: null", "max_steps.*None.*an integer"),
        ("output_dir: null", "output_dir.*None.*a string"),
        ("output_dir: [a]", "output_dir.*a string"),
        ("[1, 2]", "mapping"),
        ("a: [", "YAML"),
    ],
)
def test_bad_yaml(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=f"(?s)run.yaml.*{message}"):
        parse_train_arguments(["--config", str(path)])
    with pytest.raises(InputError, match="absent.yaml"):
        parse_train_arguments(["--config", str(tmp_path / "absent.yaml")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--learning_rat", "1"], "unknown argument --learning_rat; did you mean --learning_rate?"),
        (["stray"], "unknown argument stray"),
        (["--train_batch_size", "0"], "--train_batch_size: '0' is not allowed: it takes an integer at least 1"),
        (["--train_batch_size", "x"], "--train_batch_size: 'x' is not allowed"),
        (["--max_source_length", "-5"], "--max_source_length: '-5' is not allowed"),
        (["--n_train", "-2"], "--n_train: '-2' is not allowed"),
        (["--learning_rate", "0"], "--learning_rate: '0' is not allowed: it takes a number above 0"),
        (["--learning_rate", "nan"], "--learning_rate: 'nan' is not allowed"),
        (["--weight_decay", "inf"], "--weight_decay: 'inf' is not allowed"),
        (["--label_smoothing", "1.5"], "--label_smoothing: '1.5' is not allowed"),
        (["--lr_scheduler", "step"], "--lr_scheduler: 'step' is not allowed: it takes one of polynomial"),
        (["--gpus", "-1"], "--gpus: '-1' is not allowed"),
        (["--eval_beams"], "--eval_beams: expected one argument"),
        (["--config"], "--config: expected one argument"),
    ],
)
def test_bad_options_end_with_one_line_and_status_2(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_train_arguments(["--do_train", *options])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--do_train", "--fp16", "--bf16"], "--fp16 and --bf16 exclude"),
        (["--do_train", "--gpus", "0", "--fp16"], "--fp16 needs a GPU"),
        (["--do_train", "--gpus", "0", "--accelerator", "gpu"], "--accelerator is gpu and --gpus is 0"),
        (["--do_train", "--gpus", "2", "--accelerator", "cpu"], "--accelerator is cpu and --gpus is 2"),
        (["--do_train", "--gpus", "2", "--devices", "3"], "--devices is 3 and --gpus is 2"),
        (["--do_train", "--strategy", "fsdp", "--bf16", "--amp_level", "O2"], "--strategy fsdp and --amp_level O2"),
        (["--do_train", "--strategy", "fsdp", "--fp16"], "--strategy fsdp and --fp16 exclude"),
        (["--do_train", "--layers", "0-1"], "--layers is about --distill"),
        (["--do_train", "--distill", "sft", "--layers", "0-1"], "--distill sft needs"),
        (["--do_train", "--max_tokens_per_batch", "1000"], "--max_tokens_per_batch is 1000; allowed: at least 116"),
        (["--do_train", "--max_steps", "0"], "--max_steps is 0"),
        (["--do_train", "--lr_scheduler", "polynomial", "--learning_rate", "1e-7"], "--learning_rate is 1e-07"),
        (["--do_train", "--n_val", "0"], "--n_val is 0"),
        (["--do_train", "--strategy", "fsdp", "--optimizer", "lamb"], "--strategy fsdp and --optimizer lamb exclude"),
        (["--do_train", "--val_check_interval", "80.5"], "--val_check_interval is 80.5"),
        (
            ["--do_train", "--data_dir", "hub:a/b", "--val_check_interval", "9"],
            "--data_dir hub:a/b is streamed.* the length of its epochs: give --max_steps$",
        ),
        (["--do_train", *STREAM, "--max_epochs", "2"], "give --max_steps, and not --max_epochs, which is 2"),
        (["--do_train", *STREAM, "--val_check_interval", "0.5"], "--val_check_interval is 0.5, a part of an epoch"),
        (["--do_train", *STREAM, "--min_epochs", "2"], "--min_epochs is 2"),
        (["--do_train", *STREAM, "--max_tokens_per_batch", "4000"], "--max_tokens_per_batch needs the lengths of all"),
        (["--do_train", *STREAM, "--cache_dir", "a"], "--cache_dir is a, .* is streamed"),
        (["--do_train", "--source_field", "text"], "--source_field is text, .* the data directory is data/cnn_dm"),
        (["--do_train", "--data_dir", "hub:"], "'hub:' names no set on the Hub; allowed: hub:NAME"),
        ([], "--do_train"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_train_arguments(options)


def test_a_batch_of_tokens_must_hold_one_padded_example() -> None:
    options = ["--do_train", "--max_source_length", "1021", "--max_target_length", "142", "--max_tokens_per_batch"]
    assert parse_train_arguments([*options, "1168"]).max_tokens_per_batch == 1168  # 1024 + 144
    with pytest.raises(InputError, match="--max_tokens_per_batch is 1167; allowed: at least 1168"):
        parse_train_arguments([*options, "1167"])


def test_yaml_null_stands_for_a_default_of_none(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("do_train: true\neval_beams: null\nmax_epochs: null\n")
    args = parse_train_arguments(["--config", str(tmp_path / "run.yaml")])
    assert (args.eval_beams, args.max_epochs) == (None, None)


def test_processes_are_torchruns_or_one_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    args = parse_train_arguments(["--do_train", "--gpus", "2"])
    monkeypatch.setenv("WORLD_SIZE", "8")  # alone, it is some scheduler's
    assert args.processes == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert args.processes == 8


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
    args = parse_train_arguments(["--do_train", *options])
    assert (args.accelerator, args.devices, args.gpus) == expected
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    if not options:
        assert parse_train_arguments(["--do_train"]).devices == 3
    elif args.devices > 1:
        with pytest.raises(InputError, match=f"is {args.devices}; torchrun started 3 processes"):
            parse_train_arguments(["--do_train", *options])


def test_selection_metric_follows_eval_beams() -> None:
    assert parse_train_arguments(["--do_train"]).selection_metric == "rouge2"
    assert parse_train_arguments(["--do_train", "--eval_beams", "0"]).selection_metric == "loss"
    assert (
        parse_train_arguments(["--do_train", "--eval_beams", "0", "--val_metric", "rouge1"]).selection_metric
        == "rouge1"
    )


def test_eval_arguments() -> None:
    args = parse_eval_arguments(["model", "config.json", "data", "out", "--bs", "3", "--eval_beams", "2"])
    assert (args.model, args.config_path, args.data_dir, args.save_dir) == ("model", "config.json", "data", "out")
    assert (args.bs, args.eval_beams, args.type_path) == (3, 2, "test")
    with pytest.raises(InputError, match="--precision tf32 needs a GPU"):
        parse_eval_arguments(["m", "c", "d", "o", "--precision", "tf32", "--gpus", "0"])
    with pytest.raises(InputError, match="--precision int8 runs on the CPU"):
        parse_eval_arguments(["m", "c", "d", "o", "--precision", "int8", "--gpus", "1"])


@pytest.mark.parametrize("parse", [parse_train_arguments, parse_eval_arguments])
def test_help_reads_well_in_80_columns(
    parse: Callable[[list[str]], object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("usage: ") and not lines[1]  # no screenful of all options before the sections
    headings = [line for line in lines if re.fullmatch(r"\w[\w ]*:", line)]
    assert len(headings) == len(set(headings)) >= 2
    options = [line.split()[0] for line in lines if line.startswith("  --")]
    alone = [line for line in lines if re.fullmatch(r"  --\w+( [A-Z]+)?", line)]
    following = [lines[lines.index(line) + 1] for line in alone]
    assert len(options) == len(set(options)) > 5
    assert all(line.startswith(" " * 24) for line in following)  # nothing without a description
