from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from bart.errors import InputError
from bart.generation import GenerationConfig
from utils.evaluation.arguments import (
    JSON_OPTIONS,
    EvalArguments,
    GenerationArguments,
    parse_eval_arguments,
)

POSITIONAL = ["model", "config.json", "data", "out"]
# They bear on what generate returns besides the ids, which scoring does not ask for.
NOT_OFFERED = {"output_scores", "return_dict_in_generate"}


def parse(*options: str) -> EvalArguments:
    return parse_eval_arguments([*POSITIONAL, *options])


def test_every_option_of_generate_can_be_given_by_name_with_its_type() -> None:
    theirs, ours = typing.get_type_hints(GenerationConfig), typing.get_type_hints(GenerationArguments)
    assert list(ours) == [field.name for field in dataclasses.fields(GenerationConfig) if field.name not in NOT_OFFERED]
    for name, kind in ours.items():
        written = name in JSON_OPTIONS or name == "early_stopping"
        assert set(typing.get_args(kind)) == {str if written else typing.get_args(theirs[name] | None)[0], type(None)}


def test_options_of_generate_reach_it() -> None:
    assert parse().generation == {}
    args = parse(
        *("--length_penalty", "2.0", "--do_sample", "--early_stopping", "true", "--eval_beams", "3"),
        *("--eval_max_gen_length", "20", "--eos_token_id", "[2, 3]", "--forced_eos_token_id", "2"),
    )
    expected = {
        "max_length": 20,
        "num_beams": 3,
        "length_penalty": 2.0,
        "early_stopping": True,
        "do_sample": True,
        "forced_eos_token_id": 2,
        "eos_token_id": [2, 3],
    }
    assert args.generation == expected
    GenerationConfig(bos_token_id=0, **expected)
    assert parse("--no_do_sample", "--early_stopping", "false").generation == {
        "do_sample": False,
        "early_stopping": False,
    }
    assert parse("--eval_beams", "3", "--num_beams", "3").generation == {"num_beams": 3}
    assert parse("--max_new_tokens", "9", "--max_length", "10").generation == {"max_length": 10, "max_new_tokens": 9}


def test_hyphens_stand_for_underscores() -> None:
    args = parse("--dump-args", "--json-summary=a-b.json", "--length-penalty", "-1.5", "--info", "a-b", "--no-debug")
    assert (args.dump_args, args.json_summary, args.length_penalty, args.info) == (True, "a-b.json", -1.5, "a-b")
    assert not args.debug


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ([], "fp32"),
        (["--fp16"], "fp16"),
        (["--bf16", "--precision", "bf16"], "bf16"),
        (["--precision", "int8"], "int8"),
    ],
)
def test_precision_has_two_spellings(options: list[str], precision: str) -> None:
    args = parse(*options)
    assert args.precision == precision
    assert dataclasses.replace(args, bs=2).precision == precision


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ([], None),
        (["--device", "cpu"], 0),
        (["--device", "cpu", "--gpus", "0"], 0),
        (["--device", "cuda"], 1),
        (["--device", "cuda", "--gpus", "4"], 4),
        (["--device", "cuda:3"], 1),
        (["--device", "cuda:3", "--gpus", "1"], 1),
    ],
)
def test_device_and_gpus_say_the_same(options: list[str], gpus: int | None) -> None:
    args = parse(*options)
    assert args.gpus == gpus
    assert dataclasses.replace(args, bs=2).gpus == gpus


