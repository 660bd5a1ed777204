"""Decoding options: what is refused and in which words, and what a file or a model config gives."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import transformers

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.generation import GenerationConfig


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 0},
        {"max_length": 1},
        {"min_length": -1},
        {"length_penalty": float("nan")},
        {"early_stopping": "always"},
        {"temperature": 0},
        {"top_p": 1.1},
        {"encoder_no_repeat_ngram_size": 1.5},
        {"bad_words_ids": [[]]},
        {"eos_token_id": []},
        {"forced_bos_token_id": [0]},
        {"num_return_sequences": 5, "num_beams": 4},
        {"num_beam_groups": 2, "num_beams": 4},
        {"diversity_penalty": 1.0},
        {"output_scores": 1},
    ],
    ids=str,
)
def test_bad_value_is_named_with_what_is_allowed(options: dict):
    name = next(iter(options))
    with pytest.raises(InputError) as error:
        GenerationConfig().merged(**options)
    message = str(error.value)
    assert message.startswith(f"{name} is {options[name]!r}; allowed: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("num_beam", "num_beam is 4, which is no generation option here: did you mean 'num_beams'\\?$"),
        ("typical_p", "typical_p is 4, which is no generation option here: leave it off, or give a logits_processor"),
    ],
)
def test_unknown_options_are_explained(name: str, message: str):
    with pytest.raises(InputError, match=f"^{message}"):
        GenerationConfig().merged(**{name: 4})


def test_every_argument_of_transformers_generate_is_known_or_explained():
    theirs = transformers.GenerationMixin.generate
    names = {*inspect.signature(theirs).parameters, *transformers.GenerationConfig().to_dict()}
    names -= {"self", "kwargs", "generation_config", "encoder_outputs", "transformers_version", "_from_model_config"}
    ours = {field.name for field in dataclasses.fields(GenerationConfig)}
    for name in names - ours:
        with pytest.raises(InputError, match=f"^{name} is "):
            GenerationConfig().merged(**{name: object()})


def test_none_switches_an_option_off():
    config = GenerationConfig(num_beams=4, top_k=10, forced_bos_token_id=0)
    off = config.merged(num_beams=None, top_k=None, top_p=None, forced_bos_token_id=None, early_stopping=None)
    assert (off.num_beams, off.top_k, off.top_p) == (1, 0, 1.0)
    assert (off.forced_bos_token_id, off.early_stopping) == (None, False)
    assert config.num_beams == 4, "the original is changed"


def test_hub_file_loads_with_its_bookkeeping(recwarn: pytest.WarningsRecorder):
    config = GenerationConfig.from_dict(
        {
            "_from_model_config": True,
            "transformers_version": "4.27.0.dev0",
            "use_cache": True,
            "length_penalty": 2.0,
            "max_length": 142,
            "num_beams": 4,
            "top_k": None,
            "typical_p": None,
        }
    )
    assert (config.num_beams, config.max_length, config.length_penalty) == (4, 142, 2.0)
    assert config.top_k == 50
    assert not recwarn.list
    with pytest.warns(UserWarning, match="num_beam'"):  # which may be misspelt
        GenerationConfig.from_dict({"num_beam": 4, "bos_token_id": 0})
    with pytest.warns(UserWarning, match="typical_p"):  # an option that is not supported
        config = GenerationConfig.from_dict({"typical_p": 0.9, "num_beams": 3})
    assert config.num_beams == 3
    with pytest.warns(UserWarning, match=r"ignored: \['suppress_tokens'\]"):  # of a config.json, too
        GenerationConfig.from_model_config({"eos_token_id": 2, "suppress_tokens": [4], "min_p": None, "num_labels": 2})


def test_values_without_effect_are_not_warned_of(recwarn: pytest.WarningsRecorder):
    """transformers 4 wrote all options into each config.json."""
    names = {"typical_p": 1.0, "epsilon_cutoff": 0.0, "encoder_repetition_penalty": 1.0, "suppress_tokens": None}
    names |= {"remove_invalid_values": False, "begin_suppress_tokens": []}
    GenerationConfig.from_model_config({"eos_token_id": 2, **names})
    assert not recwarn.list


def test_model_config_gives_its_decoding_options_and_ids():
    fields = BartConfig(num_beams=6, length_penalty=0.8, max_length=62, forced_bos_token_id=0, eos_token_id=3).to_dict()
    config = GenerationConfig.from_model_config(fields)
    assert (config.num_beams, config.length_penalty, config.max_length) == (6, 0.8, 62)
    assert (config.pad_token_id, config.bos_token_id, config.decoder_start_token_id) == (1, 0, 2)
    assert config.forced_bos_token_id == 0
    assert config.eos_token_id == config.forced_eos_token_id == 3
    fields = {"eos_token_id": 2, "forced_eos_token_id": None}  # null: none is forced
    assert GenerationConfig.from_model_config(fields).forced_eos_token_id is None


def test_lengths():
    assert GenerationConfig().longest(1024) == 21
    assert GenerationConfig().longest(16) == 16
    assert GenerationConfig(max_length=17).longest(16) == 17
    assert GenerationConfig(max_length=50, max_new_tokens=7).longest(16) == 8
    assert GenerationConfig(min_length=9, min_new_tokens=3).shortest == 4
    with pytest.raises(InputError, match="max_length is 18.*at most 17"):
        GenerationConfig(max_length=18).longest(16)
    with pytest.raises(InputError, match="max_new_tokens is 17.*at most 16"):
        GenerationConfig(max_new_tokens=17).longest(16)
