from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest
import torch

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from utils.models.generation_options import SPELLINGS, GenerationOptions
from utils.recipes.evaluation import device_of
from utils.recipes.evaluation_arguments import EvalArguments, parse_eval_arguments
from utils.tasks.options import TextToTextEvalOptions

POSITIONAL = ["model", "config.json", "data", "out"]
# They bear on what generate returns besides the ids, which scoring does not ask for.
NOT_OFFERED = {"output_scores", "return_dict_in_generate", "num_beam_groups", "diversity_penalty", "bad_words_ids"}
NOT_OF_GENERATE = {"references", "prefix", "max_target_length", "only_predict"}


def parse(*options: str) -> EvalArguments:
    return parse_eval_arguments([*POSITIONAL, *options])


def test_every_option_of_generate_can_be_given_once_with_its_type() -> None:
    theirs, ours = typing.get_type_hints(GenerationConfig), typing.get_type_hints(GenerationOptions)
    offered = [
        field.name
        for field in dataclasses.fields(GenerationConfig)
        if field.name not in NOT_OFFERED and not field.name.endswith("token_id")
    ]
    ours |= typing.get_type_hints(TextToTextEvalOptions)
    expected = sorted(SPELLINGS.get(name, name) for name in offered)
    assert sorted(ours.keys() - NOT_OF_GENERATE) == expected
    for name in offered:
        expected = {str if name == "early_stopping" else typing.get_args(theirs[name] | None)[0], type(None)}
        assert set(typing.get_args(ours[SPELLINGS.get(name, name)])) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--wordnet_exceptions x", "--wordnet_exceptions is of --rouge_mode rouge-1.5.5; --rouge_mode is rouge-score"),
        ("--device cuda:x", "--device is 'cuda:x'"),
        ("--max_new_tokens 9 --eval_max_gen_length 9", "--max_new_tokens and --eval_max_gen_length exclude each"),
        ("--min_new_tokens 9 --min_length 9", "--min_new_tokens and --min_length exclude each other"),
        ("--no_references --target_field x", "--target_field is x, and --no_references reads no targets"),
    ],
)
def test_contradictions_are_refused(options: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message).replace(r"\.\*", ".*")) as error:
        parse(*options.split()).make_task()
    assert "\n" not in str(error.value)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []

    def device(*options: str) -> torch.device:
        args = parse(*options)
        return device_of(args.device, args.precision)

    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device() == device("--device", "cpu", "--int8") == torch.device("cpu")
    for options, message in (
        ("--fp16", "--fp16 needs a GPU and --device is cpu; the CPU takes fp32, --bf16 or --int8"),
        ("--device cuda --int8", "--int8 runs on the CPU and --device is cuda"),
        ("--device cuda", "--device is cuda; this machine has 0 CUDA devices"),
    ):
        with pytest.raises(InputError, match=message):
            device(*options.split())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device("--fp16") == torch.device("cuda", 0)
    assert device("--device", "cuda:1") == torch.device("cuda", 1)
    with pytest.raises(InputError, match=r"--device is cuda:2; this machine has 2 CUDA devices"):
        device("--device", "cuda:2")
    monkeypatch.setenv("LOCAL_RANK", "1")  # torchrun's
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert device("--device", "cuda") == torch.device("cuda", 1)
    with pytest.raises(InputError, match="--device is cuda:1, and torchrun started several processes"):
        parse("--device", "cuda:1")
    assert chosen == [0, 1, 1]


def test_the_task_is_that_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertForTokenClassification"]}')
    positional = [str(tmp_path), *POSITIONAL[1:]]
    assert parse_eval_arguments(positional).task == "tagging"
    assert parse_eval_arguments([*positional, "--task", "classification"]).task == "classification"
    assert parse().task == "summarization"