def test_torchrun_says_how_many_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert parse("--device", "cuda").gpus == parse("--gpus", "2").gpus == 2
    assert parse("--gpus", "0").gpus == 0
    with pytest.raises(InputError, match=r"--gpus is 3; torchrun started 2 processes .* which take --gpus 2, or 0"):
        parse("--gpus", "3")
    with pytest.raises(InputError, match="--device is cuda:1; torchrun started 2"):
        parse("--device", "cuda:1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--wordnet_exceptions x", "--wordnet_exceptions is of --rouge_mode rouge-1.5.5; --rouge_mode is rouge-score"),
        ("--rouge_mode rouge-1.5.5 --task translation", "--rouge_mode is rouge-1.5.5 and --task is translation"),
        ("--fp16 --bf16", "--fp16 and --bf16 exclude each other; give one precision"),
        ("--fp16 --precision bf16", "--fp16 and --precision bf16 exclude each other"),
        ("--fp16 --gpus 0", "--fp16 needs a GPU and --gpus is 0; the CPU takes fp32, bf16 or int8"),
        ("--precision fp16 --device cpu", "--precision fp16 needs a GPU"),
        ("--precision int8 --device cuda:0", "--precision int8 runs on the CPU and --gpus is 1"),
        ("--device tpu", "--device is 'tpu'; allowed: cpu, cuda, or cuda:N"),
        ("--device cuda:x", "--device is 'cuda:x'"),
        ("--device cpu --gpus 2", "--device is cpu and --gpus is 2; allowed with it: 0"),
        ("--device cuda --gpus 0", "--device is cuda and --gpus is 0; allowed with it: 1 or more"),
        ("--device cuda:1 --gpus 2", "--device is cuda:1 and --gpus is 2; allowed with it: 1"),
        ("--num_beams 2 --eval_beams 3", "--num_beams is 2 and --eval_beams is 3; they say the same"),
        ("--max_length 9 --eval_max_gen_length 8", "--max_length is 9 and --eval_max_gen_length is 8"),
        ("--max_new_tokens 9 --eval_max_gen_length 9", "--max_new_tokens is 9 and --eval_max_gen_length is 9; .*: 10"),
        ("--min_new_tokens 9 --min_length 9", "--min_new_tokens is 9 and --min_length is 9; .*: 10"),
        ("--eos_token_id two", "--eos_token_id is 'two'; allowed: ids such as 2, or"),
        ("--bad_words_ids [[5]", "--bad_words_ids is '[[5]'; allowed: ids such as [[5], [6, 7]]"),
        ("--n_obs 0", "--n_obs is 0"),
        ("--interactive --gpus 2", "--interactive takes one process; --gpus is 2"),
        ("--interactive --n_obs 3", "--n_obs is 3; it has no part in --interactive"),
        ("--interactive --json-summary x", "--json_summary is x; it has no part in --interactive"),
    ],
)
def test_what_contradicts_itself_is_refused(options: str, message: str) -> None:
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(InputError, match=pattern) as error:
        parse(*options.split())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--lenght_penalty 2", "unknown argument --lenght_penalty; did you mean --length_penalty?"),
        ("--length_penalty long", "--length_penalty: 'long' is not allowed: it takes a number"),
        ("--num_beams 2.5", "--num_beams: '2.5' is not allowed: it takes an integer"),
        ("--early_stopping maybe", "--early_stopping: 'maybe' is not allowed: it takes one of true, false, never"),
        ("--batching dynamic", "one of continuous, static"),
        ("--task summarisation", "one of summarization, translation"),
        ("--warmup_batches -1", "--warmup_batches: '-1' is not allowed: it takes an integer at least 0"),
    ],
)
def test_what_no_option_takes_is_refused(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(*options.split())
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_interactive_needs_neither_data_nor_a_place_for_results(capsys: pytest.CaptureFixture[str]) -> None:
    args = parse_eval_arguments(["model", "config.json", "--interactive", "--num-beams", "2"])
    assert (args.data_dir, args.save_dir, args.generation) == (None, None, {"num_beams": 2})
    assert parse("--interactive").data_dir == "data"
    with pytest.raises(SystemExit):
        parse_eval_arguments(["model", "config.json"])
    assert "required: data_dir, save_dir" in capsys.readouterr().err


def test_the_section_of_the_readme_names_what_there_is() -> None:
    """Options that a user may copy from README.md exist."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    commands = re.findall(r"run_eval\.py((?:[^\n`]|\\\n)*)", text)
    names = {field.name for field in dataclasses.fields(EvalArguments)}
    used = {name.replace("-", "_") for command in commands for name in re.findall(r"--([\w-]+)", command)}
    assert used - {"help"} <= names
