from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest
import torch

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from utils.models.generation_options import JSON_OPTIONS, SPELLINGS, GenerationOptions
from utils.recipes.evaluation import device_of
from utils.recipes.evaluation_arguments import EvalArguments, parse_eval_arguments
from utils.tasks.text_to_text import TextToTextEvalOptions

POSITIONAL = ["model", "config.json", "data", "out"]
# They bear on what generate returns besides the ids, which scoring does not ask for.
NOT_OFFERED = {"output_scores", "return_dict_in_generate", "num_beam_groups", "diversity_penalty"}
NOT_OF_GENERATE = {"drop_repeated_sentences", "references", "prefix", "max_target_length", "only_predict"}


def parse(*options: str) -> EvalArguments:
    return parse_eval_arguments([*POSITIONAL, *options])


def test_every_option_of_generate_can_be_given_once_with_its_type() -> None:
    theirs, ours = typing.get_type_hints(GenerationConfig), typing.get_type_hints(GenerationOptions)
    offered = [field.name for field in dataclasses.fields(GenerationConfig) if field.name not in NOT_OFFERED]
    ours |= typing.get_type_hints(TextToTextEvalOptions)
    expected = sorted(SPELLINGS.get(name, name) for name in offered)
    assert sorted(ours.keys() - NOT_OF_GENERATE) == expected
    for name in offered:
        written = name in JSON_OPTIONS or name == "early_stopping"
        expected = {str if written else typing.get_args(theirs[name] | None)[0], type(None)}
        assert set(typing.get_args(ours[SPELLINGS.get(name, name)])) == expected


def test_options_of_generate_reach_it() -> None:
    assert parse().make_task().scoring_generation() == {}
    args = parse(
        *("--length_penalty", "2.0", "--do_sample", "--early_stopping", "true", "--eval_beams", "3"),
        *("--eval_max_gen_length", "20", "--eos_token_id", "[2, 3]", "--forced_eos_token_id", "2"),
    )
    expected = {
        "max_length": 20,
        "max_new_tokens": None,
        "num_beams": 3,
        "length_penalty": 2.0,
        "early_stopping": True,
        "do_sample": True,
        "forced_eos_token_id": 2,
        "eos_token_id": [2, 3],
    }
    assert args.make_task().scoring_generation() == expected
    config = GenerationConfig(bos_token_id=0, max_length=None, max_new_tokens=60)
    assert config.longest(100) == 61 and config.merged(**expected).longest(100) == 20
    negations = parse("--no_do_sample", "--early_stopping", "false")
    assert negations.make_task().scoring_generation() == {"do_sample": False, "early_stopping": False}
    longest = parse("--max_new_tokens", "9", "--eval_max_gen_length", "10")
    assert longest.make_task().scoring_generation() == {"max_length": 10, "max_new_tokens": 9}


def test_hyphens_stand_for_underscores() -> None:
    args = parse("--dump-args", "--json-summary=a-b.json", "--length-penalty", "-1.5", "--info", "a-b", "--no-debug")
    scoring = args.scoring
    assert (scoring.dump_args, scoring.json_summary, scoring.info, args.debug) == (True, "a-b.json", "a-b", False)
    assert args.task_options.decoding.length_penalty == -1.5


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "int8"])
def test_a_precision_is_a_flag(precision: str) -> None:
    assert parse(*([] if precision == "fp32" else [f"--{precision}"])).hardware.precision == precision


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--wordnet_exceptions x", "--wordnet_exceptions is of --rouge_mode rouge-1.5.5; --rouge_mode is rouge-score"),
        ("--fp16 --bf16", "--bf16 and --fp16 exclude each other; give one precision"),
        ("--device tpu", "--device is 'tpu'; allowed: cpu, cuda, or cuda:N"),
        ("--device cuda:x", "--device is 'cuda:x'"),
        ("--max_new_tokens 9 --eval_max_gen_length 9", "--max_new_tokens is 9 and --eval_max_gen_length is 9; .*: 10"),
        ("--min_new_tokens 9 --min_length 9", "--min_new_tokens is 9 and --min_length is 9; .*: 10"),
        ("--n_obs 0", "--n_obs is 0"),
        ("--no_references --target_field x", "--target_field is x, and --no_references reads no targets"),
        (
            "--task summarisation",
            "--task is 'summarisation'; allowed: summarization, translation, classification, tagging, question_",
        ),
    ],
)
def test_contradictions_are_refused(options: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message).replace(r"\.\*", ".*")) as error:
        parse(*options.split()).make_task()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--eos_token_id two", "--eos_token_id is 'two'; allowed: ids such as 2, or"),
        ("--bad_words_ids [[5]", "--bad_words_ids is '[[5]'; allowed: ids such as [[5], [6, 7]]"),
    ],
)
def test_malformed_lists_of_ids_are_refused(options: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse(*options.split()).make_task().scoring_generation()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--lenght_penalty 2", "unknown argument --lenght_penalty; did you mean --length_penalty?"),
        ("--num_beams 2", "unknown argument --num_beams; "),
        ("--length_penalty long", "--length_penalty: 'long' is not allowed: it takes a number"),
        ("--eval_beams 2.5", "--eval_beams: '2.5' is not allowed: it takes an integer"),
        ("--early_stopping maybe", "--early_stopping: 'maybe' is not allowed: it takes one of true, false, never"),
        ("--batching dynamic", "one of continuous, static"),
        ("--task translation --rouge_mode rouge-1.5.5", "unknown argument --rouge_mode"),
        ("--warmup_batches -1", "--warmup_batches: '-1' is not allowed: it takes an integer at least 0"),
    ],
)
def test_values_that_no_option_takes_are_refused(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(*options.split())
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_of(parse()) == device_of(parse("--device", "cpu", "--int8")) == torch.device("cpu")
    for options, message in (
        ("--fp16", "--fp16 needs a GPU and --device is cpu; the CPU takes fp32, --bf16 or --int8"),
        ("--device cuda --int8", "--int8 runs on the CPU and --device is cuda"),
        ("--device cuda", "--device is cuda; this machine has 0 CUDA devices"),
    ):
        with pytest.raises(InputError, match=message):
            device_of(parse(*options.split()))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of(parse("--fp16")) == torch.device("cuda", 0)
    assert device_of(parse("--device", "cuda:1")) == torch.device("cuda", 1)
    with pytest.raises(InputError, match=r"--device is cuda:2; this machine has 2 CUDA devices, counted from 0"):
        device_of(parse("--device", "cuda:2"))
    monkeypatch.setenv("LOCAL_RANK", "1")  # torchrun's
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert device_of(parse("--device", "cuda")) == torch.device("cuda", 1)
    with pytest.raises(InputError, match="--device is cuda:1, and torchrun started several processes"):
        parse("--device", "cuda:1")
    assert chosen == [0, 1, 1]


def test_the_task_is_that_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertForTokenClassification"]}')
    positional = [str(tmp_path), *POSITIONAL[1:]]
    assert parse_eval_arguments(positional).task == "tagging"
    assert parse_eval_arguments([*positional, "--task", "classification"]).task == "classification"
    assert parse().task == "summarization"
